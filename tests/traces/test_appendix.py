"""The reference traces of appendix A of the specification, in its words and numbers."""

import pytest

from klamm.controller.metrics import gauges
from klamm.core import events
from klamm.core.context import Settings
from klamm.core.events import RequestedElection
from tests.support.procedure_world import Request, World, steady


def told(world: World, api: str, partition: int = 0) -> list[tuple[int, dict[str, object]]]:
    """Receiver and entry for each request of a kind about a partition of T."""
    return [(r.to, dict(r.partitions["T", partition])) for r in _about(world, api, partition)]


def _about(world: World, api: str, partition: int) -> list[Request]:
    return [r for r in world.sent(api) if ("T", partition) in r.partitions]


def leaders_told(world: World) -> list[tuple[int, int, int, bool]]:
    """Receiver, leader, leader epoch and newness for each LeaderAndIsr, in order."""
    return [
        (to, entry["leader"], entry["leader_epoch"], entry["is_new"])
        for to, entry in told(world, "LeaderAndIsr")
    ]


def stops(world: World) -> list[tuple[int, int, bool]]:
    """Receiver, leader epoch and deletion for each StopReplica, in order."""
    return [(to, e["leader_epoch"], e["delete"]) for to, e in told(world, "StopReplica")]


@pytest.mark.rule("TRACE-1", "TOPIC-5", "TOPIC-6", "TOPIC-7", "TOPIC-8", "TOPIC-9", "PSM-14")
def test_a_topic_is_created() -> None:
    world = World([1, 2, 3, 4])
    world.fail_over(epoch=5)
    world.forget_what_happened()
    world.create_topic("T", {0: [1, 2, 3]})
    world.settle()
    assert world.state("T") == (1, 0, [1, 2, 3])
    assert world.nodes["/brokers/topics/T/partitions/0/state"].data["controller_epoch"] == 5
    assert world.version("T") == 0
    assert leaders_told(world) == [(1, 1, 0, True), (2, 1, 0, True), (3, 1, 0, True)]
    assert {r.to for r in world.sent("UpdateMetadata")} == {1, 2, 3, 4}


@pytest.mark.rule("TRACE-2", "BRK-19", "RSM-14", "CHAN-16")
def test_the_leader_dies() -> None:
    world = steady([1, 2, 3, 4], {"T": {0: [1, 2, 3]}})
    world.lose(1)
    world.settle()
    assert world.state("T") == (2, 1, [2, 3])
    assert world.version("T") == 1
    assert len(world.state_writes()) == 1
    assert leaders_told(world) == [(2, 2, 1, False), (3, 2, 1, False)] * 2
    assert stops(world) == []


@pytest.mark.rule("TRACE-3", "RSM-15", "RSM-18", "VER-31")
def test_a_follower_dies() -> None:
    world = steady([1, 2, 3, 4], {"T": {0: [1, 2, 3]}})
    world.lose(3)
    world.settle()
    assert world.state("T") == (1, 1, [1, 2])
    assert leaders_told(world) == [(1, 1, 1, False), (2, 1, 1, False)]
    assert {r.to for r in world.sent("UpdateMetadata")} == {1, 2, 4}


@pytest.mark.rule("TRACE-4", "LEAD-E2", "LEAD-E4", "RSM-15", "RSM-23")
def test_the_last_in_sync_replica_dies_and_returns() -> None:
    world = steady([1, 2, 3], {"T": {0: [1, 2, 3]}})
    world.report_isr("T", (1,))
    world.forget_what_happened()
    world.lose(1)
    world.settle()
    assert world.state("T") == (-1, 1, [1])
    assert leaders_told(world) == [(2, -1, 1, False), (3, -1, 1, False)]
    assert gauges(world.cluster).offline_partitions_count == 1
    world.register(1)
    world.settle()
    assert world.state("T") == (1, 2, [1])
    assert gauges(world.cluster).offline_partitions_count == 0


@pytest.mark.rule("TRACE-4", "LEAD-E3", "LEAD-6", "VER-18")
def test_the_last_in_sync_replica_dies_where_availability_counts() -> None:
    world = steady([1, 2, 3], {"T": {0: [1, 2, 3]}}, Settings(unclean_default=True))
    world.report_isr("T", (1,))
    world.forget_what_happened()
    world.lose(1)
    world.settle()
    assert world.state("T") == (2, 1, [2])
    data = world.nodes["/brokers/topics/T/partitions/0/state"].data
    assert data["leader_recovery_state"] == 1
    assert len(world.state_writes()) == 1


