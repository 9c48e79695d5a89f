"""One history's world: its time, its chance, its machines, and the log of what happened."""

import asyncio
import contextlib
import gc
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from klamm.config.broker import BrokerConfig
from klamm.errors import KlammError
from klamm.node.controller_link import ProcessLink
from klamm.node.controller_process import run_candidate
from klamm.node.node import Node
from klamm.zookeeper.store import Delete
from tests.simulation.checks import Checks
from tests.simulation.disk import SimulatedFiles
from tests.simulation.ensemble import Ensemble, SimulatedStore
from tests.simulation.loop import CURRENT, Process, SimulatedLoop, current, wait_until
from tests.simulation.network import Network

PORT = 9092
_SUPERVISOR_S = 0.5
SETTINGS = {
    "zookeeper.connect": "zookeeper:2181",
    "zookeeper.session.timeout.ms": "1500",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "500",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "1500",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "socket.connection.setup.timeout.ms": "1000",
    "request.timeout.ms": "1500",
    "controller.socket.timeout.ms": "1500",
    "controlled.shutdown.retry.backoff.ms": "300",
    "leader.imbalance.check.interval.seconds": "5",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "offsets.commit.timeout.ms": "1500",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.segment.bytes": "2000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.segment.bytes": "2000",
    "log.index.interval.bytes": "200",
    "log.segment.delete.delay.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "3000",
    "log.flush.start.offset.checkpoint.interval.ms": "3000",
    "log.flush.scheduler.interval.ms": "2000",
    "log.flush.interval.ms": "2000",
    "log.initial.task.delay.ms": "1000",
    "log.cleaner.enable": "false",
    "auto.create.topics.enable": "false",
}


class Machine:
    """A node's machine: its disks, and what runs on it, if anything does."""

    def __init__(self, world: "World", number: int) -> None:
        self.number = number
        self.name = f"b{number}"
        self.directories = [world.directory / self.name / disk for disk in ("disk1", "disk2")]
        self.files = SimulatedFiles(world.chance(f"disk of {self.name}"))
        self.broker: Process | None = None
        self.candidate: Process | None = None
        self.node: Node | None = None
        #: By how much its clock is wrong.
        self.clock_offset_s = 0.0
        self._world = world
        self._lives = 0
        properties = SETTINGS | {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "log.dirs": ",".join(map(str, self.directories)),
            # The files of the history are written by threads, which have no place here.
            "klamm.history.retention.bytes": "0",
        }
        self._config = BrokerConfig.from_properties(properties)

    @property
    def is_up(self) -> bool:
        return self.broker is not None and self.broker.is_alive

    def start(self) -> None:
        """Switch it on."""
        world = self._world
        self.files.full.clear()
        process = self.broker = world.new_process(self.name, self.name)
        self.files.process = process
        process.clock_offset_s = self.clock_offset_s
        process.on_end.append(self._broker_ended)
        process.start(self._run(process))
        self._lives += 1
        world.note(self.name, "starts" if self._lives == 1 else "starts again")

    async def _run(self, process: Process) -> None:
        try:
            self.node = Node(self._config)
            await self.node.run()
            self._world.note(self.name, "has stopped")
        except KlammError as error:
            self._world.note(self.name, f"gives up: {error}")
            self._world.loop.call_later(
                _SUPERVISOR_S, self._start_again, context=self._world.loop.outside
            )
        process.end()

    def _start_again(self) -> None:
        """What a supervisor does about a process that has given up."""
        if not self.is_up:
            self.start()

    def crash(self) -> None:
        """Both processes are gone at once."""
        if self.broker is not None:
            self.broker.end()

    def _broker_ended(self) -> None:
        # The kernel ends the candidate together with its parent.
        if self.candidate is not None:
            self.candidate.end()

    def processes(self) -> list[Process]:
        return [each for each in (self.broker, self.candidate) if each and each.is_alive]


