"""The spool: the history in files, written beside the event loop and bounded in size.

A file is an Arrow IPC stream, or, in the spool of a broker (`klamm.history.broker_history`), lines
of JSON. Each process begins a new file, and begins another one when a file is
large enough; a finished file is never opened for writing. A crash can tear only the end of the
newest file, and a reader stops there. Names sort in the order of writing. When the files together
exceed the retention, the oldest are deleted.
"""

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.history.records import EventRecord

log = logging.getLogger("klamm.history.recorder")

SUFFIX: Final = ".arrows"
FILE_BYTES_MAX: Final = 16 << 20
#: The share of the retention that one file may take, so that removing one leaves most of it.
_FILES_IN_RETENTION: Final = 8
#: How long a record may wait for others to share its batch, and how many may wait together.
LINGER_S: Final = 0.1
_TOGETHER_MAX: Final = 1000
#: Beyond that many waiting events the disk is not keeping up: newer ones are dropped, and readers
#: see from the sequence numbers that they are missing.
_WAITING_EVENTS_MAX: Final = 10_000
_UNLIMITED: Final = -1


R = TypeVar("R")


class SpoolStream(Protocol):
    """The encoded form of an open file."""

    def write_batch(self, batch: Any) -> object:
        """Write records that were encoded together."""
        ...

    def close(self) -> object:
        """Write the end."""
        ...


class RecordSpool(ABC, Generic[R]):
    """Writes records to files in a thread of its own, which starts with the first record."""

    suffix: str

    def __init__(self, directory: Path, retention_bytes: int = _UNLIMITED) -> None:
        self.directory = directory
        #: Called in the spool's thread when there is something new in the files.
        self.on_written: Callable[[], None] | None = None
        self._retention_bytes = retention_bytes
        self._file_bytes_max = FILE_BYTES_MAX
        if retention_bytes > 0:
            self._file_bytes_max = min(FILE_BYTES_MAX, retention_bytes // _FILES_IN_RETENTION)
        self._waiting: queue.SimpleQueue[R | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._is_dropping = False
        self._file: BinaryIO | None = None
        self._stream: SpoolStream | None = None

    @abstractmethod
    def _encode(self, records: list[R]) -> Iterable[Any]:
        """Encode records; each item is written at once. Called in the thread."""

    @abstractmethod
    def _open(self, file: BinaryIO) -> SpoolStream:
        """Begin a file. Called in the thread."""

    def put(self, record: R) -> None:
        """Hand a record over; it is not to be changed any more."""
        if self._retention_bytes == 0:
            return
        is_full = self._waiting.qsize() >= _WAITING_EVENTS_MAX
        if is_full:
            if not self._is_dropping:
                log.error("the history in %s cannot be written fast enough", self.directory)
        else:
            self._waiting.put(record)
        self._is_dropping = is_full
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="history", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait until everything handed over so far is in a file."""
        if self._thread is not None:
            done = threading.Event()
            self._waiting.put(done)
            done.wait()

    def close(self) -> None:
        """Write all queued records, and end the file."""
        if self._thread is not None:
            self._is_closing = True
            self.flush()
            self._thread.join()
            self._thread = None
            self._is_closing = False

    # In the thread

    def _write_all(self) -> None:
        while True:
            records, flushed = self._gather()
            if records:
                self._write(records)
            if flushed is not None:
                if self._is_closing:
                    self._end_file()
                    flushed.set()
                    return
                flushed.set()

    def _gather(self) -> tuple[list[R], threading.Event | None]:
        """Records that arrive close together, or up to a request to flush."""
        records: list[R] = []
        deadline = None
        while True:
            try:
                wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                item = self._waiting.get(timeout=wait_s)
            except queue.Empty:
                return records, None
            if isinstance(item, threading.Event):
                return records, item
            records.append(item)
            if len(records) == _TOGETHER_MAX:
                return records, None
            deadline = deadline or time.monotonic() + LINGER_S

    def _write(self, records: list[R]) -> None:
        try:
            for batch in self._encode(records):
                file, stream = self._current_file()
                stream.write_batch(batch)
                file.flush()
                self._remove_oldest()
        except Exception:
            # After any error, the next records are written to a new file.
            log.exception("a part of the history is lost")
            self._end_file()
        if self.on_written is not None:
            self.on_written()

    def _current_file(self) -> tuple[BinaryIO, SpoolStream]:
        if self._file is not None and self._file.tell() >= self._file_bytes_max:
            self._end_file()
        if self._file is None or self._stream is None:
            self._file = self._begin_file()
            self._stream = self._open(self._file)
        return self._file, self._stream

    def _begin_file(self) -> BinaryIO:
        self.directory.mkdir(parents=True, exist_ok=True)
        files = spool_files(self.directory, self.suffix)
        newest = max((int(path.stem) for path in files), default=0)
        # The time is for people; the order must hold even if the clock was set back.
        number = max(time.time_ns() // 1_000_000, newest + 1)
        # Buffered, so that a batch, which is written in many pieces, takes few calls.
        path = self.directory / f"{number:015d}{self.suffix}"
        return open(path, "xb", buffering=1 << 20)

    def _end_file(self) -> None:
        file, stream, self._file, self._stream = self._file, self._stream, None, None
        try:
            if stream is not None:
                stream.close()
            if file is not None:
                file.close()
        except OSError as error:
            log.error("the end of a history file is lost: %s", error)

    def _remove_oldest(self) -> None:
        if self._retention_bytes == _UNLIMITED:
            return
        files = spool_files(self.directory, self.suffix)
        sizes = [path.stat().st_size for path in files]
        total = sum(sizes)
        for path, size in zip(files[:-1], sizes[:-1], strict=True):
            if total <= self._retention_bytes:
                break
            path.unlink()
            total -= size


class Spool(RecordSpool["EventRecord"]):
    """The events of a node's controller, as Arrow."""

    suffix = SUFFIX

    def _encode(self, records: "list[EventRecord]") -> "Iterable[pa.RecordBatch]":
        # Imported here, in the thread of a node that was controller: pyarrow is large.
        from klamm.history.arrow import encode_batches

        return encode_batches(records)

    def _open(self, file: BinaryIO) -> SpoolStream:
        from pyarrow import ipc

        from klamm.history.arrow import SCHEMA, WRITE_OPTIONS

        stream: SpoolStream = ipc.new_stream(file, SCHEMA, options=WRITE_OPTIONS)
        return stream


def spool_files(directory: Path, suffix: str = SUFFIX) -> list[Path]:
    """The files of a spool, oldest first; none if there is no such directory."""
    return sorted(path for path in directory.glob(f"*{suffix}") if path.stem.isdecimal())


class Read(NamedTuple):
    """A batch, and the position in its file from which to read on."""

    batch: "pa.RecordBatch"
    end: int


def read_file(path: Path, offset: int = 0) -> Iterator[Read]:
    """The whole batches of a file, from a position on, up to its end or to where it is torn.

    The file may be the one that is being written: what comes later is read by a later call.
    """
    import pyarrow as pa

    from klamm.history.arrow import check_schema, conform

    with pa.OSFile(str(path)) as file:
        try:
            schema = pa.ipc.read_schema(pa.ipc.read_message(file))
            check_schema(schema, path)
            if offset:
                file.seek(offset)
            while True:
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(file), schema)
                yield Read(conform(batch), file.tell())
        except (EOFError, OSError, pa.ArrowInvalid):
            return


def read_spool(directory: Path) -> "Iterator[pa.RecordBatch]":
    """All that a spool holds, oldest first."""
    for path in spool_files(directory):
        for read in read_file(path):
            yield read.batch
