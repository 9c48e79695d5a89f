import contextlib
import errno
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from klamm.broker.log.checkpoints import MetaProperties
from klamm.broker.log.errors import StorageError
from klamm.broker.log.manager import LogManager
from klamm.broker.log.settings import LogConfig
from klamm.errors import ConfigError
from klamm.names import TopicPartition
from klamm.protocol.records import HEADER_SIZE, Record, build_batch
from tests.broker.log.making import NOW, UnsyncedFiles, batch_of, roll, stored_records

IDENTITY = MetaProperties(1, "cluster")
TOPIC_ID = uuid.UUID(int=7)


class FailingFiles(UnsyncedFiles):
    """Writes fail below one directory."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: Path | None = None

    def pwritev(self, fd, buffers, position):
        if self.broken and os.readlink(f"/proc/self/fd/{fd}").startswith(str(self.broken)):
            raise OSError(5, "Input/output error")
        return os.pwritev(fd, buffers, position)


class World:
    """A broker's directories, on which managers come and go."""

    def __init__(self, root: Path) -> None:
        self.paths = [root / "one", root / "two"]
        self.files = FailingFiles()
        self.configs: dict[str, LogConfig] = {}
        self.failures: list[Path] = []

    def start(self, *, now_ms: int = NOW, **options) -> LogManager:
        manager = LogManager(
            self.paths,
            config_of=lambda topic: self.configs.get(topic, LogConfig()),
            on_failure=self.failures.append,
            files=self.files,
            **options,
        )
        manager.open(IDENTITY)
        manager.load(now_ms=now_ms)
        return manager


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def create(manager, topic="t", partition=0, **options):
    options = {"topic_id": TOPIC_ID, "is_new": True, "now_ms": NOW} | options
    return manager.get_or_create(TopicPartition(topic, partition), **options)


def append(log, count=1, **fields):
    log.append_as_leader(batch_of(count, **fields), leader_epoch=0, now_ms=NOW)


@pytest.mark.rule("LOG-20", "LOG-22")
def test_logs_are_there_again_after_a_clean_stop(world):
    manager = world.start()
    log = create(manager)
    append(log, 10)
    log.advance_high_watermark(8)
    log.raise_start_offset(3)
    manager.close()
    assert (log.directory.path / ".kafka_cleanshutdown").exists()

    again = world.start().get(TopicPartition("t", 0))
    assert (again.start_offset, again.high_watermark, again.end_offset) == (3, 8, 10)
    assert again.recovery_point == 10
    assert again.topic_id == TOPIC_ID
    assert not (log.directory.path / ".kafka_cleanshutdown").exists()


@pytest.mark.rule("REC-2", "REC-5")
def test_logs_are_recovered_after_a_crash(world):
    manager = world.start()
    log = create(manager)
    append(log, 10)
    log.advance_high_watermark(10)
    manager.checkpoint_high_watermarks()
    append(log, 5)
    path = log.segments[-1].path
    os.truncate(path, path.stat().st_size - 3)
    manager.release()

    again = world.start().get(TopicPartition("t", 0))
    assert (again.end_offset, again.high_watermark, again.recovery_point) == (10, 10, 0)


def test_logs_can_be_loaded_in_threads(world):
    manager = world.start()
    for partition in range(12):
        append(create(manager, partition=partition), partition + 1)
    manager.release()
    manager = LogManager(
        world.paths, config_of=lambda _: LogConfig(), on_failure=world.failures.append
    )
    manager.open(IDENTITY)
    with ThreadPoolExecutor(3) as executor:
        manager.load(now_ms=NOW, executor=executor)
    ends = {log.partition.partition: log.end_offset for log in manager.logs()}
    assert ends == {partition: partition + 1 for partition in range(12)}
    manager.release()


def test_logs_can_be_closed_in_threads_and_idle_ones_cost_no_files(world):
    manager = world.start()
    for partition in range(12):
        append(create(manager, partition=partition), partition + 1)
    with ThreadPoolExecutor(3) as executor:
        manager.close(executor=executor)
    before = len(os.listdir("/proc/self/fd"))
    manager = world.start()
    assert len(os.listdir("/proc/self/fd")) - before <= 12 + len(world.paths)
    logs = sorted(manager.logs(), key=lambda log: log.partition)
    assert [log.end_offset for log in logs] == list(range(1, 13))
    assert [log.recovery_point for log in logs] == list(range(1, 13))
    append(logs[0], 5)
    manager.close()
    assert world.start().get(logs[0].partition).end_offset == 6


def test_a_stop_before_everything_is_loaded_is_not_a_clean_one(world):
    world.start().close()
    manager = LogManager(
        world.paths, config_of=lambda _: LogConfig(), on_failure=world.failures.append
    )
    manager.open(IDENTITY)
    manager.close()
    assert not (world.paths[0] / ".kafka_cleanshutdown").exists()


