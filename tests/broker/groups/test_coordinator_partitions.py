"""Which groups a broker coordinates, and how they move from one broker to the next."""

import struct

import pytest

from klamm.broker.groups.coordinator import Loaded, group_partition
from klamm.broker.groups.messages import (
    HeartbeatRequest,
    OffsetFetchRequest,
)
from klamm.broker.groups.records import (
    CommittedOffset,
    GroupRecord,
    OffsetKey,
    StoredGroup,
    StoredMember,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from klamm.broker.groups.replay import ReplayBatch
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import (
    GROUP,
    INITIAL_DELAY_MS,
    PARTITIONS,
    SESSION_MS,
    Client,
    Driver,
    partition_of,
    subscription,
)
from tests.support.event_loop import result_of

HERE = partition_of(GROUP)
COMMIT = struct.pack(">hh", 0, 1)
ABORT = struct.pack(">hh", 0, 0)


def committed(offset: int) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 1_700_000_000_000)


def offset_at(offset: int, topic: str = "t", partition: int = 0) -> GroupRecord:
    return offset_record(OffsetKey(GROUP, topic, partition), committed(offset))


def stored_group(generation: int = 3) -> StoredGroup:
    member = StoredMember("m", None, "c", "/h", 60_000, SESSION_MS, subscription("t"), b"A")
    return StoredGroup("consumer", generation, "range", "m", 1_700_000_000_000, (member,))


def load(*batches: ReplayBatch) -> Driver:
    driver = Driver(owned=[])
    assert driver.coordinator.begin_load(HERE, 0)
    assert driver.coordinator.load(HERE, 0, batches)
    driver.coordinator.finish_load(HERE, 0, driver.now_ms)
    return driver


def load_records(*records: GroupRecord) -> Driver:
    return load(*(ReplayBatch([record]) for record in records))


# Location


@pytest.mark.rule("GRP-1")
@pytest.mark.parametrize(
    ("group", "of_50", "of_7"),
    [
        ("", 0, 0),
        ("g", 3, 5),
        ("orders", 31, 2),
        ("my-group", 12, 1),
        ("polygenelubricants", 0, 0),  # hashes to Java's smallest integer
        ("grüppe", 12, 3),
        ("消费者", 6, 3),
        ("😀 smile", 15, 2),
        ("console-consumer-48291", 5, 0),
    ],
)
def test_partition_of_a_group_is_what_kafka_computes(group, of_50, of_7):
    assert (group_partition(group, 50), group_partition(group, 7)) == (of_50, of_7)


@pytest.mark.rule("GRP-2")
def test_count_of_partitions_is_that_of_the_topic_once_it_is_known():
    driver = Driver(owned=[0])
    driver.coordinator.partition_count = 1
    assert driver.join() not in driver.responses


def every_answer(driver: Driver, group: str) -> dict[str, ErrorCode]:
    """What each request is answered with, by a coordinator that may not know the group."""
    client = Client("m", 1, "m")
    coordinator = driver.coordinator
    heartbeat = HeartbeatRequest(group_id=group, member_id="m", generation=1)
    return {
        "join": driver.responses[driver.join(group=group)].error,
        "sync": driver.responses[driver.sync(client, group=group)].error,
        "heartbeat": coordinator.heartbeat(heartbeat, driver.now_ms),
        "leave": driver.leave(client, group=group).error,
        "commit": driver.commit_error(group=group),
        "fetch": coordinator.fetch_offsets(
            OffsetFetchRequest(group_id=group, partitions=None)
        ).error,
        "describe": coordinator.describe_group(group).error,
        "delete": driver.delete_groups(group)[group],
        "delete offsets": driver.delete_offsets(("t", 0), group=group).error,
    }


@pytest.mark.rule("GRP-4")
def test_everything_is_refused_for_groups_of_partitions_that_others_lead():
    driver = Driver(owned=[p for p in range(PARTITIONS) if p != HERE])
    assert set(every_answer(driver, GROUP).values()) == {ErrorCode.NOT_COORDINATOR}
    assert driver.coordinator.describe_group(GROUP).state == ""


@pytest.mark.rule("GRP-4")
def test_while_a_partition_is_loading_members_are_held_off_gently():
    driver = Driver(owned=[])
    driver.coordinator.begin_load(HERE, 0)
    responses = every_answer(driver, GROUP)
    assert responses.pop("heartbeat") is ErrorCode.NONE
    assert responses.pop("sync") is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(responses.values()) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    driver.coordinator.finish_load(HERE, 0, driver.now_ms)
    assert driver.join() not in driver.responses


@pytest.mark.rule("GRP-6")
def test_empty_group_id_is_good_for_offsets_and_administration_only():
    driver = Driver()
    responses = every_answer(driver, "")
    refused = {name for name, error in responses.items() if error is ErrorCode.INVALID_GROUP_ID}
    assert refused == {"join", "sync", "heartbeat", "leave", "delete offsets"}
    assert {responses[name] for name in responses.keys() - refused} == {ErrorCode.NONE}


