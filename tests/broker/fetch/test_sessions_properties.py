"""A fetch that reads only marked partitions responds like one that reads all of them.

Two brokers live through the same random history. One of them settles partitions, the other never
does and so reads all partitions of a session with each fetch. Responses, high watermarks, ISR
proposals and the times at which followers were caught up have to be the same after each step.
"""

import asyncio
import inspect
import struct
import tempfile
import uuid
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm import slices
from klamm.broker.delayed.purgatory import Purgatories
from klamm.broker.fetch.reader import FetchReader
from klamm.broker.fetch.sessions import FetchSessions
from klamm.broker.handlers.dispatch import Call
from klamm.broker.handlers.fetch import FetchHandlers
from klamm.broker.identity import BrokerIdentity
from klamm.broker.log.checkpoints import MetaProperties
from klamm.broker.log.errors import AppendError
from klamm.broker.log.manager import LogManager
from klamm.broker.log.results import Slice
from klamm.broker.log.validation import AppendOrigin
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.metadata.topic_configs import TopicConfigs
from klamm.broker.meters import BrokerMeters
from klamm.broker.replication.isr import AlterPartitionItem, AlterPartitionResult
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.replication.partition import LeaderAndIsrPartitionState, Partition
from klamm.config.broker import BrokerConfig
from klamm.names import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode as E
from klamm.protocol.fast.fetch import FetchRequest, FetchTopic, ForgottenTopic, encode_fetch_request
from klamm.protocol.fast.fetch_response import decode_fetch_response
from klamm.protocol.records import Record, build_batch, iterate_batches
from klamm.zookeeper.memory import MemoryZooKeeper
from tests.broker.log.making import NOW, UnsyncedFiles, batch_of

TOPIC, TOPIC_ID = "t", uuid.UUID(int=7)
PARTITIONS = tuple(range(4))
REPLICAS = (1, 2, 3)
MAX_LAG_MS = 1000
BY_NAME, BY_ID = 12, 17


class PlainReader(FetchReader):
    """Never takes a partition for settled."""

    _is_settled = staticmethod(lambda *_: False)  # type: ignore[assignment]


