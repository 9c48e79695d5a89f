"""The bytes that a connection has read, cut into frames (FRM-1).

Small frames are copied out of a scratch that all connections share, so that an idle connection
needs little memory; a frame that is too large for it has a buffer of its own, into which the rest
is read. Frames stay here until their connection takes them. This module knows nothing of sockets,
nor what a frame means.
"""

import struct
from collections import deque
from typing import Final

#: The size of the scratch that connections read into.
SCRATCH_BYTES: Final = 256 * 1024
#: The first buffer of a large frame. It grows as bytes arrive, because a client can announce any
#: size.
_FIRST_BYTES: Final = 64 * 1024
_SIZE: Final = struct.Struct(">i")


class IncomingFrames:
    """The frames of one connection that have arrived and have not been taken."""

    __slots__ = (
        "_begun",
        "_filled",
        "_frame",
        "_proven",
        "_scratch",
        "_size",
        "bad_size",
        "size",
        "size_max",
        "whole",
    )

    def __init__(self, scratch: memoryview, size_max: int) -> None:
        #: The largest frame that is accepted. It may be raised.
        self.size_max = size_max
        #: The frames that are there, in their order, and their size together.
        self.whole: deque[memoryview] = deque()
        self.size = 0
        #: The announced size of the next frame, if that is too large or negative.
        self.bad_size: int | None = None
        self._scratch = scratch
        self._begun = b""  # of the next frame, while the scratch can hold it
        self._frame: bytearray | None = None  # the next frame, if the scratch cannot hold it
        self._filled = 0
        self._size = 0  # of that frame, of which the buffer may be only a part
        self._proven = _FIRST_BYTES  # the size of the largest frame that came whole

    def buffer(self) -> memoryview:
        """Where to read to; `on_read` has to follow before another connection reads."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return self._scratch

    def on_read(self, count: int) -> None:
        """Cut what has been read into the buffer."""
        if self._frame is None:
            arrived = self._scratch[:count]
            self._cut(self._begun + arrived if self._begun else arrived)
            return
        self._filled += count
        if self._filled == self._size:
            frame, self._frame = self._frame, None
            self._proven = max(self._proven, self._size)
            self._add(memoryview(frame))
        elif self._filled == len(self._frame):
            self._frame = _enlarged(self._frame, self._size)

    def take(self) -> memoryview:
        """The next frame."""
        frame = self.whole.popleft()
        self.size -= len(frame)
        return frame

    def judge_again(self) -> None:
        """Cut what begins with a bad size: `size_max` may have been raised since."""
        self._cut(self._begun)

    def _cut(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        at = 0
        self.bad_size = None
        while len(view) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(view, at)
            if not 0 <= size <= self.size_max:
                self.bad_size = size
                break
            start = at + _SIZE.size
            end = start + size
            if end > len(view):
                if size > SCRATCH_BYTES // 2:
                    self._size = size
                    self._filled = len(view) - start
                    self._frame = bytearray(min(size, max(self._proven, 2 * self._filled)))
                    self._frame[: self._filled] = view[start:]
                    at = len(view)
                break
            at = end
            # Copied, because other connections read into the scratch before the frame is done with.
            self._add(memoryview(bytes(view[start:end])))
        self._begun = bytes(view[at:])

    def _add(self, frame: memoryview) -> None:
        self.whole.append(frame)
        self.size += len(frame)


def _enlarged(buffer: bytearray, size_max: int) -> bytearray:
    """A larger copy. The old buffer cannot be resized while the event loop refers to it."""
    larger = bytearray(min(2 * len(buffer), size_max))
    larger[: len(buffer)] = buffer
    return larger
