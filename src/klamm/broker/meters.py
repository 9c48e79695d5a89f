"""What a broker counts. Plain integers, since most of them change with every request."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class TopicMeters:
    """Counts of one topic, or of all."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_rejected: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    failed_produce_requests: int = 0
    failed_fetch_requests: int = 0


@dataclass(slots=True)
class BrokerMeters:
    """Counts since the start."""

    topics: dict[str, TopicMeters] = field(default_factory=dict)
    #: By name of the API and version.
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0

    def topic(self, name: str) -> TopicMeters:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicMeters()
        return found

    def total(self) -> TopicMeters:
        """All topics together, those that are gone included."""
        total = TopicMeters()
        for meters in self.topics.values():
            _add(total, meters)
        return total

    def forget_topic(self, name: str) -> None:
        """The topic is gone; what it counted stays in the totals."""
        gone = self.topics.pop(name, None)
        if gone is not None:
            _add(self.topic(""), gone)

    def on_appended(self, topic: str, messages: int, size: int) -> None:
        meters = self.topics.get(topic) or self.topic(topic)
        meters.messages_in += messages
        meters.bytes_in += size

    def on_refused(self, topic: str, size: int) -> None:
        meters = self.topic(topic)
        meters.failed_produce_requests += 1
        meters.bytes_rejected += size

    def on_isr_changed(self, *, is_expansion: bool) -> None:
        if is_expansion:
            self.isr_expands += 1
        else:
            self.isr_shrinks += 1


def _add(total: TopicMeters, meters: TopicMeters) -> None:
    for name in TopicMeters.__dataclass_fields__:
        setattr(total, name, getattr(total, name) + getattr(meters, name))
