"""JoinGroup: which members join, how long they wait, and what the response says."""

import pytest

from klamm.broker.groups.membership import GroupConfig
from klamm.broker.groups.messages import JoinedMember, JoinResponse, MemberIdentity
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import (
    GROUP,
    INITIAL_DELAY_MS,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    protocols,
    subscription,
)


def refusal(error: ErrorCode, member_id: str = "") -> JoinResponse:
    """Errors say nothing about a generation."""
    return JoinResponse(
        error=error,
        member_id=member_id,
        generation=-1,
        protocol_type=None,
        protocol=None,
        leader="",
        members=(),
    )


@pytest.fixture
def driver() -> Driver:
    return Driver()


# Who is let in


@pytest.mark.rule("GRP-7")
@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
def test_session_timeout_has_to_be_within_limits(driver, timeout_ms):
    ticket = driver.join(session_timeout_ms=timeout_ms)
    assert driver.responses[ticket] == refusal(ErrorCode.INVALID_SESSION_TIMEOUT)
    assert driver.state() == "Dead"


@pytest.mark.rule("GRP-7")
@pytest.mark.parametrize("timeout_ms", [6_000, 1_800_000])
def test_session_timeout_at_a_limit_is_fine(driver, timeout_ms):
    assert driver.join(session_timeout_ms=timeout_ms) not in driver.responses


@pytest.mark.rule("GRP-7", "GRP-12")
def test_member_id_in_an_unknown_group_is_unknown(driver):
    ticket = driver.join("someone")
    assert driver.responses[ticket] == refusal(ErrorCode.UNKNOWN_MEMBER_ID, "someone")
    assert driver.state() == "Dead"


@pytest.mark.rule("GRP-13")
def test_member_id_that_is_not_in_the_group_is_unknown(driver):
    driver.form_group()
    ticket = driver.join("someone")
    assert driver.responses[ticket] == refusal(ErrorCode.UNKNOWN_MEMBER_ID, "someone")


@pytest.mark.rule("GRP-7")
@pytest.mark.parametrize(
    ("protocol_type", "offered"), [("", RANGE), ("consumer", ())], ids=["type", "protocols"]
)
def test_first_member_has_to_name_a_type_and_a_protocol(driver, protocol_type, offered):
    ticket = driver.join(protocol_type=protocol_type, protocols=offered)
    assert driver.responses[ticket] == refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


@pytest.mark.rule("GRP-7")
@pytest.mark.parametrize(
    ("protocol_type", "offered"),
    [("connect", RANGE), ("consumer", protocols("sticky"))],
    ids=["type", "protocols"],
)
def test_later_member_has_to_agree_with_the_group(driver, protocol_type, offered):
    driver.form_group()
    ticket = driver.join(protocol_type=protocol_type, protocols=offered)
    assert driver.responses[ticket] == refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assert driver.state() == "Stable"


@pytest.mark.rule("GRP-7")
def test_an_empty_group_may_change_its_type(driver):
    (client,) = driver.form_group()
    driver.leave(client)
    driver.form_group(protocol_type="connect", protocols=protocols("sessioned"))
    assert driver.coordinator.describe_group(GROUP).protocol_type == "connect"


@pytest.mark.rule("GRP-7")
def test_full_group_takes_nobody_new():
    driver = Driver(GroupConfig(max_size=2))
    clients = driver.form_group(2)
    ticket = driver.join()
    assert driver.responses[ticket] == refusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert driver.state() == "Stable"
    assert driver.heartbeat(clients[1]) is ErrorCode.NONE


@pytest.mark.rule("GRP-7")
def test_group_that_is_larger_than_it_may_be_sheds_the_last_to_rejoin():
    driver = Driver()
    clients = driver.form_group(3)
    driver.config = GroupConfig(max_size=2)
    driver.fail_over()
    assert driver.state() == "PreparingRebalance"
    assert driver.commit_error(clients[0]) is ErrorCode.NONE
    tickets = [driver.join(client.member_id) for client in clients]
    responses = [driver.responses[ticket].error for ticket in tickets]
    assert responses == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert len(driver.coordinator.describe_group(GROUP).members) == 2


