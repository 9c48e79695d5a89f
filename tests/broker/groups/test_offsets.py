"""Committing, fetching and forgetting offsets."""

from dataclasses import replace

import pytest

from klamm.broker.groups.membership import GroupConfig
from klamm.broker.groups.messages import FetchedOffset, OffsetCommitResponse, OffsetToCommit
from klamm.broker.groups.records import (
    GroupKey,
    OffsetKey,
    decode_key,
    decode_offset_value,
)
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import (
    GROUP,
    INITIAL_DELAY_MS,
    SESSION_MS,
    Client,
    Driver,
    partition_of,
    protocols,
)
from tests.support.coordinators import TOLD_BY_EVERY_COORDINATOR

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
RETENTION_MS = 7 * 24 * HOUR_MS
CHECK_MS = 10 * MINUTE_MS
DAYS_MS = 1_000 * 24 * HOUR_MS


@pytest.fixture
def driver() -> Driver:
    return Driver()


def joined(driver: Driver, **kwargs) -> Client:
    """The one member of a group in its sync phase."""
    ticket = driver.join(**kwargs)
    driver.advance(INITIAL_DELAY_MS)
    return driver.joined(ticket)


# Committing


@pytest.mark.rule("OFF-1")
def test_simple_consumer_creates_its_group_with_its_first_commit(driver):
    assert driver.commit_error() is ErrorCode.NONE
    assert driver.state() == "Empty"
    assert driver.offsets() == {("t", 0): 5}


@pytest.mark.rule("OFF-1")
def test_generation_of_an_unknown_group_is_illegal(driver):
    assert driver.commit_error(Client("m", 1, "m")) is ErrorCode.ILLEGAL_GENERATION
    assert driver.state() == "Dead"


@pytest.mark.rule("OFF-1", "OFF-2")
def test_administrator_may_commit_for_a_group_that_everyone_left(driver):
    (client,) = driver.form_group()
    driver.leave(client)
    assert driver.commit_error() is ErrorCode.NONE
    assert driver.commit_error(client) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("OFF-1")
def test_outsider_may_not_commit_for_a_group_in_use(driver):
    driver.form_group()
    assert driver.commit_error() is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("OFF-1")
