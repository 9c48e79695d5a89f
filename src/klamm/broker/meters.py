"""The broker's counters, as plain integers because most of them change with every request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.broker.log.errors import AppendError, Flaw
from klamm.metrics.requests import RequestMeters
from klamm.protocol.codes import ErrorCode

#: Refusals that Kafka does not count as failed produce requests.
_NOT_COUNTED_AS_FAILED: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_COUNTED_AS: Final[Mapping[Flaw, str]] = {
    Flaw.CHECKSUM: "invalid_checksums",
    Flaw.NO_KEY: "missing_keys",
    Flaw.MAGIC: "invalid_magic_numbers",
    Flaw.OFFSET_OR_SEQUENCE: "invalid_offsets_or_sequences",
}


@dataclass(slots=True)
class TopicMeters:
    """The counters of one topic, or the totals."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_rejected: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    reassignment_bytes_in: int = 0
    reassignment_bytes_out: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    failed_produce_requests: int = 0
    failed_fetch_requests: int = 0
    invalid_checksums: int = 0
    missing_keys: int = 0
    invalid_magic_numbers: int = 0
    invalid_offsets_or_sequences: int = 0


@dataclass(slots=True)
class BrokerMeters:
    """The counters of a broker since its start."""

    topics: dict[str, TopicMeters] = field(default_factory=dict)
    requests: RequestMeters = field(default_factory=RequestMeters)
    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0

    def topic(self, name: str) -> TopicMeters:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicMeters()
        return found

    def total(self) -> TopicMeters:
        """The totals of all topics, deleted topics included."""
        total = TopicMeters()
        for meters in self.topics.values():
            _add(total, meters)
        return total

    def forget_topic(self, name: str) -> None:
        """Remove the counters of a deleted topic; they stay in the totals."""
        gone = self.topics.pop(name, None)
        if gone is not None:
            _add(self.topic(""), gone)

    def on_appended(self, topic: str, messages: int, size: int) -> None:
        meters = self.topics.get(topic) or self.topic(topic)
        meters.messages_in += messages
        meters.bytes_in += size

    def on_append_error(self, topic: str, size: int, error: AppendError) -> None:
        """Count a batch of `size` bytes that was refused."""
        meters = self.topic(topic)
        if error.code in _TOO_LARGE:
            meters.bytes_rejected += size
        elif error.code not in _NOT_COUNTED_AS_FAILED:
            meters.failed_produce_requests += 1
        if error.flaw is not None:
            name = _COUNTED_AS[error.flaw]
            setattr(meters, name, getattr(meters, name) + error.flawed_records)

    def on_isr_changed(self, *, is_expansion: bool) -> None:
        if is_expansion:
            self.isr_expands += 1
        else:
            self.isr_shrinks += 1


def _add(total: TopicMeters, meters: TopicMeters) -> None:
    for name in TopicMeters.__dataclass_fields__:
        setattr(total, name, getattr(total, name) + getattr(meters, name))
