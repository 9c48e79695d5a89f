"""A transactional producer that says exactly what a test wants, to the brokers it belongs to."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from klamm.broker.groups.coordinator import group_partition
from klamm.client import configs
from klamm.client.admin import Admin
from klamm.client.configs import ConfigResource
from klamm.names import TRANSACTION_STATE
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Record, build_batch
from tests.support.raw import Raw
from tests.support.waiting import wait_until

#: What a client waits for and tries again.
RETRIABLE = frozenset({13, 14, 15, 16, 51})
_TRANSACTION_KEY = 1
_VERIFICATION = "transaction.partition.verification.enable"


class RawProducer:
    """One transactional id, by hand."""

    def __init__(self, ports: Mapping[int, int], transactional_id: str) -> None:
        """`ports` leads to each broker by its id."""
        self.ports = ports
        self.id = transactional_id
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def broker(self, broker_id: int) -> Raw:
        return Raw(self.ports[broker_id])

    def anybody(self) -> Raw:
        return Raw(next(iter(self.ports.values())))

    def find_coordinator(self) -> int:
        def ask() -> int | None:
            with self.anybody() as raw:
                found = raw.ask(
                    ApiKey.FIND_COORDINATOR,
                    4,
                    key_type=_TRANSACTION_KEY,
                    coordinator_keys=[self.id],
                ).coordinators[0]
            return found.node_id if found.node_id in self.ports else None

        return wait_until(ask, f"a coordinator of {self.id}")

    def ask(self, api: ApiKey, version: int | None = None, **values: Any) -> Any:
        with self.broker(self.find_coordinator()) as raw:
            return raw.ask(api, version, **values)

    def init(self, timeout_ms: int = 60_000, version: int | None = None, **more: Any) -> ErrorCode:
        """One InitProducerId; what it gives is remembered."""
        response = self.ask(
            ApiKey.INIT_PRODUCER_ID,
            version,
            **{
                "transactional_id": self.id,
                "transaction_timeout": timeout_ms,
                "producer_id": -1,
                "producer_epoch": -1,
                **more,
            },
        )
        if not response.error_code:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return ErrorCode.of(response.error_code)

    def init_at_last(self, **more: Any) -> None:
        """Ask until the coordinator gives an epoch."""
        wait_until(lambda: self._passed(self.init(**more)), f"an epoch for {self.id}")

    @staticmethod
    def _passed(error: ErrorCode) -> bool:
        assert not error or error in RETRIABLE, error
        return not error

    def add(
        self, topics: Mapping[str, Iterable[int]], version: int = 3
    ) -> dict[tuple[str, int], int]:
        """AddPartitionsToTxn as producers send it; the errors by partition."""
        response = self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                {"name": name, "partitions": list(partitions)}
                for name, partitions in topics.items()
            ],
        )
        return {
            (topic.name, each.partition_index): int(each.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }

    def add_at_last(self, topics: Mapping[str, Iterable[int]]) -> None:
        """Add until the coordinator has finished the transaction before."""

        def added() -> bool:
            errors = set(self.add(topics).values())
            assert errors <= {0} | RETRIABLE, errors
            return errors == {0}

        wait_until(added, "partitions in the transaction")

    def verify(self, topics: Mapping[str, Iterable[int]], version: int = 5) -> dict[Any, int]:
        """AddPartitionsToTxn as leaders send it."""
        response = self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            transactions=[
                {
                    "transactional_id": self.id,
                    "producer_id": self.producer_id,
                    "producer_epoch": self.epoch,
                    "verify_only": True,
                    "topics": [
                        {"name": name, "partitions": list(partitions)}
                        for name, partitions in topics.items()
                    ],
                }
            ],
        )
        return {
            (topic.name, each.partition_index): int(each.partition_error_code)
            for result in response.results_by_transaction
            for topic in result.topic_results
            for each in topic.results_by_partition
        }

    def batch(self, topic: str, partition: int, *values: bytes) -> bytes:
        sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = sequence + len(values)
        return bytes(
            build_batch(
                [Record(None, value, int(time.time() * 1000)) for value in values],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
                transactional=True,
            ).data
        )

    def produce(
        self,
        leader: int,
        topic: str,
        *values: bytes,
        partition: int = 0,
        version: int | None = None,
        transactional_id: str | None = "",
    ) -> Any:
        """The response about the one partition; the transactional id is the producer's own."""
        with self.broker(leader) as raw:
            response = raw.ask(
                ApiKey.PRODUCE,
                version,
                transactional_id=self.id if transactional_id == "" else transactional_id,
                acks=-1,
                timeout=10_000,
                topic_data=[
                    {
                        "name": topic,
                        "partition_data": [
                            {
                                "index": partition,
                                "records": self.batch(topic, partition, *values),
                            }
                        ],
                    }
                ],
            )
        return response.responses[0].partition_responses[0]

    def produce_at_last(self, leader: int, topic: str, *values: bytes, partition: int = 0) -> None:
        """Produce until the leader could ask the coordinator."""

        def produced() -> bool:
            before = dict(self.sequences)
            error = self.produce(leader, topic, *values, partition=partition).error_code
            if error:
                assert error == ErrorCode.NOT_ENOUGH_REPLICAS, error
                self.sequences = before
            return not error

        wait_until(produced, f"records in {topic}")

    def end(self, *, commit: bool = True, version: int | None = None) -> ErrorCode:
        response = self.ask(
            ApiKey.END_TXN,
            version,
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return ErrorCode.of(response.error_code)

    def end_at_last(self, *, commit: bool = True) -> None:
        """End until the coordinator has finished."""
        wait_until(lambda: self._passed(self.end(commit=commit)), "the end of the transaction")

    def describe(self) -> Any:
        response = self.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[self.id])
        return response.transaction_states[0]

    def wait_state(self, state: str) -> Any:
        def found() -> Any:
            described = self.describe()
            return described if described.transaction_state == state else None

        return wait_until(found, f"{self.id} in {state}")

    def state_partition(self) -> int:
        with self.anybody() as raw:
            (topic,) = raw.metadata(TRANSACTION_STATE).topics
        return group_partition(self.id, len(topic.partitions))


def newest(api: ApiKey) -> int:
    """The newest version of an API."""
    return APIS[api].max_version


def leave_hanging(admin: Admin, producer: RawProducer, topic: str) -> None:
    """Write to partition 0 a record of a transaction that no coordinator knows of.

    Leaders do not verify for that time, as before Kafka 3.6, when a transaction could hang.
    """
    defaults = ConfigResource.broker(None)
    configs.alter(admin, defaults, {_VERIFICATION: "false"})
    try:

        def hangs() -> bool:
            producer.sequences.clear()
            leader = admin.metadata([topic]).topics[0].partitions[0].leader_id
            return not producer.produce(leader, topic, b"hangs").error_code

        wait_until(hangs, "a leader that does not verify")
    finally:
        configs.alter(admin, defaults, {}, [_VERIFICATION])
