"""Transactions in a history: writers that fence each other, a reader of committed records, and the
ledger of what each transaction was told to be.

A transaction writes to both partitions of a topic and commits an offset of a group. Afterwards it
is there as a whole, on all partitions and in the group, or not at all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from klamm.broker.groups.messages import OffsetFetchRequest
from klamm.broker.log.log import Log
from klamm.errors import UnavailableError
from klamm.names import CONSUMER_OFFSETS, TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Batch, Record, build_batch, iterate_batches, iterate_records
from tests.simulation.clients import Client
from tests.simulation.world import World

LEDGER = "ledger"
PARTITIONS = (0, 1)
GROUP = "copiers"
TRANSACTIONAL_ID = "ledger-writer"
TIMEOUT_MS = 3000
_PAUSE_S = 0.1
_COMMIT = 1
_LATE_CHANCE = 0.05
_TRANSACTION_KEY, _GROUP_KEY = 1, 0
_ANSWER_LOST = ErrorCode.NETWORK_EXCEPTION

#: After these the same request is sent again, perhaps to another broker.
_AGAIN = frozenset(
    {
        _ANSWER_LOST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        # A coordinator whose disk is full, say, does not know what to call it.
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class Told(Enum):
    """What the writer of a transaction knows about its outcome."""

    COMMITTED = "committed"
    #: It never asked for a commit, or was refused one without having asked before.
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass
class Entry:
    """One transaction."""

    offset: int  # what it commits for the group
    told: Told = Told.ABORTED


class Ledger:
    """All transactions of a history, by the value that their records have."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: dict[bytes, Entry] = {}
        #: By partition and offset: what a reader of committed records was given.
        self.seen: dict[tuple[int, int], bytes] = {}
        #: The offsets of transactions that their writers are done with.
        self.finished: set[int] = set()

    def on_seen(self, partition: int, offset: int, value: bytes) -> None:
        """A reader of committed records was given one."""
        if self.seen.setdefault((partition, offset), value) != value:
            self.world.checks.fail(f"{LEDGER}-{partition} changes at {offset}")
        entry = self.entries[value]
        if entry.told is Told.ABORTED and entry.offset in self.finished:
            self.world.checks.fail(f"{value!r} was aborted, and a reader has seen it")


class TransactionalClient(Client):
    """Asks coordinators and leaders until they answer."""

    async def try_ask(self, broker: int, api: ApiKey, /, **body: Any) -> Any:
        """The response, None if there is none."""
        if broker not in self.world.machines:
            return None
        try:
            return await self.ask(broker, api, **body)
        except UnavailableError:
            return None

    async def coordinator(self, key: str, key_type: int) -> int:
        broker = self.chance.choice(sorted(self.world.machines))
        response = await self.try_ask(broker, ApiKey.FIND_COORDINATOR, key=key, key_type=key_type)
        return -1 if response is None or response.error_code else int(response.node_id)


