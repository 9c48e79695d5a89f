"""ISR changes, proposed and reported."""

import pytest

from klamm.core import effects, events
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.events import ControllerError
from klamm.errors import FencedError, UnavailableError
from tests.support.procedure_store import ISR_CHANGES, state_path
from tests.support.procedure_world import World, steady


def three() -> World:
    return steady([1, 2, 3], {"t": {0: [1, 2, 3]}})


@pytest.mark.rule("ISR-8", "FENCE-14")
@pytest.mark.parametrize("difference", [-1, 1])
def test_another_broker_epoch_is_stale(difference: int) -> None:
    world = three()
    epoch = world.registrations[1].epoch + difference
    assert (
        world.report_isr("t", [1], broker_epoch=epoch).error == ControllerError.STALE_BROKER_EPOCH
    )
    assert world.writes == world.requests == []


@pytest.mark.rule("ISR-8")
def test_an_unknown_broker_is_stale() -> None:
    assert three().report_isr("t", [1], broker=9).error == ControllerError.STALE_BROKER_EPOCH


@pytest.mark.rule("ISR-8", "EVT-8")
@pytest.mark.parametrize("error", [UnavailableError("gone"), FencedError("moved")])
def test_an_unexpected_error_is_answered_too(error: Exception) -> None:
    world = three()

    def fail(effect: effects.Effect) -> None:
        if isinstance(effect, effects.WriteStates):
            raise error

    world.faults.before = fail
    with pytest.raises(type(error)):
        world.report_isr("t", [1])
    (response,) = world.responses
    assert response == (ControllerError.UNKNOWN_SERVER_ERROR, [])


@pytest.mark.rule("ISR-9", "ISR-10")
def test_topics_may_be_given_by_id() -> None:
    world = three()
    good = world.report_isr("t", [1, 2], version=2, topic=None, topic_id="id-of-t")
    assert (good.error, good.isr) == (ControllerError.NONE, (1, 2))
    bad = world.report_isr("t", [1], version=2, topic=None, topic_id="no-such-id")
    assert bad.error == ControllerError.UNKNOWN_TOPIC_ID


@pytest.mark.rule("ISR-10")
def test_ids_in_topic_znodes_count_even_if_the_controller_gives_none() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}}, Settings(topic_ids=False))
    response = world.report_isr("t", [1], version=2, topic=None, topic_id="id-of-t")
    assert response.error == ControllerError.NONE


@pytest.mark.rule("ISR-12")
def test_a_partition_without_a_leader_is_unknown() -> None:
    world = steady([1], {"t": {0: [9]}})
    assert world.report_isr("t", [9], broker=1).error == ControllerError.UNKNOWN_TOPIC_OR_PARTITION
    response = world.report_isr("t", [9], broker=1, topic="nope")
    assert response.error == ControllerError.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.rule("ISR-11", "ISR-13", "ISR-14")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"partition_epoch": 2}, ControllerError.NOT_CONTROLLER),
        ({"leader_epoch": 8}, ControllerError.NOT_CONTROLLER),
        ({"leader_epoch": 0}, ControllerError.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 0, "partition_epoch": 0}, ControllerError.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 0}, ControllerError.INVALID_UPDATE_VERSION),
    ],
)
def test_epochs_that_do_not_match_are_refused(changes: dict[str, int], error: int) -> None:
    world = three()
    world.lose(1)
    world.settle()
    assert world.state("t") == (2, 1, [2, 3])
    world.forget_what_happened()
    assert world.report_isr("t", [2], **changes).error == error
    assert world.state_writes() == []


@pytest.mark.rule("ISR-14")
@pytest.mark.parametrize("partition_epoch", [0, 1])
def test_what_is_so_already_succeeds_without_a_write(partition_epoch: int) -> None:
    world = three()
    world.report_isr("t", [1, 2])
    world.forget_what_happened()
    response = world.report_isr("t", [1, 2], partition_epoch=partition_epoch)
    assert (response.error, response.partition_epoch, response.isr) == (
        ControllerError.NONE,
        1,
        (1, 2),
    )
    assert world.state_writes() == []