def test_a_new_log_goes_where_fewest_are(world):
    manager = world.start()
    logs = [create(manager, partition=partition) for partition in range(6)]
    assert sorted(log.directory.path.name for log in logs) == ["one"] * 3 + ["two"] * 3
    assert create(manager, partition=0) is logs[0]


@pytest.mark.parametrize("end", [LogManager.close, LogManager.release])
def test_no_log_is_created_after_the_end(world, end):
    manager = world.start()
    create(manager, partition=0)
    end(manager)
    for partition in (0, 1):
        with pytest.raises(StorageError, match="closed"):
            create(manager, partition=partition)
    assert [log.partition.partition for log in world.start().logs()] == [0]


def test_a_partition_in_two_directories_is_refused(world):
    manager = world.start()
    create(manager)
    manager.release()
    for path in world.paths:
        (path / "t-0").mkdir(exist_ok=True)
    with pytest.raises(ConfigError, match="two log directories"):
        world.start()


@pytest.mark.rule("LIFE-3")
def test_the_directories_of_another_broker_are_refused(world):
    world.start().release()
    manager = LogManager(world.paths, config_of=lambda _: LogConfig(), on_failure=print)
    with pytest.raises(ConfigError, match=r"broker\.id"):
        manager.open(MetaProperties(2, "cluster"))
    manager.release()


@pytest.mark.rule("STOP-2", "STOP-3")
def test_a_deleted_log_frees_its_name_at_once_and_its_files_later(world):
    world.configs["t"] = LogConfig(file_delete_delay_ms=1000)
    manager = world.start()
    first = create(manager)
    append(first, 5)
    manager.delete(TopicPartition("t", 0), now_ms=NOW)
    assert manager.get(TopicPartition("t", 0)) is None
    second = create(manager, topic_id=uuid.UUID(int=8))
    assert (second.end_offset, second.topic_id) == (0, uuid.UUID(int=8))

    def marked() -> list[str]:
        names = [entry.name for path in world.paths for entry in path.iterdir()]
        return [name for name in names if name.endswith("-delete")]

    assert len(marked()) == 1
    manager.delete_expired_files(now_ms=NOW + 999)
    assert len(marked()) == 1
    manager.delete_expired_files(now_ms=NOW + 1000)
    assert marked() == []


