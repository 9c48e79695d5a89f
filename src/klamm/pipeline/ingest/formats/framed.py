"""Values with the frame of a registry: a zero byte, the schema's id, for Protobuf the message.

Values are sorted by schema, parsed with the schema that they were written with, and brought into
the columns of the table: those that a schema does not have are null.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from klamm.pipeline.ingest.evolution import conform
from klamm.pipeline.ingest.formats import avro, protobuf
from klamm.pipeline.ingest.formats.avro_schema import AvroType
from klamm.pipeline.ingest.formats.cursor import ColumnCursor, gather
from klamm.pipeline.ingest.formats.json import JsonParser
from klamm.pipeline.ingest.formats.parsing import I64, Parsed
from klamm.pipeline.ingest.formats.protobuf_schema import ProtobufMessage

_NO_FRAME: Final = "the value does not begin with the frame of a registry"


def read_ids(cursor: ColumnCursor, missing: Collection[int] = ()) -> I64:
    """The ids of the schemas; the cursor stands behind the frame then.

    Values that name a schema that the registry does not have are bad.
    """
    magic = cursor.byte()
    cursor.fail(magic != 0, _NO_FRAME)
    ids = cursor.fixed(4).view(">u4").reshape(-1).astype(np.int64)
    for each in set(np.unique(ids).tolist()) & set(missing):
        cursor.fail(ids == each, f"the registry has no schema {each}")
    return np.where(cursor.is_bad, -1, ids)


@dataclass(frozen=True)
class FramedAvro:
    """Parses Avro records of several schemas into the columns of a table."""

    schemas: Mapping[int, AvroType]
    fields: pa.StructType
    #: Ids that the registry does not have.
    missing: frozenset[int] = frozenset()

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """Parse values, none of which is null."""
        cursor = ColumnCursor.of(values)
        ids = read_ids(cursor, self.missing)
        pieces = _Pieces(cursor, self.fields, "Avro")
        for schema_id, index in _by_id(ids):
            schema = self.schemas.get(schema_id)
            if schema is None:
                pieces.unknown.add(schema_id)
                continue
            taken = cursor.take(index)
            rows = avro.read_column(taken, schema)
            taken.fail(taken.position != taken.end, "there are bytes behind the record")
            pieces.add(taken, rows)
        return pieces.parsed()


@dataclass(frozen=True)
class FramedProtobuf:
    """Parses messages of several versions of one type into the columns of a table."""

    #: Schema id: the place of each message in the file, and the message.
    schemas: Mapping[int, Mapping[tuple[int, ...], ProtobufMessage]]
    #: The full name of the message that the table holds.
    message: str
    fields: pa.StructType
    missing: frozenset[int] = frozenset()

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """Parse values, none of which is null."""
        cursor = ColumnCursor.of(values)
        ids = read_ids(cursor, self.missing)
        pieces = _Pieces(cursor, self.fields, "Protobuf")
        for schema_id, index in _by_id(ids):
            if schema_id not in self.schemas:
                pieces.unknown.add(schema_id)
                continue
            taken = cursor.take(index)
            for path, part in read_paths(taken):
                one = taken.take(part)
                message = self.schemas[schema_id].get(path)
                if message is None or message.name != self.message:
                    found = "unknown" if message is None else message.name
                    reason = f"the message is {found}, not {self.message}"
                    one.fail(np.ones(len(one), np.bool_), reason)
                    continue
                pieces.add(one, protobuf.read_message(one, message))
        return pieces.parsed()


def read_paths(cursor: ColumnCursor) -> Iterator[tuple[tuple[int, ...], I64]]:
    """Which message of the file each value is, and the rows of each; the frame is behind then."""
    count = cursor.zigzag()
    cursor.fail((count < 0) | (count > 32), "the frame names no message")
    paths: list[list[int]] = [[] for _ in range(len(cursor))]
    left = np.flatnonzero((count > 0) & ~cursor.is_bad)
    done = 0
    while len(left):
        taken = cursor.take(left)
        for row, number in zip(left.tolist(), taken.zigzag().tolist(), strict=True):
            paths[row].append(number)
        cursor.put(left, taken)
        done += 1
        left = left[(count[left] > done) & ~taken.is_bad]
    by_path: dict[tuple[int, ...], list[int]] = {}
    for row, path in enumerate(paths):
        if not cursor.is_bad[row]:
            # No numbers stand for the first message, which most files have alone.
            by_path.setdefault(tuple(path) or (0,), []).append(row)
    for found, rows in by_path.items():
        yield found, np.array(rows, np.int64)


@dataclass(frozen=True)
class FramedJson:
    """Parses JSON objects behind frames."""

    known: frozenset[int]
    fields: pa.StructType
    missing: frozenset[int] = frozenset()

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """Parse values, none of which is null."""
        cursor = ColumnCursor.of(values)
        ids = read_ids(cursor, self.missing)
        unknown = {each for each, _ in _by_id(ids) if each not in self.known}
        index = np.flatnonzero(np.isin(ids, list(self.known)) & ~cursor.is_bad)
        taken = cursor.take(index)
        text = gather(taken.data, taken.position, taken.end - taken.position)
        parsed = JsonParser(self.fields).parse(text)
        bad = {row: f"JSON: {reason}" for row, reason in cursor.reasons.items()}
        bad |= {int(index[at]): reason for at, reason in parsed.bad.items()}
        return Parsed(parsed.rows, index[parsed.kept], bad, unknown)


class _Pieces:
    """Rows of several schemas, in the columns of the table and in the order of the values."""

    def __init__(self, cursor: ColumnCursor, fields: pa.StructType, format: str) -> None:
        self._cursor, self._fields, self._format = cursor, fields, format
        self._rows: list[pa.Array] = []
        self._kept: list[I64] = []
        self.unknown: set[int] = set()

    def add(self, cursor: ColumnCursor, rows: pa.StructArray) -> None:
        good = ~cursor.is_bad
        if not good.all():
            rows = rows.filter(pa.array(good))
        self._rows.append(conform(rows, self._fields))
        self._kept.append(cursor.rows[good])

    def parsed(self) -> Parsed:
        bad = {row: f"{self._format}: {text}" for row, text in self._cursor.reasons.items()}
        if not self._rows:
            nothing: Any = np.empty(0, np.int64)
            return Parsed(pa.array([], self._fields), nothing, bad, self.unknown)
        rows, kept = pa.concat_arrays(self._rows), np.concatenate(self._kept)
        if len(self._rows) > 1:
            order = np.argsort(kept, kind="stable")
            rows, kept = rows.take(pa.array(order)), kept[order]
        return Parsed(rows, kept, bad, self.unknown)


def _by_id(ids: I64) -> Iterator[tuple[int, I64]]:
    for schema_id in np.unique(ids).tolist():
        if schema_id >= 0:
            yield schema_id, np.flatnonzero(ids == schema_id)
