"""All logs of a broker, on all of its log directories.

The manager starts no threads and sets no timers. What has to happen every now and then are methods
that the broker calls; those that wait for the disk are named `checkpoint_*`, `flush_*`, `clean_*`,
`enforce_*`, `delete_expired_files` and `close`, and belong into an executor. `get`, `create` and
`delete` are quick and made for the event loop.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from klamm.broker.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    DirectoryLock,
    MetaProperties,
    OffsetCheckpoint,
    claim_directory,
    put_clean_shutdown_mark,
    take_clean_shutdown_mark,
)
from klamm.broker.log.cleaner import LogToClean, clean, find_dirt
from klamm.broker.log.directory import LogDirectory
from klamm.broker.log.errors import CorruptLogError, StorageError
from klamm.broker.log.files import REAL_FILES, Files
from klamm.broker.log.log import Log
from klamm.broker.log.names import marked, parse_mark, parse_replica
from klamm.broker.log.recovery import Checkpointed, load_log
from klamm.broker.log.settings import LogConfig
from klamm.errors import ConfigError
from klamm.names import TopicPartition
from klamm.slices import pieces

logger = logging.getLogger(__name__)

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class LogDescription:
    """One replica, as DescribeLogDirs shows it."""

    partition: TopicPartition
    size: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class DirectoryDescription:
    """One log directory, as DescribeLogDirs shows it."""

    path: Path
    is_online: bool
    logs: tuple[LogDescription, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(eq=False, slots=True)
class _Disk:
    """A log directory with what belongs to it alone."""

    directory: LogDirectory
    files: Files
    lock: DirectoryLock | None = None
    was_clean: bool = False
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    #: Logs that the cleaner has failed on; it leaves them alone until the broker restarts.
    uncleanable: set[TopicPartition] = field(default_factory=set)
    #: Replicas that were removed, and when their files may go.
    doomed: list[tuple[int, Path]] = field(default_factory=list)

    #: What the checkpoints hold, by name; nothing is written that is there already.
    written: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    writing: threading.Lock = field(default_factory=threading.Lock)

    def checkpoint(self, name: str) -> OffsetCheckpoint:
        return OffsetCheckpoint(self.directory.path / name, self.files)

    def mark_uncleanable(self, partition: TopicPartition, error: Exception) -> None:
        """Exclude a log from compaction because the cleaner has failed on it."""
        self.uncleanable.add(partition)
        logger.error("%s cannot be compacted and is marked as uncleanable: %r", partition, error)

    def note_missing(self, log: Log, error: FileNotFoundError) -> None:
        """A segment was not there: retention has removed it meanwhile, or else it is damage."""
        if all(segment.path.exists() for segment in log.segments):
            logger.info("%s lost segments to retention while it was compacted", log.partition)
        else:
            self.mark_uncleanable(log.partition, error)

    def write_checkpoint(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Replace a checkpoint; a failure takes the directory offline and is reported so."""
        try:
            with self.writing:
                if self.written.get(name) != offsets:
                    self.checkpoint(name).write(offsets)
                    self.written[name] = offsets
        except OSError as error:
            self.directory.fail(error)


