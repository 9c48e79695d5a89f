"""What a watch that fired means to the controller (ZK-25, ZK-26)."""

import pytest

from klamm.controller.event_queue import event_for
from klamm.core import events
from klamm.zookeeper.store import EventKind, WatchEvent

CREATED, DELETED, CHANGED, CHILDREN = (
    EventKind.CREATED,
    EventKind.DELETED,
    EventKind.CHANGED,
    EventKind.CHILDREN,
)


@pytest.mark.rule("ZK-25")
@pytest.mark.parametrize(
    ("kind", "path", "event"),
    [
        (CHILDREN, "/brokers/ids", events.BrokerChange()),
        (CHANGED, "/brokers/ids/7", events.BrokerModifications(7)),
        (CHILDREN, "/brokers/topics", events.TopicChange()),
        (CHANGED, "/brokers/topics/t", events.PartitionModifications("t")),
        (CHILDREN, "/admin/delete_topics", events.TopicDeletion()),
        (CREATED, "/admin/reassign_partitions", events.ZkReassignment()),
        (CREATED, "/admin/preferred_replica_election", events.ZkPreferredElection()),
        (CHILDREN, "/isr_change_notification", events.IsrChangeNotification()),
        (CHILDREN, "/log_dir_event_notification", events.LogDirEventNotification()),
        (CHANGED, "/brokers/topics/t/partitions/3/state", events.ReassignmentIsrChange("t", 3)),
    ],
)
def test_what_is_watched_has_its_event(kind: EventKind, path: str, event: events.Event):
    assert event_for(WatchEvent(kind, path)) == event


@pytest.mark.rule("ZK-26")
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (CHANGED, "/admin/reassign_partitions"),
        (CHANGED, "/admin/preferred_replica_election"),
        (DELETED, "/brokers/ids/7"),
        (DELETED, "/brokers/topics/t"),
        (CHILDREN, "/brokers/topics/t/partitions"),
        (CREATED, "/brokers/topics/t"),
        (CHANGED, "/brokers/ids/x"),
        (CHANGED, "/feature"),
    ],
)
def test_anything_else_is_nothing_to_the_controller(kind: EventKind, path: str):
    assert event_for(WatchEvent(kind, path)) is None


@pytest.mark.rule("REASG-1")
def test_a_request_that_somebody_removed_makes_the_controller_look_again():
    gone = WatchEvent(DELETED, "/admin/reassign_partitions")
    assert event_for(gone) == events.ZkReassignment()
