"""Rows 3 to 19 of the test matrix with kafka-python and aiokafka; librdkafka is in other files."""

import time
from collections.abc import Callable, Iterator

import pytest

from klamm.broker.groups.coordinator import group_partition
from tests.real.libraries import LIBRARIES, Administrator, Library, Load, Member
from tests.real.test_nothing_lost import read_all
from tests.support.cluster import RealCluster
from tests.support.raw import Raw, batch
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.clients,
    pytest.mark.timeout(180),
    # What the libraries leave open when brokers die under them is not what is tested.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name),
]


def shared(members: list[Member], partitions: int) -> Callable[[], bool]:
    """Whether the members have divided all partitions among them, none of them idle."""

    def is_shared() -> bool:
        for member in members:
            assert member.failure is None, member.failure
        parts = [member.assigned for member in members]
        together = sorted(each for part in parts for each in part)
        return all(parts) and together == list(range(partitions))

    return is_shared


@pytest.fixture
def join(breakable: RealCluster, library: Library, topic: str) -> Iterator[Callable[..., Member]]:
    """Lets members join, and leave at the end of the test."""
    running: list[Member] = []

    def start(instance: str | None = None) -> Member:
        running.append(library.member(breakable.bootstrap, topic, instance))
        return running[-1]

    yield start
    for member in running:
        member.stop()


@pytest.fixture
def load(breakable: RealCluster, library: Library, topic: str) -> Iterator[Load]:
    """A producer at work on a topic with three replicas."""
    breakable.create(topic, config={"min.insync.replicas": "2"})
    running = library.load(breakable.bootstrap, topic)
    yield running
    running.stop()


def wait_for_more(load: Load, count: int = 50) -> None:
    target = len(load.acknowledged) + count
    wait_until(lambda: load.failure or len(load.acknowledged) >= target, f"{count} more are acked")
    assert load.failure is None, load.failure


def assert_nothing_lost(cluster: RealCluster, topic: str, load: Load) -> None:
    load.stop()
    assert load.failure is None, load.failure
    found = read_all(cluster, topic)
    assert found == sorted(set(found)), "records come once and in order"
    assert set(load.acknowledged) <= set(found)


@pytest.fixture
def administrator(breakable: RealCluster, library: Library) -> Iterator[Administrator]:
    found = library.administer(breakable.bootstrap)
    yield found
    found.close()


@pytest.mark.rule("LOG-3", "PROD-3")
def test_a_record_that_is_too_large_is_refused_in_words_the_client_knows(
    breakable: RealCluster, library: Library, topic: str
) -> None:
    breakable.create(topic)
    error = library.send_large(breakable.bootstrap, topic, 2 << 20)
    assert error == "MessageSizeTooLargeError"
    assert library.send_large(breakable.bootstrap, topic, 1000) == ""


@pytest.mark.rule("LIST-1", "LIST-2", "LIST-3")
def test_offsets_are_found_by_place_and_by_time(
    breakable: RealCluster, library: Library, topic: str
) -> None:
    breakable.create(topic)
    now_ms = int(time.time() * 1000)
    with Raw(breakable[breakable.leader(topic)].port) as raw:
        for age_ms in (2000, 1000, 0):
            assert raw.produce(topic, batch(b"x", timestamp=now_ms - age_ms)).error_code == 0
    ask = library.offsets
    assert ask(breakable.bootstrap, topic, now_ms - 1500) == (0, 3, 1)
    assert ask(breakable.bootstrap, topic, now_ms + 1000) == (0, 3, -1)


@pytest.mark.rule("GRP-8", "GRP-11", "GRP-13", "GRP-16", "GRP-20")
def test_members_of_a_group_come_and_go(
    breakable: RealCluster, library: Library, topic: str, join: Callable[..., Member]
) -> None:
    breakable.create(topic, partitions=6)
    members = [join()]
    wait_until(shared(members, 6), "one member has all")
    members.append(join())
    wait_until(shared(members, 6), "two members share")
    members.append(join())
    wait_until(shared(members, 6), "three members share")
    members.pop(0).stop()
    wait_until(shared(members, 6), "the other two take over")