class World:
    """Everything there is, from one seed."""

    def __init__(self, seed: str, directory: Path, checks: Checks, brokers: int = 3) -> None:
        self.seed = seed
        self.directory = directory
        self._home = f"{directory}/"
        self.checks = checks
        self.lines: list[str] = []
        self.network = Network(self.chance("network"), self._note_message)
        self.loop = SimulatedLoop(self.chance("threads"), self.network)
        self.network.loop = self.loop
        self.zookeeper = Ensemble(self.loop, self.chance("zookeeper"), checks.on_transaction)
        self.machines = {n: Machine(self, n) for n in range(1, brokers + 1)}
        self.operations = 0
        checks.attach(self)
        self.loop.on_failure = checks.fail

    def chance(self, purpose: str) -> random.Random:
        """A source of chance of its own for each purpose, so that none disturbs another."""
        return random.Random(f"{self.seed}/{purpose}")

    @property
    def events(self) -> int:
        """Messages delivered, requests to ZooKeeper, and what clients and faults have done."""
        return self.network.delivered + self.zookeeper.requests + self.operations

    # The log

    def note(self, who: str, what: str) -> None:
        """Something worth telling has happened."""
        # Where the disks are is no part of the history.
        what = what.replace(self._home, "")
        self.lines.append(f"{self.loop.time():9.4f} {who}: {what}")

    def _note_message(self, sender: str, receiver: str, label: str) -> None:
        self.lines.append(f"{self.loop.time():9.4f} {sender} > {receiver} {label}")

    # Processes

    def new_process(self, name: str, node: str) -> Process:
        process = Process(name, node, self.loop)
        process.on_end.append(lambda: self.network.forget(process))
        process.on_end.append(lambda: self.zookeeper.lose_sight(process))
        return process

    async def spawn_candidate(
        self, parent: Process
    ) -> tuple[Process, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        machine = self.machine_of(parent)
        child = machine.candidate = self.new_process(f"c{machine.number}", machine.name)
        child.clock_offset_s = machine.clock_offset_s
        ours, protocol = _stream(self.loop)

        def accept() -> Any:
            reader, theirs = _stream(self.loop)

            def connected(transport: Any) -> None:
                asyncio.StreamReaderProtocol.connection_made(theirs, transport)
                writer = asyncio.StreamWriter(transport, theirs, reader, self.loop)
                child.start(self._run_candidate(child, ProcessLink(reader, writer)))

            theirs.connection_made = connected  # type: ignore[method-assign]
            return theirs

        end = self.network.join(parent, protocol, child, accept).ends[0]
        protocol.connection_made(end)
        return child, (ours, asyncio.StreamWriter(end, protocol, ours, self.loop))

    async def _run_candidate(self, process: Process, link: ProcessLink) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await run_candidate(link)
        process.end()

    async def open_store(self, session_timeout_ms: int) -> SimulatedStore:
        process = current()
        await wait_until(lambda: not self.zookeeper.is_silent(process))
        return self.zookeeper.open(session_timeout_ms)

    def machine_of(self, process: Process) -> Machine:
        return next(each for each in self.machines.values() if each.name == process.node)

    def files_of(self, process: Process) -> SimulatedFiles:
        return self.machine_of(process).files

    # ZooKeeper, as an operator sees it

    def is_registered(self, broker: int) -> bool:
        return f"/brokers/ids/{broker}" in self.zookeeper._nodes

    def delete_controller(self) -> None:
        if "/controller" in self.zookeeper._nodes:
            self.zookeeper._transact([Delete("/controller")], 0)

    # Running

    def run(self, main: Callable[[], Any]) -> None:
        """Let a coroutine of the simulation's own run to its end."""
        try:
            self.loop.run_until_complete(main())
        except RuntimeError:
            if self.checks.failure is None:
                raise

    def close(self) -> None:
        """Let go of everything, so that the next history starts from nothing."""
        self.network.close()
        self.loop.bury()
        self.machines.clear()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Look at something again and again; whether it came true in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await wait_until(condition)
        except TimeoutError:
            return condition()
        return True


def _stream(loop: Any) -> tuple[asyncio.StreamReader, asyncio.StreamReaderProtocol]:
    reader = asyncio.StreamReader(loop=loop)
    return reader, asyncio.StreamReaderProtocol(reader, loop=loop)


class StoryLog(logging.Handler):
    """Puts what klamm's parts log into the story, under the name of the process."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._world.note(process.name if process else "-", f"[{text}]")


@contextlib.contextmanager
def told(world: World) -> Any:
    """Have the parts' own logs in the story for as long as this lasts."""
    handler = StoryLog(world)
    loggers = [logging.getLogger(name) for name in ("klamm", "state.change.logger")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


@contextlib.contextmanager
def without_collector() -> Any:
    """What is collected when depends on what was there before: not while a history runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