@pytest.mark.rule("TRACE-5", "SHUT-7", "LEAD-E10")
def test_a_leader_shuts_down() -> None:
    world = steady([1, 2, 3, 4], {"T": {0: [1, 2, 3]}})
    epoch = world.registrations[1].epoch
    assert world.ask(events.ControlledShutdown(1, epoch)) == (0, [])
    assert world.state("T") == (2, 1, [2, 3])
    assert leaders_told(world) == [(1, 2, 1, False), (2, 2, 1, False), (3, 2, 1, False)]
    world.forget_what_happened()
    world.lose(1)
    world.settle()
    assert world.state_writes() == []
    assert leaders_told(world) == [(2, 2, 1, False), (3, 2, 1, False)]


@pytest.mark.rule("TRACE-5", "SHUT-8", "RSM-11")
def test_a_follower_shuts_down() -> None:
    world = steady([1, 2, 3, 4], {"T": {0: [1, 2, 3]}})
    assert world.ask(events.ControlledShutdown(3, world.registrations[3].epoch)) == (0, [])
    assert world.state("T") == (1, 1, [1, 2])
    assert [r.api for r in world.requests if r.to == 3] == [
        "StopReplica",
        "UpdateMetadata",
        "StopReplica",
    ]
    assert stops(world) == [(3, 0, False), (3, 0, False)]
    assert leaders_told(world) == [(1, 1, 1, False), (2, 1, 1, False)]
    assert {r.to for r in world.sent("UpdateMetadata")} == {1, 2, 3, 4}


@pytest.mark.rule(
    *("TRACE-6", "REASG-A1", "REASG-A2", "REASG-B1", "REASG-B2", "REASG-B3", "REASG-B4"),
    *("REASG-B5", "REASG-B6", "REASG-B8", "REASG-U1", "REASG-25", "VER-39"),
)
def test_all_replicas_move() -> None:
    world = steady([1, 2, 3, 4, 5, 6], {"T": {0: [1, 2, 3]}})
    world.ask(events.ApiReassignment({("T", 0): [4, 5, 6]}))
    assert world.topic("T")["partitions"] == {"0": [4, 5, 6, 1, 2, 3]}
    assert world.topic("T")["adding_replicas"] == {"0": [4, 5, 6]}
    assert world.topic("T")["removing_replicas"] == {"0": [1, 2, 3]}
    assert world.state("T") == (1, 1, [1, 2, 3])
    assert set(leaders_told(world)) == {
        *((broker, 1, 1, False) for broker in (1, 2, 3)),
        *((broker, 1, 1, True) for broker in (4, 5, 6)),
    }
    world.forget_what_happened()
    world.report_isr("T", (1, 2, 3, 4, 5, 6))
    epochs = [
        (w.data["leader"], w.data["leader_epoch"], w.data["isr"]) for w in world.state_writes()
    ]
    assert epochs == [
        (1, 1, [1, 2, 3, 4, 5, 6]),
        (4, 2, [1, 2, 3, 4, 5, 6]),
        (4, 3, [2, 3, 4, 5, 6]),
        (4, 4, [3, 4, 5, 6]),
        (4, 5, [4, 5, 6]),
    ]
    assert leaders_told(world) == [
        *((broker, 4, 2, False) for broker in (4, 5, 6)),
        *((broker, 4, 5, False) for broker in (4, 5, 6)),
    ]
    assert [(to, delete) for to, _, delete in stops(world)] == [
        *((broker, False) for broker in (1, 2, 3)),
        *((broker, True) for broker in (1, 2, 3)),
    ]
    assert {epoch for _, epoch, delete in stops(world) if delete} == {5}
    assert world.writes[-1].path == "/brokers/topics/T"
    # The last that anybody hears is the new list.
    final = world.requests[-6:]
    assert [(r.api, r.to) for r in final] == [("UpdateMetadata", b) for b in (1, 2, 3, 4, 5, 6)]
    assert all(r.partitions["T", 0]["replicas"] == [4, 5, 6] for r in final)
    assert world.topic("T")["partitions"] == {"0": [4, 5, 6]}
    assert world.topic("T")["adding_replicas"] == world.topic("T")["removing_replicas"] == {}


@pytest.mark.rule("TRACE-7")
def test_a_single_replica_moves() -> None:
    world = steady([1, 2], {"T": {0: [1]}})
    world.ask(events.ApiReassignment({("T", 0): [2]}))
    world.report_isr("T", (1, 2))
    assert world.state("T") == (2, 3, [2])


@pytest.mark.rule("TRACE-7", "REASG-28", "BRK-10")
def test_a_single_replica_moves_to_a_broker_that_is_down() -> None:
    world = steady([1, 2], {"T": {0: [1]}})
    world.lose(2)
    world.settle()
    world.request_reassignment({("T", 0): [2]})
    world.settle()
    assert world.state("T") == (1, 1, [1])
    world.register(2)
    world.settle()
    world.report_isr("T", (1, 2))
    assert world.state("T") == (2, 4, [2])
    assert "/admin/reassign_partitions" not in world.nodes


