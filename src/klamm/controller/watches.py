"""Which event of the controller a watch stands for (ZK-25); everything else is ignored (ZK-26)."""

from typing import Final

from klamm.core.events import (
    BrokerChange,
    BrokerModifications,
    Event,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    ReassignmentIsrChange,
    TopicChange,
    TopicDeletion,
    ZkPreferredElection,
    ZkReassignment,
)
from klamm.zookeeper.store import EventKind, WatchEvent

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
    """The event for a controller in office, or None if it is nothing to it."""
    match watch.kind:
        case EventKind.CHILDREN:
            return _CHILDREN.get(watch.path)
        case EventKind.CREATED:
            return _EXISTENCE.get(watch.path)
        case EventKind.DELETED:
            # Somebody else removed a request that may have been unreadable. Its watch went with
            # it, so look again, or the next request goes unnoticed (REASG-1).
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