@pytest.mark.parametrize("details", [{"client_id": "x" * 32_740}, {"instance_id": "x" * 40_000}])
def test_names_that_no_record_could_hold_are_refused(driver, details):
    assert driver.responses[driver.join(**details)].error is ErrorCode.INVALID_REQUEST


# Ids


@pytest.mark.rule("GRP-8")
def test_below_version_4_a_new_member_is_let_in_at_once(driver):
    ticket = driver.join(version=3)
    driver.advance(INITIAL_DELAY_MS)
    assert driver.responses[ticket].member_id == "client-uuid1"


@pytest.mark.rule("GRP-8")
def test_from_version_4_on_a_new_member_is_told_its_id_first(driver):
    ticket = driver.join(version=4)
    assert driver.responses[ticket] == refusal(ErrorCode.MEMBER_ID_REQUIRED, "client-uuid1")
    assert driver.coordinator.describe_group(GROUP).members == ()
    second = driver.join("client-uuid1", version=4)
    driver.advance(INITIAL_DELAY_MS)
    assert driver.responses[second].error is ErrorCode.NONE
    assert driver.responses[second].member_id == "client-uuid1"


@pytest.mark.rule("GRP-8")
def test_id_that_is_not_used_within_a_session_timeout_is_void(driver):
    member_id = driver.responses[driver.join(version=4)].member_id
    driver.advance(SESSION_MS)
    assert driver.responses[driver.join(member_id, version=4)].error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-8")
def test_pending_id_holds_back_the_end_of_a_rebalance(driver):
    (client,) = driver.form_group()
    member_id = driver.responses[driver.join(version=4)].member_id
    rejoin = driver.join(client.member_id)
    assert driver.state() == "PreparingRebalance"
    newcomer = driver.join(member_id, version=4)
    assert driver.responses[rejoin].generation == driver.responses[newcomer].generation == 2


@pytest.mark.rule("GRP-8")
def test_rebalance_ends_once_the_pending_id_is_void(driver):
    (client,) = driver.form_group()
    driver.join(version=4)
    rejoin = driver.join(client.member_id)
    driver.advance(SESSION_MS - 1)
    assert rejoin not in driver.responses
    driver.advance(1)
    assert driver.responses[rejoin].generation == 2


@pytest.mark.rule("GRP-8", "GRP-20")
def test_owner_of_a_pending_id_may_leave(driver):
    (client,) = driver.form_group()
    member_id = driver.responses[driver.join(version=4)].member_id
    rejoin = driver.join(client.member_id)
    identity = MemberIdentity(member_id)
    assert driver.leave(identity).members == ((identity, ErrorCode.NONE),)
    assert driver.responses[rejoin].generation == 2


# How long they wait


@pytest.mark.rule("GRP-10")
def test_first_member_waits_for_the_initial_delay(driver):
    ticket = driver.join()
    assert driver.state() == "PreparingRebalance"
    driver.advance(INITIAL_DELAY_MS - 1)
    assert ticket not in driver.responses
    driver.advance(1)
    assert driver.responses[ticket].generation == 1
    assert driver.state() == "CompletingRebalance"


@pytest.mark.rule("GRP-10")
def test_newcomers_extend_the_initial_delay(driver):
    first = driver.join()
    driver.advance(INITIAL_DELAY_MS - 1)
    second = driver.join()
    driver.advance(1)
    assert first not in driver.responses
    driver.advance(INITIAL_DELAY_MS)
    assert driver.responses[first].generation == driver.responses[second].generation == 1


@pytest.mark.rule("GRP-10")
def test_initial_delay_is_not_extended_beyond_the_rebalance_timeout(driver):
    tickets = []
    for _ in range(4):
        tickets.append(driver.join(rebalance_timeout_ms=10_000))
        driver.advance(2_500)
    assert driver.responses[tickets[0]].generation == 1
    assert tickets[3] in driver.responses
    assert len(driver.responses[tickets[0]].members) == 4


@pytest.mark.rule("GRP-10")
def test_without_initial_delay_a_group_forms_at_once():
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0))
    ticket = driver.join()
    driver.advance(0)
    assert driver.responses[ticket].generation == 1