class LogManager:
    """Opens, finds, creates, deletes and looks after logs."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        config_of: Callable[[str], LogConfig],
        on_failure: Callable[[Path], None],
        on_flush: Callable[[float], None] = lambda _: None,
        run_later: Callable[[Callable[[], None]], object] = lambda work: work(),
        files: Files = REAL_FILES,
        producer_expiration_ms: int = _DAY_MS,
    ) -> None:
        """Take the directories in `paths`; nothing is touched before `open`.

        `config_of` gives the settings in effect for a topic. `on_failure` hears of a directory
        that goes offline, on whatever thread noticed, `on_flush` how many seconds the flush of a
        log took. `run_later` runs slow work elsewhere, soon; both are called on any thread.
        """
        self._config_of = config_of
        self._on_failure = on_failure
        self._run_later = run_later
        self._files = files
        self._producer_expiration_ms = producer_expiration_ms
        self._disks = [
            _Disk(LogDirectory(path, self._lose, on_flush=on_flush), files) for path in paths
        ]
        self._logs: dict[TopicPartition, Log] = {}
        self._of_topic: dict[str, dict[int, Log]] = {}
        self._lost: set[TopicPartition] = set()
        self._is_loaded = False

    # -- start and stop

    def open(self, identity: MetaProperties) -> None:
        """Create missing directories, lock them and check whose they are.

        A directory that does not work is offline from the start; if none works, StorageError.
        """
        for disk in self._disks:
            path = disk.directory.path
            try:
                path.mkdir(parents=True, exist_ok=True)
                disk.lock = DirectoryLock(path)
                claim_directory(path, identity, self._files)
                disk.was_clean = take_clean_shutdown_mark(path, self._files)
            except OSError as error:
                disk.directory.fail(error)
        if not any(disk.directory.is_online for disk in self._disks):
            raise StorageError("none of the log directories can be used")

    def load(self, *, now_ms: int, executor: Executor | None = None) -> None:
        """Open every log that is there, several at a time if there is an `executor`."""
        work = [job for disk in self._online() for job in self._load_jobs(disk, now_ms)]
        run = executor.map if executor else map
        for loaded in run(_load_all, pieces(work)):
            for disk, log in loaded:
                if log is not None:
                    self._add(disk, log)
        self._is_loaded = True

    def close(self, *, executor: Executor | None = None) -> None:
        """Bring everything to disk and leave the mark of a clean stop on each directory.

        With an `executor`, several logs wait for the disk at a time.
        """
        if self._is_loaded:
            self.checkpoint_high_watermarks()
            run = executor.map if executor else map
            for _ in run(_close, self.logs()):
                pass
            self.checkpoint_recovery_points()
            for disk in self._online():
                try:
                    put_clean_shutdown_mark(disk.directory.path, self._files)
                except OSError as error:
                    disk.directory.fail(error)
        self.release()

    def release(self) -> None:
        """Give up the directories as they are, as the end of the process would."""
        for disk in self._disks:
            if disk.lock is not None:
                disk.lock.release()
                disk.lock = None
            disk.logs.clear()
            disk.written.clear()
        self._logs.clear()
        self._of_topic.clear()

    def _load_jobs(self, disk: _Disk, now_ms: int) -> Iterable[_Loading]:
        try:
            recovery_points = disk.checkpoint(RECOVERY_POINTS).read()
            starts = disk.checkpoint(LOG_STARTS).read()
            high_watermarks = disk.checkpoint(HIGH_WATERMARKS).read()
            with os.scandir(disk.directory.path) as entries:
                replicas = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as error:
            disk.directory.fail(error)
            return
        for name in replicas:
            if parse_mark(name) == "delete":
                disk.doomed.append((now_ms, disk.directory.path / name))
            partition = parse_replica(name)
            if partition is not None:
                path = disk.directory.path / name
                checkpointed = Checkpointed(
                    was_clean=disk.was_clean,
                    recovery_point=recovery_points.get(partition, 0),
                    start_offset=starts.get(partition, 0),
                    high_watermark=high_watermarks.get(partition, 0),
                )
                yield partial(self._load_one, disk, partition, path, checkpointed, now_ms)

    def _load_one(
        self,
        disk: _Disk,
        partition: TopicPartition,
        path: Path,
        checkpointed: Checkpointed,
        now_ms: int,
        *,
        is_new: bool = False,
    ) -> tuple[_Disk, Log | None]:
        """Open one log; None if its directory fails."""
        if not disk.directory.is_online:
            self._lost.add(partition)
            return disk, None
        open_log = partial(
            load_log,
            path,
            partition,
            disk.directory,
            self._config_of(partition.topic),
            self._files,
            now_ms=now_ms,
            producer_expiration_ms=self._producer_expiration_ms,
            on_roll=self._flush_rolled,
            is_new=is_new,
        )
        try:
            try:
                log = open_log(checkpointed)
            except CorruptLogError as error:
                logger.warning("%s is read from its start: %s", path, error)
                log = open_log(replace(checkpointed, was_clean=False, recovery_point=0))
        except (OSError, StorageError) as error:
            self._lost.add(partition)
            if isinstance(error, OSError):
                disk.directory.fail(error)
            return disk, None
        return disk, log

    def _add(self, disk: _Disk, log: Log) -> None:
        if log.partition in self._logs:
            raise ConfigError(
                f"{log.partition} is in two log directories: {log.path} and "
                f"{self._logs[log.partition].path}; remove the one that is not wanted"
            )
        if log.directory.is_online:
            self._logs[log.partition] = disk.logs[log.partition] = log
            topic, index = log.partition
            self._of_topic.setdefault(topic, {})[index] = log
        else:
            self._lost.add(log.partition)

    def _remove(self, disk: _Disk, partition: TopicPartition) -> None:
        disk.logs.pop(partition, None)
        if self._logs.pop(partition, None) is not None:
            topic, index = partition
            logs = self._of_topic[topic]
            del logs[index]
            if not logs:
                del self._of_topic[topic]

    # -- finding, creating, deleting

    @property
    def has_online_directory(self) -> bool:
        """Whether there is any disk left to work with."""
        return bool(self._online())

    @property
    def directories(self) -> list[LogDirectory]:
        """All directories, those that have failed included."""
        return [disk.directory for disk in self._disks]

    def logs(self) -> list[Log]:
        """All logs that can be used."""
        return list(self._logs.values())

    def get(self, partition: TopicPartition) -> Log | None:
        """The log of `partition`, None if there is none; StorageError if its disk has failed."""
        log = self._logs.get(partition)
        if log is None and partition in self._lost:
            raise StorageError(f"{partition} is in a log directory that is offline")
        return log

    def get_or_create(
        self,
        partition: TopicPartition,
        *,
        topic_id: uuid.UUID | None,
        is_new: bool,
        now_ms: int,
    ) -> Log:
        """The log of `partition`, created where fewest are if there is none.

        While a directory is offline, what is not `is_new` is not created: it may be there. Nothing
        is created after the end: the log may be in any of the directories that were given up.
        """
        log = self.get(partition)
        if log is not None:
            return log
        if all(disk.lock is None for disk in self._disks):
            raise StorageError(f"{partition} cannot be created: the log directories are closed")
        online = self._online()
        if not online or (not is_new and len(online) < len(self._disks)):
            raise StorageError(f"{partition} may be in a log directory that is offline")
        disk = min(online, key=lambda disk: len(disk.logs))
        path = disk.directory.path / str(partition)
        is_empty = True
        try:
            os.mkdir(path)
        except FileExistsError:
            is_empty = False
        except OSError as error:
            raise disk.directory.fail(error) from error
        _, log = self._load_one(
            disk, partition, path, Checkpointed(was_clean=False), now_ms, is_new=is_empty
        )
        if log is None:
            raise disk.directory.refusal()
        if topic_id is not None:
            try:
                log.assign_topic_id(topic_id)
            except StorageError:
                # A part of the log is on that disk, so it must not be created on another.
                self._lost.add(partition)
                raise
        self._add(disk, log)
        return log

    def delete(self, partition: TopicPartition, *, now_ms: int) -> None:
        """Let the log go. Its name is free at once, its files disappear after a while."""
        renamed = self._rename(partition, "delete")
        if renamed is not None:
            disk, log, path = renamed
            disk.doomed.append((now_ms + log.config.file_delete_delay_ms, path))

    def move_aside(self, partition: TopicPartition) -> None:
        """Let the log of a stray replica go and keep its files under another name."""
        renamed = self._rename(partition, "stray")
        if renamed is not None:
            logger.warning("%s is a stray replica: its log is now in %s", partition, renamed[2])

    def _rename(self, partition: TopicPartition, mark: str) -> tuple[_Disk, Log, Path] | None:
        """Let a log go and mark its directory; None if there is no such log."""
        log = self.get(partition)
        if log is None:
            return None
        disk = self._disk_of(log)
        if disk is None:
            raise log.directory.refusal()
        path = disk.directory.path / marked(partition, mark)
        log.abandon()
        try:
            self._files.replace(log.path, path)
        except OSError as error:
            raise disk.directory.fail(error) from error
        self._remove(disk, partition)
        disk.uncleanable.discard(partition)
        return disk, log, path

    def configure(self, topic: str, config: LogConfig) -> None:
        """Let new settings take effect on the logs of a topic."""
        for log in list(self._of_topic.get(topic, {}).values()):
            log.config = config

    def describe(self) -> list[DirectoryDescription]:
        """The content of a DescribeLogDirs response, one entry for each directory."""
        return [self._describe(disk) for disk in self._disks]

    def _describe(self, disk: _Disk) -> DirectoryDescription:
        path = disk.directory.path
        if not disk.directory.is_online:
            return DirectoryDescription(path, is_online=False)
        logs = tuple(
            LogDescription(log.partition, log.size, max(log.high_watermark - log.end_offset, 0))
            for log in list(disk.logs.values())
        )
        usage = shutil.disk_usage(path)
        return DirectoryDescription(path, True, logs, usage.total, usage.free)

    # -- work that comes again and again

    def checkpoint_high_watermarks(self) -> None:
        self._checkpoint(HIGH_WATERMARKS, lambda log: log.high_watermark)

    def checkpoint_recovery_points(self) -> None:
        """Write up to where each log is on disk, and where those begin that had records deleted."""
        self._checkpoint(RECOVERY_POINTS, lambda log: log.recovery_point)
        self._checkpoint(
            LOG_STARTS,
            lambda log: log.start_offset,
            lambda log: log.start_offset > log.segments[0].base_offset,
        )

    def flush_due_logs(self, *, now_ms: int) -> None:
        """Flush the logs whose topics ask for more than the flush at the end of a segment."""
        self._each(lambda log: log.flush_if_due(now_ms))

    def enforce_retention(self, *, now_ms: int) -> list[TopicPartition]:
        """Drop the segments that are no longer wanted; return the partitions that had such."""
        shortened: list[TopicPartition] = []

        def shorten(log: Log) -> None:
            if log.delete_old_segments(now_ms):
                shortened.append(log.partition)

        self._each(shorten)
        return shortened

    def expire_producers(self, *, now_ms: int) -> None:
        """Forget the producers that have been silent for too long."""
        self._each(lambda log: log.expire_producers(now_ms))

    def clean_once(self, *, now_ms: int) -> TopicPartition | None:
        """Compact the log that needs it most, and say which that was.

        A log that cannot be cleaned is marked as uncleanable, and the others get their turn.
        """
        dirty: list[tuple[_Disk, LogToClean]] = []
        for disk in self._online():
            cleaned = disk.checkpoint(CLEANER_OFFSETS).read()
            for log in list(disk.logs.values()):
                if log.partition in disk.uncleanable:
                    continue
                try:
                    found = find_dirt(log, cleaned.get(log.partition), now_ms)
                except FileNotFoundError as error:
                    disk.note_missing(log, error)
                except Exception as error:  # the first batch of a segment is read
                    disk.mark_uncleanable(log.partition, error)
                else:
                    dirty += [] if found is None else [(disk, found)]
        if not dirty:
            return None
        disk, dirtiest = max(dirty, key=lambda entry: entry[1].ratio)
        partition = dirtiest.log.partition
        try:
            clean_up_to = clean(dirtiest, self._files, now_ms)
            offsets = disk.checkpoint(CLEANER_OFFSETS).read()
        except FileNotFoundError as error:
            disk.note_missing(dirtiest.log, error)
        except OSError as error:
            dirtiest.log.directory.fail(error)
        except StorageError as error:
            if dirtiest.log.directory.is_online and partition in disk.logs:
                disk.mark_uncleanable(partition, error)
            else:
                logger.info("%s is no longer compacted: %s", partition, error)
        except Exception as error:  # whatever the data of one log does to the cleaner
            disk.mark_uncleanable(partition, error)
        else:
            kept = {tp: offset for tp, offset in offsets.items() if tp in disk.logs}
            disk.write_checkpoint(CLEANER_OFFSETS, {**kept, partition: clean_up_to})
        return partition

    def uncleanable(self) -> dict[Path, list[Log]]:
        """The logs of each directory that the cleaner has failed on and leaves alone."""
        return {
            disk.directory.path: [
                log for partition in list(disk.uncleanable) if (log := disk.logs.get(partition))
            ]
            for disk in self._online()
        }

    def delete_expired_files(self, *, now_ms: int) -> None:
        """Remove the files of segments and logs that were let go long enough ago."""
        for log in self.logs():
            if log.has_deleted_segments:
                with suppress(StorageError):
                    log.delete_expired_files(now_ms)
        for disk in self._online():
            for entry in [entry for entry in disk.doomed if entry[0] <= now_ms]:
                shutil.rmtree(entry[1], ignore_errors=True)
                disk.doomed.remove(entry)

    def _each(self, work: Callable[[Log], object]) -> None:
        for log in self.logs():
            try:
                work(log)
            except StorageError:
                pass  # The failure has taken the directory offline, which is reported on its own.
            except Exception:  # damage in one log must not keep the others from their turn
                logger.exception("%s cannot be looked after", log.partition)

    def _flush_rolled(self, log: Log) -> None:
        sealed_up_to = log.segments[-1].base_offset

        def flush() -> None:
            with suppress(StorageError):
                log.flush(sealed_up_to)

        self._run_later(flush)

    def _checkpoint(
        self,
        name: str,
        offset_of: Callable[[Log], int],
        is_wanted: Callable[[Log], bool] = lambda log: True,
    ) -> None:
        for disk in self._online():
            logs = [log for log in list(disk.logs.values()) if is_wanted(log)]
            disk.write_checkpoint(name, {log.partition: offset_of(log) for log in logs})

    # -- directories

    def _online(self) -> list[_Disk]:
        return [disk for disk in self._disks if disk.directory.is_online]

    def _disk_of(self, log: Log) -> _Disk | None:
        """Where the log is; None if it has been deleted."""
        return next((disk for disk in self._disks if disk.directory is log.directory), None)

    def _lose(self, directory: LogDirectory) -> None:
        """Part with the logs of a directory that has just gone offline."""
        disk = next(disk for disk in self._disks if disk.directory is directory)
        for partition, log in list(disk.logs.items()):
            self._lost.add(partition)
            self._remove(disk, partition)
            log.close_files()
        self._on_failure(directory.path)


_Loading = Callable[[], tuple[_Disk, Log | None]]


def _close(log: Log) -> None:
    # A failure has taken the directory offline, which then gets no mark.
    with suppress(StorageError):
        log.close()


def _load_all(work: Iterable[_Loading]) -> list[tuple[_Disk, Log | None]]:
    return [load() for load in work]