def test_members_are_checked_before_their_generation(driver):
    (client,) = driver.form_group()
    assert driver.commit_error(client) is ErrorCode.NONE
    wrong = replace(client, generation=7)
    assert driver.commit_error(wrong) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit_error(replace(wrong, member_id="x")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit_error(replace(client, generation=-1)) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.rule("OFF-2")
def test_commit_is_accepted_while_others_join_but_not_while_partitions_change_hands(driver):
    leader, follower = driver.form_group(2)
    rejoin = driver.join(leader.member_id)
    assert driver.state() == "PreparingRebalance"
    assert driver.commit_error(follower) is ErrorCode.NONE
    driver.join(follower.member_id)
    assert driver.state() == "CompletingRebalance"
    assert driver.commit_error(driver.joined(rejoin)) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.rule("OFF-2")
def test_outsider_may_not_commit_while_members_join_either(driver):
    joined(driver)
    assert driver.state() == "CompletingRebalance"
    assert driver.commit_error() is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("OFF-3")
def test_metadata_that_is_too_long_fails_for_its_partition_alone(driver):
    ticket = driver.commit(
        {
            ("t", 0): OffsetToCommit(1, metadata="x" * 4096),
            ("t", 1): OffsetToCommit(2, metadata="x" * 4097),
            ("t", 2): OffsetToCommit(3, metadata=None),
        }
    )
    assert driver.responses[ticket] == OffsetCommitResponse(
        errors={
            ("t", 0): ErrorCode.NONE,
            ("t", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ("t", 2): ErrorCode.NONE,
        }
    )
    assert driver.offsets() == {("t", 0): 1, ("t", 2): 3}
    assert driver.fetch(("t", 2))["t", 2].metadata == ""


@pytest.mark.rule("OFF-3")
def test_nothing_is_written_if_no_offset_is_acceptable(driver):
    ticket = driver.commit({("t", 0): OffsetToCommit(1, metadata="x" * 4097)})
    assert driver.responses[ticket].errors == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert driver.appends == []


def test_commit_of_nothing_creates_no_group(driver):
    assert driver.responses[driver.commit({})].errors == {}
    assert driver.state() == "Dead"


@pytest.mark.rule("OFF-4", "OFF-8")
def test_commit_is_one_batch_with_all_acks(driver):
    driver.commit({("t", 0): OffsetToCommit(5, 3, "m"), ("u", 1): 6})
    (append,) = driver.appends
    assert (append.partition, append.acks, append.timeout_ms) == (partition_of(GROUP), -1, 5_000)
    assert [decode_key(record.key) for record in append.records] == [
        OffsetKey(GROUP, "t", 0),
        OffsetKey(GROUP, "u", 1),
    ]
    committed = decode_offset_value(append.records[0].value)
    assert (committed.offset, committed.leader_epoch, committed.metadata) == (5, 3, "m")
    assert committed.commit_timestamp_ms == append.timestamp_ms == driver.now_ms
    assert committed.expire_timestamp_ms is None


@pytest.mark.rule("OFF-4")
def test_commit_is_answered_and_seen_once_it_is_in_the_log(driver):
    driver.commit({("t", 0): 1})
    driver.append_error = None
    ticket = driver.commit({("t", 0): 2})
    assert ticket not in driver.responses
    assert driver.offsets() == {("t", 0): 1}
    driver.acknowledge()
    assert driver.responses[ticket].errors == {("t", 0): ErrorCode.NONE}
    assert driver.offsets() == {("t", 0): 2}


@pytest.mark.rule("OFF-4")
@pytest.mark.parametrize(
    ("log_error", "told"),
    [
        *TOLD_BY_EVERY_COORDINATOR,
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_commit_that_the_log_refuses_changes_nothing(driver, log_error, told):
    driver.commit({("t", 0): 1})
    driver.append_error = log_error
    ticket = driver.commit({("t", 0): 2, ("t", 1): OffsetToCommit(3, metadata="x" * 5000)})
    assert driver.responses[ticket].errors == {
        ("t", 0): told,
        ("t", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }
    assert driver.offsets() == {("t", 0): 1}
    assert driver.fetch(("t", 0), require_stable=True)["t", 0].error is ErrorCode.NONE


@pytest.mark.rule("OFF-4")
def test_later_commit_wins_even_if_it_is_reported_first(driver):
    driver.append_error = None
    driver.commit({("t", 0): 1})
    driver.commit({("t", 0): 2})
    driver.unacknowledged.reverse()
    driver.acknowledge()
    assert driver.offsets() == {("t", 0): 2}
    assert driver.fetch(("t", 0), require_stable=True)["t", 0].error is ErrorCode.NONE


# Fetching


@pytest.mark.rule("OFF-5")
def test_offset_that_is_not_there_is_minus_one(driver):
    missing = FetchedOffset(ErrorCode.NONE, -1, -1, "")
    assert driver.fetch(("t", 0)) == {("t", 0): missing}
    driver.commit({("t", 1): 4})
    assert driver.fetch(("t", 0), ("t", 1)) == {
        ("t", 0): missing,
        ("t", 1): FetchedOffset(ErrorCode.NONE, 4, -1, ""),
    }


@pytest.mark.rule("OFF-5")
def test_no_list_means_all_offsets(driver):
    assert driver.fetch() == {}
    driver.commit({("t", 0): OffsetToCommit(4, 2, "m"), ("u", 3): 5})
    assert driver.fetch() == {
        ("t", 0): FetchedOffset(ErrorCode.NONE, 4, 2, "m"),
        ("u", 3): FetchedOffset(ErrorCode.NONE, 5, -1, ""),
    }


@pytest.mark.rule("OFF-5")
def test_stable_offsets_are_those_without_a_commit_under_way(driver):
    driver.commit({("t", 0): 1, ("t", 1): 1})
    driver.append_error = None
    driver.commit({("t", 0): 2})
    fetched = driver.fetch(("t", 0), ("t", 1), require_stable=True)
    assert fetched["t", 0] == FetchedOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1, -1, "")
    assert fetched["t", 1].offset == 1
    assert driver.fetch(("t", 0))["t", 0].offset == 1
    driver.acknowledge()
    assert driver.fetch(("t", 0), require_stable=True)["t", 0].offset == 2


@pytest.mark.rule("OFF-5")
def test_offsets_are_served_in_every_state(driver):
    driver.commit({("t", 0): 1})
    client = joined(driver)
    for _ in range(3):
        assert driver.offsets() == {("t", 0): 1}
        driver.sync(client, {})
        assert driver.offsets() == {("t", 0): 1}
        client = driver.joined(driver.join(client.member_id))


# Forgetting


@pytest.mark.rule("OFF-6", "OFF-7")
def test_offsets_expire_a_week_after_everyone_left(driver):
    (client,) = driver.form_group()
    driver.commit({("t", 0): 1}, client)
    for _ in range(10):
        driver.advance(SESSION_MS - 1)
        driver.heartbeat(client)
    driver.leave(client)
    left_ms = driver.now_ms
    driver.advance(RETENTION_MS - 1)
    assert driver.offsets() == {("t", 0): 1}
    driver.advance(CHECK_MS + 1)
    assert driver.state() == "Dead"
    append = driver.appends[-1]
    assert append.acks == 0
    assert left_ms + RETENTION_MS <= append.timestamp_ms <= left_ms + RETENTION_MS + CHECK_MS
    assert [decode_key(record.key) for record in append.records] == [
        OffsetKey(GROUP, "t", 0),
        GroupKey(GROUP),
    ]
    driver.fail_over()
    assert driver.state() == "Dead"


@pytest.mark.rule("OFF-6")
def test_expiry_counts_from_the_same_moment_under_the_next_coordinator(driver):
    (client,) = driver.form_group()
    driver.commit({("t", 0): 1}, client)
    driver.leave(client)
    driver.advance(RETENTION_MS - HOUR_MS)
    driver.fail_over()
    driver.advance(HOUR_MS - 1)
    assert driver.offsets() == {("t", 0): 1}
    driver.advance(CHECK_MS + 1)
    assert driver.offsets() == {}


@pytest.mark.rule("OFF-6", "OFF-7")
def test_offsets_of_a_simple_consumer_expire_a_week_after_their_commit(driver):
    driver.commit({("t", 0): 1})
    driver.advance(HOUR_MS)
    driver.commit({("t", 1): 2})
    driver.advance(RETENTION_MS - HOUR_MS + CHECK_MS)
    assert driver.offsets() == {("t", 1): 2}
    driver.advance(HOUR_MS)
    assert driver.state() == "Dead"
    # The group itself was never stored, as nobody joined it.
    assert [decode_key(record.key) for record in driver.appends[-1].records] == [
        OffsetKey(GROUP, "t", 1)
    ]


@pytest.mark.rule("OFF-6")
@pytest.mark.parametrize(
    ("protocol_type", "kept"),
    [("consumer", {("t", 0): 1}), ("connect", {("t", 0): 1, ("u", 0): 2})],
)
def test_stable_consumer_group_forgets_topics_it_does_not_read(driver, protocol_type, kept):
    driver = Driver(GroupConfig(offsets_retention_ms=CHECK_MS))
    (client,) = driver.form_group(protocol_type=protocol_type, session_timeout_ms=1_800_000)
    driver.commit({("t", 0): 1, ("u", 0): 2}, client)
    driver.advance(2 * CHECK_MS)
    assert driver.state() == "Stable"
    assert driver.offsets() == kept


@pytest.mark.rule("OFF-6")
def test_group_whose_subscription_cannot_be_read_forgets_nothing():
    driver = Driver(GroupConfig(offsets_retention_ms=CHECK_MS))
    garbled = tuple(p._replace(metadata=b"\0") for p in protocols("range"))
    (client,) = driver.form_group(protocols=garbled, session_timeout_ms=1_800_000)
    driver.commit({("t", 0): 1}, client)
    driver.advance(2 * CHECK_MS)
    assert driver.offsets() == {("t", 0): 1}


@pytest.mark.rule("OFF-6", "OFF-8")
def test_commit_may_come_with_an_expiry_of_its_own(driver):
    driver.commit({("t", 0): 1}, retention_ms=HOUR_MS)
    driver.commit({("t", 1): 1})
    expiring = decode_offset_value(driver.appends[0].records[0].value)
    assert expiring.expire_timestamp_ms == driver.now_ms + HOUR_MS
    driver.fail_over()
    driver.advance(HOUR_MS - 1)
    assert set(driver.offsets()) == {("t", 0), ("t", 1)}
    driver.advance(CHECK_MS)
    assert set(driver.offsets()) == {("t", 1)}


@pytest.mark.rule("OFF-6")
def test_offset_with_a_commit_under_way_does_not_expire(driver):
    driver.commit({("t", 0): 1}, retention_ms=1)
    driver.append_error = None
    driver.commit({("t", 0): 2})
    driver.advance(CHECK_MS)
    assert driver.offsets() == {("t", 0): 1}


@pytest.mark.rule("OFF-7")
def test_group_that_nobody_joined_in_the_end_vanishes_without_a_trace(driver):
    driver.join(version=4)
    driver.advance(2 * CHECK_MS)
    assert driver.state() == "Dead"
    assert driver.appends == []


@pytest.mark.rule("OFF-7")
def test_empty_group_without_offsets_gets_a_tombstone(driver):
    (client,) = driver.form_group()
    driver.leave(client)
    driver.advance(CHECK_MS)
    assert driver.state() == "Dead"
    assert driver.appends[-1].records[0].value is None
    assert decode_key(driver.appends[-1].records[0].key) == GroupKey(GROUP)


@pytest.mark.rule("UMD-3", "OFF-7")
def test_offsets_of_deleted_partitions_are_dropped_from_all_groups(driver):
    (client,) = driver.form_group(group="a")
    driver.commit({("t", 0): 1, ("u", 0): 2}, client, group="a")
    driver.commit({("t", 0): 1}, group="b")
    driver.delete_partitions(("t", 0), ("t", 1))
    assert driver.offsets("a") == {("u", 0): 2}
    assert driver.state("b") == "Dead"
    assert driver.appends[-1].acks == 0
    driver.fail_over()
    assert driver.offsets("a") == {("u", 0): 2}
    assert driver.state("b") == "Dead"


@pytest.mark.rule("UMD-3")
def test_commit_to_a_partition_that_is_deleted_meanwhile_does_not_come_back(driver):
    driver.append_error = None
    driver.commit({("t", 0): 1, ("u", 0): 2})
    driver.delete_partitions(("t", 0))
    driver.acknowledge()
    assert driver.offsets() == {("u", 0): 2}
    driver.fail_over()
    assert driver.offsets() == {("u", 0): 2}
