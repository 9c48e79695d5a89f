"""Partition reassignment: requests, phases, what makes it go on, and how it ends."""

import pytest

from klamm.core import effects, events
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.events import ControllerError
from klamm.core.reassignment import Assignment
from tests.support.procedure_store import REASSIGN, TOPICS, Node
from tests.support.procedure_world import World, steady

FIVE = [1, 2, 3, 4, 5]
T0 = ("t", 0)


def reassign(world: World, target: list[int] | None, partition: int = 0) -> tuple[int, str | None]:
    error, verdicts = world.ask(events.ApiReassignment({("t", partition): target}))
    assert error == ControllerError.NONE
    verdict: tuple[int, str | None] = verdicts["t", partition]
    return verdict


def lists(world: World, partition: int = 0) -> tuple[list[int], list[int], list[int]]:
    """Replicas, adding and removing replicas in the topic's znode."""
    data, number = world.topic("t"), str(partition)
    return (
        data["partitions"][number],
        data["adding_replicas"].get(number, []),
        data["removing_replicas"].get(number, []),
    )


@pytest.mark.rule("REASG-6", "ADM-30")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ([], "Empty replica list"),
        ([1, 1], "Duplicate replica ids"),
        ([1, -3], "Invalid broker id"),
        ([1, 9], "not alive"),
        (list(range(10_001)), "10001 replicas"),
    ],
)
def test_a_bad_list_is_refused_by_the_request(target: list[int], words: str) -> None:
    world = steady(FIVE, {"t": {0: [1, 2, 3]}})
    code, message = reassign(world, target)
    assert code == ControllerError.INVALID_REPLICA_ASSIGNMENT
    assert words in str(message)
    assert world.writes == []


def test_a_node_that_holds_no_data_is_no_target() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    world.register(9, controller_only=True)
    world.settle()
    assert reassign(world, [1, 9])[0] == ControllerError.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.rule("REASG-7")
def test_replicas_that_are_there_already_need_not_be_alive() -> None:
    world = steady(FIVE, {"t": {0: [1, 2, 9]}})
    assert reassign(world, [9, 1, 4])[0] == ControllerError.NONE
    assert lists(world) == ([9, 1, 4, 2], [4], [2])


@pytest.mark.rule("REASG-3", "REASG-10")
def test_partitions_are_independent_and_unknown_ones_are_refused() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    targets = {T0: [1, 3], ("t", 7): [1, 2], ("nope", 0): [1]}
    _, verdicts = world.ask(events.ApiReassignment(targets))
    assert {tp: code for tp, (code, _) in verdicts.items()} == {
        T0: ControllerError.NONE,
        ("t", 7): ControllerError.UNKNOWN_TOPIC_OR_PARTITION,
        ("nope", 0): ControllerError.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.rule("REASG-8")
@pytest.mark.parametrize("partition", [0, 7])
def test_what_does_not_move_cannot_be_cancelled(partition: int) -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    assert reassign(world, None, partition) == (ControllerError.NO_REASSIGNMENT_IN_PROGRESS, None)


@pytest.mark.rule("REASG-9")
def test_the_latest_request_takes_over_from_the_znode() -> None:
    world = steady(FIVE, {"t": {0: [1, 2], 1: [2, 3]}})
    world.request_reassignment({T0: [1, 3], ("t", 1): [2, 4]})
    world.settle()
    reassign(world, [1, 5])
    assert world.nodes[REASSIGN].data["partitions"] == [
        {"topic": "t", "partition": 1, "replicas": [2, 4]}
    ]
    assert lists(world) == ([1, 5, 2], [5], [2])


@pytest.mark.rule("REASG-11")
def test_the_response_does_not_wait_for_the_data() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    assert reassign(world, [3, 4]) == (ControllerError.NONE, None)
    assert lists(world) == ([3, 4, 1, 2], [3, 4], [1, 2])


@pytest.mark.rule("REASG-12", "REASG-A2", "VER-13")
def test_the_same_request_again_writes_no_assignment_but_runs_again() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [1, 3])
    version = world.nodes[f"{TOPICS}/t"].version
    reassign(world, [1, 3])
    assert world.nodes[f"{TOPICS}/t"].version == version
    assert world.state("t") == (1, 2, [1, 2])


