"""Responses on their way from a handler to a connection: the parts of their frames."""

import errno
import os
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from klamm.metrics.requests import RequestMeter, Unsent

#: A response up to this size is sent in one piece: copying its ranges of files takes less time than
#: a system call for each of them and for what is between them.
_ONE_PIECE_BYTES: Final = 32 * 1024


class FileRange(Protocol):
    """Part of a file that is sent unchanged. The file stays open while this object lives."""

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    def fileno(self) -> int: ...


Part: TypeAlias = bytes | memoryview | FileRange
#: For `isinstance`: the parts that are not ranges of files.
BYTES: Final = (bytes, memoryview)
#: The parts of one response frame; None if there is no response.
Parts: TypeAlias = Sequence[Part] | None
#: A response, the meter of its API, and the measurements to note there when it has been sent.
MeasuredResponse: TypeAlias = tuple[Parts, RequestMeter, Unsent]


def in_one_piece(parts: Sequence[Part]) -> Sequence[Part]:
    """The parts of a response, joined if they are small."""
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, BYTES) else part.size
        if size > _ONE_PIECE_BYTES:
            return parts
    piece = b"".join(
        [
            part if isinstance(part, BYTES) else os.pread(part.fileno(), part.size, part.position)
            for part in parts
        ]
    )
    if len(piece) < size:
        raise OSError(errno.EIO, "a file is shorter than it was")
    return [piece]
