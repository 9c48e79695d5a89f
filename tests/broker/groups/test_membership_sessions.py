"""Heartbeats, sessions and leaving."""

from dataclasses import replace

import pytest

from klamm.broker.groups.membership import NEW_MEMBER_JOIN_TIMEOUT_MS
from klamm.broker.groups.messages import LeaveResponse, MemberIdentity
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import GROUP, INITIAL_DELAY_MS, SESSION_MS, Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.mark.rule("GRP-17")
def test_heartbeat_in_an_unknown_group_or_by_a_stranger_is_refused(driver):
    (client,) = driver.form_group()
    assert driver.heartbeat(client, group="x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(replace(client, member_id="x")) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-17")
@pytest.mark.parametrize("generation", [0, 2, -1])
def test_heartbeat_for_another_generation_is_refused(driver, generation):
    (client,) = driver.form_group()
    stale = replace(client, generation=generation)
    assert driver.heartbeat(stale) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.rule("GRP-17")
def test_heartbeat_is_fine_in_the_sync_phase_and_in_a_stable_group(driver):
    ticket = driver.join()
    driver.advance(INITIAL_DELAY_MS)
    client = driver.joined(ticket)
    assert driver.heartbeat(client) is ErrorCode.NONE
    driver.sync(client, {})
    assert driver.heartbeat(client) is ErrorCode.NONE


@pytest.mark.rule("GRP-17")
def test_heartbeat_in_the_join_phase_asks_to_rejoin_and_keeps_the_member_alive(driver):
    leader, follower = driver.form_group(2)
    driver.join(leader.member_id)
    for _ in range(4):
        driver.advance(SESSION_MS - 1)
        assert driver.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.rule("GRP-17")
@pytest.mark.parametrize("sign_of_life", ["heartbeat", "join", "sync", "commit"])
def test_any_request_of_a_member_restarts_its_session(driver, sign_of_life):
    leader, follower = driver.form_group(2)
    for _ in range(3):
        driver.advance(SESSION_MS - 1)
        driver.heartbeat(leader)
        match sign_of_life:
            case "heartbeat":
                driver.heartbeat(follower)
            case "join":
                driver.join(follower.member_id)
            case "sync":
                driver.sync(follower)
            case "commit":
                driver.commit({("t", 0): 1}, follower)
    assert driver.heartbeat(follower) is ErrorCode.NONE
    assert driver.state() == "Stable"


@pytest.mark.rule("GRP-18")
def test_silent_member_is_removed_and_the_others_rebalance(driver):
    leader, follower = driver.form_group(2)
    driver.advance(SESSION_MS - 1)
    driver.heartbeat(leader)
    driver.advance(1)
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.responses[driver.join(leader.member_id)].generation == 2


@pytest.mark.rule("GRP-18")
def test_group_whose_last_member_falls_silent_is_empty(driver):
    driver.form_group()
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"


@pytest.mark.rule("GRP-18")
def test_member_that_waits_to_join_does_not_expire(driver):
    first, second = driver.form_group(2)
    rejoin = driver.join(first.member_id)
    for _ in range(4):
        driver.advance(SESSION_MS - 1)
        driver.heartbeat(second)
    assert rejoin not in driver.responses
    driver.join(second.member_id)
    assert driver.responses[rejoin].error is ErrorCode.NONE
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"


@pytest.mark.rule("GRP-18")
def test_member_that_waits_to_sync_does_not_expire(driver):
    tickets = [driver.join(), driver.join()]
    driver.advance(INITIAL_DELAY_MS * 2)
    leader, follower = (driver.joined(ticket) for ticket in tickets)
    waiting = driver.sync(follower)
    for _ in range(4):
        driver.advance(SESSION_MS - 1)
        driver.heartbeat(leader)
    driver.sync(leader, {})
    assert driver.responses[waiting].error is ErrorCode.NONE


@pytest.mark.rule("GRP-18")
def test_new_member_is_not_kept_waiting_for_more_than_five_minutes(driver):
    hour_ms = 3_600_000
    (client,) = driver.form_group(rebalance_timeout_ms=hour_ms, session_timeout_ms=1_000_000)
    newcomer = driver.join(rebalance_timeout_ms=hour_ms)
    driver.advance(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert newcomer not in driver.responses
    driver.advance(1)
    assert driver.responses[newcomer].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.responses[newcomer].member_id == ""
    assert driver.heartbeat(client) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.rule("GRP-20")
def test_leaving_starts_a_rebalance_at_once(driver):
    leader, follower = driver.form_group(2)
    response = driver.leave(leader)
    identity = MemberIdentity(leader.member_id)
    assert response == LeaveResponse(error=ErrorCode.NONE, members=((identity, ErrorCode.NONE),))
    assert driver.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.responses[driver.join(follower.member_id)].leader == follower.member_id


@pytest.mark.rule("GRP-20")
def test_members_leave_in_a_batch_each_with_an_error_of_its_own(driver):
    dynamic, static = driver.settle(
        [driver.join(), driver.join(instance_id="i")], instances=(None, "i")
    )
    identities = (
        MemberIdentity("stranger"),
        MemberIdentity(dynamic.member_id),
        MemberIdentity("", "unknown instance"),
        MemberIdentity(dynamic.member_id, "i"),
        MemberIdentity("", "i"),
        MemberIdentity(""),
    )
    assert static.instance_id == "i"
    response = driver.leave(*identities)
    assert [identity for identity, _ in response.members] == list(identities)
    assert [error for _, error in response.members] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert driver.state() == "Empty"


@pytest.mark.rule("GRP-20")
def test_nobody_can_leave_an_unknown_group(driver):
    identity = MemberIdentity("m")
    response = driver.leave(identity)
    assert response.error is ErrorCode.NONE
    assert response.members == ((identity, ErrorCode.UNKNOWN_MEMBER_ID),)


def test_member_that_leaves_while_it_waits_is_answered(driver):
    tickets = [driver.join(), driver.join()]
    driver.advance(INITIAL_DELAY_MS * 2)
    _, follower = (driver.joined(ticket) for ticket in tickets)
    waiting = driver.sync(follower)
    driver.leave(follower)
    assert driver.responses[waiting].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(driver.coordinator.describe_group(GROUP).members) == 1