@pytest.mark.rule("ISR-14")
def test_another_order_is_another_isr() -> None:
    world = three()
    assert world.report_isr("t", [2, 1, 3]).error == ControllerError.NONE
    assert world.state("t") == (1, 0, [2, 1, 3])


@pytest.mark.rule("ISR-15")
@pytest.mark.parametrize(("stored", "isr"), [(1, [1, 2]), (0, [1])])
def test_recovering_is_for_one_who_is_at_it_alone(stored: int, isr: list[int]) -> None:
    world = three()
    world.put_state("t", 0, leader=1, isr=[1], version=1, recovery=stored, controller_epoch=5)
    world.notify_isr_change(("t", 0))
    world.settle()
    assert world.report_isr("t", isr, recovery=1).error == ControllerError.INVALID_REQUEST


@pytest.mark.rule("ISR-16", "VER-19")
@pytest.mark.parametrize(
    ("version", "error"),
    [(1, ControllerError.OPERATION_NOT_ATTEMPTED), (2, ControllerError.INELIGIBLE_REPLICA)],
)
@pytest.mark.parametrize("how", ["dead", "shutting down"])
def test_members_have_to_be_live(version: int, error: int, how: str) -> None:
    world = three()
    if how == "dead":
        world.lose(3)
        world.settle()
    else:
        world.cluster.shutting_down.add(3)
    assert world.report_isr("t", [1, 3, 2], version=version).error == error