def open_files_of_logs(world: World) -> list[str]:
    """The names of the files that this process has open in the directories of logs."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(link))
    return [name for name in found if Path(name).parent.parent in world.paths]


@pytest.mark.rule("STOP-3", "REC-7")
def test_a_log_that_is_let_go_holds_no_files_open_whoever_refers_to_it(world):
    manager = world.start()
    deleted, stray, lost = (create(manager, partition=each) for each in (0, 1, 2))
    for log in (deleted, stray, lost):
        append(log, 5)
        roll(log)
        append(log, 5)
    manager.delete(deleted.partition, now_ms=NOW)
    manager.move_aside(stray.partition)
    assert {Path(name).parent.name for name in open_files_of_logs(world)} == {"t-2"}
    reader = lost.segments[-1].file
    world.files.broken = lost.directory.path
    with pytest.raises(StorageError):
        append(lost)
    assert open_files_of_logs(world) == [os.readlink(f"/proc/self/fd/{reader.fd}")]


def test_work_on_a_log_that_is_deleted_meanwhile_harms_no_other(world):
    manager = world.start()
    log, other = create(manager), create(manager, partition=2)
    append(log, 5)
    manager.delete(log.partition, now_ms=NOW)
    for work in (
        log.flush,
        lambda: roll(log),
        lambda: log.epochs.assign(5, 5),
        lambda: log.read(0, 100, 5),
        lambda: log.delete_old_segments(NOW),
    ):
        with pytest.raises(StorageError):
            work()
    assert world.failures == []
    append(other, 5)


@pytest.mark.rule("STOP-2")
def test_what_a_crash_left_marked_is_removed_after_the_start(world):
    manager = world.start()
    create(manager)
    manager.delete(TopicPartition("t", 0), now_ms=NOW)
    manager.release()
    manager = world.start()
    assert manager.logs() == []
    manager.delete_expired_files(now_ms=NOW)
    assert [entry.name for entry in world.paths[0].iterdir() if entry.is_dir()] == []


@pytest.mark.rule("REC-7", "LISR-1", "LISR-12", "REASG-A3")
def test_one_directory_may_fail(world):
    manager = world.start()
    logs = {log.directory.path: log for log in (create(manager, partition=p) for p in range(2))}
    broken, working = logs[world.paths[0]], logs[world.paths[1]]
    world.files.broken = world.paths[0]
    with pytest.raises(StorageError):
        append(broken)
    assert world.failures == [world.paths[0]]
    with pytest.raises(StorageError):
        manager.get(broken.partition)
    append(working)
    assert manager.get(working.partition) is working
    assert create(manager, partition=7).directory.path == world.paths[1]
    with pytest.raises(StorageError):
        create(manager, partition=8, is_new=False)
    assert [entry.is_online for entry in manager.describe()] == [False, True]
    manager.close()
    assert not (world.paths[0] / ".kafka_cleanshutdown").exists()
    assert (world.paths[1] / ".kafka_cleanshutdown").exists()


@pytest.mark.rule("REC-7")
def test_a_directory_that_cannot_be_used_is_offline_from_the_start(world):
    world.paths[0].write_text("not a directory")
    manager = world.start()
    assert world.failures == [world.paths[0]]
    assert create(manager).directory.path == world.paths[1]
    manager.release()


@pytest.mark.rule("REC-7")
def test_without_any_directory_there_is_no_start(world):
    for path in world.paths:
        path.write_text("not a directory")
    with pytest.raises(StorageError):
        world.start()


@pytest.mark.rule("REC-7")
def test_a_checkpoint_that_cannot_be_written_takes_its_directory_offline(world):
    manager = world.start()
    create(manager)
    world.files.broken = world.paths[1]
    manager.checkpoint_high_watermarks()
    assert world.failures == [world.paths[1]]
    assert len(manager.logs()) == 1


def test_a_checkpoint_is_written_again_only_when_it_has_changed(world):
    manager = world.start()
    log = create(manager)
    append(log, 3)
    log.advance_high_watermark(2)
    manager.checkpoint_high_watermarks()
    file = next(path for path in world.paths if (path / "t-0").is_dir())
    file /= "replication-offset-checkpoint"
    first = file.stat().st_ino
    manager.checkpoint_high_watermarks()
    assert file.stat().st_ino == first, "it would have been replaced"
    log.advance_high_watermark(3)
    manager.checkpoint_high_watermarks()
    assert "t 0 3" in file.read_text()


@pytest.mark.rule("BADM-10")
def test_directories_are_described(world):
    manager = world.start()
    log = create(manager)
    append(log, 3)
    description = manager.describe()[0]
    assert description.path == world.paths[0]
    (described,) = description.logs
    assert (described.partition, described.size, described.offset_lag) == (
        TopicPartition("t", 0),
        log.size,
        0,
    )
    assert 0 < description.usable_bytes <= description.total_bytes


@pytest.mark.rule("CFG-4")
def test_new_settings_take_effect_on_open_logs(world):
    manager = world.start()
    log, other = create(manager), create(manager, "u")
    manager.configure("t", LogConfig(max_message_bytes=10))
    assert log.config.max_message_bytes == 10
    assert other.config == LogConfig()


@pytest.mark.rule("LOG-25")
def test_the_end_of_a_segment_is_flushed_later(world):
    work = []
    manager = world.start(run_later=work.append)
    log = create(manager)
    append(log, 5)
    roll(log)
    append(log, 5)
    assert log.recovery_point == 0
    (flush,) = work
    flush()
    assert log.recovery_point == 5


@pytest.mark.rule("LOG-22", "TRUNC-3")
def test_recovery_points_are_written_and_fall_with_a_truncation(world):
    manager = world.start()
    log = create(manager)
    append(log, 5)
    append(log, 5)
    log.flush()
    manager.checkpoint_recovery_points()
    checkpoint = log.directory.path / "recovery-point-offset-checkpoint"
    assert checkpoint.read_text() == "0\n1\nt 0 10\n"
    log.truncate_to(5, now_ms=NOW)
    manager.checkpoint_recovery_points()
    assert checkpoint.read_text() == "0\n1\nt 0 5\n"


@pytest.mark.rule("LOG-26", "IDEM-11")
def test_what_comes_again_and_again_is_done_for_every_log(world):
    world.configs["t"] = LogConfig(retention_ms=1000, flush_messages=1)
    manager = world.start()
    log = create(manager)
    append(log, 5, timestamp=NOW - 2000, producer_id=5, producer_epoch=0, base_sequence=0)
    log.advance_high_watermark(5)
    manager.flush_due_logs(now_ms=NOW)
    assert log.recovery_point == 5
    manager.enforce_retention(now_ms=NOW)
    assert log.start_offset == 5
    manager.expire_producers(now_ms=NOW + 86_400_000)
    assert len(log.producers) == 0


@pytest.mark.rule("CMP-3", "CMP-4", "LOG-22")
def test_the_dirtiest_log_is_compacted_and_that_is_remembered(world):
    world.configs["c"] = LogConfig(cleanup_policy=frozenset({"compact"}))
    manager = world.start()
    log = create(manager, "c")
    for value in (b"1", b"2", b"3"):
        batch = build_batch([Record(b"k", value, NOW)])
        log.append_as_leader(batch.data, leader_epoch=0, now_ms=NOW)
    log.advance_high_watermark(3)
    assert manager.clean_once(now_ms=NOW) is None
    roll(log)
    assert manager.clean_once(now_ms=NOW) == TopicPartition("c", 0)
    assert [record.value for record in stored_records(log)] == [b"3"]
    checkpoint = log.directory.path / "cleaner-offset-checkpoint"
    assert checkpoint.read_text() == "0\n1\nc 0 3\n"
    assert manager.clean_once(now_ms=NOW) is None


def compacted(manager, topic, *values):
    """A log of a compacted topic with a sealed segment that is due for the cleaner."""
    log = create(manager, topic)
    for value in values:
        batch = build_batch([Record(b"k", value, NOW)])
        log.append_as_leader(batch.data, leader_epoch=0, now_ms=NOW)
    log.advance_high_watermark(len(values))
    roll(log)
    return log


@pytest.fixture
def compacting(world):
    for topic in ("bad", "good"):
        world.configs[topic] = LogConfig(cleanup_policy=frozenset({"compact"}))
    return world.start()


def test_a_damaged_index_does_not_keep_other_logs_from_retention(world):
    for topic in ("bad", "good"):
        world.configs[topic] = LogConfig(retention_ms=1000)
    manager = world.start()
    for topic in ("bad", "good"):
        compacted(manager, topic, b"1")
    manager.close()
    manager = world.start()
    for log in manager.logs():
        log.advance_high_watermark(1)
    (bad,) = (log for log in manager.logs() if log.partition.topic == "bad")
    bad.segments[0].time_index.path.write_bytes(b"")
    assert manager.enforce_retention(now_ms=NOW + 5000) == [TopicPartition("good", 0)]


@pytest.mark.parametrize("damage", ["unreadable", "missing"])
def test_a_log_whose_first_batch_is_damaged_after_a_restart_is_marked_too(
    world, compacting, damage
):
    path = compacted(compacting, "bad", b"1", b"2").segments[0].path
    compacted(compacting, "good", b"1", b"2")
    compacting.close()
    manager = world.start()
    for log in manager.logs():
        log.advance_high_watermark(2)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert manager.clean_once(now_ms=NOW) == TopicPartition("good", 0)
    assert manager.clean_once(now_ms=NOW) is None
    marked = [log.partition for logs in manager.uncleanable().values() for log in logs]
    assert marked == [TopicPartition("bad", 0)]


@pytest.mark.parametrize("damage", ["unreadable", "missing"])
def test_a_log_that_cannot_be_compacted_is_marked_and_the_others_get_their_turn(compacting, damage):
    bad = compacted(compacting, "bad", b"1", b"2", b"3", b"4")
    path = bad.segments[0].path
    if damage == "missing":
        path.unlink()
    else:
        # The last record says that its key is longer than the record.
        content = bytearray(path.read_bytes())
        content[HEADER_SIZE + 4] = 0x7E
        path.write_bytes(content)
    good = compacted(compacting, "good", b"1", b"2")
    cleaned = {compacting.clean_once(now_ms=NOW), compacting.clean_once(now_ms=NOW)}
    assert cleaned == {bad.partition, good.partition}
    assert compacting.clean_once(now_ms=NOW) is None
    assert [record.value for record in stored_records(good)] == [b"2"]
    assert [log for logs in compacting.uncleanable().values() for log in logs] == [bad]
    compacting.delete(bad.partition, now_ms=NOW)
    assert not any(compacting.uncleanable().values())


def test_a_lack_of_file_descriptors_does_not_take_a_directory_offline(world):
    manager = world.start()
    log = create(manager)
    error = log.directory.fail(OSError(errno.EMFILE, "Too many open files"))
    assert "Too many open files" in str(error)
    assert log.directory.is_online
    log.directory.fail(OSError(errno.EIO, "Input/output error"))
    assert not log.directory.is_online


def test_a_log_whose_files_contradict_a_clean_stop_is_read_from_its_start(world):
    manager = world.start()
    log = create(manager)
    for _ in range(3):
        append(log, 5)
    manager.close()
    path = log.segments[-1].path
    content = path.read_bytes()
    third = len(content) // 3
    path.write_bytes(content[: 2 * third] + bytes(third))
    assert world.start().get(TopicPartition("t", 0)).end_offset == 10


def test_a_log_that_could_not_be_created_is_not_begun_on_another_disk(world):
    manager = world.start()
    world.files.broken = world.paths[0]
    with pytest.raises(StorageError):
        create(manager)
    # The controller says it again; what there is of the log is still on the first disk.
    with pytest.raises(StorageError):
        create(manager)
    manager.release()
    world.files.broken = None
    assert create(world.start()).end_offset == 0
