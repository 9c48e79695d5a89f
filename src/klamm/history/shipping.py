"""From the spool to a topic: batches are sent in order, and the position is kept beside the files.

What the spool still holds is sent once the topic can be written to, however long that takes, also
after a restart. A batch whose acknowledgement was lost is sent twice; readers drop the second one
by controller epoch, sequence and part.
"""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from klamm.errors import KlammError
from klamm.history.spool import SUFFIX, read_file, spool_files

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("klamm.history.recorder")

POSITION_FILE: Final = "shipped.json"
RETRY_PAUSE_S: Final = 1.0
#: What a stream that was ended has after its last batch.
_END_OF_STREAM_BYTES: Final = 8

#: Sends one message, value and key, and returns once it is safe.
Send = Callable[[bytes, bytes], Awaitable[None]]


class TooLargeError(KlammError):
    """The topic does not take messages of this size."""


class SpooledBatch(Protocol):
    """Records that were written together, and the position in the file after them."""

    @property
    def batch(self) -> Any: ...
    @property
    def end(self) -> int: ...


class SpoolFormat(Protocol):
    """How a spool's files are read, and what its batches are as messages."""

    suffix: str
    #: What a file that was ended may have after its last batch.
    end_bytes: int

    def read(self, path: Path, offset: int) -> Iterator[SpooledBatch]:
        """The batches of a file from a position on; slow."""
        ...

    def name(self, batch: Any) -> str:
        """The name of a batch, for the log."""
        ...

    def message(self, batch: Any) -> tuple[bytes, bytes]:
        """Value and key of the message; slow."""
        ...

    def halves(self, batch: Any) -> Sequence[Any]:
        """Two smaller batches; none if the batch is a single record."""
        ...


class ArrowFormat:
    """The events of controllers."""

    suffix = SUFFIX
    end_bytes = _END_OF_STREAM_BYTES

    def read(self, path: Path, offset: int) -> Iterator[SpooledBatch]:
        return read_file(path, offset)

    def name(self, batch: "pa.RecordBatch") -> str:
        epoch, seq = _first_of(batch)
        return f"event {seq} of epoch {epoch}"

    def message(self, batch: "pa.RecordBatch") -> tuple[bytes, bytes]:
        from klamm.history.arrow import encode_stream

        return encode_stream(batch), b"%d-%d" % _first_of(batch)

    def halves(self, batch: "pa.RecordBatch") -> "Sequence[pa.RecordBatch]":
        half = batch.num_rows // 2
        return (batch.slice(0, half), batch.slice(half)) if half else ()


def _first_of(batch: "pa.RecordBatch") -> tuple[int, int]:
    return batch.column("controller_epoch")[0].as_py(), batch.column("seq")[0].as_py()


class SpoolPosition(NamedTuple):
    """Up to where a spool has been shipped."""

    file: str = ""
    offset: int = 0


class Shipper:
    """Sends the records of a spool to the topic, and those that are added later."""

    def __init__(
        self, directory: Path, topic: str, send: Send, format: SpoolFormat | None = None
    ) -> None:
        self._format: SpoolFormat = format or ArrowFormat()
        self._directory = directory
        self._topic = topic
        self._send = send
        self._news = asyncio.Event()
        self._position = self._read_position()

    def notify(self) -> None:
        """There may be something new."""
        self._news.set()

    async def run(self) -> None:
        """Ship until cancelled."""
        is_failing = False
        while True:
            self._news.clear()
            try:
                await self.ship()
            except (KlammError, OSError) as error:
                if not is_failing:
                    log.warning("the history waits to be shipped to %s: %s", self._topic, error)
                is_failing = True
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                is_failing = False
                await self._news.wait()

    async def ship(self) -> None:
        """Ship all there is at the moment."""
        while self._has_more():
            # Looked up before the file is read to its end: only a file that had a successor by
            # then has nothing to come.
            files = [path for path in self._files() if path.name >= self._position.file]
            path, is_last = files[0], len(files) == 1
            offset = self._position.offset if path.name == self._position.file else 0
            reads = self._format.read(path, offset)
            while (read := await asyncio.to_thread(_next, reads)) is not None:
                await self._send_batch(read.batch)
                self._move_to(SpoolPosition(path.name, read.end))
            if is_last:
                return
            self._move_to(SpoolPosition(files[1].name, 0))

    async def _send_batch(self, batch: Any) -> None:
        value, key = await asyncio.to_thread(self._format.message, batch)
        try:
            await self._send(value, key)
        except TooLargeError as error:
            halves = self._format.halves(batch)
            if not halves:
                log.error("%s cannot be shipped: %s", self._format.name(batch), error)
            for half in halves:
                await self._send_batch(half)

    def _has_more(self) -> bool:
        """Whether the spool has files after the position, checked without pyarrow."""
        files = self._files()
        if not files or files[-1].name < self._position.file:
            return False
        unread = files[-1].stat().st_size - self._position.offset
        return files[-1].name > self._position.file or unread > self._format.end_bytes

    def _files(self) -> Sequence[Path]:
        return spool_files(self._directory, self._format.suffix)

    def _read_position(self) -> SpoolPosition:
        """Where to go on; from the beginning if that is unknown or was about another topic."""
        try:
            kept = json.loads((self._directory / POSITION_FILE).read_text())
            if kept["topic"] == self._topic:
                return SpoolPosition(str(kept["file"]), int(kept["offset"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return SpoolPosition()

    def _move_to(self, position: SpoolPosition) -> None:
        self._position = position
        path = self._directory / POSITION_FILE
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"topic": self._topic, **position._asdict()}))
        os.replace(new, path)


def _next(reads: Iterator[SpooledBatch]) -> SpooledBatch | None:
    try:
        return next(reads, None)
    except KlammError as error:
        # A file of another version is skipped, so that the files after it are shipped.
        log.error("a file of the history is not shipped: %s", error)
        return None