@pytest.mark.rule("TRACE-8", "REASG-33", "REASG-U3")
def test_a_move_is_cancelled() -> None:
    world = steady([1, 2, 3, 4, 5, 6], {"T": {0: [1, 2, 3]}})
    world.ask(events.ApiReassignment({("T", 0): [4, 5, 6]}))
    world.forget_what_happened()
    world.ask(events.ApiReassignment({("T", 0): None}))
    assert world.topic("T")["partitions"] == {"0": [1, 2, 3]}
    assert [(to, delete) for to, _, delete in stops(world)] == [
        *((broker, False) for broker in (4, 5, 6)),
        *((broker, True) for broker in (4, 5, 6)),
    ]
    assert world.state("T") == (1, 2, [1, 2, 3])
    assert leaders_told(world)[-3:] == [(broker, 1, 2, False) for broker in (1, 2, 3)]


@pytest.mark.rule("TRACE-9", "DEL-12", "DEL-13", "DEL-15", "DEL-32", "CHAN-25", "CHAN-28")
def test_a_topic_is_deleted() -> None:
    world = steady([1, 2, 3, 4], {"T": {0: [1, 2, 3]}})
    world.request_deletion("T")
    world.settle()
    assert {entry["leader"] for _, entry in told(world, "UpdateMetadata")} == {-2}
    assert stops(world) == [
        *((broker, -2, False) for broker in (1, 2, 3)),
        *((broker, -2, True) for broker in (1, 2, 3)),
    ]
    shrinks = [w.data for w in world.state_writes() if w.op == "set"]
    assert [data["leader_epoch"] for data in shrinks] == [1, 2, 3]
    assert (shrinks[-1]["leader"], len(shrinks[-1]["isr"])) == (-1, 1)
    assert world.sent("LeaderAndIsr") == []
    assert not [path for path in world.nodes if "/T" in path]
    assert world.cluster.topics == {}


@pytest.mark.rule("TRACE-10", "FAILOVER-23")
def test_the_controller_dies_and_was_a_leader_too() -> None:
    world = steady([1, 2, 3], {"T": {0: [1, 2, 3]}})
    world.lose(1)
    world.fail_over(2)
    world.settle()
    assert world.controller_epoch == 6
    first, second = (write.data for write in world.state_writes())
    assert (first["leader"], first["isr"], first["leader_epoch"]) == (-1, [2, 3], 1)
    assert (second["leader"], second["isr"], second["leader_epoch"]) == (2, [2, 3], 2)
    assert second["controller_epoch"] == 6


@pytest.mark.rule("TRACE-11", "LEAD-E8", "REBAL-4")
@pytest.mark.parametrize("by", ["request", "timer"])
def test_leadership_goes_back_to_the_preferred_replica(by: str) -> None:
    world = steady([1, 2], {"T": {0: [2, 1]}})
    world.bounce(2)
    world.settle()
    world.report_isr("T", (1, 2))
    leader, epoch, isr = world.state("T") or (0, 0, [])
    assert (leader, isr) == (1, [1, 2])
    world.forget_what_happened()
    if by == "request":
        world.ask(events.ElectLeaders(RequestedElection.PREFERRED, [("T", 0)]))
    else:
        world.queue.append(events.AutoRebalance())
        world.settle()
    assert world.state("T") == (2, epoch + 1, [1, 2])
    assert leaders_told(world) == [(1, 2, epoch + 1, False), (2, 2, epoch + 1, False)]


@pytest.mark.rule("TRACE-12", "BRK-1", "BRK-2", "BRK-4", "VER-9")
def test_a_broker_bounces() -> None:
    world = steady([1, 2, 3], {"T": {0: [1, 2, 3]}})
    world.bounce(3)
    world.settle()
    assert world.state("T") == (1, 1, [1, 2])
    assert world.channels[3] == world.registrations[3].epoch
    heard = [r for r in world.requests if r.to == 3]
    assert [r.api for r in heard[:2]] == ["UpdateMetadata", "LeaderAndIsr"]
    entry = heard[1].partitions["T", 0]
    assert (entry["leader"], entry["isr"], entry["leader_epoch"]) == (1, [1, 2], 1)


@pytest.mark.rule("TRACE-13", "TOPIC-10", "PSM-10", "BRK-9", "VER-42")
def test_a_topic_is_created_while_its_brokers_are_down() -> None:
    world = steady([3], {"T": {0: [1, 2]}})
    assert world.state("T") is None
    world.register(2)
    world.settle()
    assert world.state("T") == (2, 0, [2])
    assert leaders_told(world) == [(2, 2, 0, True)]
    world.forget_what_happened()
    world.register(1)
    world.settle()
    assert leaders_told(world) == [(1, 2, 0, False)]
