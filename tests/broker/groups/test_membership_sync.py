"""SyncGroup: how the leader's assignment reaches everyone, or does not."""

from dataclasses import replace

import pytest

from klamm.broker.groups.messages import SyncResponse
from klamm.broker.groups.records import decode_group_value
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import (
    GROUP,
    INITIAL_DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Client,
    Driver,
    partition_of,
)
from tests.support.coordinators import TOLD_BY_EVERY_COORDINATOR


@pytest.fixture
def driver() -> Driver:
    return Driver()


def join_together(driver: Driver, count: int = 2, **kwargs) -> list[Client]:
    """A group in its sync phase, the leader first."""
    tickets = [driver.join(**kwargs) for _ in range(count)]
    driver.advance(INITIAL_DELAY_MS * 2)
    assert driver.state() == "CompletingRebalance"
    return [driver.joined(ticket) for ticket in tickets]


@pytest.mark.rule("GRP-14")
def test_followers_wait_until_the_assignment_is_in_the_log(driver):
    leader, follower = join_together(driver)
    driver.append_error = None
    waiting = driver.sync(follower)
    leading = driver.sync(leader, {leader.member_id: b"L", follower.member_id: b"F"})
    assert waiting not in driver.responses
    assert leading not in driver.responses
    assert driver.state() == "CompletingRebalance"
    driver.acknowledge()
    assert driver.state() == "Stable"
    assert driver.responses[waiting] == SyncResponse(
        error=ErrorCode.NONE, protocol_type="consumer", protocol="range", assignment=b"F"
    )
    assert driver.responses[leading].assignment == b"L"


@pytest.mark.rule("GRP-14", "OFF-9")
def test_assignment_is_written_with_all_acks_to_the_partition_of_the_group(driver):
    leader, follower = join_together(driver)
    driver.sync(leader, {leader.member_id: b"L", follower.member_id: b"F"})
    (append,) = driver.appends
    assert (append.partition, append.acks, append.timeout_ms) == (partition_of(GROUP), -1, 5_000)
    assert append.timestamp_ms == driver.now_ms
    stored = decode_group_value(append.records[0].value)
    assert (stored.protocol_type, stored.generation, stored.protocol) == ("consumer", 1, "range")
    assert stored.leader == leader.member_id
    assert [(m.member_id, m.assignment) for m in stored.members] == [
        (leader.member_id, b"L"),
        (follower.member_id, b"F"),
    ]
    assert {(m.client_id, m.client_host) for m in stored.members} == {("client", "/127.0.0.1")}


@pytest.mark.rule("GRP-14")
def test_member_that_syncs_with_a_stable_group_gets_its_own_part(driver):
    leader, follower = join_together(driver)
    driver.sync(leader, {leader.member_id: b"L", follower.member_id: b"F"})
    assert driver.responses[driver.sync(follower)].assignment == b"F"


@pytest.mark.rule("GRP-15")
def test_members_that_the_leader_forgot_get_nothing(driver):
    leader, follower = join_together(driver)
    driver.sync(leader, {leader.member_id: b"L", "stranger": b"S"})
    response = driver.responses[driver.sync(follower)]
    assert (response.error, response.assignment) == (ErrorCode.NONE, b"")


