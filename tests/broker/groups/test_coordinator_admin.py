"""Describing, listing and deleting groups."""

import pytest

from klamm.broker.groups.coordinator import GroupCounts
from klamm.broker.groups.group import ENTERED_FROM, GroupMetadata, GroupState
from klamm.broker.groups.messages import DescribedGroup, DescribedMember, ListedGroup
from klamm.broker.groups.records import GroupKey, OffsetKey, decode_key
from klamm.errors import IllegalTransitionError
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import GROUP, INITIAL_DELAY_MS, Driver, protocols, subscription
from tests.support.event_loop import result_of


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.mark.rule("GRP-21")
def test_unknown_group_is_described_as_dead(driver):
    assert driver.coordinator.describe_group("x") == DescribedGroup(
        error=ErrorCode.NONE, group_id="x", state="Dead"
    )


@pytest.mark.rule("GRP-21")
def test_stable_group_shows_what_its_members_agreed_on(driver):
    driver.form_static_group("a")
    assert driver.coordinator.describe_group(GROUP) == DescribedGroup(
        error=ErrorCode.NONE,
        group_id=GROUP,
        state="Stable",
        protocol_type="consumer",
        protocol="range",
        members=(DescribedMember("a-uuid1", "a", "client", "/127.0.0.1", subscription("t"), b"0"),),
    )


@pytest.mark.rule("GRP-21")
def test_metadata_and_assignment_are_shown_in_a_stable_group_only(driver):
    (client,) = driver.form_group()
    driver.join()
    description = driver.coordinator.describe_group(GROUP)
    assert (description.state, description.protocol) == ("PreparingRebalance", "")
    assert {(m.metadata, m.assignment) for m in description.members} == {(b"", b"")}
    driver.join(client.member_id)
    description = driver.coordinator.describe_group(GROUP)
    assert (description.state, description.protocol) == ("CompletingRebalance", "")
    assert {(m.metadata, m.assignment) for m in description.members} == {(b"", b"")}


@pytest.mark.rule("GRP-21")
def test_groups_are_listed_with_their_states(driver):
    driver.form_group(group="stable")
    driver.commit({("t", 0): 1}, group="offsets only")
    listed = result_of(driver.coordinator.list_groups())
    assert listed.error is ErrorCode.NONE
    assert set(listed.groups) == {
        ListedGroup("stable", "consumer", "Stable"),
        ListedGroup("offsets only", "", "Empty"),
    }


@pytest.mark.rule("GRP-21")
@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (["Stable"], [], ["s"]),
        (["sTABLE", "EMPTY"], [], ["e", "s"]),
        (["PreparingRebalance"], [], []),
        (["nonsense"], [], []),
        ([], ["Classic"], ["e", "s"]),
        ([], ["consumer"], []),
        (["stable"], ["consumer", "classic"], ["s"]),
    ],
)
def test_list_can_be_narrowed(driver, states, types, expected):
    driver.form_group(group="s")
    driver.commit({("t", 0): 1}, group="e")
    listed = result_of(driver.coordinator.list_groups(states, types))
    assert sorted(group.group_id for group in listed.groups) == expected


