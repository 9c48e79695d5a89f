"""The metadata log as files: found, read once, read on, and refused when they are damaged."""

import logging
from pathlib import Path

import pytest

from klamm.errors import ConfigError
from klamm.history.kraft.directory import PARTITION, MetadataDirectory
from klamm.history.kraft.replay import MetadataSnapshot
from klamm.protocol.fast.fetch import LeaderHint, SnapshotId
from klamm.protocol.records import Record, build_batch
from tests.support.metadata_log import SEGMENT, LogBuilder, created_topic, registered


def log_of(count: int) -> LogBuilder:
    log = LogBuilder()
    log.elect(101, 1)
    for broker in range(1, count):
        log.append(registered(broker, broker))
    return log


def offsets(reader: MetadataDirectory) -> list[int | SnapshotId]:
    """The base offsets of batches, and the ids of snapshots."""
    return [
        each.id if isinstance(each, MetadataSnapshot) else each.header.base_offset
        for each in reader.read()
    ]


@pytest.mark.parametrize("inside", ["", PARTITION])
def test_the_directory_is_the_partition_or_contains_it(tmp_path: Path, inside: str):
    log_of(3).write(tmp_path / inside)
    reader = MetadataDirectory(tmp_path)
    reader.check()
    assert offsets(reader) == [0, 1, 2]


def test_what_is_appended_is_read_by_the_next_call(tmp_path: Path):
    log = log_of(2)
    log.write(tmp_path)
    reader = MetadataDirectory(tmp_path)
    assert offsets(reader) == [0, 1]
    assert offsets(reader) == []
    log.append(registered(2, 2))
    log.write(tmp_path)
    assert offsets(reader) == [2]
    later = LogBuilder(offset=log.offset)
    later.append(registered(3, 3))
    later.write(tmp_path, f"{3:020d}.log")
    assert offsets(reader) == [3]


def test_the_cluster_and_the_leader_are_known_from_the_files_around_the_log(tmp_path: Path):
    directory = log_of(2).write(tmp_path / PARTITION)
    reader = MetadataDirectory(tmp_path)
    assert (reader.cluster_id(), reader.leader()) == (None, None)
    (tmp_path / "meta.properties").write_text("#\nnode.id=1\ncluster.id=abc_DEF\nversion=1\n")
    (directory / "quorum-state").write_text('{"leaderId":101,"leaderEpoch":7,"data_version":1}')
    assert (reader.cluster_id(), reader.leader()) == ("abc_DEF", LeaderHint(101, 7))


def cut_log(directory: Path) -> LogBuilder:
    """A log whose segments before offset 10 are gone."""
    log = LogBuilder(epoch=2, offset=10)
    for broker in range(4):
        log.append(registered(broker, broker))
    log.write(directory, f"{10:020d}.log")
    return log


def test_a_log_without_its_beginning_begins_with_the_first_checkpoint_in_it(tmp_path: Path):
    log = cut_log(tmp_path)
    for name in ("9-1", "12-2", "13-2"):
        end, epoch = map(int, name.split("-"))
        path = tmp_path / f"{end:020d}-{epoch:010d}.checkpoint"
        path.write_bytes(log.snapshot(created_topic(1, "orders")))
    (tmp_path / f"{11:020d}-{2:010d}.checkpoint.deleted").touch()
    reader = MetadataDirectory(tmp_path)
    reader.check()
    assert offsets(reader) == [SnapshotId(12, 2), 12, 13]


def test_a_log_without_its_beginning_needs_a_checkpoint(tmp_path: Path):
    cut_log(tmp_path)
    reader = MetadataDirectory(tmp_path)
    with pytest.raises(ConfigError, match=r"begins with offset 10, and there is no \*.checkpoint"):
        offsets(reader)


def test_segments_that_were_removed_before_they_were_read_are_replaced_by_a_checkpoint(
    tmp_path: Path,
):
    log_of(3).write(tmp_path)
    reader = MetadataDirectory(tmp_path)
    assert offsets(reader) == [0, 1, 2]
    (tmp_path / SEGMENT).unlink()
    log = cut_log(tmp_path)
    (tmp_path / f"{11:020d}-{2:010d}.checkpoint").write_bytes(log.snapshot(registered(1, 1)))
    assert offsets(reader) == [SnapshotId(11, 2), 11, 12, 13]


def test_a_missing_segment_is_an_error(tmp_path: Path):
    log_of(3).write(tmp_path)
    cut_log(tmp_path)
    with pytest.raises(ConfigError, match="offset 10, but offset 3 comes next: a segment before"):
        offsets(MetadataDirectory(tmp_path))


def test_a_torn_end_is_told_of_and_the_log_read_up_to_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    content = log_of(3).bytes()
    (tmp_path / SEGMENT).write_bytes(content[:-5])
    reader = MetadataDirectory(tmp_path)
    reader.check()
    with caplog.at_level(logging.WARNING):
        assert offsets(reader) == [0, 1]
        assert offsets(reader) == []
    (message,) = caplog.messages
    assert "ends in the middle of a batch" in message
    (tmp_path / SEGMENT).write_bytes(content)
    assert offsets(reader) == [2]


def test_a_segment_that_is_torn_before_the_last_one_is_an_error(tmp_path: Path):
    log = log_of(3)
    (tmp_path / SEGMENT).write_bytes(log.bytes()[:-5])
    later = LogBuilder(offset=3)
    later.append(registered(3, 3))
    later.write(tmp_path, f"{3:020d}.log")
    with pytest.raises(ConfigError, match=r"0\.log is damaged at byte \d+: .* is cut short"):
        offsets(MetadataDirectory(tmp_path))


def test_a_damaged_batch_is_an_error_that_says_where(tmp_path: Path):
    log = log_of(3)
    content = bytearray(log.bytes())
    content[-3] ^= 1
    (tmp_path / SEGMENT).write_bytes(content)
    at = len(content) - log.batches[-1].header.size
    with pytest.raises(ConfigError, match=f"is damaged at byte {at}: the checksum .* Copy the"):
        offsets(MetadataDirectory(tmp_path))


def test_bytes_that_are_no_batch_are_an_error(tmp_path: Path):
    (tmp_path / SEGMENT).write_bytes(b"not a log at all " * 10)
    with pytest.raises(ConfigError, match="is damaged at byte 0: no batch of magic 2"):
        MetadataDirectory(tmp_path).check()


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"There is no directory .*; expected is __cluster_meta"):
        MetadataDirectory(tmp_path / "nowhere").check()


def test_a_directory_without_a_log_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no metadata log: there are no segments"):
        MetadataDirectory(tmp_path).check()


def test_the_log_of_another_topic_is_an_error(tmp_path: Path):
    batch = build_batch([Record(b"key", b"value", 1)])
    (tmp_path / SEGMENT).write_bytes(batch.data)
    with pytest.raises(ConfigError, match="begins with data of a topic; expected is the directory"):
        MetadataDirectory(tmp_path).check()


def test_an_empty_log_is_an_error(tmp_path: Path):
    (tmp_path / SEGMENT).touch()
    with pytest.raises(ConfigError, match="it has no whole batch"):
        MetadataDirectory(tmp_path).check()