@pytest.mark.rule("REASG-12", "REASG-U3")
def test_another_request_replaces_the_first_and_retires_what_it_does_not_need() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [3, 4])
    world.forget_what_happened()
    reassign(world, [2, 5])
    assert lists(world) == ([2, 5, 1], [5], [1])
    assert [(r.to, r.partitions[T0]["delete"]) for r in world.sent("StopReplica")] == [
        (3, False),
        (4, False),
        (3, True),
        (4, True),
    ]
    assert world.cluster.leaving == {}


@pytest.mark.parametrize("target", [None, [2, 5]])
def test_the_last_replicas_in_sync_are_not_dropped_with_their_reassignment(target) -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [3, 4])
    world.report_isr("t", [1, 3])
    world.lose(1)
    world.settle()
    assert world.state("t")[2] == [3]
    world.forget_what_happened()
    code, message = reassign(world, target)
    assert code == ControllerError.INVALID_REPLICA_ASSIGNMENT
    assert "in sync: [3]" in str(message)
    assert world.writes == []
    assert lists(world) == ([3, 4, 1, 2], [3, 4], [1, 2])


@pytest.mark.rule("REASG-13", "REASG-U4", "VER-14", "REASG-B3")
def test_a_target_that_is_the_present_list_succeeds_at_once() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    assert reassign(world, [1, 2]) == (ControllerError.NONE, None)
    assert world.state("t") == (1, 1, [1, 2])
    assert world.nodes[f"{TOPICS}/t"].version == 1
    assert {r.to for r in world.sent("LeaderAndIsr")} == {1, 2}
    assert world.cluster.being_reassigned == set()


@pytest.mark.rule("REASG-1", "REASG-2", "REASG-3", "REASG-4")
def test_what_the_znode_asks_in_vain_is_taken_out_of_it() -> None:
    world = steady(FIVE, {"t": {0: [1, 2], 1: [1, 2], 2: [1, 2]}})
    world.request_reassignment({T0: [1, 3], ("t", 1): [], ("t", 2): [4, 4], ("nope", 0): [1]})
    world.settle()
    assert world.nodes[REASSIGN].data["partitions"] == [
        {"topic": "t", "partition": 0, "replicas": [1, 3]}
    ]


@pytest.mark.rule("REASG-2")
def test_the_znode_may_name_brokers_that_are_away() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    world.request_reassignment({T0: [1, 9]})
    world.settle()
    assert lists(world) == ([1, 9, 2], [9], [2])
    world.register(9)
    world.settle()
    world.report_isr("t", [1, 2, 9])
    assert lists(world) == ([1, 9], [], [])


@pytest.mark.rule("REASG-1")
def test_an_unreadable_znode_asks_for_nothing_and_goes_with_the_next_removal() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    world.create(REASSIGN, "garbage")
    world.settle()
    assert REASSIGN in world.nodes
    reassign(world, [2, 1])
    assert REASSIGN not in world.nodes


@pytest.mark.rule("REASG-1")
def test_without_the_znode_nothing_happens() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    world.queue.append(events.ZkReassignment())
    world.settle()
    assert len(world.performed) == 1


@pytest.mark.rule("REASG-B7", "ZK-27")
def test_the_znode_goes_with_its_last_entry_and_is_looked_for_again() -> None:
    world = steady(FIVE, {"t": {0: [1, 2], 1: [2, 3]}})
    world.request_reassignment({T0: [1, 3], ("t", 1): [2, 4]})
    world.settle()
    world.report_isr("t", [2, 3, 4], partition=1)
    assert world.nodes[REASSIGN].data["partitions"][0]["partition"] == 0
    world.forget_what_happened()
    world.report_isr("t", [1, 2, 3])
    assert REASSIGN not in world.nodes
    assert effects.Enqueue(events.ZkReassignment()) in world.performed


@pytest.mark.rule("REASG-B7")
def test_an_entry_with_another_list_stays() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [1, 3])
    world.nodes[REASSIGN] = Node(
        {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [3, 1]}]}
    )
    world.report_isr("t", [1, 2, 3])
    assert lists(world) == ([1, 3], [], [])
    assert REASSIGN in world.nodes


@pytest.mark.rule("REASG-U1", "REASG-U2", "REASG-10")
def test_a_move_that_cannot_be_written_down_changes_nothing() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    world.faults.refuse[f"{TOPICS}/t"] = [WriteOutcome.FAILED]
    assert reassign(world, [1, 3])[0] == ControllerError.UNKNOWN_SERVER_ERROR
    assert world.cluster.assignment(world.cluster.row("t", 0)) == Assignment((1, 2))
    assert world.cluster.being_reassigned == set()
    assert world.requests == []


