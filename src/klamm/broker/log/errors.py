"""The errors of a log.

KlammError
  AppendError            a batch was refused: carries the Kafka error and the records at fault
  OffsetOutOfRangeError  an offset outside of the log was named
  CorruptLogError        a stored batch cannot be read
  StorageError           the disk failed, or the log directory was given up before
"""

from __future__ import annotations

from enum import Enum

from klamm.errors import KlammError
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.produce import RecordError


class Flaw(Enum):
    """The defects of a batch that the metrics count separately."""

    CHECKSUM = "checksum"
    NO_KEY = "no key"
    MAGIC = "magic"
    OFFSET_OR_SEQUENCE = "offset or sequence"


class AppendError(KlammError):
    """A batch was refused, and none of it is in the log.

    `message` and `record_errors` go into the response.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        record_errors: tuple[RecordError, ...] = (),
        *,
        flaw: Flaw | None = None,
        flawed_records: int = 1,
    ) -> None:
        super().__init__(message or code.message)
        self.code = code
        self.message = message
        self.record_errors = record_errors
        self.flaw = flaw
        self.flawed_records = flawed_records

    def again(self) -> AppendError:
        """The same error, to keep or to raise once more: an exception that has been raised refers
        to frames, and if one of those refers to it, only a garbage collection frees both.
        """
        return AppendError(
            self.code,
            self.message,
            self.record_errors,
            flaw=self.flaw,
            flawed_records=self.flawed_records,
        )


class OffsetOutOfRangeError(KlammError):
    """An offset below the log's start or beyond its end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptLogError(KlammError):
    """The stored bytes are not a batch; the message has the file and the position."""

    code = ErrorCode.CORRUPT_MESSAGE


class StorageError(KlammError):
    """The log's directory is offline."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