@pytest.mark.rule("GRP-19")
def test_a_static_member_comes_back_to_its_partitions(
    breakable: RealCluster, library: Library, topic: str, join: Callable[..., Member]
) -> None:
    breakable.create(topic, partitions=2)
    stays, goes = join("stays"), join("goes")
    wait_until(shared([stays, goes], 2), "they share")
    before = set(goes.assigned)
    goes.stop()
    returned = join("goes")
    wait_until(lambda: returned.assigned == before, "it has its partition again")
    assert shared([stays, returned], 2)()


@pytest.mark.rule("GRP-3", "GRP-4", "OFF-8", "OFF-9")
def test_a_group_goes_on_when_its_coordinator_dies(
    breakable: RealCluster, library: Library, topic: str, join: Callable[..., Member]
) -> None:
    breakable.create(topic, partitions=2)
    members = [join(), join()]
    wait_until(shared(members, 2), "they share")

    def consumed() -> list[bytes]:
        return sorted(value for member in members for value in member.consumed)

    breakable.produce(topic, [b"before"])
    wait_until(lambda: consumed() == [b"before"], "it is consumed")
    partition = group_partition(topic, 4)
    coordinator = breakable.leader("__consumer_offsets", partition)
    breakable[coordinator].kill()
    breakable.wait_leader("__consumer_offsets", partition, other_than=coordinator)
    breakable.wait_leader(topic, 0, other_than=coordinator)
    breakable.produce(topic, [b"later"])
    wait_until(lambda: b"later" in consumed(), "the group goes on", timeout_s=60)


@pytest.mark.rule("BADM-2", "BADM-3", "BADM-4", "BADM-6", "CFG-1", "CFG-4")
def test_topics_are_administered(
    breakable: RealCluster, library: Library, topic: str, administrator: Administrator
) -> None:
    assert administrator.create(topic, 2, 3) == ""
    wait_until(lambda: topic in administrator.topics(), "the topic is listed")
    assert administrator.create(topic, 2, 3) == "TopicAlreadyExistsError"
    assert administrator.create(f"{topic}-wide", 1, 9) == "InvalidReplicationFactorError"
    assert administrator.create("not/legal", 1, 1) == "InvalidTopicError"
    assert administrator.grow(topic, 4) == ""
    assert administrator.grow(topic, 3) == "InvalidPartitionsError"
    administrator.configure(topic, "retention.ms", "12345678")
    wait_until(
        lambda: administrator.setting(topic, "retention.ms") == "12345678",
        "the setting is in effect",
    )
    assert administrator.delete(topic) == ""
    wait_until(lambda: topic not in administrator.topics(), "the topic is gone")
    assert administrator.delete(topic) == "UnknownTopicOrPartitionError"


@pytest.mark.rule("BADM-9", "OFF-5", "GRP-21")
def test_records_and_groups_are_administered(
    breakable: RealCluster,
    library: Library,
    topic: str,
    administrator: Administrator,
    join: Callable[..., Member],
) -> None:
    breakable.create(topic)
    breakable.produce(topic, [b"%d" % each for each in range(10)])
    member = join()
    wait_until(lambda: len(member.consumed) == 10, "everything is consumed")
    wait_until(lambda: topic in administrator.groups(), "the group is listed")
    wait_until(lambda: administrator.committed(topic, topic) == 10, "its offset is committed")
    assert administrator.delete_records(topic, 4) == 4
    assert library.offsets(breakable.bootstrap, topic, 0)[0] == 4


@pytest.mark.rule("DUR-1", "IDEM-5")
def test_a_killed_leader_loses_and_doubles_nothing(
    breakable: RealCluster, library: Library, topic: str, load: Load
) -> None:
    wait_for_more(load)
    for _ in range(2):
        leader = breakable.leader(topic)
        breakable[leader].kill()
        breakable.wait_leader(topic, other_than=leader)
        wait_for_more(load)
        breakable[leader].start()
        breakable.wait_isr(topic, {1, 2, 3})
    assert_nothing_lost(breakable, topic, load)


@pytest.mark.rule("LIFE-13", "LIFE-14")
def test_a_rolling_restart_fails_no_record(
    breakable: RealCluster, library: Library, topic: str, load: Load
) -> None:
    wait_for_more(load)
    for broker in breakable.brokers.values():
        assert broker.stop() == 0
        wait_for_more(load)
        broker.start()
        breakable.wait_isr(topic, {1, 2, 3})
    assert_nothing_lost(breakable, topic, load)
