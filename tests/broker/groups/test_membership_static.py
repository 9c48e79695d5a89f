"""Members with a group.instance.id: they may restart without anyone else noticing."""

from dataclasses import replace

import pytest

from klamm.broker.groups.messages import JoinedMember, MemberIdentity
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import (
    GROUP,
    INITIAL_DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Client,
    Driver,
    protocols,
    subscription,
)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def member_ids(driver: Driver) -> dict[str | None, str]:
    members = driver.coordinator.describe_group(GROUP).members
    return {member.instance_id: member.member_id for member in members}


@pytest.mark.rule("GRP-19", "GRP-8")
def test_static_member_needs_no_second_request_to_join(driver):
    ticket = driver.join(instance_id="a", version=9)
    driver.advance(INITIAL_DELAY_MS)
    assert driver.responses[ticket].member_id == "a-uuid1"


@pytest.mark.rule("GRP-19")
def test_restart_within_the_session_changes_nothing_for_the_others(driver):
    leader, follower = driver.form_static_group("a", "b")
    driver.advance(SESSION_MS - 1)
    driver.heartbeat(leader)
    response = driver.responses[driver.join(instance_id="b", version=9)]
    assert (response.error, response.generation) == (ErrorCode.NONE, 1)
    assert response.member_id != follower.member_id
    assert (response.leader, response.skip_assignment, response.members) == (
        leader.member_id,
        False,
        (),
    )
    assert driver.state() == "Stable"
    back = Client(response.member_id, 1, response.leader, "b")
    assert driver.responses[driver.sync(back)].assignment == b"1"
    assert driver.heartbeat(leader) is driver.heartbeat(back) is ErrorCode.NONE


@pytest.mark.rule("GRP-19")
def test_restart_beyond_the_session_rebalances_twice(driver):
    leader, _ = driver.form_static_group("a", "b")
    driver.advance(SESSION_MS - 1)
    driver.heartbeat(leader)
    driver.advance(1)
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.responses[driver.join(leader.member_id, instance_id="a")].generation == 2
    assert driver.join(instance_id="b") not in driver.responses
    assert driver.responses[driver.join(leader.member_id, instance_id="a")].generation == 3


@pytest.mark.rule("GRP-19")
def test_restarted_leader_is_told_to_skip_the_assignment_from_version_9_on(driver):
    _, follower = driver.form_static_group("a", "b")
    response = driver.responses[driver.join(instance_id="a", version=9)]
    assert response.leader == response.member_id
    assert response.skip_assignment
    assert response.members == (
        JoinedMember(response.member_id, "a", subscription("t")),
        JoinedMember(follower.member_id, "b", subscription("t")),
    )


@pytest.mark.rule("GRP-19")
def test_restarted_leader_takes_itself_for_a_follower_below_version_9(driver):
    leader, _ = driver.form_static_group("a", "b")
    response = driver.responses[driver.join(instance_id="a", version=8)]
    assert response.leader == leader.member_id != response.member_id
    assert (response.skip_assignment, response.members) == (False, ())


@pytest.mark.rule("GRP-19")
def test_new_id_of_a_restarted_member_is_stored_before_it_is_given_out(driver):
    driver.form_static_group("a", "b")
    driver.append_error = None
    ticket = driver.join(instance_id="b")
    assert ticket not in driver.responses
    driver.acknowledge()
    member_id = driver.responses[ticket].member_id
    driver.fail_over()
    assert member_ids(driver)["b"] == member_id
    back = Client(member_id, 1, "", "b")
    assert driver.heartbeat(back) is ErrorCode.NONE
    assert driver.responses[driver.sync(back)].assignment == b"1"


