"""Replication throttles: how much of the network the catching up of replicas may take.

An operator sets a rate for the broker and names the replicas that it is for, usually those that
a reassignment moves. Followers that are in sync are never held back, or a throttle could take
partitions out of service.
"""

from collections.abc import Iterable
from typing import Final

EVERY_REPLICA: Final = "*"


def parse_throttled_replicas(value: str, broker_id: int) -> frozenset[int] | None:
    """The partitions of a topic for which `broker_id` is throttled; None stands for all of them.

    The value is that of `leader.replication.throttled.replicas` or its twin for followers: a `*`
    or pairs of partition and broker, `0:101,0:102,1:103`.
    """
    if value.strip() == EVERY_REPLICA:
        return None
    pairs = (pair.split(":") for pair in value.split(",") if pair.strip())
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)


class ReplicationThrottle:
    """A bucket that fills at the allowed rate, and the partitions that draw from it.

    The bucket holds one second's worth. What is moved is counted afterwards and may overdraw it;
    then the throttled replicas wait until the debt is paid.
    """

    def __init__(self) -> None:
        self._rate: int | None = None
        self._balance = 0.0
        self._counted_ms = 0
        self._partitions: dict[str, frozenset[int] | None] = {}

    def set_rate(self, bytes_per_second: int | None, now_ms: int) -> None:
        """Allow this much from now on; None lifts the throttle."""
        self._rate = bytes_per_second
        self._balance = float(bytes_per_second or 0)
        self._counted_ms = now_ms

    def set_partitions(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Throttle these partitions of a topic, or all of them; an empty set lifts it."""
        if partitions is None or partitions:
            self._partitions[topic] = partitions
        else:
            self._partitions.pop(topic, None)

    def forget_topics(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._partitions.pop(topic, None)

    def covers(self, topic: str, partition: int) -> bool:
        """Whether the replica here of this partition is one of those to be held back."""
        if topic not in self._partitions:
            return False
        partitions = self._partitions[topic]
        return partitions is None or partition in partitions

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes of throttled partitions that were moved."""
        if self._rate is not None:
            self._fill(self._rate, now_ms)
            self._balance -= size

    def is_exceeded(self, now_ms: int) -> bool:
        if self._rate is None:
            return False
        self._fill(self._rate, now_ms)
        return self._balance <= 0

    def open_again_ms(self, now_ms: int) -> int:
        """When the debt will be paid; `now_ms` if there is none."""
        if self._rate is None or not self.is_exceeded(now_ms):
            return now_ms
        return now_ms + int(-self._balance * 1000 / max(self._rate, 1)) + 1

    def _fill(self, rate: int, now_ms: int) -> None:
        if now_ms > self._counted_ms:
            earned = rate * (now_ms - self._counted_ms) / 1000
            self._balance = min(float(rate), self._balance + earned)
            self._counted_ms = now_ms
