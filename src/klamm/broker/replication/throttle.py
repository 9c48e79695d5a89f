"""Replication throttles: a quota for the traffic of replicas that catch up.

An operator sets a rate for the broker and names the throttled replicas, usually those that a
reassignment moves. In-sync followers are never throttled, because that could shrink the ISR.
"""

from collections.abc import Iterable
from typing import Final

EVERY_REPLICA: Final = "*"


def parse_throttled_replicas(value: str, broker_id: int) -> frozenset[int] | None:
    """The partitions of a topic that are throttled on `broker_id`; None means all partitions.

    `value` is that of `leader.replication.throttled.replicas`, or of the same key for followers:
    `*`, or pairs of partition and broker such as `0:101,0:102,1:103`.
    """
    if value.strip() == EVERY_REPLICA:
        return None
    pairs = (pair.split(":") for pair in value.split(",") if pair.strip())
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)


class ReplicationThrottle:
    """A token bucket with the allowed rate, and the partitions that it applies to.

    The bucket holds the bytes of one second. Bytes are recorded after they were sent and may
    overdraw the bucket; throttled replicas then wait until it is positive again.
    """

    def __init__(self) -> None:
        self._rate: int | None = None
        self._balance = 0.0
        self._counted_ms = 0
        self._partitions: dict[str, frozenset[int] | None] = {}

    def set_rate(self, bytes_per_second: int | None, now_ms: int) -> None:
        """Set the rate in bytes per second; None removes the throttle."""
        self._rate = bytes_per_second
        self._balance = float(bytes_per_second or 0)
        self._counted_ms = now_ms

    def set_partitions(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Throttle these partitions of a topic, or all for None; an empty set throttles none."""
        if partitions is None or partitions:
            self._partitions[topic] = partitions
        else:
            self._partitions.pop(topic, None)

    def forget_topics(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._partitions.pop(topic, None)

    def covers(self, topic: str, partition: int) -> bool:
        """Whether this broker's replica of the partition is throttled."""
        if topic not in self._partitions:
            return False
        partitions = self._partitions[topic]
        return partitions is None or partition in partitions

    def record(self, size: int, now_ms: int) -> None:
        """Record bytes that were replicated for throttled partitions."""
        if self._rate is not None:
            self._fill(self._rate, now_ms)
            self._balance -= size

    def is_exceeded(self, now_ms: int) -> bool:
        if self._rate is None:
            return False
        self._fill(self._rate, now_ms)
        return self._balance <= 0

    def open_again_ms(self, now_ms: int) -> int:
        """When the bucket will be positive again; `now_ms` if it is."""
        if self._rate is None or not self.is_exceeded(now_ms):
            return now_ms
        return now_ms + int(-self._balance * 1000 / max(self._rate, 1)) + 1

    def _fill(self, rate: int, now_ms: int) -> None:
        if now_ms > self._counted_ms:
            earned = rate * (now_ms - self._counted_ms) / 1000
            self._balance = min(float(rate), self._balance + earned)
            self._counted_ms = now_ms
