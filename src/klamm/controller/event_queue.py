"""The controller's event queue, and the event that each watch of ZooKeeper puts into it.

The queue is first in, first out, and can be cleared in favour of one event (EVT-1..5). ZK-25 says
which watch stands for which event; ZK-26 says which changes are ignored.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from klamm.core.events import (
    BrokerChange,
    BrokerModifications,
    Event,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    QueuedEvent,
    ReassignmentIsrChange,
    TopicChange,
    TopicDeletion,
    ZkPreferredElection,
    ZkReassignment,
)
from klamm.zookeeper.store import EventKind, WatchEvent


class EventQueue:
    """An unbounded first-in, first-out queue with one consumer (EVT-1..5)."""

    def __init__(
        self, clock: Callable[[], float], preempted: Callable[[QueuedEvent], None]
    ) -> None:
        self._clock = clock
        self._preempted = preempted
        self._waiting: deque[QueuedEvent] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Any, *, cause: str, respond: Callable[[Any], None] | None = None) -> None:
        """Add an event at the end."""
        self._waiting.append(QueuedEvent(event, self._clock(), cause, respond))
        self._arrived.set()

    def clear_and_put(self, event: Any, *, cause: str) -> None:
        """Remove all queued events, respond to their requesters, then add the event."""
        waiting, self._waiting = self._waiting, deque()
        for queued in waiting:
            self._preempted(queued)
        self.put(event, cause=cause)

    def drop(self, is_stale: Callable[[Any], bool]) -> None:
        """Remove the queued events that are about something that is over."""
        self._waiting = deque(each for each in self._waiting if not is_stale(each.event))

    async def take(self) -> QueuedEvent:
        """Wait for the next event and remove it from the queue."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()


_CHILDREN: Final[dict[str, Event]] = {
    "/brokers/ids": BrokerChange(),
    "/brokers/topics": TopicChange(),
    "/admin/delete_topics": TopicDeletion(),
    "/isr_change_notification": IsrChangeNotification(),
    "/log_dir_event_notification": LogDirEventNotification(),
}
_EXISTENCE: Final[dict[str, Event]] = {
    "/admin/reassign_partitions": ZkReassignment(),
    "/admin/preferred_replica_election": ZkPreferredElection(),
}


def event_for(watch: WatchEvent) -> Event | None:
    """The event that a watch puts into the queue, or None if the controller ignores this path."""
    match watch.kind:
        case EventKind.CHILDREN:
            return _CHILDREN.get(watch.path)
        case EventKind.CREATED:
            return _EXISTENCE.get(watch.path)
        case EventKind.DELETED:
            # A request was removed by hand, perhaps because it was unreadable. Its watch has fired,
            # so read again to set a new one; otherwise the next request would be missed (REASG-1).
            return _EXISTENCE.get(watch.path)
        case EventKind.CHANGED:
            match watch.path.split("/")[1:]:
                case ["brokers", "ids", broker] if broker.isdecimal():
                    return BrokerModifications(int(broker))
                case ["brokers", "topics", topic]:
                    return PartitionModifications(topic)
                case ["brokers", "topics", topic, "partitions", partition, "state"]:
                    return ReassignmentIsrChange(topic, int(partition))
    return None
