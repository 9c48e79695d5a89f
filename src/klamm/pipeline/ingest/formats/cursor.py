"""A place in each of many byte strings at once: how binary formats are read as columns.

A cursor stands somewhere in every row. Each step reads one thing from all rows with numpy and moves
on. A row that breaks a rule is marked bad, with the reason, and reads as zeroes from then on; the
others do not notice.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from klamm.pipeline.ingest.formats.parsing import I64

U8: TypeAlias = npt.NDArray[np.uint8]
U64: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_VARINT_BYTES_MAX: Final = 10
#: Behind the data, so that reads that begin inside of it end inside of it.
_PADDING: Final = 32


class ColumnCursor:
    """Where each row is read next, where it ends, and which rows are bad."""

    def __init__(
        self, data: U8, position: I64, end: I64, reasons: dict[int, str], rows: I64
    ) -> None:
        self.data = data
        self.position = position
        self.end = end
        #: Row of the batch: reason. Shared by all cursors of a batch.
        self.reasons = reasons
        #: The row of the batch that each row of the cursor belongs to.
        self.rows = rows
        self.is_bad: Mask = np.zeros(len(position), np.bool_)

    @classmethod
    def of(cls, values: pa.BinaryArray) -> "ColumnCursor":
        """At the beginning of each value."""
        count = len(values)
        if not count:
            return cls(np.zeros(_PADDING, np.uint8), *_nothing(), {}, _nothing()[0])
        ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: count + 1]
        bounds = ends.astype(np.int64)
        first, last = int(bounds[0]), int(bounds[-1])
        data = np.zeros(last - first + _PADDING, np.uint8)
        if last > first:
            data[: last - first] = np.frombuffer(values.buffers()[2], np.uint8)[first:last]
        starts = bounds - first
        return cls(data, starts[:-1].copy(), starts[1:].copy(), {}, np.arange(count))

    def __len__(self) -> int:
        return len(self.position)

    def take(self, index: I64) -> "ColumnCursor":
        """A cursor over some of the rows, in their order."""
        taken = ColumnCursor(
            self.data, self.position[index], self.end[index], self.reasons, self.rows[index]
        )
        taken.is_bad = self.is_bad[index]
        return taken

    def put(self, index: I64, taken: "ColumnCursor") -> None:
        """Go on where a cursor over some of the rows has got to."""
        self.position[index] = taken.position
        self.is_bad[index] = taken.is_bad

    def fail(self, where: Mask, reason: str) -> None:
        """Mark rows as bad; the first reason of a row counts."""
        new = where & ~self.is_bad
        if not new.any():
            return
        for row in self.rows[new].tolist():
            self.reasons.setdefault(row, reason)
        self.is_bad |= new
        self.position[new] = self.end[new]

    def byte(self) -> U8:
        """One byte of each row."""
        self._need(1)
        found = self.data[self.position]
        self.position += ~self.is_bad
        return np.where(self.is_bad, 0, found).astype(np.uint8)

    def fixed(self, size: int) -> U8:
        """The next bytes of each row, as a matrix."""
        self._need(size)
        if not len(self):
            return np.zeros((0, size), np.uint8)
        index = np.minimum(self.position[:, None], len(self.data) - size) + np.arange(size)
        found = self.data[index]
        self.position[~self.is_bad] += size
        found[self.is_bad] = 0
        return found

    def varint(self) -> U64:
        """A number in base 128, the lowest digits first."""
        self._need(1)
        position, data = self.position, self.data
        byte = data[position]
        value = (byte & 0x7F).astype(np.uint64)
        used = np.ones(len(self), np.int64)
        more = np.flatnonzero(byte >= 0x80)
        last = len(data) - 1
        for step in range(1, _VARINT_BYTES_MAX):
            if not len(more):
                break
            byte = data[np.minimum(position[more] + step, last)]
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * step)
            used[more] += 1
            more = more[byte >= 0x80]
        self.position = position + np.where(self.is_bad, 0, used)
        too_long = np.zeros(len(self), np.bool_)
        too_long[more] = True
        self.fail(too_long, "a number is longer than 64 bits")
        self.fail(self.position > self.end, "the record ends inside of a number")
        if self.is_bad.any():
            value[self.is_bad] = 0
        return value

    def zigzag(self) -> I64:
        """A signed number, as Avro and Protobuf's sint write it."""
        value = self.varint()
        return ((value >> np.uint64(1)) ^ (np.uint64(0) - (value & np.uint64(1)))).view(np.int64)

    def sized(self, length: I64) -> pa.BinaryArray:
        """Bytes of these lengths, copied out by Arrow."""
        self.fail(length < 0, "a length is negative")
        self.fail(length > self.end - self.position, "the record ends inside of bytes or text")
        length = np.where(self.is_bad, 0, length)
        found = gather(self.data, self.position, length)
        self.position = self.position + length
        return found

    def text(self, column: pa.BinaryArray) -> pa.StringArray:
        """Bytes as text; rows that are not UTF-8 are bad."""
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            is_text = [_is_text(value) for value in column.to_pylist()]
            self.fail(~np.array(is_text, np.bool_), "text is not UTF-8")
            kept = [
                value if good else b""
                for value, good in zip(column.to_pylist(), is_text, strict=True)
            ]
            return pa.array(kept, pa.binary()).cast(pa.string())

    def _need(self, size: int) -> None:
        short = self.end - self.position < size
        if short.any():
            self.fail(short, "the record ends too early")