class Metadata(MetadataCache):
    """Knows no topics; who is alive is up to the test."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = set(REPLICAS)

    def is_alive(self, broker: int) -> bool:
        return broker in self.alive


@dataclass
class Proposals:
    """ISR proposals that wait for the controller."""

    waiting: dict[TopicPartition, AlterPartitionItem] = field(default_factory=dict)

    def submit(self, proposal: AlterPartitionItem) -> None:
        self.waiting[proposal.partition] = proposal

    def submit_later(self, proposal: AlterPartitionItem, is_wanted: Any) -> None:
        self.submit(proposal)

    def withdraw(self, name: TopicPartition) -> None:
        self.waiting.pop(name, None)


@dataclass
class Client:
    """A follower or consumer with one session, and at most one request on its way."""

    replica: int
    version: int
    is_committed: bool = False
    session_id: int = 0
    epoch: int = 0
    offsets: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    last_epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, -1))
    in_session: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    waiting: asyncio.Future[Any] | None = None
    connection: Any = field(
        default_factory=lambda: SimpleNamespace(listener="PLAINTEXT", shortcut=None)
    )


class Broker:
    """Broker 1 with real logs, replicas and purgatories; time and controller are the test's."""

    def __init__(self, directory: Path, reader: type[FetchReader]) -> None:
        self.now_ms = NOW
        #: Requests that were served by a shortcut; None if no request may be.
        self.shortcuts: int | None = None if reader is PlainReader else 0
        config = BrokerConfig.from_properties(
            {
                "broker.id": "1",
                "zookeeper.connect": "localhost:2181",
                "log.dirs": str(directory),
                "replica.lag.time.max.ms": str(MAX_LAG_MS),
                "transaction.partition.verification.enable": "false",
            }
        )
        identity, metadata, meters = BrokerIdentity(1, "cluster", 1), Metadata(), BrokerMeters()
        self.alive = metadata.alive
        self.sessions = FetchSessions(3, count(100).__next__)
        self.purgatories = Purgatories(self, self.sessions.partitions)
        self.purgatories._start_timer = lambda _: None  # type: ignore[method-assign]
        topics = TopicConfigs(config, MemoryZooKeeper().session())
        logs = LogManager(
            [directory], config_of=topics.of, on_failure=lambda _: None, files=UnsyncedFiles()
        )
        logs.open(MetaProperties(1, "cluster"))
        logs.load(now_ms=NOW)
        self.logs, self.proposals = logs, Proposals()
        self.replicas = ReplicaManager(
            config,
            identity,
            metadata,
            logs,
            topics,
            self.proposals,  # type: ignore[arg-type]
            self.purgatories,
            meters,
            self,
        )
        self.replicas.is_shutting_down = True  # it follows nobody
        self._fetch = FetchHandlers(
            config,
            reader(self.replicas, metadata, meters, self),
            self.sessions,
            self.purgatories,
            metadata,
            self,
        ).handlers()[ApiKey.FETCH]
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.sequences = dict.fromkeys(PARTITIONS, 0)
        self.clients = [
            Client(2, BY_ID),
            Client(3, BY_NAME),
            Client(-1, BY_NAME),
            Client(-1, BY_NAME, is_committed=True),
        ]
        for partition in PARTITIONS:
            self.lead(partition, 0)

    def steady_ms(self) -> int:
        return self.now_ms

    wall_ms = steady_ms

    def state(self) -> list[Any]:
        """What must not depend on which partitions a fetch looks at."""
        found = [self.replicas.find(TopicPartition(TOPIC, each)) for each in PARTITIONS]
        return [
            (
                each.role,
                each.isr,
                each.log.high_watermark if each.log else None,
                {
                    replica: (follower.end_offset, follower.start_offset, follower.caught_up_ms)
                    for replica, follower in each.followers.items()
                },
                each.pending and each.pending.isr,
            )
            if isinstance(each, Partition)
            else each
            for each in found
        ] + [len(self.sessions), self.purgatories.sizes()["Fetch"].requests]

    # Steps

    def lead(self, partition: int, without: int, *, is_led: bool = True) -> None:
        """Apply a LeaderAndIsr with a new epoch, and one follower less in the ISR."""
        self.epochs[partition] += 1
        epoch = self.epochs[partition]
        isr = tuple(each for each in REPLICAS if each != without)
        state = LeaderAndIsrPartitionState(1 if is_led else 2, epoch, isr, epoch, REPLICAS)
        self.replicas.apply(TopicPartition(TOPIC, partition), TOPIC_ID, state)

    def follow(self, partition: int) -> None:
        self.lead(partition, 0, is_led=False)

    def delete(self, partition: int) -> None:
        self.replicas.stop(TopicPartition(TOPIC, partition), -2, delete=True)

    def append(self, partition: int, number: int) -> E:
        return self._append(partition, batch_of(number, value=b"v" * 50))

    def transact(self, partition: int) -> E:
        sequence = self.sequences[partition]
        self.sequences[partition] += 1
        batch = batch_of(
            producer_id=5, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        return self._append(partition, batch)

    def end_transaction(self, partition: int, is_commit: bool) -> E:
        record = Record(struct.pack(">hh", 0, is_commit), struct.pack(">hi", 0, 0), self.now_ms)
        marker = build_batch(
            [record], producer_id=5, producer_epoch=0, transactional=True, control=True
        )
        return self._append(partition, bytes(marker.data), AppendOrigin.COORDINATOR)

    def _append(
        self, partition: int, batch: bytes, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> E:
        try:
            name = TopicPartition(TOPIC, partition)
            self.replicas.append(name, batch, acks_all=False, origin=origin)
        except AppendError as error:
            return error.code
        return E.NONE

    def delete_records(self, partition: int, offset: int) -> tuple[E, int]:
        return self.replicas.delete_records(TopicPartition(TOPIC, partition), offset)

    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for _ in self.replicas.shrink_isrs():
            pass

    def expire(self) -> None:
        """Let the timeouts of all waiting fetches pass."""
        self.now_ms += 500
        self.purgatories._expire()

    def settle_proposals(self, is_accepted: bool) -> None:
        waiting, self.proposals.waiting = self.proposals.waiting, {}
        for proposal in waiting.values():
            accepted = AlterPartitionResult(
                E.NONE, proposal.leader_epoch, proposal.partition_epoch + 1, proposal.isr
            )
            refused = AlterPartitionResult(E.INELIGIBLE_REPLICA)
            self.replicas.on_alter_partition_result(proposal, accepted if is_accepted else refused)

    def die_or_return(self, replica: int) -> None:
        self.alive ^= {replica}

    def throttle(self, rate: int | None) -> None:
        self.replicas.leader_throttle.set_partitions(TOPIC, None)
        self.replicas.leader_throttle.set_rate(rate, self.now_ms)

    def change_isolation(self, number: int) -> None:
        self.clients[number].is_committed ^= True

    async def fetch(
        self, number: int, extra: frozenset[int], min_bytes: int, max_bytes: int
    ) -> None:
        """Send a request that names what has changed, and what is `extra`; forget the rest."""
        client = self.clients[number]
        if client.waiting is not None:
            return
        if not client.epoch:
            named = set(PARTITIONS) - extra
            client.in_session = set(named)
            forgotten: set[int] = set()
        else:
            named = client.changed & client.in_session | extra
            forgotten = set()
            if len(extra) == 1 and number % 2 and len(client.in_session) > 1:
                forgotten, named = named & client.in_session, set()
            client.in_session = (client.in_session | named) - forgotten
        client.changed -= named
        key = (None, TOPIC_ID) if client.version == BY_ID else (TOPIC, None)
        entries = [
            SimpleNamespace(
                partition=each,
                current_leader_epoch=self.epochs[each] if client.replica > 0 else -1,
                fetch_offset=client.offsets[each],
                last_fetched_epoch=client.last_epochs[each] if client.replica > 0 else -1,
                log_start_offset=0 if client.replica > 0 else -1,
                partition_max_bytes=max_bytes,
            )
            for each in sorted(named)
        ]
        request = FetchRequest(
            client.replica,
            1 if client.version == BY_ID else -1,
            10**7,
            min_bytes,
            max_bytes,
            int(client.is_committed),
            client.session_id,
            client.epoch,
            [FetchTopic(*key, entries)] if entries else [],
            [ForgottenTopic(*key, sorted(forgotten))] if forgotten else [],
            "",
        )
        header = RequestHeader(ApiKey.FETCH, client.version, 1, "test")
        result = self._serve(client, header, request)
        if inspect.isawaitable(result):
            client.waiting = asyncio.ensure_future(result)
        else:
            client.waiting = asyncio.get_running_loop().create_future()
            client.waiting.set_result(result)

    def _serve(self, client: Client, header: RequestHeader, request: FetchRequest) -> Any:
        frame = memoryview(encode_fetch_request(header, request)[4:])
        if self.shortcuts is not None and client.connection.shortcut is not None:
            taken = client.connection.shortcut.take(frame, 0)
            if taken is not None:
                self.shortcuts += 1
                call, handle = taken
                return handle(call)
        call = Call(client.connection, header, request, frame, None, 0, 0)  # type: ignore[arg-type]
        return self._fetch(call)

    async def go_on(self) -> list[Any]:
        """Let every client have its response, and send its next request."""
        self.expire()
        seen = await self.responses()
        for number in range(len(self.clients)):
            await self.fetch(number, frozenset(), 1, 1 << 20)
        return seen

    async def take_turn(self) -> list[Any]:
        """Let the clients that have their response send the next request."""
        seen = await self.responses()
        for number in range(len(self.clients)):
            await self.fetch(number, frozenset(), 1, 1 << 20)
        return seen

    async def responses(self) -> list[Any]:
        """Hand out the responses that have been sent."""
        for _ in range(4):
            await asyncio.sleep(0)
        found = []
        for client in self.clients:
            if client.waiting is not None and client.waiting.done():
                frame = b"".join(
                    part.bytes() if isinstance(part, Slice) else bytes(part)
                    for part in client.waiting.result().parts
                )
                client.waiting = None
                at = 9  # size, correlation id, tags
                response = decode_fetch_response(memoryview(frame), at, client.version)
                self._take(client, response)
                found.append((client.replica, response, frame))
            else:
                found.append(None)
        return found

    @staticmethod
    def _take(client: Client, response: Any) -> None:
        if response.error_code or not response.session_id:
            client.session_id = client.epoch = 0
            client.changed = set(PARTITIONS)
            return
        client.session_id = response.session_id
        client.epoch += 1
        for topic in response.topics:
            for entry in topic.partitions:
                before = client.offsets[entry.partition], client.last_epochs[entry.partition]
                offset, epoch = before
                if entry.error_code == E.OFFSET_OUT_OF_RANGE:
                    offset, epoch = max(entry.log_start_offset, 0), -1
                elif entry.diverging_epoch is not None:
                    offset = min(offset, max(entry.diverging_epoch.end_offset, 0))
                    epoch = entry.diverging_epoch.epoch
                elif not entry.error_code and entry.records:
                    for batch in iterate_batches(entry.records, may_end_early=True):
                        offset = batch.header.last_offset + 1
                        epoch = batch.header.leader_epoch
                client.offsets[entry.partition] = offset
                client.last_epochs[entry.partition] = epoch
                if (offset, epoch) != before or entry.error_code:
                    client.changed.add(entry.partition)

    def close(self) -> None:
        for client in self.clients:
            if client.waiting is not None:
                client.waiting.cancel()
        self.purgatories.close()
        self.logs.release()


partitions = st.sampled_from(PARTITIONS)
clients = st.integers(0, 3)
steps = st.one_of(
    st.tuples(
        st.just("fetch"),
        clients,
        st.frozensets(partitions, max_size=2),
        st.sampled_from([1, 1, 1, 150, 400]),
        st.sampled_from([100, 300, 1 << 20, 1 << 20]),
    ),
    st.tuples(st.just("go_on")),
    st.tuples(st.just("go_on")),
    st.tuples(st.just("append"), partitions, st.integers(1, 3)),
    st.tuples(st.just("append"), partitions, st.integers(1, 3)),
    st.tuples(st.just("transact"), partitions),
    st.tuples(st.just("end_transaction"), partitions, st.booleans()),
    st.tuples(st.just("expire")),
    st.tuples(st.just("pass_time"), st.sampled_from([10, MAX_LAG_MS - 1, MAX_LAG_MS + 1])),
    st.tuples(st.just("settle_proposals"), st.booleans()),
    st.tuples(st.just("lead"), partitions, st.sampled_from([0, 2, 3])),
    st.tuples(st.just("follow"), partitions),
    st.tuples(st.just("delete"), partitions),
    st.tuples(st.just("delete_records"), partitions, st.integers(-1, 4)),
    st.tuples(st.just("die_or_return"), st.sampled_from([2, 3])),
    st.tuples(st.just("throttle"), st.sampled_from([None, 0, 100])),
    st.tuples(st.just("change_isolation"), clients),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(steps, min_size=40, max_size=80))
def test_a_session_answers_as_if_it_looked_at_all_its_partitions(history):
    compare(history)


#: What happens to a follower that keeps up, and now and then something else.
steady_steps = st.one_of(
    st.tuples(st.just("append"), partitions, st.integers(1, 3)),
    st.tuples(st.just("append"), partitions, st.integers(1, 3)),
    st.tuples(st.just("take_turn")),
    st.tuples(st.just("take_turn")),
    st.tuples(st.just("take_turn")),
    steps,
)


@settings(max_examples=15, deadline=None)
@given(st.lists(steady_steps, min_size=60, max_size=120))
def test_a_steady_fetch_has_the_response_of_any_other(history):
    start = [("take_turn",), ("go_on",), ("go_on",), ("settle_proposals", True)]
    compare([*start, *history])


def test_followers_that_keep_up_are_served_by_the_shortcut():
    """Once their session is there and they are in the ISR, with one record or with several."""
    start = [("go_on",), ("go_on",), ("go_on",), ("settle_proposals", True), ("go_on",)]
    appends = [("append", number % len(PARTITIONS), 1) for number in range(10)]
    several = [("append", 0, 1), ("append", 1, 2), ("append", 2, 1)]
    turns = [step for each in appends for step in (each, ("take_turn",))]
    assert compare([*start, *turns, *several, ("take_turn",), ("take_turn",)]) >= len(appends)


def test_a_follower_that_reads_committed_records_has_the_response_of_any_other():
    """No follower does, but the protocol allows it: each result has a list of transactions."""
    start = [("go_on",), ("go_on",), ("settle_proposals", True), ("go_on",)]
    turns = [step for _ in range(8) for step in (("append", 0, 1), ("take_turn",))]
    compare([*start, ("transact", 0), ("change_isolation", 0), *turns])


def compare(history: list[Any]) -> int:
    """Let two brokers live through a history; return how many requests took the shortcut."""
    taken = 0

    async def live() -> None:
        nonlocal taken
        with tempfile.TemporaryDirectory() as directory:
            brokers = [
                Broker(Path(directory, reader.__name__), reader)
                for reader in (FetchReader, PlainReader)
            ]
            try:
                for step, *arguments in history:
                    seen = []
                    for broker in brokers:
                        outcome = getattr(broker, step)(*arguments)
                        if asyncio.iscoroutine(outcome):
                            outcome = await outcome
                        seen.append((outcome, await broker.responses(), broker.state()))
                    assert seen[0] == seen[1], step
                taken = brokers[0].shortcuts or 0
            finally:
                for broker in brokers:
                    broker.close()

    # A slice that ends because the machine is slow would let other requests overtake in one broker.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slices, "SLICE_S", float("inf"))
        asyncio.run(live())
    return taken


def test_an_append_while_a_fetch_reads_in_slices_ends_its_wait(tmp_path, monkeypatch):
    """Others are served between slices, and what they append may be what the fetch waits for."""
    monkeypatch.setattr(slices, "SLICE_S", -1.0)

    async def let_run() -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    async def live() -> None:
        broker = Broker(tmp_path, FetchReader)
        try:
            for _ in range(2):  # the first fetch opens the session, the second settles partitions
                await broker.fetch(0, frozenset(), 0, 1 << 20)
                await let_run()
                await broker.responses()
            await broker.fetch(0, frozenset({0, 1}), 1, 1 << 20)
            await asyncio.sleep(0)
            broker.append(3, 1)
            await let_run()
            _, response, _ = (await broker.responses())[0]
            assert [each.partition for topic in response.topics for each in topic.partitions] == [3]
        finally:
            broker.close()

    asyncio.run(live())