@pytest.mark.rule("GRP-10")
def test_later_join_phase_ends_when_all_have_rejoined(driver):
    first, second = driver.form_group(2)
    newcomer = driver.join()
    assert driver.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoins = [driver.join(first.member_id)]
    assert newcomer not in driver.responses
    rejoins.append(driver.join(second.member_id))
    assert {driver.responses[t].generation for t in [newcomer, *rejoins]} == {2}


@pytest.mark.rule("GRP-10", "GRP-11")
def test_dynamic_members_that_do_not_rejoin_in_time_are_removed(driver):
    first, second = driver.form_group(2, session_timeout_ms=REBALANCE_MS * 2)
    newcomer = driver.join()
    driver.join(first.member_id, session_timeout_ms=REBALANCE_MS * 2)
    driver.advance(REBALANCE_MS - 1)
    assert newcomer not in driver.responses
    driver.advance(1)
    assert driver.responses[newcomer].generation == 2
    ids = {member.member_id for member in driver.coordinator.describe_group(GROUP).members}
    assert ids == {first.member_id, driver.responses[newcomer].member_id}
    assert driver.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-9")
def test_group_waits_as_long_as_its_slowest_member_asks_for(driver):
    first, _ = driver.form_group(2, session_timeout_ms=200_000)
    driver.join(first.member_id, rebalance_timeout_ms=1_000)
    newcomer = driver.join(rebalance_timeout_ms=90_000)
    driver.advance(REBALANCE_MS - 1)
    assert newcomer not in driver.responses
    driver.advance(1)
    assert newcomer in driver.responses


@pytest.mark.rule("GRP-9")
def test_version_0_waits_for_the_session_timeout(driver):
    first, _second = driver.form_group(
        2, version=0, session_timeout_ms=20_000, rebalance_timeout_ms=-1
    )
    newcomer = driver.join(session_timeout_ms=20_000, version=0, rebalance_timeout_ms=-1)
    driver.advance(15_000)
    driver.heartbeat(first)
    driver.advance(4_999)
    assert newcomer not in driver.responses
    driver.advance(1)
    assert newcomer in driver.responses


# What they are told


@pytest.mark.rule("GRP-12")
def test_only_the_leader_is_told_who_is_in_the_group(driver):
    tickets = [driver.join(), driver.join(instance_id="i")]
    driver.advance(INITIAL_DELAY_MS * 2)
    leader, follower = (driver.responses[ticket] for ticket in tickets)
    assert leader == JoinResponse(
        error=ErrorCode.NONE,
        member_id="client-uuid1",
        generation=1,
        protocol_type="consumer",
        protocol="range",
        leader="client-uuid1",
        members=(
            JoinedMember("client-uuid1", None, subscription("t")),
            JoinedMember("i-uuid2", "i", subscription("t")),
        ),
    )
    assert follower == JoinResponse(
        error=ErrorCode.NONE,
        member_id="i-uuid2",
        generation=1,
        protocol_type="consumer",
        protocol="range",
        leader="client-uuid1",
    )


@pytest.mark.rule("GRP-11")
def test_protocol_is_chosen_by_vote_among_those_that_all_support(driver):
    offers = [
        protocols("sticky", "range", "roundrobin"),
        protocols("roundrobin", "range"),
        protocols("range", "roundrobin"),
        protocols("roundrobin", "other", "range"),
    ]
    tickets = [driver.join(protocols=offer) for offer in offers]
    driver.advance(INITIAL_DELAY_MS * 2)
    # Nobody but the first knows sticky, so its second choice counts: range 2, roundrobin 2.
    assert driver.responses[tickets[0]].protocol == "range"
    fifth = driver.join(protocols=protocols("roundrobin", "range"))
    for ticket, offer in zip(tickets, offers, strict=True):
        driver.join(driver.responses[ticket].member_id, protocols=offer)
    assert driver.responses[fifth].protocol == "roundrobin"


@pytest.mark.rule("GRP-11")
def test_another_member_leads_if_the_leader_does_not_rejoin(driver):
    leader, follower = driver.form_group(2, session_timeout_ms=REBALANCE_MS * 2)
    rejoin = driver.join(
        follower.member_id,
        protocols=protocols("range", topics=["t", "u"]),
        session_timeout_ms=REBALANCE_MS * 2,
    )
    driver.advance(REBALANCE_MS)
    assert driver.responses[rejoin].leader == follower.member_id != leader.member_id


