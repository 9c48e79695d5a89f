"""What a driver needs from a cluster: topics, their ids and partitions, and offsets.

All of it through librdkafka, so that every way of reaching a cluster works.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from klamm.errors import ConfigError, UnavailableError
from klamm.names import TopicPartition
from klamm.pipeline.source import reaching
from klamm.pipeline.source.offsets import Offsets, Position, listed
from klamm.pipeline.source.options import ReadOptions, Selection
from klamm.pipeline.source.reaching import LastError, is_mute, wait_reachable

_T = TypeVar("_T")

#: How long the cluster may take to get over a broker that failed; Java's default.api.timeout.ms.
_PATIENCE_S: Final = 60.0
#: The same for a cluster that has not responded yet.
_FIRST_PATIENCE_S: Final = 10.0
#: librdkafka waits for a leader that has died as long as for one that is slow. So a request gets
#: little time first, and more after each timeout.
_REQUEST_TIMEOUT_S: Final = 2.0
_REQUEST_TIMEOUT_MAX_S: Final = 10.0
_PAUSE_S: Final = 0.2
#: The longest time that a batch waits for the commit of its offsets.
_COMMIT_PATIENCE_S: Final = 2.0
#: How long a topic that was never seen is asked for. A broker that was just started knows no topic.
_UNKNOWN_FOR_S: Final = 2.0

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
#: A broker says so of a topic that is gone, and of any topic until the controller has told it.
_UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


class UnknownPartitionError(UnavailableError):
    """No broker has known a partition for so long that it is probably gone."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The partitions that are read, at one moment, and the ids of their topics."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, str]