@pytest.mark.rule("REASG-20", "VER-30", "REASG-27")
def test_a_move_is_complete_when_the_whole_target_is_in_sync() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [3, 4])
    world.forget_what_happened()
    world.report_isr("t", [1, 2, 3])
    assert world.sent("LeaderAndIsr") == []
    assert lists(world) == ([3, 4, 1, 2], [3, 4], [1, 2])
    world.report_isr("t", [1, 3, 4])
    assert lists(world) == ([3, 4], [], [])
    assert world.state("t") == (3, 3, [3, 4])


@pytest.mark.rule("REASG-A1", "REASG-A4", "CHAN-35")
def test_phase_a_tells_the_whole_new_list() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [2, 3])
    told = {r.to: r.partitions[T0] for r in world.sent("LeaderAndIsr")}
    assert {to: entry["is_new"] for to, entry in told.items()} == {1: False, 2: False, 3: True}
    assert told[1]["replicas"] == [2, 3, 1]
    assert (told[1]["adding"], told[1]["removing"]) == ([3], [1])
    assert told[1]["leader_epoch"] == 1
    assert world.queue == type(world.queue)()


@pytest.mark.rule("REASG-A1")
def test_phase_a_reads_again_what_has_moved_on() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    world.put_state("t", 0, leader=1, isr=[1], version=8, controller_epoch=5)
    reassign(world, [1, 3])
    assert world.state("t") == (1, 1, [1])
    assert world.version("t") == 9


@pytest.mark.rule("REASG-A5", "TOPIC-10")
def test_a_partition_that_never_came_online_keeps_what_was_written_and_goes_on_later() -> None:
    world = steady([1, 2, 3], {"t": {0: [8, 9]}})
    assert reassign(world, [8, 1])[0] == ControllerError.UNKNOWN_SERVER_ERROR
    assert lists(world) == ([8, 1, 9], [1], [9])
    world.register(8)
    world.settle()
    assert world.state("t") is not None
    world.report_isr("t", [8, 1])
    assert lists(world) == ([8, 1], [], [])


@pytest.mark.rule("REASG-A5", "RSM-15")
def test_a_replica_that_is_added_before_the_first_leader_can_fail() -> None:
    world = steady([1, 2, 3], {"t": {0: [8, 9]}})
    reassign(world, [8, 1])
    world.register(8)
    world.settle()
    assert world.state("t") == (8, 1, [8, 1])
    world.lose(1)
    world.settle()
    assert world.state("t") == (8, 2, [8])


@pytest.mark.rule("REASG-A5")
@pytest.mark.parametrize(
    "event",
    [
        pytest.param(lambda world: world.register(9), id="a broker that is no target starts"),
        pytest.param(lambda world: world.lose(3), id="a broker without a replica fails"),
    ],
)
def test_a_reassignment_that_waited_for_a_first_leader_ends_with_it(event) -> None:
    world = steady([1, 2, 3], {"t": {0: [8, 9]}})
    reassign(world, [1, 2])
    assert lists(world) == ([1, 2, 8, 9], [1, 2], [8, 9])
    event(world)
    world.settle()
    assert lists(world) == ([1, 2], [], [])
    leader, _, isr = world.state("t")
    assert leader == 1
    assert set(isr) == {1, 2}


@pytest.mark.rule("FENCE-8", "REASG-A1")
def test_a_partition_of_a_newer_controller_does_not_move() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    world.put_state("t", 0, leader=1, isr=[1, 2], version=8, controller_epoch=99)
    assert reassign(world, [1, 3])[0] == ControllerError.UNKNOWN_SERVER_ERROR
    assert world.version("t") == 8


@pytest.mark.rule("REASG-B3", "LEAD-14", "VER-43", "VER-44")
def test_a_leader_that_stays_is_told_the_new_list() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [1, 3])
    world.forget_what_happened()
    world.report_isr("t", [1, 2, 3])
    first = world.sent("LeaderAndIsr", to=1)[0].partitions[T0]
    assert (first["replicas"], first["adding"], first["removing"]) == ([1, 3], [], [])
    assert (first["leader"], first["leader_epoch"], first["isr"]) == (1, 2, [1, 2, 3])
    assert world.state("t") == (1, 3, [1, 3])