@pytest.mark.rule("GRP-11")
def test_group_that_everyone_left_is_stored_as_empty(driver):
    (client,) = driver.form_group()
    before = len(driver.records())
    driver.leave(client)
    assert driver.state() == "Empty"
    assert len(driver.records()) == before + 1
    driver.fail_over()
    assert driver.state() == "Empty"
    (again,) = driver.form_group()
    assert again.generation == 3


@pytest.mark.rule("GRP-11")
def test_generation_continues_after_a_time_of_emptiness(driver):
    (client,) = driver.form_group()
    driver.leave(client)
    (again,) = driver.form_group()
    assert (client.generation, again.generation) == (1, 3)


# Joining again


@pytest.mark.rule("GRP-13")
def test_rejoining_in_the_join_phase_waits(driver):
    first, second = driver.form_group(2)
    driver.join(first.member_id)
    assert driver.state() == "PreparingRebalance"
    ticket = driver.join(second.member_id)
    assert driver.responses[ticket].generation == 2


@pytest.mark.rule("GRP-13")
def test_identical_rejoin_in_the_sync_phase_hears_of_the_current_generation_again(driver):
    tickets = [driver.join(), driver.join()]
    driver.advance(INITIAL_DELAY_MS * 2)
    for ticket in tickets:
        again = driver.join(driver.responses[ticket].member_id)
        assert driver.responses[again] == driver.responses[ticket]
    assert driver.state() == "CompletingRebalance"


@pytest.mark.rule("GRP-13", "GRP-16")
def test_changed_rejoin_in_the_sync_phase_starts_over(driver):
    tickets = [driver.join(), driver.join()]
    driver.advance(INITIAL_DELAY_MS * 2)
    leader, follower = (driver.joined(ticket) for ticket in tickets)
    sync = driver.sync(follower)
    driver.join(leader.member_id, protocols=protocols("range", topics=["u"]))
    assert driver.state() == "PreparingRebalance"
    assert driver.responses[sync].error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.rule("GRP-13")
def test_leader_that_rejoins_a_stable_group_wants_a_rebalance(driver):
    leader, _ = driver.form_group(2)
    assert driver.join(leader.member_id) not in driver.responses
    assert driver.state() == "PreparingRebalance"


@pytest.mark.rule("GRP-13")
def test_follower_that_rejoins_a_stable_group_unchanged_is_answered_at_once(driver):
    leader, follower = driver.form_group(2)
    response = driver.responses[driver.join(follower.member_id)]
    assert (response.error, response.generation, response.members) == (ErrorCode.NONE, 1, ())
    assert response.leader == leader.member_id
    assert driver.state() == "Stable"


@pytest.mark.rule("GRP-13")
def test_follower_that_changed_makes_a_stable_group_rebalance(driver):
    _, follower = driver.form_group(2)
    changed = protocols("range", topics=["t", "u"])
    assert driver.join(follower.member_id, protocols=changed) not in driver.responses
    assert driver.state() == "PreparingRebalance"


def test_client_that_asks_again_gets_its_response_under_the_second_request(driver):
    first, second = driver.form_group(2)
    lost = driver.join(first.member_id)
    retry = driver.join(first.member_id)
    driver.join(second.member_id)
    assert driver.responses[lost].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.responses[retry].generation == 2


def test_cooperative_rebalance_moves_a_partition_in_two_generations(driver):
    """Revoke first, assign then: the member that gave something up joins again by itself."""
    cooperative = protocols("cooperative-sticky")
    (first,) = driver.form_group(protocols=cooperative)
    newcomer = driver.join(protocols=cooperative)
    assert driver.commit_error(first) is ErrorCode.NONE  # it keeps working while others join
    rejoin = driver.join(first.member_id, protocols=cooperative)
    clients = driver.settle([rejoin, newcomer])
    assert driver.state() == "Stable"
    # The first one owns less now and says so in its metadata.
    owning_less = protocols("cooperative-sticky", topics=["t", "owns-0"])
    rejoin = driver.join(first.member_id, protocols=owning_less)
    assert driver.heartbeat(clients[1]) is ErrorCode.REBALANCE_IN_PROGRESS
    other = driver.join(clients[1].member_id, protocols=cooperative)
    assert [client.generation for client in driver.settle([rejoin, other])] == [3, 3]
