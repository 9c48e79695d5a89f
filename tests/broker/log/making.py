"""Batches and logs for the tests of the log."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from klamm.broker.log.directory import LogDirectory
from klamm.broker.log.files import Files
from klamm.broker.log.log import Log
from klamm.broker.log.recovery import Checkpointed, load_log
from klamm.broker.log.settings import LogConfig
from klamm.names import TopicPartition
from klamm.protocol.records import Record, build_batch, iterate_batches, iterate_records

PARTITION = TopicPartition("orders", 0)
NOW = 1_700_000_000_000


def batch_of(
    count: int = 1,
    *,
    offset: int = 0,
    epoch: int = -1,
    timestamp: int = NOW,
    value: bytes | None = b"value",
    keys: Iterable[bytes | None] | None = None,
    **fields: Any,
) -> bytes:
    """A batch of `count` records; `fields` go into its header."""
    keys = list(keys) if keys is not None else [b"key"] * count
    records = [Record(key, value, timestamp) for key in keys]
    return bytes(build_batch(records, base_offset=offset, leader_epoch=epoch, **fields).data)


def roll(log: Log) -> None:
    """Begin a new segment at the end of the log, unless the active one is empty."""
    with log._lock, log._storage():
        if log._active.size:
            log._roll(log.end_offset, NOW)


def stored_records(log: Log) -> list[Record]:
    """Every record from the log's start to its end, read as a consumer would."""
    records: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        content = log.read(offset, 1 << 20, log.end_offset, at_least_one=True).bytes()
        batches = iterate_batches(content, may_end_early=True)
        found = [record for batch in batches for record in iterate_records(batch)]
        fresh = [record for record in found if record.offset >= offset]
        if not fresh:
            return records
        records += fresh
        offset = fresh[-1].offset + 1
    return records


class UnsyncedFiles(Files):
    """Real files, without waiting for the disk: no test here cuts the power."""

    fsync = staticmethod(lambda fd: None)


@dataclass
class Home:
    """A replica's directory, in which a log can be opened again and again."""

    path: Path
    config: LogConfig = field(default_factory=LogConfig)
    files: Files = field(default_factory=UnsyncedFiles)
    failures: list[Path] = field(default_factory=list)
    rolled: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)

    def open(
        self,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        start_offset: int = 0,
        high_watermark: int = 0,
        now_ms: int = NOW,
    ) -> Log:
        directory = LogDirectory(
            self.path.parent, lambda directory: self.failures.append(directory.path)
        )
        return load_log(
            self.path,
            PARTITION,
            directory,
            self.config,
            self.files,
            Checkpointed(clean, recovery_point, start_offset, high_watermark),
            now_ms=now_ms,
            producer_expiration_ms=86_400_000,
            on_roll=lambda log: self.rolled.append(log.segments[-1].base_offset),
        )

    def names(self, suffix: str = "") -> list[str]:
        return sorted(path.name for path in self.path.iterdir() if path.name.endswith(suffix))