@pytest.mark.rule("GRP-6")
def test_group_id_that_no_record_could_hold_is_invalid():
    responses = every_answer(Driver(), "x" * 40_000)
    assert set(responses.values()) == {ErrorCode.INVALID_GROUP_ID}


# Moving


@pytest.mark.rule("GRP-5")
def test_those_who_wait_are_sent_elsewhere_when_the_partition_moves():
    driver = Driver()
    other = next(g for g in map(str, range(99)) if partition_of(g) == HERE)
    tickets = [driver.join(group=other), driver.join(group=other)]
    driver.advance(INITIAL_DELAY_MS * 2)
    joining = driver.join()
    syncing = driver.sync(driver.joined(tickets[1]), group=other)
    driver.carry_out(driver.coordinator.unload(HERE, 1, driver.now_ms))
    assert driver.responses[joining].error is ErrorCode.NOT_COORDINATOR
    assert driver.responses[syncing].error is ErrorCode.NOT_COORDINATOR
    assert set(every_answer(driver, GROUP).values()) == {ErrorCode.NOT_COORDINATOR}
    assert result_of(driver.coordinator.list_groups()).groups == []


@pytest.mark.rule("GRP-5")
def test_groups_of_other_partitions_stay():
    driver = Driver()
    other = next(g for g in map(str, range(99)) if partition_of(g) != HERE)
    (client,) = driver.form_group(group=other)
    driver.carry_out(driver.coordinator.unload(HERE, 1, driver.now_ms))
    assert driver.heartbeat(client, group=other) is ErrorCode.NONE


