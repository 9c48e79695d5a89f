"""Which parser a query uses, what columns its table has, and what of that a checkpoint keeps.

Schemas that a query infers or gets from a registry are kept in its checkpoint, so that a batch that
is run again is parsed as it was the first time.
"""

import base64
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import pyarrow as pa

from klamm.errors import ConfigError
from klamm.pipeline.ingest.formats.json import JsonParser, infer_fields
from klamm.pipeline.ingest.formats.json_schema import read_json_schema
from klamm.pipeline.ingest.formats.parsing import SOURCE_FIELDS, Parser
from klamm.pipeline.ingest.options import IngestOptions
from klamm.pipeline.source.columns import schema as source_schema
from klamm.pipeline.source.options import COLUMN_TYPES

#: Reads some values of the topics.
Sample = Callable[[], pa.BinaryArray]


class FormatChoice(Protocol):
    """The driver's side of a format."""

    @property
    def parser(self) -> Parser | None:
        """What tasks parse values with; None for raw records."""

    @property
    def key_parser(self) -> Parser | None:
        """What tasks parse the keys of tombstones with, where they are framed for a registry."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""

    def learn(self, schema_ids: Collection[int]) -> None:
        """Get schemas that a task has met and did not know; refused if they do not fit."""

    def to_json(self) -> dict[str, Any] | None:
        """What a checkpoint keeps; None if the options say it all."""


def choose_format(
    options: IngestOptions, kept: Mapping[str, Any] | None, sample: Sample
) -> FormatChoice:
    """The format of a query: as it was kept, or as its options, samples or registry say."""
    match options.format:
        case "raw":
            return Raw(include_headers=options.include_headers)
        case "json" if options.registry is None:
            if options.schema is not None:
                return Fixed(JsonParser(read_json_schema(options.schema, options.schema_name)))
            if kept is not None:
                return Fixed(JsonParser(decode_fields(kept["fields"])), is_kept=True)
            return Fixed(JsonParser(infer_fields(sample())), is_kept=True)
        case "json":
            from klamm.pipeline.ingest.formats.registered import RegisteredJson

            return RegisteredJson(options, kept, sample)
        case "avro":
            if options.schema is not None:
                from klamm.pipeline.ingest.formats.avro import AvroParser
                from klamm.pipeline.ingest.formats.avro_schema import parse_avro_schema

                return Fixed(AvroParser(parse_avro_schema(options.schema, options.schema_name)))
            from klamm.pipeline.ingest.formats.registered import RegisteredAvro

            return RegisteredAvro(options, kept, sample)
        case "protobuf":
            from klamm.pipeline.ingest.formats.protobuf import ProtobufParser
            from klamm.pipeline.ingest.formats.protobuf_schema import read_protobuf_schema

            if options.schema is not None:
                message = read_protobuf_schema(options.schema, options.schema_name, options.message)
                return Fixed(ProtobufParser(message))
            from klamm.pipeline.ingest.formats.registered import RegisteredProtobuf

            return RegisteredProtobuf(options, kept, sample)


class Raw:
    """Records as they are."""

    parser = None
    key_parser = None

    def __init__(self, *, include_headers: bool) -> None:
        columns = [name for name in COLUMN_TYPES if include_headers or name != "headers"]
        self.schema = source_schema(columns)

    def learn(self, schema_ids: Collection[int]) -> None:
        """Nothing: raw records have no schema."""

    def to_json(self) -> None:
        """Nothing."""


class Fixed:
    """Columns that do not change while the query lives."""

    key_parser = None

    def __init__(self, parser: Parser, *, is_kept: bool = False) -> None:
        self.parser = parser
        self.schema = table_schema(parser.fields)
        self._is_kept = is_kept

    def learn(self, schema_ids: Collection[int]) -> None:
        """Nothing: the schema is given."""

    def to_json(self) -> dict[str, Any] | None:
        return {"fields": encode_fields(self.parser.fields)} if self._is_kept else None


def table_schema(fields: pa.StructType) -> pa.Schema:
    """The columns of a schema, and those that say where a row comes from."""
    taken = {each.name for each in SOURCE_FIELDS}
    if clash := sorted(taken & {each.name for each in fields}):
        raise ConfigError(f"The schema has a field {clash[0]}, which ingest adds itself.")
    names = [each.name.lower() for each in fields]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise ConfigError(
            f"The schema has fields that differ from {twice[0]} in upper and lower case only; "
            "tables cannot tell them apart."
        )
    return pa.schema([*fields, *SOURCE_FIELDS])


def encode_fields(fields: pa.StructType) -> dict[str, Any]:
    """Fields for a checkpoint: as text for people, and as Arrow writes schemas."""
    schema = pa.schema(list(fields))
    arrow = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return {"columns": {each.name: str(each.type) for each in fields}, "arrow": arrow}


def decode_fields(content: Mapping[str, Any]) -> pa.StructType:
    """Fields of a checkpoint."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["arrow"])))
    return pa.struct(list(schema))
