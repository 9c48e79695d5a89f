"""Transactions: list them, describe them, and find hanging ones."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from klamm.client import topics
from klamm.client.admin import Admin, check, partitions_by_topic
from klamm.names import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError

_MILLISECOND: Final = timedelta(milliseconds=1)
#: States in which a coordinator still has to end the transaction.
_UNFINISHED: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a listing."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator knows it; a start of -1 is none."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]

    def describe(self) -> dict[str, Any]:
        """As `klamm transactions describe --json`."""
        partitions = [{"topic": topic, "partition": number} for topic, number in self.partitions]
        return asdict(self) | {"partitions": partitions}


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open on one partition, as the partition's leader knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


def list_transactions(
    admin: Admin, states: Sequence[str] = (), producer_ids: Sequence[int] = ()
) -> list[TransactionListing]:
    """The transactional ids of all coordinators that pass the filters."""
    asked = {"state_filters": list(states), "producer_id_filters": list(producer_ids)}
    listed = []
    for broker in topics.describe(admin, []).brokers:

        def ask(broker: int = broker.id) -> Any:
            response = admin.ask_broker(broker, ApiKey.LIST_TRANSACTIONS, asked)
            check(response.error_code)
            return response

        response = admin.retry(ask, f"Broker {broker.id}")
        if response.unknown_state_filters:
            unknown = ", ".join(response.unknown_state_filters)
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"no state is called {unknown}; there are Empty, Ongoing, PrepareCommit, "
                "PrepareAbort, CompleteCommit and CompleteAbort.",
            )
        listed += [
            TransactionListing(
                each.transactional_id, broker.id, each.producer_id, each.transaction_state
            )
            for each in response.transaction_states
        ]
    return sorted(listed, key=lambda each: each.transactional_id)


def describe(admin: Admin, transactional_id: str) -> TransactionDescription:
    """One transactional id; that it does not exist is an error."""
    response = admin.ask_transaction_coordinator(
        transactional_id,
        ApiKey.DESCRIBE_TRANSACTIONS,
        {"transactional_ids": [transactional_id]},
    )
    (found,) = response.transaction_states
    check(found.error_code, f"{transactional_id!r} is not known to its coordinator.")
    return TransactionDescription(
        transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout // _MILLISECOND,
        found.transaction_start_time_ms,
        tuple(
            TopicPartition(topic.topic, each) for topic in found.topics for each in topic.partitions
        ),
    )


def open_transactions(admin: Admin, names: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """The transactions that the leaders of partitions hold open."""
    wanted = set(names)
    leaders: dict[int, list[TopicPartition]] = {}
    for topic in topics.describe(admin, sorted({each.topic for each in wanted})).topics:
        for each in topic.partitions:
            name = TopicPartition(topic.topic, each.partition)
            if name in wanted and each.leader >= 0:
                leaders.setdefault(each.leader, []).append(name)
    found = []
    for leader, led in leaders.items():
        response = admin.ask_broker(
            leader,
            ApiKey.DESCRIBE_PRODUCERS,
            {
                "topics": [
                    {"name": topic, "partition_indexes": numbers}
                    for topic, numbers in partitions_by_topic(led).items()
                ]
            },
        )
        for topic in response.topics:
            for partition in topic.partitions:
                check(partition.error_code, f"{topic.name}-{partition.partition_index}")
                found += [
                    OpenTransaction(
                        topic.name,
                        partition.partition_index,
                        each.producer_id,
                        each.producer_epoch,
                        each.coordinator_epoch,
                        each.current_txn_start_offset,
                        each.last_timestamp,
                    )
                    for each in partition.active_producers
                    if each.current_txn_start_offset >= 0
                ]
    return found


def partitions_of(admin: Admin, topic: str | None) -> list[TopicPartition]:
    """The partitions of a topic, or (None) of all topics."""
    return [
        TopicPartition(each.topic, partition.partition)
        for each in topics.describe(admin, None if topic is None else [topic]).topics
        for partition in each.partitions
    ]


def find_hanging(
    admin: Admin, names: Iterable[TopicPartition], older_than_ms: int, now_ms: int
) -> list[OpenTransaction]:
    """Open transactions that no coordinator will end.

    Those are transactions whose producer has been silent for longer than `older_than_ms`, and of
    whose partition no coordinator has an unfinished transaction of the same producer.
    """
    old = [
        each
        for each in open_transactions(admin, names)
        if now_ms - each.last_timestamp_ms > older_than_ms
    ]
    if not old:
        return []
    listed = list_transactions(admin, producer_ids=sorted({each.producer_id for each in old}))
    owned: set[tuple[int, TopicPartition]] = set()
    for each in listed:
        if each.state in _UNFINISHED:
            found = describe(admin, each.transactional_id)
            owned |= {(found.producer_id, name) for name in found.partitions}
    return [
        each
        for each in old
        if (each.producer_id, TopicPartition(each.topic, each.partition)) not in owned
    ]


def abort(admin: Admin, name: TopicPartition, start_offset: int) -> OpenTransaction:
    """Write an abort marker for the transaction that began at this offset of a partition."""
    opened = open_transactions(admin, [name])
    found = next((each for each in opened if each.start_offset == start_offset), None)
    if found is None:
        starts = ", ".join(str(each.start_offset) for each in opened)
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"no transaction on {name} began at offset {start_offset}; "
            + (f"those that are open began at {starts}." if opened else "none is open."),
        )

    def write() -> None:
        (topic,) = topics.describe(admin, [name.topic]).topics
        leader = next(each.leader for each in topic.partitions if each.partition == name.partition)
        response = admin.ask_broker(
            leader,
            ApiKey.WRITE_TXN_MARKERS,
            {
                "markers": [
                    {
                        "producer_id": found.producer_id,
                        "producer_epoch": found.producer_epoch,
                        "transaction_result": False,
                        "topics": [{"name": name.topic, "partition_indexes": [name.partition]}],
                        # A producer without a marker so far has no coordinator epoch.
                        "coordinator_epoch": max(found.coordinator_epoch, 0),
                    }
                ]
            },
        )
        check(response.markers[0].topics[0].partitions[0].error_code, str(name))

    admin.retry(write, "The leader")
    return found
