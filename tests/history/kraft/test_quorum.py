"""The metadata log over the network: which controller is asked, for what, and what is refused."""

import socket
from collections.abc import Callable, Iterator

import pytest

from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.history.kraft.quorum import MetadataQuorum
from klamm.history.kraft.replay import MetadataReplay, MetadataSnapshot
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError
from klamm.protocol.fast.fetch import LeaderHint, SnapshotId
from klamm.protocol.records import Batch
from tests.support.metadata_log import LogBuilder, created_partition, created_topic, registered
from tests.support.scripted_quorum import ScriptedQuorum


@pytest.fixture
def quorum() -> Iterator[ScriptedQuorum]:
    quorum = ScriptedQuorum()
    yield quorum
    quorum.close()


def fill(quorum: ScriptedQuorum, count: int, *, offset: int = 0) -> LogBuilder:
    """A log of committed batches that begins at an offset."""
    log = LogBuilder(epoch=2, offset=offset)
    if not offset:
        log.elect(101, 2)
    while len(log.batches) < count:
        log.append(registered(len(log.batches), 1))
    quorum.batches, quorum.high_watermark, quorum.log_start = log.batches, log.offset, offset
    return log


Opened = Callable[..., MetadataQuorum]


@pytest.fixture
def opened() -> Iterator[Opened]:
    readers = []

    def open_quorum(*addresses: tuple[str, int]) -> MetadataQuorum:
        readers.append(MetadataQuorum(addresses, timeout_s=2))
        readers[-1].check()
        return readers[-1]

    yield open_quorum
    for each in readers:
        each.close()


def offsets(reader: MetadataQuorum) -> list[int | SnapshotId]:
    return [
        each.id if isinstance(each, MetadataSnapshot) else each.header.base_offset
        for each in reader.read()
    ]


def test_the_log_is_read_from_its_beginning_and_then_on(quorum: ScriptedQuorum, opened: Opened):
    log = fill(quorum, 6)
    reader = opened(quorum.add(101).address)
    assert (reader.cluster_id(), reader.leader()) == ("cluster", LeaderHint(101, 3))
    assert offsets(reader) == [0, 1, 2, 3, 4, 5]
    assert offsets(reader) == []
    log.append(registered(9, 9))
    quorum.high_watermark = log.offset
    assert offsets(reader) == [6]


def test_what_is_not_committed_is_not_read(quorum: ScriptedQuorum, opened: Opened):
    log = fill(quorum, 6)
    quorum.high_watermark = 4
    reader = opened(quorum.add(101).address)
    assert offsets(reader) == [0, 1, 2, 3]
    quorum.high_watermark = log.offset
    assert offsets(reader) == [4, 5]


def test_a_follower_tells_who_leads(quorum: ScriptedQuorum, opened: Opened):
    fill(quorum, 3)
    quorum.leader = 102
    follower = quorum.add(101)
    quorum.add(102, 103)
    reader = opened(follower.address)
    assert reader.leader() == LeaderHint(102, 3)
    assert offsets(reader) == [0, 1, 2]


def test_the_next_leader_is_followed(quorum: ScriptedQuorum, opened: Opened):
    log = fill(quorum, 3)
    reader = opened(quorum.add(101).address)
    quorum.add(102)
    assert offsets(reader) == [0, 1, 2]
    quorum.leader, quorum.epoch = 102, 4
    log.elect(102, 4)
    quorum.high_watermark = log.offset
    assert offsets(reader) == [3]
    assert reader.leader() == LeaderHint(102, 4)


def test_controllers_that_do_not_describe_the_cluster_are_all_named(
    quorum: ScriptedQuorum, opened: Opened
):
    fill(quorum, 2)
    quorum.errors[ApiKey.DESCRIBE_CLUSTER] = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    quorum.leader = 102
    first, second = quorum.add(101), quorum.add(102)
    reader = opened(first.address, second.address)
    assert (reader.cluster_id(), offsets(reader)) == (None, [0, 1])
    with pytest.raises(UnavailableError, match=r"is not the leader\).*those of all controllers"):
        opened(first.address)


def test_a_log_without_its_beginning_begins_with_the_snapshot_at_its_start(
    quorum: ScriptedQuorum, opened: Opened
):
    log = fill(quorum, 4, offset=20)
    content = log.snapshot(
        registered(1, 1, fenced=False), created_topic(1, "orders"), created_partition(1, 0, [1])
    )
    quorum.snapshots = {SnapshotId(20, 1): content, SnapshotId(22, 2): b"not asked for"}
    reader = opened(quorum.add(101).address)
    replay = MetadataReplay("cluster", reader.leader())
    told = []
    read: list[Batch] = []
    for each in reader.read():
        if isinstance(each, MetadataSnapshot):
            told += replay.load(each)
        else:
            read.append(each)
    assert [each.broker for each in told[0].broker_changes] == [1]
    assert [each.header.base_offset for each in read] == [20, 21, 22, 23]


def test_without_the_snapshot_at_its_start_the_log_begins_with_the_latest(
    quorum: ScriptedQuorum, opened: Opened
):
    log = fill(quorum, 4, offset=20)
    quorum.snapshots = {SnapshotId(22, 2): log.snapshot(registered(1, 1))}
    assert offsets(opened(quorum.add(101).address)) == [SnapshotId(22, 2), 22, 23]


def test_a_leader_that_prefers_snapshots_is_asked_for_the_log_behind_its_first_record(
    quorum: ScriptedQuorum, opened: Opened
):
    log = fill(quorum, 4)
    quorum.prefers_snapshots = True
    quorum.snapshots = {SnapshotId(3, 2): log.snapshot(registered(1, 1))}
    assert offsets(opened(quorum.add(101).address)) == [1, 2, 3]


def test_a_broker_is_not_a_controller(quorum: ScriptedQuorum, opened: Opened):
    broker = quorum.add(1, is_broker=True)
    with pytest.raises(ConfigError, match=r"is not a KRaft controller: .*controller\.listener"):
        opened(broker.address)


def test_an_address_at_which_nobody_listens_is_an_error(opened: Opened):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UnavailableError, match="No leader of the KRaft quorum is found"):
        opened(("127.0.0.1", port))


def test_a_principal_without_rights_is_told_what_it_takes(quorum: ScriptedQuorum, opened: Opened):
    fill(quorum, 2)
    reader = opened(quorum.add(101).address)
    quorum.errors[ApiKey.FETCH] = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with pytest.raises(ConfigError, match="ClusterAction on the cluster"):
        offsets(reader)


def test_other_errors_are_raised(quorum: ScriptedQuorum, opened: Opened):
    fill(quorum, 2)
    reader = opened(quorum.add(101).address)
    quorum.errors[ApiKey.FETCH] = ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        offsets(reader)


def test_a_damaged_batch_is_an_error(quorum: ScriptedQuorum, opened: Opened):
    log = fill(quorum, 2)
    data = bytearray(log.batches[1].data)
    data[-2] ^= 1
    log.batches[1] = Batch(log.batches[1].header, memoryview(data))
    with pytest.raises(KlammError, match="checksum of the batch at offset 1"):
        offsets(opened(quorum.add(101).address))