@pytest.mark.rule("GRP-15")
@pytest.mark.parametrize(
    ("log_error", "told"),
    [
        *TOLD_BY_EVERY_COORDINATOR,
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_everyone_is_told_if_the_log_refuses_and_a_rebalance_starts(driver, log_error, told):
    leader, follower = join_together(driver)
    driver.append_error = log_error
    tickets = [driver.sync(follower), driver.sync(leader, {leader.member_id: b"L"})]
    assert [driver.responses[ticket].error for ticket in tickets] == [told, told]
    assert [driver.responses[ticket].protocol for ticket in tickets] == [None, None]
    assert driver.state() == "PreparingRebalance"


@pytest.mark.rule("GRP-14")
def test_sync_of_a_stranger_is_refused(driver):
    (leader,) = join_together(driver, 1)
    stranger = replace(leader, member_id="stranger")
    assert driver.responses[driver.sync(stranger)].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.responses[driver.sync(leader, group="x")].error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-14")
@pytest.mark.parametrize("generation", [0, 2, -1])
def test_sync_for_another_generation_is_refused(driver, generation):
    (leader,) = join_together(driver, 1)
    ticket = driver.sync(replace(leader, generation=generation))
    assert driver.responses[ticket].error is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.rule("GRP-14")
@pytest.mark.parametrize(
    ("protocol_type", "protocol"), [("connect", "range"), ("consumer", "sticky")]
)
def test_sync_under_another_protocol_is_refused(driver, protocol_type, protocol):
    (leader,) = join_together(driver, 1)
    ticket = driver.sync(leader, protocol_type=protocol_type, protocol=protocol, version=5)
    assert driver.responses[ticket].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.rule("GRP-14")
@pytest.mark.parametrize(
    ("protocol_type", "protocol"), [(None, "range"), ("consumer", None), (None, None)]
)
def test_from_version_5_on_sync_has_to_name_its_protocol(driver, protocol_type, protocol):
    (leader,) = join_together(driver, 1)
    named = {"protocol_type": protocol_type, "protocol": protocol}
    ticket = driver.sync(leader, {}, **named, version=5)
    assert driver.responses[ticket].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    ticket = driver.sync(leader, {}, **named, version=4)
    assert driver.responses[ticket].error is ErrorCode.NONE


@pytest.mark.rule("GRP-14")
def test_sync_during_the_join_phase_sends_the_member_back(driver):
    leader, follower = driver.form_group(2)
    driver.join(leader.member_id)
    assert driver.responses[driver.sync(follower)].error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.rule("GRP-14")
def test_nobody_is_a_member_of_an_empty_group(driver):
    (client,) = driver.form_group()
    driver.leave(client)
    assert driver.responses[driver.sync(client)].error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-16")
def test_newcomer_in_the_sync_phase_sends_those_who_wait_back(driver):
    _, follower = join_together(driver)
    waiting = driver.sync(follower)
    driver.join()
    assert driver.responses[waiting].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.state() == "PreparingRebalance"


@pytest.mark.rule("GRP-16")
def test_assignment_that_was_overtaken_by_a_rebalance_is_not_given_out(driver):
    leader, follower = join_together(driver)
    driver.append_error = None
    waiting = driver.sync(leader, {leader.member_id: b"old"})
    driver.join()
    assert driver.responses[waiting].error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.acknowledge()
    assert driver.state() == "PreparingRebalance"
    driver.append_error = ErrorCode.NONE
    driver.join(leader.member_id)
    rejoin = driver.join(follower.member_id)
    assert driver.sync(driver.joined(rejoin)) not in driver.responses


def test_report_about_an_old_generation_does_not_complete_the_next(driver):
    leader, follower = join_together(driver)
    driver.append_error = None
    driver.sync(leader, {leader.member_id: b"old"})
    newcomer = driver.join()
    driver.join(leader.member_id)
    driver.join(follower.member_id)
    waiting = driver.sync(driver.joined(newcomer))
    driver.acknowledge()
    assert waiting not in driver.responses
    assert driver.state() == "CompletingRebalance"


@pytest.mark.rule("GRP-16")
def test_members_that_do_not_sync_within_the_rebalance_timeout_are_removed(driver):
    leader, follower = join_together(driver, session_timeout_ms=REBALANCE_MS * 2)
    driver.sync(leader, {})
    assert driver.state() == "Stable"
    driver.advance(REBALANCE_MS - 1)
    assert driver.heartbeat(follower) is ErrorCode.NONE
    driver.advance(1)
    assert driver.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.rule("GRP-16")
def test_leader_that_does_not_sync_is_replaced(driver):
    _, follower = join_together(driver, session_timeout_ms=REBALANCE_MS * 2)
    waiting = driver.sync(follower)
    driver.advance(REBALANCE_MS)
    assert driver.responses[waiting].error is ErrorCode.REBALANCE_IN_PROGRESS
    rejoin = driver.join(follower.member_id, session_timeout_ms=REBALANCE_MS * 2)
    assert driver.responses[rejoin].leader == follower.member_id


@pytest.mark.rule("GRP-16")
def test_nobody_is_removed_once_all_have_synced(driver):
    clients = driver.form_group(2, session_timeout_ms=REBALANCE_MS * 3)
    driver.advance(REBALANCE_MS * 2)
    assert [driver.heartbeat(client) for client in clients] == [ErrorCode.NONE, ErrorCode.NONE]


def test_leader_that_syncs_twice_has_its_first_assignment_stored_and_given_out(driver):
    (leader,) = join_together(driver, 1)
    driver.append_error = None
    first = driver.sync(leader, {leader.member_id: b"first"})
    second = driver.sync(leader, {leader.member_id: b"second"})
    assert driver.responses[first].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(driver.appends) == 1
    driver.acknowledge()
    assert driver.responses[second].assignment == b"first"


@pytest.mark.rule("GRP-17", "GRP-18")
def test_session_starts_anew_with_the_assignment(driver):
    leader, follower = join_together(driver)
    driver.sync(follower)
    driver.advance(SESSION_MS - 1)
    driver.heartbeat(leader)
    driver.advance(SESSION_MS - 1)
    driver.sync(leader, {})
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(follower) is ErrorCode.NONE