@pytest.mark.rule("REASG-B3", "LEAD-E14")
def test_a_leader_in_the_target_that_is_offline_is_replaced() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [1, 3])
    row = world.cluster.row("t", 0)
    world.cluster.offline_dirs[1] = {row}
    world.put_state("t", 0, leader=1, isr=[1, 2, 3], leader_epoch=1, version=5, controller_epoch=5)
    world.queue.append(events.IsrChangeNotification())
    world.create(
        "/isr_change_notification/isr_change_1", {"partitions": [{"topic": "t", "partition": 0}]}
    )
    world.settle()
    assert world.state("t") == (3, 3, [1, 3])


@pytest.mark.rule("REASG-B4", "REASG-B5", "RSM-22")
def test_removed_replicas_are_stopped_deleted_and_forgotten() -> None:
    world = steady(FIVE, {"t": {0: [1, 2, 3]}})
    world.lose(3)
    world.settle()
    world.forget_what_happened()
    reassign(world, [1])
    assert [(r.to, r.partitions[T0]["delete"]) for r in world.sent("StopReplica")] == [
        (2, False),
        (2, True),
    ]
    assert lists(world) == ([1], [], [])
    assert world.cluster.leaving == {}
    assert world.cluster.replicas[world.cluster.row("t", 0)].tolist() == [1, -1, -1]


@pytest.mark.rule("REASG-B6", "REASG-31")
def test_the_record_of_a_move_is_removed_last() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [1, 3])
    world.forget_what_happened()
    world.faults.refuse[f"{TOPICS}/t"] = [WriteOutcome.FAILED]
    world.report_isr("t", [1, 2, 3])
    assert lists(world) == ([1, 3, 2], [3], [2])
    assert world.cluster.being_reassigned == {world.cluster.row("t", 0)}
    world.fail_over()
    world.settle()
    assert lists(world) == ([1, 3], [], [])


@pytest.mark.rule("REASG-26", "ISR-5")
def test_a_notification_completes_a_move() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [1, 3])
    world.put_state("t", 0, leader=1, isr=[1, 2, 3], leader_epoch=1, version=2, controller_epoch=5)
    world.create(
        "/isr_change_notification/isr_change_1", {"partitions": [{"topic": "t", "partition": 0}]}
    )
    world.settle()
    assert lists(world) == ([1, 3], [], [])


@pytest.mark.rule("REASG-30", "REASG-U4", "REASG-B7")
def test_without_alter_partition_the_state_itself_is_watched() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}}, Settings(alter_partition=False))
    reassign(world, [1, 3])
    assert any(isinstance(e, effects.WatchStates) for e in world.performed)
    world.queue.append(events.ReassignmentIsrChange("t", 0))
    world.settle()
    assert lists(world) == ([1, 3, 2], [3], [2])
    world.put_state("t", 0, leader=1, isr=[1, 2, 3], leader_epoch=1, version=2, controller_epoch=5)
    world.queue.append(events.ReassignmentIsrChange("t", 0))
    world.settle()
    assert lists(world) == ([1, 3], [], [])


@pytest.mark.rule("REASG-28", "BRK-10")
def test_only_the_start_of_a_target_broker_runs_a_move_again() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [1, 3])
    world.bounce(5)
    world.settle()
    assert world.state("t") == (1, 1, [1, 2])
    world.bounce(3)
    world.settle()
    assert world.state("t") == (1, 2, [1, 2])


@pytest.mark.rule("REASG-29", "FAILOVER-8", "FAILOVER-18")
def test_a_successor_resumes_moves_and_the_znode_supplants_them() -> None:
    world = steady(FIVE, {"t": {0: [1, 2], 1: [1, 2]}})
    reassign(world, [1, 3], 0)
    reassign(world, [1, 3], 1)
    world.request_reassignment({T0: [1, 4]})
    world.fail_over()
    world.settle()
    assert lists(world, 0) == ([1, 4, 2], [4], [2])
    assert lists(world, 1) == ([1, 3, 2], [3], [2])
    assert world.state("t", 0) == (1, 2, [1, 2])
    assert world.state("t", 1) == (1, 2, [1, 2])
    assert len(world.cluster.being_reassigned) == 2


