"""The metadata log as files: the segments and checkpoints of `__cluster_metadata-0`.

A node may be writing them, or they may be a copy. Which records at the end are committed is not in
the files; a controller that lost its role removes those that are not.
"""

import contextlib
import logging
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from klamm.errors import ConfigError, RemoteProtocolError
from klamm.history.kraft.replay import MetadataSnapshot
from klamm.names import CLUSTER_METADATA
from klamm.protocol.fast.fetch import LeaderHint, SnapshotId
from klamm.protocol.records import Batch, has_valid_crc, iterate_batches

log = logging.getLogger("klamm.history.kraft")

PARTITION: Final = f"{CLUSTER_METADATA}-0"
_SEGMENT: Final = re.compile(r"(\d{20})\.log")
_CHECKPOINT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_META_PROPERTIES: Final = "meta.properties"
_QUORUM_STATE: Final = "quorum-state"


class MetadataDirectory:
    """Reads a directory once from its beginning, and then what was appended since."""

    def __init__(self, directory: Path) -> None:
        """`directory` is that of the partition, or a log directory that contains it."""
        inner = directory / PARTITION
        self.directory = inner if inner.is_dir() else directory
        self._next_offset: int | None = None
        #: The segment that is being read, and the next byte of it.
        self._base, self._at = 0, 0
        self._torn_at: tuple[Path, int] | None = None

    def check(self) -> None:
        """Raise ConfigError if there is no metadata log."""
        if not self.directory.is_dir():
            raise ConfigError(
                f"There is no directory {self.directory}; expected is {PARTITION}, or the "
                "metadata.log.dir (log.dirs) of a KRaft node that contains it"
            )
        if not self._segments():
            raise ConfigError(
                f"{self.directory} holds no metadata log: there are no segments "
                f"(00000000000000000000.log); expected is {PARTITION}, or the metadata.log.dir "
                "(log.dirs) of a KRaft node that contains it"
            )
        first, path = self._segments()[0]
        batch = next(_read_batches(path, 0, may_end_early=True), None)
        if first == 0 and (batch is None or not batch.header.is_control):
            # The first leader begins a metadata log with the record of its election.
            raise ConfigError(
                f"{path} is no metadata log: it "
                f"{'has no whole batch' if batch is None else 'begins with data of a topic'}; "
                f"expected is the directory {PARTITION} of a KRaft node"
            )

    def close(self) -> None:
        """Nothing is kept open."""

    def cluster_id(self) -> str | None:
        """The cluster's id, if the log directory around the partition has it."""
        try:
            lines = (self.directory.parent / _META_PROPERTIES).read_text(encoding="utf-8")
        except OSError:
            return None
        found = re.search(r"^cluster\.id\s*=\s*(\S+)", lines, re.MULTILINE)
        return None if found is None else found[1]

    def leader(self) -> LeaderHint | None:
        """The leader that the node knew last."""
        try:
            state = orjson.loads((self.directory / _QUORUM_STATE).read_bytes())
            return LeaderHint(int(state["leaderId"]), int(state["leaderEpoch"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def read(self) -> Iterator[MetadataSnapshot | Batch]:
        """The records that were appended since the last call."""
        segments = self._segments()
        if self._next_offset is None:
            first = segments[0][0]
            if first:
                snapshot = self._first_snapshot(first)
                self._next_offset = snapshot.id.end_offset
                yield snapshot
            else:
                self._next_offset = 0
        elif segments[0][0] > self._next_offset:
            # Segments were removed before they were read.
            snapshot = self._first_snapshot(segments[0][0])
            self._next_offset = snapshot.id.end_offset
            yield snapshot
        for number, (base, path) in enumerate(segments):
            is_last = number + 1 == len(segments)
            if is_last or segments[number + 1][0] > self._next_offset:
                yield from self._read_segment(base, path, is_last=is_last)

    def _read_segment(self, base: int, path: Path, *, is_last: bool) -> Iterator[Batch]:
        assert self._next_offset is not None
        at = self._at if base == self._base else 0
        for batch in _read_batches(path, at, may_end_early=is_last):
            header = batch.header
            if header.base_offset > self._next_offset:
                raise ConfigError(
                    f"{path} goes on with offset {header.base_offset}, but offset "
                    f"{self._next_offset} comes next: a segment before it is missing"
                )
            at += header.size
            if header.last_offset >= self._next_offset:
                yield batch
                self._next_offset = header.last_offset + 1
            self._base, self._at = base, at
        size = path.stat().st_size
        if is_last and at < size and self._torn_at != (path, at):
            self._torn_at = (path, at)
            log.warning(
                "%s ends in the middle of a batch, at byte %d of %d; the log is read up to there",
                *(path, at, size),
            )

    def _first_snapshot(self, first: int) -> MetadataSnapshot:
        """The state that the log from some offset on begins with."""
        for id, path in self._checkpoints():
            if id.end_offset >= first:
                return MetadataSnapshot(id, _read_batches(path, 0, may_end_early=False))
        raise ConfigError(
            f"The log in {self.directory} begins with offset {first}, and there is no "
            f"*.checkpoint with the state before it: copy the whole directory {PARTITION}"
        )

    def _segments(self) -> list[tuple[int, Path]]:
        return sorted((int(name[1]), path) for name, path in self._named(_SEGMENT))

    def _checkpoints(self) -> list[tuple[SnapshotId, Path]]:
        return sorted(
            (SnapshotId(int(name[1]), int(name[2])), path)
            for name, path in self._named(_CHECKPOINT)
        )

    def _named(self, pattern: re.Pattern[str]) -> list[tuple[re.Match[str], Path]]:
        with _readable(self.directory):
            found = [(pattern.fullmatch(path.name), path) for path in self.directory.iterdir()]
        return [(name, path) for name, path in found if name is not None]


def _read_batches(path: Path, at: int, *, may_end_early: bool) -> Iterator[Batch]:
    """The batches of a file from a byte on; ConfigError says where it is damaged."""
    with _readable(path), path.open("rb") as file:
        size = path.stat().st_size
        if size <= at:
            return
        # The map lives as long as a batch of it does.
        view = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    batches = iterate_batches(view[at:], may_end_early=may_end_early)
    while True:
        try:
            batch = next(batches, None)
        except RemoteProtocolError as error:
            raise _damaged(path, at, str(error)) from error
        if batch is None:
            return
        if not has_valid_crc(batch):
            raise _damaged(path, at, "the checksum of a batch does not match")
        yield batch
        at += batch.header.size


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _damaged(path: Path, at: int, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} is damaged at byte {at}: {reason}. Copy the directory again, or take that of "
        "another node of the quorum"
    )