@pytest.mark.rule("GRP-19", "GRP-15")
def test_restarted_member_may_try_again_if_the_log_refuses(driver):
    leader, _ = driver.form_static_group("a", "b")
    driver.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    response = driver.responses[driver.join(instance_id="b")]
    assert (response.error, response.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    assert driver.state() == "Stable"
    driver.append_error = ErrorCode.NONE
    assert driver.responses[driver.join(instance_id="b")].error is ErrorCode.NONE
    assert driver.heartbeat(leader) is ErrorCode.NONE


@pytest.mark.rule("GRP-19")
def test_second_restart_overtakes_the_first(driver):
    driver.form_static_group("a", "b")
    driver.append_error = None
    first = driver.join(instance_id="b")
    second = driver.join(instance_id="b")
    assert driver.responses[first].error is ErrorCode.FENCED_INSTANCE_ID
    driver.acknowledge()
    assert driver.responses[second].member_id == member_ids(driver)["b"]


@pytest.mark.rule("GRP-19")
def test_restart_that_a_rebalance_overtakes_is_answered_by_that_rebalance(driver):
    leader, _ = driver.form_static_group("a", "b")
    driver.append_error = None
    restart = driver.join(instance_id="b")
    rejoin = driver.join(leader.member_id, instance_id="a")
    driver.acknowledge()
    assert driver.responses[restart].generation == driver.responses[rejoin].generation == 2


@pytest.mark.rule("GRP-19")
def test_old_member_id_is_fenced_everywhere(driver):
    _, old = driver.form_static_group("a", "b")
    driver.join(instance_id="b")
    assert driver.heartbeat(old) is ErrorCode.FENCED_INSTANCE_ID
    rejoin = driver.join(old.member_id, instance_id="b")
    assert driver.responses[rejoin].error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.responses[rejoin].member_id == old.member_id
    assert driver.responses[driver.sync(old)].error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.commit_error(old) is ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave(old).members[0][1] is ErrorCode.FENCED_INSTANCE_ID
    forgetful = replace(old, instance_id=None)
    assert driver.heartbeat(forgetful) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-19")
def test_unmapped_instance_id_is_unknown(driver):
    (client,) = driver.form_group()
    stranger = replace(client, instance_id="x")
    assert driver.heartbeat(stranger) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.responses[driver.sync(stranger)].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit_error(stranger) is ErrorCode.UNKNOWN_MEMBER_ID
    rejoin = driver.join(client.member_id, instance_id="x")
    assert driver.responses[rejoin].error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-19")
def test_pending_id_is_of_no_use_to_a_static_member(driver):
    member_id = driver.responses[driver.join(version=4)].member_id
    ticket = driver.join(member_id, instance_id="a", version=5)
    assert driver.responses[ticket].error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-19")
def test_duplicate_instance_fences_the_one_that_waits_to_join(driver):
    leader, follower = driver.form_static_group("a", "b")
    waiting = driver.join(leader.member_id, instance_id="a")
    duplicate = driver.join(instance_id="a")
    assert driver.responses[waiting].error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.responses[waiting].member_id == leader.member_id
    driver.join(follower.member_id, instance_id="b")
    assert driver.responses[duplicate].generation == 2


@pytest.mark.rule("GRP-19")
def test_restart_in_the_sync_phase_rebalances(driver):
    tickets = [driver.join(instance_id=name) for name in ("a", "b")]
    driver.advance(INITIAL_DELAY_MS * 2)
    leader, follower = (driver.joined(ticket) for ticket in tickets)
    follower.instance_id = "b"
    waiting = driver.sync(follower)
    restart = driver.join(instance_id="b")
    assert driver.responses[waiting].error is ErrorCode.FENCED_INSTANCE_ID
    assert restart not in driver.responses
    assert driver.state() == "PreparingRebalance"
    driver.join(leader.member_id, instance_id="a")
    assert driver.responses[restart].generation == 2


@pytest.mark.rule("GRP-19")
def test_restart_that_changes_the_choice_of_protocol_rebalances(driver):
    both = protocols("range", "sticky")
    driver.form_static_group("a", protocols=both)
    ticket = driver.join(instance_id="a", protocols=protocols("sticky", "range"))
    assert driver.responses[ticket].generation == 2
    assert driver.responses[ticket].protocol == "sticky"


@pytest.mark.rule("GRP-11")
def test_static_members_keep_their_place_if_they_miss_a_rebalance(driver):
    leader, follower = driver.form_static_group("a", "b", session_timeout_ms=REBALANCE_MS * 3)
    rejoin = driver.join(leader.member_id, instance_id="a", session_timeout_ms=REBALANCE_MS * 3)
    driver.advance(REBALANCE_MS)
    assert driver.responses[rejoin].generation == 2
    assert [m.member_id for m in driver.responses[rejoin].members] == [
        leader.member_id,
        follower.member_id,
    ]


@pytest.mark.rule("GRP-11")
def test_join_phase_goes_on_if_only_static_members_are_left_and_nobody_rejoined(driver):
    session_ms = REBALANCE_MS * 3
    tickets = [
        driver.join(session_timeout_ms=session_ms),
        driver.join(instance_id="b", session_timeout_ms=session_ms),
    ]
    dynamic, static = driver.settle(tickets, instances=(None, "b"))
    driver.leave(dynamic)
    driver.advance(REBALANCE_MS)
    assert driver.state() == "PreparingRebalance"
    driver.advance(REBALANCE_MS - 1)
    rejoin = driver.join(static.member_id, instance_id="b")
    assert driver.responses[rejoin].generation == 2


@pytest.mark.rule("GRP-11", "GRP-18")
def test_static_members_that_never_return_end_with_their_sessions(driver):
    driver.form_static_group("a", "b")
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"


@pytest.mark.rule("GRP-16", "GRP-19")
def test_restart_before_the_first_sync_does_not_cost_a_rebalance_later(driver):
    long_ms = REBALANCE_MS * 3
    tickets = [driver.join(instance_id=name, session_timeout_ms=long_ms) for name in ("a", "b")]
    driver.advance(INITIAL_DELAY_MS * 2)
    leader = driver.joined(tickets[0])
    leader.instance_id = "a"
    driver.sync(leader, {})
    back = driver.joined(driver.join(instance_id="b", session_timeout_ms=long_ms))
    back.instance_id = "b"
    driver.sync(back)
    driver.advance(REBALANCE_MS)
    assert driver.state() == "Stable"


@pytest.mark.rule("GRP-20")
def test_administrator_removes_a_static_member_by_its_instance_id(driver):
    leader, follower = driver.form_static_group("a", "b")
    identity = MemberIdentity("", "b")
    assert driver.leave(identity).members == ((identity, ErrorCode.NONE),)
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID
