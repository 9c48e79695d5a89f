"""Formats whose schemas a registry has: what a query knows, and how its table follows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from klamm.errors import ConfigError, UnavailableError
from klamm.pipeline.ingest.evolution import SchemaChangeError, merged_schema
from klamm.pipeline.ingest.formats.avro_schema import (
    AvroField,
    AvroType,
    check_can_read,
    named_types,
    parse_avro_type,
)
from klamm.pipeline.ingest.formats.choice import table_schema
from klamm.pipeline.ingest.formats.cursor import ColumnCursor
from klamm.pipeline.ingest.formats.framed import (
    FramedAvro,
    FramedJson,
    FramedProtobuf,
    read_ids,
    read_paths,
)
from klamm.pipeline.ingest.formats.json_schema import read_json_schema
from klamm.pipeline.ingest.formats.parsing import Parser
from klamm.pipeline.ingest.formats.protobuf_schema import (
    ProtobufMessage,
    read_protobuf_messages,
)
from klamm.pipeline.ingest.options import IngestOptions
from klamm.pipeline.ingest.registry import RegisteredSchema, Registry


class _Registered(ABC):
    """The schemas that a query has met, in the order of their ids."""

    #: The registry's word for the format.
    type: ClassVar[str]
    key_parser: Parser | None = None
    parser: Parser
    schema: pa.Schema

    def __init__(
        self,
        options: IngestOptions,
        kept: Mapping[str, Any] | None,
        sample: Callable[[], pa.BinaryArray],
    ) -> None:
        assert options.registry is not None
        self.options = options
        self.registry = Registry(options.registry)
        self.known: dict[int, RegisteredSchema] = {}
        #: Ids that the registry does not have: what names one is a dead letter.
        self.missing: set[int] = set()
        if kept is not None:
            for each in kept["schemas"]:
                self.known[each["id"]] = RegisteredSchema(**each)
            self.message = kept.get("message")
        else:
            values = sample()
            self.message = None
            self._begin(values)
            self.message = self.choose_message(values)
        self.settle()

    def learn(self, schema_ids: Collection[int]) -> None:
        """Get schemas that a task has met and did not know; refused if they do not fit."""
        self._look_up(schema_ids)
        self.settle()

    def to_json(self) -> dict[str, Any]:
        schemas = [self.known[each].to_json() for each in sorted(self.known)]
        return {"schemas": schemas, "message": self.message}

    @abstractmethod
    def settle(self) -> None:
        """Work out parser and columns from the known schemas."""

    def choose_message(self, values: pa.BinaryArray) -> str | None:
        """The message that the table holds, for formats whose schemas have several."""
        return None

    def merged_fields(self, types: Iterable[tuple[int, pa.StructType]]) -> pa.StructType:
        """The columns that hold rows of all schemas."""
        merged: pa.Schema | None = None
        for schema_id, each in types:
            columns = pa.schema(list(each))
            try:
                merged = columns if merged is None else merged_schema(merged, columns)
            except SchemaChangeError as error:
                raise SchemaChangeError(f"Schema {schema_id} does not fit: {error}") from None
        assert merged is not None
        return pa.struct(list(merged))

    def subject(self, what: str) -> list[str]:
        return [f"{topic}-{what}" for topic in self.options.topics]

    def _begin(self, values: pa.BinaryArray) -> None:
        """With the schemas of the first records, or else with the newest of the topics."""
        cursor = ColumnCursor.of(values)
        ids = {int(each) for each in np.unique(read_ids(cursor)) if each >= 0}
        self._look_up(ids)
        if not self.known:
            for subject in self.subject("value"):
                found = self.registry.latest(subject)
                if found is not None:
                    self._add(found)
        if not self.known:
            raise ConfigError(
                f"No record has the frame of a known schema, and {self.registry.url} has no "
                f"subject {', '.join(self.subject('value'))}: there is no schema to begin with."
            )

    def _look_up(self, schema_ids: Collection[int]) -> None:
        found = self.registry.by_ids(schema_ids)
        for each in found.values():
            self._add(each)
        self.missing |= set(schema_ids) - found.keys()

    def _add(self, found: RegisteredSchema) -> None:
        if found.type != self.type:
            raise ConfigError(
                f"Schema {found.id} of {self.registry.url} is of type {found.type}, and the format "
                f"is {self.options.format}."
            )
        self.known[found.id] = found


class RegisteredAvro(_Registered):
    """Avro records whose schemas may evolve as Avro's rules allow."""

    type = "AVRO"

    def settle(self) -> None:
        schemas = {each: _avro_type(self.known[each]) for each in sorted(self.known)}
        last: dict[str, AvroType] = {}
        for schema_id, each in schemas.items():
            if each.kind != "record":
                raise ConfigError(f"Schema {schema_id} is a {each.kind}; a table needs a record.")
            if (before := last.get(each.name)) is not None:
                try:
                    check_can_read(each, before)
                except SchemaChangeError as error:
                    raise SchemaChangeError(
                        f"Schema {schema_id} of {each.name} breaks Avro's rules: {error}"
                    ) from None
            last[each.name] = each
        fields = self.merged_fields((each, kind.arrow) for each, kind in schemas.items())
        self.parser = FramedAvro(schemas, fields, frozenset(self.missing))
        self.schema = table_schema(fields)
        if self.options.mode == "upsert" and self.key_parser is None:
            self.key_parser = self._keys()

    def _keys(self) -> FramedAvro | None:
        """Reads framed keys; a key that is no record is the only key column."""
        name = self.options.key_columns[0]
        schemas: dict[int, AvroType] = {}
        try:
            for subject in self.subject("key"):
                for each in self.registry.versions(subject):
                    found = _avro_type(each)
                    if found.kind != "record":
                        found = AvroType("record", fields=(AvroField(name, found),))
                    schemas[each.id] = found
        except UnavailableError:
            return None  # keys that are not framed can be read all the same
        if not schemas:
            return None
        fields = self.merged_fields((each, kind.arrow) for each, kind in schemas.items())
        return FramedAvro(schemas, fields)