@pytest.mark.rule("ISR-17")
@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (WriteOutcome.BAD_VERSION, ControllerError.INVALID_UPDATE_VERSION),
        (WriteOutcome.NO_NODE, ControllerError.UNKNOWN_TOPIC_OR_PARTITION),
        (WriteOutcome.FAILED, ControllerError.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_refused_write_is_answered_and_not_retried(outcome: WriteOutcome, error: int) -> None:
    world = three()
    world.faults.refuse[state_path("t", 0)] = [outcome]
    assert world.report_isr("t", [1]).error == error
    assert world.state("t") == (1, 0, [1, 2, 3])


@pytest.mark.rule("ISR-18", "ISR-19", "ISR-11", "CHAN-35", "VER-16")
def test_an_accepted_isr_is_written_told_and_answered() -> None:
    world = three()
    world.cluster.controller_epoch = world.controller_epoch = 9
    response = world.report_isr("t", [1, 3])
    assert (response.leader, response.leader_epoch, response.isr) == (1, 0, (1, 3))
    assert (response.partition_epoch, response.recovery) == (1, 0)
    data = world.nodes[state_path("t", 0)].data
    assert (data["leader_epoch"], data["controller_epoch"]) == (0, 9)
    assert world.version("t") == 1
    assert world.sent("LeaderAndIsr") == []
    assert {r.to for r in world.sent("UpdateMetadata")} == {1, 2, 3}
    kinds = [type(effect) for effect in world.performed]
    assert kinds.index(effects.SendRequestBatch) < kinds.index(effects.Respond)


@pytest.mark.rule("ISR-19")
def test_everybody_is_told_of_refused_proposals_as_well() -> None:
    world = three()
    world.report_isr("t", [1], leader_epoch=8)
    assert {r.to for r in world.sent("UpdateMetadata")} == {1, 2, 3}
    assert world.sent("UpdateMetadata")[0].partitions["t", 0]["isr"] == [1, 2, 3]


@pytest.mark.rule("ISR-20")
def test_moves_go_on_after_the_response() -> None:
    world = three()
    world.ask(events.ApiReassignment({("t", 0): [1, 2]}))
    world.ask(events.ApiReassignment({("t", 0): [1, 3]}))
    world.forget_what_happened()
    world.report_isr("t", [1, 2, 3])
    kinds = [type(effect) for effect in world.performed]
    assert kinds.index(effects.Respond) < kinds.index(effects.WriteTopics)
    assert world.topic("t")["partitions"] == {"0": [1, 3]}


@pytest.mark.rule("ISR-21")
def test_who_is_not_the_leader_changes_nothing() -> None:
    world = three()
    assert world.report_isr("t", [2], broker=2).error == ControllerError.INVALID_REQUEST
    assert world.state("t") == (1, 0, [1, 2, 3])
    assert world.state_writes() == []


@pytest.mark.rule("ISR-21", "RSM-23")
def test_an_isr_is_never_emptied() -> None:
    world = three()
    assert world.report_isr("t", []).error == ControllerError.INVALID_REQUEST
    assert world.state_writes() == []


@pytest.mark.rule("ISR-22", "LEAD-6")
def test_a_leader_confirms_that_it_has_recovered() -> None:
    world = three()
    world.put_state("t", 0, leader=1, isr=[1], version=1, recovery=1, controller_epoch=5)
    world.notify_isr_change(("t", 0))
    world.settle()
    response = world.report_isr("t", [1])
    assert (response.error, response.recovery) == (ControllerError.NONE, 0)
    assert "leader_recovery_state" not in world.nodes[state_path("t", 0)].data
    assert world.report_isr("t", [1, 2]).error == ControllerError.NONE


@pytest.mark.rule("ISR-11", "ISR-19")
def test_many_proposals_are_written_together_and_answered_one_by_one() -> None:
    world = steady([1, 2], {"t": {0: [1, 2], 1: [1, 2], 2: [2, 1]}})
    proposals = [
        events.PartitionProposal("t", None, partition, 0, (1,), 0, 0) for partition in (0, 1, 2, 3)
    ]
    request = events.AlterPartition(1, world.registrations[1].epoch, 1, proposals)
    error, responses = world.ask(request)
    assert error == ControllerError.NONE
    assert {a.proposal.partition: a.error for a in responses} == {
        0: ControllerError.NONE,
        1: ControllerError.NONE,
        2: ControllerError.INVALID_REQUEST,
        3: ControllerError.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert len([e for e in world.performed if isinstance(e, effects.WriteStates)]) == 1


# Notifications


@pytest.mark.rule("ISR-2", "ISR-3", "ISR-4", "ISR-6", "ISR-7")
def test_a_reported_isr_is_read_and_passed_on() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3], 1: [1, 2, 3]}})
    world.put_state("t", 0, leader=1, isr=[1, 3], version=1, controller_epoch=5)
    world.notify_isr_change(("t", 0), ("nope", 1))
    world.settle()
    assert world.cluster.isr[world.cluster.row("t", 0)].tolist() == [1, 3, -1]
    assert world.sent("LeaderAndIsr") == []
    for request in world.sent("UpdateMetadata"):
        assert list(request.partitions) == [("t", 0)]
    assert {r.to for r in world.sent("UpdateMetadata")} == {1, 2, 3}
    assert world.children(ISR_CHANGES) == []


@pytest.mark.rule("ISR-6")
def test_notifications_go_even_if_handling_them_failed() -> None:
    world = three()

    def fail(effect: effects.Effect) -> None:
        if isinstance(effect, effects.ReadStates):
            raise UnavailableError("no")

    world.faults.before = fail
    world.notify_isr_change(("t", 0))
    with pytest.raises(UnavailableError):
        world.settle()
    assert world.children(ISR_CHANGES) == []


@pytest.mark.rule("ISR-2", "ISR-6")
def test_the_removal_of_notifications_is_no_news() -> None:
    world = three()
    world.queue.append(events.IsrChangeNotification())
    world.settle()
    assert len(world.performed) == 1


@pytest.mark.rule("FENCE-4")
def test_a_fenced_controller_leaves_notifications_to_the_next() -> None:
    world = three()
    world.notify_isr_change(("t", 0))
    world.controller_epoch += 1
    with pytest.raises(FencedError):
        world.settle()
    assert world.children(ISR_CHANGES) != []
