"""Bytes that arrive in any pieces are cut into the same frames."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.net.incoming import SCRATCH_BYTES, IncomingFrames

SIZE_MAX = 4 * SCRATCH_BYTES


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


class Reader:
    """Reads like a connection: at most what fits into the buffer."""

    def __init__(self, size_max: int = SIZE_MAX) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.incoming = IncomingFrames(self.scratch, size_max)

    def read(self, data: bytes) -> None:
        while data:
            buffer = self.incoming.buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.incoming.on_read(count)
            # Another connection reads into the scratch.
            self.scratch[:64] = b"\xee" * 64
            data = data[count:]

    def taken(self) -> list[bytes]:
        return [bytes(self.incoming.take()) for _ in range(len(self.incoming.whole))]


sizes = st.one_of(
    st.integers(0, 300), st.integers(SCRATCH_BYTES // 2 - 3, SCRATCH_BYTES + 3), st.just(SIZE_MAX)
)


@pytest.mark.rule("FRM-1")
@given(st.lists(sizes, max_size=5), st.lists(st.integers(1, SCRATCH_BYTES), max_size=8))
def test_frames_are_the_same_however_their_bytes_arrive(frame_sizes, piece_sizes):
    frames = [bytes([n + 1]) * size for n, size in enumerate(frame_sizes)]
    reader, left = Reader(), b"".join(map(framed, frames))
    found = []
    for size in piece_sizes:
        reader.read(left[:size])
        left = left[size:]
        found += reader.taken()
    reader.read(left)
    assert reader.incoming.size == sum(map(len, reader.incoming.whole))
    found += reader.taken()
    assert found == frames
    assert reader.incoming.size == 0
    assert reader.incoming.bad_size is None


@pytest.mark.parametrize("size", [-1, 11, 2**31 - 1])
def test_a_bad_size_stays_until_it_is_judged_again(size):
    reader = Reader(size_max=10)
    reader.read(framed(b"one") + struct.pack(">i", size) + b"a" * 11)
    assert reader.taken() == [b"one"]
    assert reader.incoming.bad_size == size
    reader.incoming.judge_again()
    assert reader.incoming.bad_size == size
    reader.incoming.size_max = 11
    reader.incoming.judge_again()
    assert (reader.incoming.bad_size is None) == (size == 11)
    assert reader.taken() == ([b"a" * 11] if size == 11 else [])


def test_an_announced_size_takes_memory_only_as_its_bytes_arrive():
    reader = Reader(size_max=2**30)
    reader.read(struct.pack(">i", 2**30) + b"a" * 1000)
    assert len(reader.incoming.buffer()) < SCRATCH_BYTES
