"""Where klamm's code meets the world: each edge is replaced by the simulated one.

Everything else runs as it is: a node from `Node.run` on, its candidate from `run_candidate` on.
Replaced are the clock, chance, threads, ZooKeeper's session, the listening socket, the second
process and the history's files.
"""

import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import klamm.broker.data_plane
import klamm.broker.scheduler
import klamm.node.controller_link
import klamm.node.controller_process
import klamm.node.node
from klamm.broker.log.manager import LogManager
from klamm.core.cluster import ClusterState
from klamm.core.context import Context
from klamm.node.controller_link import ProcessLink
from tests.simulation.loop import CURRENT, Process, ProcessExit, current
from tests.simulation.network import SimulatedServer

#: When all histories begin.
START_S = 1_700_000_000.0


class InlineExecutor(Executor):
    """Does at once what a pool of threads would do soon."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **options))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, fn: Callable[..., Any], *iterables: Any, **_: Any) -> Any:
        return map(fn, *iterables)


class ChildProcess:
    """What the broker holds of its candidate's process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def kill(self) -> None:
        self._process.end()

    def wait(self) -> int:
        return -9

    def poll(self) -> int | None:
        return None if self._process.is_alive else -9

    def send_signal(self, number: int) -> None:
        self._process.signal(number)


class SimulatedCandidate(klamm.node.controller_link.ControllerLink):
    """The broker's side of its candidate, which lives on the same loop."""

    world: Any

    async def spawn(self) -> None:
        child, (reader, writer) = await self.world.spawn_candidate(current())
        self._process = ChildProcess(child)  # type: ignore[assignment]
        self._link = ProcessLink(reader, writer)
        self._serving = klamm.node.controller_link.asyncio.create_task(
            self._serve(self._link, self._process)  # type: ignore[arg-type]
        )


class Watcher:
    """Stands where the history does: has every event and every effect checked."""

    checks: Any

    def __init__(self, config: Any, *_: Any) -> None:
        self._broker = config.broker_id
        self._event = ""

    def begin(self, queued: Any, epoch: int, at: float) -> None:
        self._event = type(queued.event).__name__
        self.checks.on_controller_event(self._broker, self._event, queued.cause)

    def performed(self, cluster: ClusterState, effect: Any, reply: Any, elapsed_s: float) -> None:
        self.checks.on_effect(self._broker, cluster, effect)

    def queued(self, elapsed_s: float) -> None:
        pass

    def end(self, outcome: str, context: Context | None) -> None:
        self.checks.after_controller_event(self._broker, self._event, outcome, context)

    async def close(self) -> None:
        pass


def only_here(real: Callable[..., Any], substitute: Callable[..., Any]) -> Callable[..., Any]:
    """The substitute in this thread, and the real thing in others.

    A client of a real ZooKeeper may live in the same process, with a thread of its own: it would
    draw from the history's chances, which are another history's then, and live by its clock.
    """
    here = threading.get_ident()

    def call(*args: Any) -> Any:
        return (substitute if threading.get_ident() == here else real)(*args)

    return call


@contextmanager
def simulated_edges(world: Any) -> Iterator[None]:
    """Let klamm's code run in `world` for as long as this lasts."""
    chance: random.Random = world.chance("klamm")

    def now() -> float:
        process = CURRENT.get()
        return START_S + world.loop.time() + (process.clock_offset_s if process else 0.0)

    def leave(code: int) -> None:
        world.note(current().name, f"exits with {code}")
        current().end()
        raise ProcessExit

    async def open_store(connect: str, session_timeout_ms: int, **_: Any) -> Any:
        return await world.open_store(session_timeout_ms)

    server = type("Server", (SimulatedServer,), {"network": world.network})
    candidate = type("Candidate", (SimulatedCandidate,), {"world": world})
    watcher = type("Watcher", (Watcher,), {"checks": world.checks})
    substitutes = [
        *(
            (owner, name, only_here(getattr(owner, name), substitute))
            for owner, name, substitute in (
                (time, "time", now),
                (time, "monotonic", world.loop.time),
                (os, "urandom", chance.randbytes),
                (os, "_exit", leave),
                (uuid, "uuid4", lambda: uuid.UUID(bytes=chance.randbytes(16), version=4)),
                (random, "randint", chance.randint),
                (random, "uniform", chance.uniform),
                (random, "SystemRandom", lambda: chance),
            )
        ),
        (klamm.node.node, "open_store", open_store),
        (klamm.node.node, "Server", server),
        (klamm.node.node, "ControllerLink", candidate),
        (klamm.broker.data_plane, "ThreadPoolExecutor", InlineExecutor),
        (klamm.broker.scheduler, "ThreadPoolExecutor", InlineExecutor),
        (klamm.node.controller_process, "open_store", open_store),
        (klamm.node.controller_process, "History", watcher),
        (
            klamm.broker.data_plane,
            "LogManager",
            lambda paths, **options: partial(LogManager, paths, files=world.files_of(current()))(
                **options
            ),
        ),
    ]
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"HOSTNAME": "simulated"}))
        for owner, name, substitute in substitutes:
            stack.enter_context(patch.object(owner, name, substitute))
        yield
