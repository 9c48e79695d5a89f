"""What a driver has to know of a cluster: topics, their ids and partitions, and offsets.

All of it through librdkafka, so that every way of reaching a cluster works.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from klamm.errors import ConfigError, UnavailableError
from klamm.pipeline.source.offsets import Offsets, Partition, listed
from klamm.pipeline.source.options import ReadOptions, Selection

_T = TypeVar("_T")

#: How long the cluster may take to get over a broker that failed; Java's default.api.timeout.ms.
_PATIENCE_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.2

#: These pass, but are not all marked as such.
_PASSING: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True, slots=True)
class Topics:
    """The partitions that are read, at one moment, and the ids of their topics."""

    partitions: frozenset[Partition]
    ids: Mapping[str, str]


class Cluster:
    """One cluster, as the options say how to reach it."""

    def __init__(self, options: ReadOptions) -> None:
        self._retries = options.offset_retries
        self._retry_pause_s = options.offset_retry_pause_s
        self._isolation = (
            IsolationLevel.READ_COMMITTED
            if options.is_read_committed
            else IsolationLevel.READ_UNCOMMITTED
        )
        self._kafka = options.kafka
        self._admin = AdminClient(dict(self._kafka))

    def topics(self, selection: Selection, *, must_exist: bool = True) -> Topics:
        """What the selection means now; a topic that was named has to exist, at first."""
        if selection.pattern is not None:
            matches = re.compile(selection.pattern).fullmatch
            names = [name for name in self._retried(self._topic_names) if matches(name)]
        else:
            names = list(selection.named_topics)
        described = self._retried(lambda: self._describe(names))
        if selection.pattern is not None:
            described = {name: each for name, each in described.items() if not each.is_internal}
        elif must_exist and (missing := sorted(set(names) - set(described))):
            raise ConfigError(
                f"UNKNOWN_TOPIC_OR_PARTITION: there is no topic {', '.join(missing)} in this "
                "cluster"
            )
        existing = frozenset(
            Partition(name, int(each.id))
            for name, description in described.items()
            for each in description.partitions
        )
        wanted = selection.partitions
        if wanted and must_exist and (absent := wanted - existing):
            raise ConfigError(
                f"UNKNOWN_TOPIC_OR_PARTITION: there is no {listed(absent)} in this cluster"
            )
        ids = {
            name: str(description.topic_id)
            for name, description in described.items()
            if str(description.topic_id) != _NO_TOPIC_ID
        }
        return Topics(existing & wanted if wanted else existing, ids)

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset of each partition that there still is."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def latest(
        self, partitions: Iterable[Partition], known: Offsets | None = None
    ) -> dict[Partition, int]:
        """The offset after the last record of each, or after the last one that is committed.

        A new leader may take a moment to know how far its predecessor had got, so one that answers
        with less than was `known` before is asked again.
        """
        wanted = dict.fromkeys(partitions, _LATEST)
        found = self._offsets(wanted)
        for _ in range(self._retries):
            if known is None or all(found[each] >= known.get(each, 0) for each in found):
                break
            time.sleep(max(self._retry_pause_s, _PAUSE_S))
            found = self._offsets(wanted)
        return found

    def at_timestamps(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The first offset with this timestamp or a later one; None where there is none."""
        wanted = {each: OffsetSpec.for_timestamp(at) for each, at in timestamps.items()}
        return {
            each: None if offset < 0 else offset for each, offset in self._offsets(wanted).items()
        }

    def _topic_names(self) -> list[str]:
        return sorted(self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S).topics)

    def _describe(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        futures = self._admin.describe_topics(
            TopicCollection(names), request_timeout=_REQUEST_TIMEOUT_S
        )
        found = {}
        for name, future in futures.items():
            try:
                found[name] = _result(future)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def _offsets(self, wanted: Mapping[Partition, Any]) -> dict[Partition, int]:
        if not wanted:
            return {}
        return self._retried(lambda: self._list_offsets(wanted))

    def _list_offsets(self, wanted: Mapping[Partition, Any]) -> dict[Partition, int]:
        futures = self._admin.list_offsets(
            {TopicPartition(*partition): spec for partition, spec in wanted.items()},
            isolation_level=self._isolation,
            request_timeout=_REQUEST_TIMEOUT_S,
        )
        return {
            Partition(asked.topic, asked.partition): int(_result(future).offset)
            for asked, future in futures.items()
        }

    def _retried(self, ask: Callable[[], _T]) -> _T:
        """The answer, waiting for what passes, and trying a few times what may not."""
        deadline = time.monotonic() + _PATIENCE_S
        attempts_left = self._retries
        while True:
            try:
                return ask()
            except KafkaException as error:
                reason = error.args[0]
                is_passing = reason.retriable() or reason.code() in _PASSING
                if is_passing and time.monotonic() > deadline:
                    raise UnavailableError(
                        f"The cluster does not answer: {reason.str()}"
                    ) from error
                if not is_passing:
                    if attempts_left == 0:
                        raise UnavailableError(f"{reason.name()}: {reason.str()}") from error
                    attempts_left -= 1
            time.sleep(max(self._retry_pause_s, _PAUSE_S))
            # An old client goes on asking with the leader epochs that it once heard of.
            self._admin = AdminClient(dict(self._kafka))


def _result(future: "Future[Any]") -> Any:
    return future.result(_REQUEST_TIMEOUT_S + 1)