@pytest.mark.rule("REASG-32", "ADM-31")
def test_listing_names_moves_and_leaves_out_the_rest() -> None:
    world = steady(FIVE, {"t": {0: [1, 2], 1: [1, 2], 2: [1, 2]}})
    reassign(world, [1, 3], 0)
    reassign(world, [2, 4], 1)
    expected = {
        T0: Assignment((1, 3, 2), (3,), (2,)),
        ("t", 1): Assignment((2, 4, 1), (4,), (1,)),
    }
    assert world.ask(events.ListReassignments(None)) == (ControllerError.NONE, expected)
    wanted = [("t", 1), ("t", 2), ("nope", 0)]
    listed = {("t", 1): expected["t", 1]}
    assert world.ask(events.ListReassignments(wanted)) == (ControllerError.NONE, listed)


@pytest.mark.rule("REASG-33", "REASG-34")
def test_a_cancelled_move_takes_leadership_back() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [3, 4])
    world.report_isr("t", [1, 2, 3])
    # The old replicas fail, one that is being added takes over, and they return.
    world.lose(1, 2)
    world.settle()
    assert (world.state("t") or (0,))[0] == 3
    world.register(1)
    world.register(2)
    world.settle()
    world.report_isr("t", [3, 1, 2])
    reassign(world, None)
    leader, _, isr = world.state("t") or (0, 0, [])
    assert (leader, isr) == (1, [1, 2])
    assert lists(world) == ([1, 2], [], [])
    assert world.cluster.being_reassigned == set()


@pytest.mark.rule("REASG-35")
def test_a_move_may_change_the_number_of_replicas() -> None:
    world = steady(FIVE, {"t": {0: [1]}})
    reassign(world, [1, 2, 3, 4, 5])
    world.report_isr("t", [1, 2, 3, 4, 5])
    assert lists(world) == ([1, 2, 3, 4, 5], [], [])
    reassign(world, [5])
    assert world.state("t") == (5, 7, [5])


@pytest.mark.rule("REASG-36")
def test_everybody_in_a_list_hears_of_it_and_everybody_dropped_is_stopped() -> None:
    world = steady(FIVE, {"t": {0: [1, 2, 3]}})
    reassign(world, [3, 4, 5])
    world.report_isr("t", [1, 2, 3, 4, 5])
    told = {r.to for r in world.sent("LeaderAndIsr")}
    assert told == {1, 2, 3, 4, 5}
    assert {r.to for r in world.sent("StopReplica")} == {1, 2}


@pytest.mark.rule("REASG-U0", "DEL-28")
def test_a_move_that_is_resumed_holds_up_the_deletion_of_its_topic() -> None:
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, [1, 3])
    world.request_deletion("t")
    world.settle()
    world.cluster.ineligible_for_deletion.clear()
    world.silent.update(FIVE)
    world.bounce(3)
    world.settle()
    assert "t" in world.cluster.topics
    assert any("reassignment" in remark.text for remark in world.ctx.remarks)


@pytest.mark.rule("REASG-A2", "REASG-B1", "FAILOVER-18")
def test_many_moves_are_made_together() -> None:
    topics = {f"t{n}": {p: [1, 2] for p in range(10)} for n in range(30)}
    partitions = [(topic, partition) for topic in topics for partition in range(10)]
    world = steady(FIVE, topics)
    world.ask(events.ApiReassignment({tp: [1, 3] for tp in partitions}))
    announced = [e for e in world.performed if isinstance(e, effects.SendRequestBatch)]
    assert len(announced) == 2  # one for the new epoch, one for the new replicas
    assert world.nodes[f"{TOPICS}/t0"].version == 10
    assert all(world.state(*tp) == (1, 1, [1, 2]) for tp in partitions)
    assert len(world.cluster.being_reassigned) == 300


@pytest.mark.rule("REASG-U1", "REASG-B6")
def test_a_topic_of_very_many_moves_is_not_written_once_for_each() -> None:
    partitions = range(2100)
    world = steady(FIVE, {"t": {partition: [1, 2] for partition in partitions}})
    world.ask(events.ApiReassignment({("t", partition): [2, 1] for partition in partitions}))
    assert world.nodes[f"{TOPICS}/t"].version == 4  # two phases for each of two portions
    assert set(map(tuple, world.topic("t")["partitions"].values())) == {(2, 1)}
    assert world.cluster.being_reassigned == set()
    assert world.disagreements() == []