class Writer(TransactionalClient):
    """Makes one transaction after the other; another writer of the same id may fence it."""

    def __init__(self, world: World, name: str, ledger: Ledger) -> None:
        super().__init__(world, name)
        self.ledger = ledger
        self.has_stopped = False
        self._number = 0
        self._producer_id = self._epoch = -1
        self._sequences = dict.fromkeys(PARTITIONS, 0)
        #: Some Produce requests arrive after their writer has given up waiting and has aborted.
        self._lateness = world.chance(f"lateness of {name}")
        self._late: set[asyncio.Task[ErrorCode]] = set()

    def start(self) -> None:
        self.process.start(self._run())

    async def _run(self) -> None:
        while not self.is_stopping:
            if self._producer_id < 0:
                # A fenced producer lets the other one work for a while.
                await asyncio.sleep(self.chance.uniform(0.1, 2.0))
                await self._init()
            else:
                await self._transact()
                await asyncio.sleep(self.chance.uniform(0.0, 0.5))
        self.has_stopped = True

    async def _init(self) -> None:
        broker = await self.coordinator(TRANSACTIONAL_ID, _TRANSACTION_KEY)
        response = await self.try_ask(
            broker,
            ApiKey.INIT_PRODUCER_ID,
            transactional_id=TRANSACTIONAL_ID,
            transaction_timeout=TIMEOUT_MS,
        )
        if response is None or response.error_code:
            return
        self._producer_id, self._epoch = int(response.producer_id), int(response.producer_epoch)
        self._sequences = dict.fromkeys(PARTITIONS, 0)
        self.world.note(self.name, f"has epoch {self._epoch}")

    async def _transact(self) -> None:
        ledger = self.ledger
        self._number += 1
        value = f"{self.name}/{self._number}".encode()
        entry = ledger.entries[value] = Entry(len(ledger.entries) + 1)
        is_commit = self.chance.random() < 0.75
        written = (
            await self._until_settled(self._add)
            or await self._produce_all(value)
            or await self._until_settled(self._add_offsets)
            or await self._until_settled(lambda: self._commit_offset(entry.offset))
        )
        if written is _ANSWER_LOST:
            # The broker may still have the records before it.
            await self._end(value, entry, is_commit=False)
            self._producer_id = -1
        elif written:
            self.world.note(self.name, f"gives up {value.decode()}: {written.name}")
            self._producer_id = -1
        else:
            await self._end(value, entry, is_commit)
        ledger.finished.add(entry.offset)
        self.world.operations += 1

    async def _end(self, value: bytes, entry: Entry, is_commit: bool) -> None:
        asked = 0
        while True:
            asked += 1
            if is_commit:
                entry.told = Told.UNKNOWN
            error = await self._ask_coordinator(ApiKey.END_TXN, committed=is_commit)
            if error is ErrorCode.NONE:
                entry.told = Told.COMMITTED if is_commit else Told.ABORTED
                break
            if error not in _AGAIN:
                # Refused: the first time that says it is aborted, later it may have been decided.
                if asked == 1:
                    entry.told = Told.ABORTED
                self._producer_id = -1
                break
            await asyncio.sleep(_PAUSE_S)
        self.world.note(self.name, f"{value.decode()} is {entry.told.value}")

    async def _until_settled(self, ask: Any) -> ErrorCode:
        """Ask until the response is final: NONE, or why the transaction is given up."""
        while True:
            error: ErrorCode = await ask()
            if error not in _AGAIN:
                return error
            await asyncio.sleep(_PAUSE_S)

    async def _ask_coordinator(self, api: ApiKey, **body: Any) -> ErrorCode:
        broker = await self.coordinator(TRANSACTIONAL_ID, _TRANSACTION_KEY)
        response = await self.try_ask(
            broker,
            api,
            transactional_id=TRANSACTIONAL_ID,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            **body,
        )
        return _ANSWER_LOST if response is None else ErrorCode.of(int(response.error_code))

    async def _add(self) -> ErrorCode:
        broker = await self.coordinator(TRANSACTIONAL_ID, _TRANSACTION_KEY)
        response = await self.try_ask(
            broker,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            v3_and_below_transactional_id=TRANSACTIONAL_ID,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[{"name": LEDGER, "partitions": list(PARTITIONS)}],
        )
        if response is None:
            return _ANSWER_LOST
        (topic,) = response.results_by_topic_v3_and_below
        codes = {int(each.partition_error_code) for each in topic.results_by_partition}
        codes.discard(ErrorCode.OPERATION_NOT_ATTEMPTED)
        return ErrorCode.of(max(codes, default=0))

    async def _add_offsets(self) -> ErrorCode:
        return await self._ask_coordinator(ApiKey.ADD_OFFSETS_TO_TXN, group_id=GROUP)

    async def _commit_offset(self, offset: int) -> ErrorCode:
        broker = await self.coordinator(GROUP, _GROUP_KEY)
        response = await self.try_ask(
            broker,
            ApiKey.TXN_OFFSET_COMMIT,
            transactional_id=TRANSACTIONAL_ID,
            group_id=GROUP,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[
                {
                    "name": LEDGER,
                    "partitions": [
                        {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
                    ],
                }
            ],
        )
        if response is None:
            return _ANSWER_LOST
        return ErrorCode.of(int(response.topics[0].partitions[0].error_code))

    async def _produce_all(self, value: bytes) -> ErrorCode:
        for partition in PARTITIONS:
            batch = build_batch(
                [Record(None, value, int(time.time() * 1000))],
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=self._sequences[partition],
                transactional=True,
            )
            records = bytes(batch.data)

            async def send(partition: int = partition, records: bytes = records) -> ErrorCode:
                return await self._produce(partition, records)

            if self._lateness.random() < _LATE_CHANCE:
                self._send_late(send)
                return _ANSWER_LOST
            if error := await self._until_settled(send):
                return error
            self._sequences[partition] += 1
        return ErrorCode.NONE

    def _send_late(self, send: Callable[[], Awaitable[ErrorCode]]) -> None:
        """The network holds a request back, for as long as it takes to abort and to begin anew."""

        async def later() -> ErrorCode:
            await asyncio.sleep(self._lateness.uniform(0.2, 3.0))
            return await send()

        task = asyncio.create_task(later())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _produce(self, partition: int, records: bytes) -> ErrorCode:
        await self.learn(LEDGER)
        response = await self.try_ask(
            self.leaders.get(partition, -1),
            ApiKey.PRODUCE,
            transactional_id=TRANSACTIONAL_ID,
            acks=-1,
            timeout=1500,
            topic_data=[
                {"name": LEDGER, "partition_data": [{"index": partition, "records": records}]}
            ],
        )
        if response is None:
            return _ANSWER_LOST
        return ErrorCode.of(int(response.responses[0].partition_responses[0].error_code))


class CommittedReader(TransactionalClient):
    """Reads the topic as a consumer of committed records does."""

    def __init__(self, world: World, name: str, ledger: Ledger) -> None:
        super().__init__(world, name)
        self.ledger = ledger
        self.positions = dict.fromkeys(PARTITIONS, 0)

    def start(self) -> None:
        self.process.start(self._run())

    async def _run(self) -> None:
        while not self.is_stopping:
            await self.learn(LEDGER)
            for partition in PARTITIONS:
                await self._read(partition)
            await asyncio.sleep(self.chance.uniform(0.1, 0.4))

    async def _read(self, partition: int) -> None:
        response = await self.try_ask(
            self.leaders.get(partition, -1),
            ApiKey.FETCH,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=2000,
            isolation_level=1,
            session_id=0,
            session_epoch=-1,
            topics=[
                {
                    "topic": LEDGER,
                    "partitions": [
                        {
                            "partition": partition,
                            "current_leader_epoch": -1,
                            "fetch_offset": self.positions[partition],
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 2000,
                        }
                    ],
                }
            ],
            forgotten_topics_data=[],
            rack_id="",
        )
        if response is None or not response.topics or response.topics[0].partitions[0].error_code:
            return
        result = response.topics[0].partitions[0]
        batches = iterate_batches(bytes(result.records or b""), may_end_early=True)
        for batch, is_shown in filtered(batches, result.aborted_transactions or ()):
            for record in iterate_records(batch) if is_shown else ():
                if record.offset >= self.positions[partition]:
                    self.ledger.on_seen(partition, record.offset, record.value or b"")
            self.positions[partition] = batch.header.last_offset + 1


def filtered(batches: Iterable[Batch], aborted: Iterable[Any]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether a consumer of committed records is shown its records."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    aborting: set[int] = set()
    for batch in batches:
        header = batch.header
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborting.add(waiting.pop(0).producer_id)
        if header.is_control:
            aborting.discard(header.producer_id)
        yield batch, not header.is_control and header.producer_id not in aborting


# What has to be so in the end


def unfinished(world: World) -> Iterator[str]:
    """What keeps transactions from being over."""
    for partition in PARTITIONS:
        log = _leaders_log(world, LEDGER, partition)
        if log is None or log.last_stable_offset < log.high_watermark:
            yield f"a transaction is open on {LEDGER}-{partition}"
    offsets = _group_offset(world)
    if offsets is None:
        yield f"the offsets of {GROUP} are not stable"


def broken_transactions(world: World, ledger: Ledger) -> Iterator[str]:
    """Transactions that are there in part, or not as their writer was told."""
    visible = [list(_committed(world, partition)) for partition in PARTITIONS]
    for value, entry in ledger.entries.items():
        counts = [values.count(value) for values in visible]
        if entry.told is Told.COMMITTED and counts != [1, 1]:
            yield f"{value!r} was committed, but is there {counts} times"
        elif entry.told is Told.ABORTED and counts != [0, 0]:
            yield f"{value!r} was aborted, but is there {counts} times"
        elif counts not in ([0, 0], [1, 1]):
            yield f"{value!r} is there in part: {counts}"
    if visible[0] != visible[1]:
        yield f"transactions are in another order on another partition: {visible}"
    for (partition, offset), value in ledger.seen.items():
        if value not in visible[partition]:
            yield f"{value!r} was seen at {offset} of {partition}, and is not committed"
    expected = ledger.entries[visible[0][-1]].offset if visible[0] else -1
    found = _group_offset(world)
    if found != expected:
        yield f"{GROUP} has committed {found}, but the last transaction {expected}"


def _leaders_log(world: World, topic: str, partition: int) -> Log | None:
    story = world.checks.current_story(topic, partition)
    return world.checks.log_of(story.leader, topic, partition) if story else None


def _committed(world: World, partition: int) -> Iterator[bytes]:
    """The values on a partition that are committed, in the order of their markers."""
    log = _leaders_log(world, LEDGER, partition)
    assert log is not None
    opened: dict[int, list[bytes]] = {}
    for segment in log.segments:
        for batch in segment.batches():
            header = batch.header
            records = list(iterate_records(batch))
            if not header.is_control:
                values = [record.value or b"" for record in records]
                opened.setdefault(header.producer_id, []).extend(values)
                continue
            values = opened.pop(header.producer_id, [])
            if (records[0].key or b"")[3] == _COMMIT:
                yield from values


def _group_offset(world: World) -> int | None:
    """What the group's coordinator says; None while it is not stable, or there is none."""
    story = world.checks.current_story(CONSUMER_OFFSETS, 0)
    if story is None:
        return -1
    machine = world.machines.get(story.leader)
    if machine is None or not machine.is_up:
        return None
    node: Any = machine.node
    name = TopicPartition(LEDGER, 0)
    response = node._broker.data.groups.coordinator.fetch_offsets(
        OffsetFetchRequest(group_id=GROUP, partitions=(name,), require_stable=True)
    )
    if response.error or response.offsets[name].error:
        return None
    return int(response.offsets[name].offset)
