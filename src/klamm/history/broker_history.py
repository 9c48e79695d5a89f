"""What a broker adds to the history: administrative requests, and what became of transactions.

Each record is a line of JSON, since a broker's process does without pyarrow. The lines are written
to files beside the spool of the controller's events, and shipped to a topic of their own, whose
name is that of the history topic with `_brokers` appended. docs/history.md describes the fields.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from klamm.config.broker import BrokerConfig
from klamm.history.shipping import SpooledBatch
from klamm.history.spool import RecordSpool, spool_files
from klamm.history.topic import TopicShipping

log = logging.getLogger("klamm.history.broker")

#: Where the files are, below `klamm.history.dir`.
DIRECTORY: Final = "broker"
SUFFIX: Final = ".jsonl"
_TOPIC_SUFFIX: Final = "_brokers"
#: The most that is shipped in one message.
_MESSAGE_BYTES_MAX: Final = 512 * 1024

#: Makes the fields of a record; called in the thread that writes them.
Describe = Callable[[], dict[str, Any]]
#: The fields of one record, as read.
BrokerRow = dict[str, Any]


class _Note(NamedTuple):
    seq: int
    at: float
    describe: Describe


class _Lines:
    """An open file of lines."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write_batch(self, batch: bytes) -> None:
        self._file.write(batch)

    def close(self) -> None:
        """Do nothing: a file of lines needs no ending."""


class _BrokerSpool(RecordSpool[_Note]):
    suffix = SUFFIX

    def __init__(self, directory: Path, retention_bytes: int, broker: int) -> None:
        super().__init__(directory, retention_bytes)
        #: Names the process: sequences count from 1 in each.
        self._head = {"broker": broker, "run": time.time_ns() // 1_000_000}

    def _encode(self, records: list[_Note]) -> Iterable[bytes]:
        lines = []
        for note in records:
            try:
                fields = {"at": timestamp(note.at), **self._head, "seq": note.seq}
                line = orjson.dumps(fields | note.describe(), option=orjson.OPT_APPEND_NEWLINE)
            except Exception:
                log.exception("record %s of the broker's history is lost", note.seq)
            else:
                lines.append(line)
        yield b"".join(lines)

    def _open(self, file: BinaryIO) -> _Lines:
        return _Lines(file)


class BrokerHistory:
    """Records what one broker was asked and what its coordinator decided."""

    def __init__(self, config: BrokerConfig, broker_id: int) -> None:
        self.is_kept = config.klamm_history_retention_bytes != 0
        self._seqs = itertools.count(1)
        self._spool = _BrokerSpool(
            config.klamm_history_dir / DIRECTORY, config.klamm_history_retention_bytes, broker_id
        )
        topic = config.klamm_history_topic
        self._shipping = None
        if topic is not None and self.is_kept:
            self._shipping = TopicShipping(config, brokers_topic(topic), self._spool, JsonLines())

    def start(self) -> None:
        """Ship what an earlier process has left."""
        if self._shipping is not None and spool_files(self._spool.directory, SUFFIX):
            self._shipping.begin()

    def note(self, describe: Describe, at: float | None = None) -> None:
        """Record something, with the time at which it began; by default now."""
        if self._shipping is not None:
            self._shipping.begin()
        at = time.time() if at is None else at
        self._spool.put(_Note(next(self._seqs), at, describe))

    async def close(self) -> None:
        """Write all records; those that were not shipped are shipped after the next start."""
        await asyncio.to_thread(self._spool.close)
        if self._shipping is not None:
            await self._shipping.close()


class _Read(NamedTuple):
    batch: Sequence[bytes]
    end: int


class JsonLines:
    """The records of brokers, as they are shipped."""

    suffix = SUFFIX
    end_bytes = 0

    def read(self, path: Path, offset: int) -> Iterator[SpooledBatch]:
        with path.open("rb") as file:
            file.seek(offset)
            while lines := file.readlines(_MESSAGE_BYTES_MAX):
                if not lines[-1].endswith(b"\n"):
                    lines.pop()  # still being written, or torn
                if not lines:
                    return
                offset += sum(map(len, lines))
                yield _Read(lines, offset)

    def name(self, batch: Sequence[bytes]) -> str:
        return f"a record of the broker ({len(batch[0])} bytes)"

    def message(self, batch: Sequence[bytes]) -> tuple[bytes, bytes]:
        first = orjson.loads(batch[0])
        return b"".join(batch), b"%d-%d-%d" % (first["broker"], first["run"], first["seq"])

    def halves(self, batch: Sequence[bytes]) -> Sequence[Sequence[bytes]]:
        half = len(batch) // 2
        return (batch[:half], batch[half:]) if half else ()


def brokers_topic(history_topic: str) -> str:
    """The topic that the records of brokers are shipped to."""
    return history_topic + _TOPIC_SUFFIX


def read_lines(data: bytes) -> Iterator[BrokerRow]:
    """The records in a message or a file; a torn line at its end is left out."""
    for line in data.splitlines():
        try:
            row = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "seq" in row:
            yield row


def read_broker_spool(directory: Path) -> Iterator[BrokerRow]:
    """The records beside a node's spool, oldest first."""
    for path in spool_files(directory / DIRECTORY, SUFFIX):
        yield from read_lines(path.read_bytes())


def has_broker_records(directory: Path) -> bool:
    """Whether a broker has written records beside a node's spool."""
    return bool(spool_files(directory / DIRECTORY, SUFFIX))


def in_order(rows: Iterable[BrokerRow]) -> list[BrokerRow]:
    """Sort records by time and remove duplicates."""
    found = {(row["broker"], row["run"], row["seq"]): row for row in rows}
    return sorted(found.values(), key=lambda row: (row["at"], row["broker"], row["seq"]))


def timestamp(at: float) -> str:
    """A time as the records have it: UTC, with microseconds."""
    whole, fraction = divmod(round(at * 1e6), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{fraction:06d}Z"