class RegisteredProtobuf(_Registered):
    """Messages of one type, whose fields may be added."""

    type = "PROTOBUF"

    def settle(self) -> None:
        schemas = {each: _messages(self.known[each]) for each in sorted(self.known)}
        found = {
            each: message
            for each, messages in schemas.items()
            for message in messages.values()
            if message.name == self.message
        }
        assert self.message is not None
        fields = self.merged_fields((each, message.arrow) for each, message in found.items())
        self.parser = FramedProtobuf(schemas, self.message, fields, frozenset(self.missing))
        self.schema = table_schema(fields)

    def choose_message(self, values: pa.BinaryArray) -> str:
        """The message that is named, or that of the first record, or the first of the schema."""
        newest = _messages(self.known[max(self.known)])
        if self.options.message is not None:
            for message in newest.values():
                if self.options.message in (message.name, message.name.rpartition(".")[2]):
                    return message.name
            raise ConfigError(
                f"There is no message {self.options.message} in the registry's schema; it has "
                f"{', '.join(each.name for each in newest.values())}."
            )
        cursor = ColumnCursor.of(values.slice(0, 1))
        ids = read_ids(cursor, self.missing)
        for path, _ in read_paths(cursor):
            messages = _messages(self.known[int(ids[0])])
            if path in messages:
                return messages[path].name
        return newest[(0,)].name


class RegisteredJson(_Registered):
    """JSON objects with JSON Schemas."""

    type = "JSON"

    def settle(self) -> None:
        fields = self.merged_fields(
            (each, read_json_schema(self.known[each].text, f"schema {each}"))
            for each in sorted(self.known)
        )
        self.parser = FramedJson(frozenset(self.known), fields, frozenset(self.missing))
        self.schema = table_schema(fields)


def _avro_type(found: RegisteredSchema) -> AvroType:
    references: dict[str, AvroType] = {}
    for name, text in found.references.items():
        references |= named_types(parse_avro_type(text, name, references))
    return parse_avro_type(found.text, f"schema {found.id}", references)


def _messages(found: RegisteredSchema) -> dict[tuple[int, ...], ProtobufMessage]:
    return read_protobuf_messages(found.text, f"schema {found.id}", found.references)