@pytest.mark.rule("GRP-21", "GRP-4")
def test_list_says_if_it_may_be_incomplete():
    driver = Driver(owned=[0, 1, 2])
    driver.coordinator.begin_load(3, 0)
    assert (
        result_of(driver.coordinator.list_groups()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )


@pytest.mark.rule("GRP-22")
def test_only_empty_groups_are_deleted(driver):
    driver.form_group(group="busy")
    (client,) = driver.form_group(group="left")
    driver.leave(client, group="left")
    driver.join(group="joining")
    driver.commit({("t", 0): 1}, group="offsets")
    assert driver.delete_groups("busy", "left", "joining", "offsets", "offsets", "x") == {
        "busy": ErrorCode.NON_EMPTY_GROUP,
        "left": ErrorCode.NONE,
        "joining": ErrorCode.NON_EMPTY_GROUP,
        "offsets": ErrorCode.NONE,
        "x": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert {g.group_id for g in result_of(driver.coordinator.list_groups()).groups} == {
        "busy",
        "joining",
    }
    driver.fail_over()
    assert {g.group_id for g in result_of(driver.coordinator.list_groups()).groups} == {"busy"}


@pytest.mark.rule("GRP-22", "OFF-7")
def test_deleted_group_leaves_tombstones_for_all_its_records(driver):
    (client,) = driver.form_group()
    driver.commit({("t", 0): 1, ("t", 1): 2}, client)
    driver.leave(client)
    driver.delete_groups(GROUP)
    append = driver.appends[-1]
    assert append.acks == 0
    assert {decode_key(record.key) for record in append.records} == {
        OffsetKey(GROUP, "t", 0),
        OffsetKey(GROUP, "t", 1),
        GroupKey(GROUP),
    }
    assert {record.value for record in append.records} == {None}


@pytest.mark.rule("GRP-22")
def test_commit_that_is_under_way_when_its_group_is_deleted_does_not_come_back(driver):
    driver.append_error = None
    commit = driver.commit({("t", 0): 1})
    driver.delete_groups(GROUP)
    driver.acknowledge()
    assert set(driver.responses[commit].errors.values()) == {ErrorCode.NONE}
    assert driver.state() == "Dead"
    driver.fail_over()
    assert driver.state() == "Dead"


@pytest.mark.rule("GRP-22", "GRP-8")
def test_id_that_was_handed_out_is_void_once_its_group_is_deleted(driver):
    member_id = driver.responses[driver.join(version=4)].member_id
    assert driver.delete_groups(GROUP) == {GROUP: ErrorCode.NONE}
    driver.advance(INITIAL_DELAY_MS * 10)
    assert driver.responses[driver.join(member_id)].error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-22")
def test_offsets_of_an_empty_group_may_be_deleted(driver):
    (client,) = driver.form_group()
    driver.commit({("t", 0): 1, ("u", 0): 2}, client)
    driver.leave(client)
    response = driver.delete_offsets(("t", 0))
    assert (response.error, response.errors) == (ErrorCode.NONE, {("t", 0): ErrorCode.NONE})
    assert driver.offsets() == {("u", 0): 2}
    driver.fail_over()
    assert driver.offsets() == {("u", 0): 2}


@pytest.mark.rule("GRP-22")
def test_offsets_of_topics_that_a_consumer_group_reads_are_kept(driver):
    (client,) = driver.form_group()
    driver.commit({("t", 0): 1, ("u", 0): 2}, client)
    response = driver.delete_offsets(("t", 0), ("u", 0))
    assert response.errors == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 0): ErrorCode.NONE,
    }
    assert driver.offsets() == {("t", 0): 1}


@pytest.mark.rule("GRP-22")
def test_offsets_of_other_groups_that_are_in_use_are_kept(driver):
    (client,) = driver.form_group(protocol_type="connect", protocols=protocols("sessioned"))
    driver.commit({("t", 0): 1}, client)
    response = driver.delete_offsets(("t", 0))
    assert (response.error, response.errors) == (ErrorCode.NON_EMPTY_GROUP, {})


@pytest.mark.rule("GRP-22")
def test_offsets_of_an_unknown_group_are_not_there(driver):
    assert driver.delete_offsets(("t", 0)).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_census_counts_groups_by_state_and_all_offsets(driver):
    (client,) = driver.form_group(group="a")
    driver.commit({("t", 0): 1, ("t", 1): 1}, client, group="a")
    driver.join(group="b")
    driver.commit({("t", 0): 1}, group="c")
    assert driver.coordinator.census() == GroupCounts(
        {
            GroupState.EMPTY: 1,
            GroupState.PREPARING_REBALANCE: 1,
            GroupState.COMPLETING_REBALANCE: 0,
            GroupState.STABLE: 1,
            GroupState.DEAD: 0,
        },
        offsets=3,
        heartbeats=2,
        rebalances=1,
    )


def test_transitions_that_are_not_in_the_table_are_refused():
    assert set(ENTERED_FROM) == set(GroupState)
    group = GroupMetadata("g", 0)
    with pytest.raises(IllegalTransitionError, match="Empty to Stable"):
        group.enter(GroupState.STABLE, 0)