class SourceCluster:
    """The cluster that the options name, reached through librdkafka."""

    def __init__(self, options: ReadOptions) -> None:
        self._retries = options.offset_retries
        self._retry_pause_s = options.offset_retry_pause_s
        self._isolation = (
            IsolationLevel.READ_COMMITTED
            if options.is_read_committed
            else IsolationLevel.READ_UNCOMMITTED
        )
        self._kafka = options.kafka
        self._last_error = LastError()
        self._has_answered = False
        self._timeout_s = _REQUEST_TIMEOUT_S
        self._made: AdminClient | None = None

    def topics(self, selection: Selection, *, unknown_for_s: float = _UNKNOWN_FOR_S) -> Topics:
        """The partitions of the selection as of now; a topic that the options name has to exist."""
        deadline = time.monotonic() + unknown_for_s
        while True:
            found = self._select(selection)
            problem = _absence(selection, found)
            if problem is None or time.monotonic() > deadline:
                break
            self._pause()
        if problem is not None and selection.pattern is None:
            raise ConfigError(f"UNKNOWN_TOPIC_OR_PARTITION: {problem} in this cluster")
        return found

    def topics_after(self, selection: Selection, known: Position) -> Topics:
        """The partitions of the selection as of now, for a stream that has read up to `known`.

        A broker that was just started responds that there is no topic until the controller has told
        it, and one that the controller does not reach may know a topic's former id. So what a
        stream has read is taken for gone, or for another topic of the same name, only after all
        responses of `GONE_AFTER_S` agree about it.
        """
        wanted = {each for each in known.offsets if selection.covers(each.topic)}
        deadline = time.monotonic() + reaching.GONE_AFTER_S
        while True:
            found = self._select(selection)
            is_as_known = wanted <= found.partitions and not any(
                is_other(known.topic_ids, found.ids, topic) for topic in found.ids
            )
            if is_as_known or time.monotonic() > deadline:
                return found
            self._pause()

    def latest_after(self, selection: Selection, known: Position) -> Position:
        """The ends of the topics, for a stream that has read up to `known`."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            topics = self.topics_after(selection, known)
            same = {
                each: offset
                for each, offset in known.offsets.items()
                if not is_other(known.topic_ids, topics.ids, each.topic)
            }
            try:
                return Position(self.latest(topics.partitions, same), topics.ids)
            except UnknownPartitionError:
                # It was there a moment ago, so it is being deleted.
                if time.monotonic() > deadline:
                    raise

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def latest(
        self, partitions: Iterable[TopicPartition], known: Offsets | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each, or after the last one that is committed.

        A new leader may take a moment to know how far its predecessor had got, and a former one to
        know of its successor, so one that answers with less than was `known` is asked again.
        """
        wanted = dict.fromkeys(partitions, _LATEST)
        found = self._offsets(wanted)
        deadline = time.monotonic() + reaching.GONE_AFTER_S
        while known and any(found[each] < known.get(each, 0) for each in found):
            if time.monotonic() > deadline:
                break
            self._pause()
            found = self._offsets(wanted)
        return found

    def at_timestamps(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset with this timestamp or a later one; None where there is none."""
        wanted = {each: OffsetSpec.for_timestamp(at) for each, at in timestamps.items()}
        return {
            each: None if offset < 0 else offset for each, offset in self._offsets(wanted).items()
        }

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group, for tools that show lag, without joining the group."""
        places = [ClientPartition(*each, offset) for each, offset in offsets.items()]
        asked = [ConsumerGroupTopicPartitions(group, places)]

        def alter() -> None:
            futures = self._admin.alter_consumer_group_offsets(
                asked, request_timeout=self._timeout_s
            )
            for future in futures.values():
                for each in _result(future).topic_partitions:
                    if each.error is not None:
                        raise KafkaException(each.error)

        if places:
            self._retried(alter, patience_s=_COMMIT_PATIENCE_S)

    def _select(self, selection: Selection) -> Topics:
        if selection.pattern is not None:
            names = [name for name in self._retried(self._topic_names) if selection.covers(name)]
        else:
            names = list(selection.named_topics)
        described = self._retried(lambda: self._describe(names))
        if selection.pattern is not None:
            described = {name: each for name, each in described.items() if not each.is_internal}
        existing = frozenset(
            TopicPartition(name, int(each.id))
            for name, description in described.items()
            for each in description.partitions
        )
        ids = {
            name: str(description.topic_id)
            for name, description in described.items()
            if str(description.topic_id) != _NO_TOPIC_ID
        }
        wanted = selection.partitions
        return Topics(existing & wanted if wanted else existing, ids)

    def _topic_names(self) -> list[str]:
        return sorted(self._admin.list_topics(timeout=self._timeout_s).topics)

    def _describe(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        futures = self._admin.describe_topics(
            TopicCollection(names), request_timeout=self._timeout_s
        )
        found = {}
        for name, future in futures.items():
            try:
                found[name] = _result(future)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def _offsets(self, wanted: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        return self._retried(lambda: self._list_offsets(wanted))

    def _list_offsets(self, wanted: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        futures = self._admin.list_offsets(
            {ClientPartition(*partition): spec for partition, spec in wanted.items()},
            isolation_level=self._isolation,
            request_timeout=self._timeout_s,
        )
        return {
            TopicPartition(asked.topic, asked.partition): int(_result(future).offset)
            for asked, future in futures.items()
        }

    @property
    def _admin(self) -> AdminClient:
        if self._made is None:
            self._made = AdminClient(dict(self._kafka) | self._last_error.settings())
        return self._made

    def _pause(self) -> None:
        """Wait, then use a new client: an old one keeps the leader epochs that it has learned.

        A new client may also ask another broker than the last one.
        """
        time.sleep(max(self._retry_pause_s, _PAUSE_S))
        self._made = None

    def _retried(self, ask: Callable[[], _T], *, patience_s: float = _PATIENCE_S) -> _T:
        """Retry a request: wait while its errors are transient, retry others a few times."""
        began_at = time.monotonic()
        attempts_left = self._retries
        servers = self._kafka["bootstrap.servers"]
        may_be_mute = not self._has_answered
        if not self._has_answered:
            patience_s = min(patience_s, _FIRST_PATIENCE_S)
            wait_reachable(servers)
        while True:
            try:
                response = ask()
                self._has_answered = True
                self._timeout_s = _REQUEST_TIMEOUT_S
                self._admin.poll(0)  # let librdkafka drop its reports about brokers
                return response
            except KafkaException as error:
                reason = error.args[0]
            except TimeoutError:
                reason = KafkaError(KafkaError._TIMED_OUT)
            if reason.code() == KafkaError._TIMED_OUT:
                if may_be_mute and is_mute(servers):
                    raise UnavailableError(
                        f"The cluster at {servers} does not answer: connections are accepted, but"
                        " nobody speaks; are these the addresses of brokers?"
                    )
                self._timeout_s = min(1.5 * self._timeout_s, _REQUEST_TIMEOUT_MAX_S)
            may_be_mute = False
            waited_s = time.monotonic() - began_at
            if reason.code() in _UNKNOWN:
                if waited_s > reaching.GONE_AFTER_S:
                    raise UnknownPartitionError(f"{reason.name()}: {reason.str()}")
            elif reason.retriable() or reason.code() in _PASSING:
                if waited_s > patience_s:
                    self._admin.poll(0)
                    why = self._last_error.text or reason.str()
                    raise UnavailableError(f"The cluster at {servers} does not answer: {why}")
            elif attempts_left == 0:
                raise UnavailableError(f"{reason.name()}: {reason.str()}")
            else:
                attempts_left -= 1
            self._pause()


def is_other(before: Mapping[str, str], after: Mapping[str, str], topic: str) -> bool:
    """Whether both ids are known and differ: the topic was deleted and created again."""
    return topic in before and topic in after and before[topic] != after[topic]


def _absence(selection: Selection, found: Topics) -> str | None:
    """The topics and partitions of the selection that do not exist, as a message."""
    if selection.pattern is not None:
        return None if found.partitions else f"there is no topic like {selection.pattern}"
    existing = {each.topic for each in found.partitions}
    if selection.partitions:
        existing |= found.ids.keys()
    if missing := sorted(set(selection.named_topics) - existing):
        return f"there is no topic {', '.join(missing)}"
    if absent := selection.partitions - found.partitions:
        return f"there is no {listed(absent)}"
    return None


def _result(future: "Future[Any]") -> Any:
    return future.result(_REQUEST_TIMEOUT_MAX_S + 1)