def gather(data: U8, start: I64, length: I64) -> pa.BinaryArray:
    """Pieces of the data, in ascending order, as a column.

    Every other element of an array over the data itself is a piece; Arrow copies these.
    """
    count = len(start)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = start
    bounds[1::2] = start + length
    bounds[-1] = bounds[-2] if count else 0
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    both = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


def scatter(column: pa.Array, index: I64, count: int) -> pa.Array:
    """A column of `count` rows that has these values at these rows, and is null elsewhere."""
    if len(index) == count:
        return column
    place = np.zeros(count, np.int64)
    place[index] = np.arange(len(index))
    is_null = np.ones(count, np.bool_)
    is_null[index] = False
    return column.take(pa.array(place, mask=is_null))


def lists(owners: list[I64], items: list[pa.Array], count: int, kind: pa.DataType) -> pa.Array:
    """A column of lists from portions of items, each with the rows that its items belong to.

    The items of a row keep the order of the portions.
    """
    if not items:
        owner, values = np.empty(0, np.int64), pa.array([], kind)
    else:
        owner, values = np.concatenate(owners), pa.concat_arrays(items)
    if len(items) > 1:
        order = np.argsort(owner, kind="stable")
        owner, values = owner[order], values.take(pa.array(order))
    bounds = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=count), out=bounds[1:])
    return pa.ListArray.from_arrays(pa.array(bounds), values)


def numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column on numpy's memory."""
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def decimals(big_endian: pa.BinaryArray, kind: pa.Decimal128Type) -> pa.Array:
    """Whole numbers in two's complement, of at most 16 bytes, as decimals."""
    count = len(big_endian)
    bounds = np.frombuffer(big_endian.buffers()[1], np.int32)[big_endian.offset :][: count + 1]
    length = np.diff(bounds).astype(np.int64)
    raw = big_endian.buffers()[2]
    data = np.zeros(1, np.uint8) if raw is None or not raw.size else np.frombuffer(raw, np.uint8)
    matrix = np.zeros((count, 16), np.uint8)
    filled = np.flatnonzero(length > 0)
    is_negative = np.zeros(count, np.bool_)
    is_negative[filled] = data[bounds[:-1][filled]] >= 0x80
    matrix[is_negative] = 0xFF
    for place in range(16):
        rows = np.flatnonzero(length > place)
        matrix[rows, place] = data[bounds[1:][rows] - 1 - place]
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(matrix)])


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _nothing() -> tuple[I64, I64]:
    return np.empty(0, np.int64), np.empty(0, np.int64)