@pytest.mark.rule("GRP-5")
def test_commit_under_way_when_the_partition_moves_is_answered_by_the_log():
    driver = Driver(append_error=None)
    commit = driver.commit({("t", 0): 1})
    assert driver.coordinator.unload(HERE, 1, driver.now_ms) == []
    driver.acknowledge(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert driver.responses[commit].errors == {("t", 0): ErrorCode.NOT_COORDINATOR}


@pytest.mark.rule("GRP-5")
def test_report_that_arrives_after_a_reload_does_not_touch_the_new_state():
    driver = Driver(append_error=None)
    driver.commit({("t", 0): 1})
    driver.coordinator.unload(HERE, 1, driver.now_ms)
    driver.log[HERE].clear()
    driver.epoch = 2
    driver.lead(HERE)
    driver.acknowledge()
    assert driver.offsets() == {}


@pytest.mark.rule("GRP-5")
def test_news_about_an_older_leader_epoch_is_ignored():
    driver = Driver(owned=[])
    coordinator = driver.coordinator
    assert coordinator.begin_load(HERE, 5)
    coordinator.finish_load(HERE, 5, driver.now_ms)
    driver.commit({("t", 0): 1})
    assert coordinator.unload(HERE, 4, driver.now_ms) == []
    assert driver.offsets() == {("t", 0): 1}
    coordinator.unload(HERE, 6, driver.now_ms)
    assert not coordinator.begin_load(HERE, 5)
    assert driver.commit_error() is ErrorCode.NOT_COORDINATOR
    assert coordinator.begin_load(HERE, 7)


@pytest.mark.rule("GRP-5")
def test_load_that_is_overtaken_stops():
    driver = Driver(owned=[])
    coordinator = driver.coordinator
    assert coordinator.begin_load(HERE, 1)
    assert not coordinator.begin_load(HERE, 1)
    assert coordinator.begin_load(HERE, 2)
    assert not coordinator.load(HERE, 1, [ReplayBatch([offset_at(1)])])
    assert coordinator.finish_load(HERE, 1, driver.now_ms) is None
    assert coordinator.load(HERE, 2, [])
    coordinator.unload(HERE, None, driver.now_ms)
    assert not coordinator.load(HERE, 2, [])
    assert coordinator.finish_load(HERE, 2, driver.now_ms) is None
    assert driver.commit_error() is ErrorCode.NOT_COORDINATOR


@pytest.mark.rule("GRP-5")
def test_leader_that_stays_leader_keeps_its_groups():
    driver = Driver()
    (client,) = driver.form_group()
    assert not driver.coordinator.begin_load(HERE, 7)
    assert driver.heartbeat(client) is ErrorCode.NONE


def test_nothing_is_due_on_a_broker_without_partitions():
    driver = Driver()
    driver.form_group()
    driver.join(version=4)
    for partition in range(PARTITIONS):
        driver.carry_out(driver.coordinator.unload(partition, 1, driver.now_ms))
    assert driver.coordinator.next_deadline_ms() is None


@pytest.mark.rule("GRP-4", "OFF-10")
def test_members_continue_under_the_next_coordinator():
    driver = Driver()
    clients = driver.form_group(3)
    driver.commit({("t", 0): 7}, clients[1])
    driver.fail_over()
    assert driver.state() == "Stable"
    assert {driver.heartbeat(client) for client in clients} == {ErrorCode.NONE}
    assert driver.responses[driver.sync(clients[2])].assignment == b"2"
    assert driver.offsets() == {("t", 0): 7}
    assert driver.commit_error(clients[0]) is ErrorCode.NONE


@pytest.mark.rule("OFF-10", "GRP-18")
def test_sessions_start_anew_under_the_next_coordinator():
    driver = Driver()
    clients = driver.form_group(2)
    driver.advance(SESSION_MS - 1)
    driver.fail_over()
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(clients[0]) is ErrorCode.NONE
    driver.advance(1)
    assert driver.heartbeat(clients[1]) is ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_that_a_crash_interrupts_starts_over_with_the_members_of_before():
    driver = Driver()
    (client,) = driver.form_group()
    newcomer = driver.join()
    rejoin = driver.join(client.member_id)
    driver.fail_over()
    assert driver.state() == "Stable"
    stranger = driver.joined(newcomer)
    assert driver.responses[driver.sync(stranger)].error is ErrorCode.UNKNOWN_MEMBER_ID
    known = driver.joined(rejoin)
    assert driver.responses[driver.sync(known)].error is ErrorCode.ILLEGAL_GENERATION
    assert driver.responses[driver.join(client.member_id)].generation == 2


# Loading


@pytest.mark.rule("OFF-10")
def test_later_records_win_and_tombstones_delete():
    driver = load_records(
        offset_at(1),
        offset_at(2, partition=1),
        offset_at(3),
        offset_tombstone(OffsetKey(GROUP, "t", 1)),
        offset_at(4, "u"),
    )
    assert driver.offsets() == {("t", 0): 3, ("u", 0): 4}


@pytest.mark.rule("OFF-10")
def test_group_with_members_is_stable_and_without_is_empty():
    assert load_records(group_record(GROUP, stored_group())).state() == "Stable"
    empty = StoredGroup("consumer", 4, None, None, 0, ())
    driver = load_records(group_record(GROUP, stored_group()), group_record(GROUP, empty))
    assert driver.state() == "Empty"
    (client,) = driver.form_group()
    assert client.generation == 5


@pytest.mark.rule("OFF-10")
def test_offsets_without_a_group_record_form_an_empty_group():
    driver = load_records(offset_at(1))
    assert driver.state() == "Empty"
    assert driver.coordinator.describe_group(GROUP).protocol_type == ""


@pytest.mark.rule("OFF-10")
def test_group_that_was_deleted_is_gone_but_later_offsets_count():
    removed = (group_record(GROUP, stored_group()), group_tombstone(GROUP))
    assert load_records(*removed).state() == "Dead"
    driver = load_records(*removed, offset_at(1))
    assert driver.state() == "Empty"
    assert driver.offsets() == {("t", 0): 1}


@pytest.mark.rule("OFF-10")
@pytest.mark.parametrize(("marker", "seen"), [(COMMIT, {("t", 0): 2}), (ABORT, {("t", 0): 1})])
def test_offsets_of_a_transaction_count_once_it_is_committed(marker, seen):
    driver = load(
        ReplayBatch([offset_at(1)]),
        ReplayBatch([offset_at(2)], producer_id=9, is_transactional=True),
        ReplayBatch([(marker, b"")], producer_id=9, is_transactional=True, is_control=True),
    )
    assert driver.offsets() == seen
    assert driver.fetch(("t", 0), require_stable=True)["t", 0].error is ErrorCode.NONE


@pytest.mark.rule("OFF-10", "OFF-5")
def test_offsets_of_an_open_transaction_are_not_stable():
    driver = load(
        ReplayBatch([offset_at(1)]),
        ReplayBatch([offset_at(2)], producer_id=9, is_transactional=True),
        ReplayBatch([(COMMIT, b"")], producer_id=8, is_transactional=True, is_control=True),
    )
    assert driver.offsets() == {("t", 0): 1}
    unstable = driver.fetch(("t", 0), ("t", 1), require_stable=True)
    assert unstable["t", 0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert unstable["t", 1].error is ErrorCode.NONE


@pytest.mark.rule("OFF-10")
def test_offset_committed_after_that_of_a_transaction_wins_over_it():
    driver = load(
        ReplayBatch([offset_at(1)], producer_id=9, is_transactional=True),
        ReplayBatch([offset_at(2)]),
        ReplayBatch([(COMMIT, b"")], producer_id=9, is_transactional=True, is_control=True),
    )
    assert driver.offsets() == {("t", 0): 2}


@pytest.mark.rule("OFF-9", "OFF-10")
def test_records_that_cannot_be_understood_are_counted_and_passed_over():
    driver = Driver(owned=[])
    driver.coordinator.begin_load(HERE, 0)
    records = [
        offset_at(1),
        (b"\0\7new kind of key", b"value"),
        (None, b"no key"),
        (offset_at(1, "u").key, b"\0\x63value from the future"),
        (b"\0", b"cut short"),
        offset_at(2, partition=1),
    ]
    driver.coordinator.load(
        HERE, 0, [ReplayBatch(records), ReplayBatch([], producer_id=1, is_control=True)]
    )
    loaded = driver.coordinator.finish_load(HERE, 0, driver.now_ms)
    assert loaded == Loaded(groups=1, offsets=2, ignored=5)
    assert driver.offsets() == {("t", 0): 1, ("t", 1): 2}
