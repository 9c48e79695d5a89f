"""Avro schemas: parsed from JSON, as columns of Arrow, and compared by Avro's rules."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from klamm.errors import ConfigError
from klamm.pipeline.ingest.evolution import SchemaChangeError

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: (type, logical type): the column's type.
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
#: A writer's type: what a reader may read it as.
_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_DECIMAL_DIGITS_MAX: Final = 38


@dataclass(frozen=True)
class AvroField:
    """A field of a record."""

    name: str
    type: "AvroType"
    has_default: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class AvroType:
    """One type of a schema."""

    #: A primitive's name, or record, enum, array, map, union, fixed.
    kind: str
    name: str = ""
    logical: str = ""
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    has_default: bool = False
    #: The items of an array, the values of a map, the branches of a union.
    parts: tuple["AvroType", ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0
    aliases: tuple[str, ...] = ()

    @property
    def arrow(self) -> pa.DataType:
        """The type of its column."""
        if self.logical == "decimal":
            return pa.decimal128(self.precision, self.scale)
        if (self.kind, self.logical) in _LOGICAL:
            return _LOGICAL[self.kind, self.logical]
        match self.kind:
            case "record":
                return pa.struct([pa.field(each.name, each.type.arrow) for each in self.fields])
            case "enum":
                return pa.string()
            case "array":
                return pa.list_(self.parts[0].arrow)
            case "map":
                return pa.map_(pa.string(), self.parts[0].arrow)
            case "fixed":
                return pa.binary()
            case "union":
                present = self.present
                if len(present) == 1:
                    return present[0].arrow
                return pa.struct(
                    [pa.field(f"member{at}", each.arrow) for at, each in enumerate(present)]
                )
        return _PRIMITIVES[self.kind]

    @property
    def present(self) -> tuple["AvroType", ...]:
        """The branches of a union beside null."""
        return tuple(each for each in self.parts if each.kind != "null")


def parse_avro_schema(
    text: str, source: str, references: Mapping[str, "AvroType"] | None = None
) -> AvroType:
    """A schema whose values are rows: a record."""
    found = parse_avro_type(text, source, references)
    if found.kind != "record":
        raise ConfigError(f"{source} is of type {found.kind}; rows of a table need a record.")
    return found


def parse_avro_type(
    text: str, source: str, references: Mapping[str, "AvroType"] | None = None
) -> AvroType:
    """Any schema."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not an Avro schema: {error}") from None
    return _SchemaParser(source, references or {}).parse(content, "")


def named_types(found: AvroType) -> dict[str, AvroType]:
    """The types of a schema that have names, for schemas that refer to it."""
    names = {found.name: found} if found.name else {}
    for each in (*(field.type for field in found.fields), *found.parts):
        names |= named_types(each)
    return names


class _SchemaParser:
    def __init__(self, source: str, references: Mapping[str, AvroType]) -> None:
        self._source = source
        self._named: dict[str, AvroType | None] = dict(references)

    def parse(self, content: Any, namespace: str) -> AvroType:
        if isinstance(content, str):
            return self._by_name(content, namespace)
        if isinstance(content, list):
            return AvroType("union", parts=tuple(self.parse(each, namespace) for each in content))
        if not isinstance(content, dict) or "type" not in content:
            raise self._wrong(f"{json.dumps(content)} is not a type")
        kind = content["type"]
        if kind in ("record", "error"):
            return self._record(content, namespace)
        if kind in ("enum", "fixed"):
            return self._enum_or_fixed(content, namespace)
        if kind == "array":
            return AvroType("array", parts=(self.parse(content.get("items"), namespace),))
        if kind == "map":
            return AvroType("map", parts=(self.parse(content.get("values"), namespace),))
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace)
        found = self._by_name(kind, namespace)
        return self._with_logical(found, content)

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name)
        full = _full_name(name, namespace)
        for candidate in (full, name):
            if candidate in self._named:
                found = self._named[candidate]
                if found is None:
                    raise self._wrong(f"{name} contains itself, which no column can")
                return found
        raise self._wrong(f"there is no type {name}")

    def _record(self, content: Mapping[str, Any], namespace: str) -> AvroType:
        full = _full_name(content.get("name", ""), content.get("namespace", namespace))
        inner = full.rpartition(".")[0]
        self._named[full] = None  # while it is open, it cannot be a column of itself
        fields = []
        for each in content.get("fields", ()):
            if "name" not in each or "type" not in each:
                raise self._wrong(f"a field of {full} has no name or no type")
            fields.append(
                AvroField(
                    each["name"],
                    self.parse(each["type"], inner)
                    if "logicalType" not in each
                    else self.parse({**each, "type": each["type"]}, inner),
                    "default" in each,
                    tuple(each.get("aliases", ())),
                )
            )
        aliases = tuple(content.get("aliases", ()))
        found = AvroType("record", full, fields=tuple(fields), aliases=aliases)
        self._named[full] = found
        return found

    def _enum_or_fixed(self, content: Mapping[str, Any], namespace: str) -> AvroType:
        full = _full_name(content.get("name", ""), content.get("namespace", namespace))
        if content["type"] == "enum":
            found = AvroType(
                "enum",
                full,
                symbols=tuple(content.get("symbols", ())),
                has_default="default" in content,
            )
        else:
            found = AvroType("fixed", full, size=int(content.get("size", 0)))
        found = self._with_logical(found, content)
        self._named[full] = found
        return found

    def _with_logical(self, found: AvroType, content: Mapping[str, Any]) -> AvroType:
        """Logical types that columns have; as Avro says, others count for nothing."""
        logical = content.get("logicalType", "")
        if (found.kind, logical) in _LOGICAL:
            return AvroType(found.kind, found.name, logical)
        precision = int(content.get("precision", 0))
        is_decimal = logical == "decimal" and found.kind in ("bytes", "fixed")
        if is_decimal and 0 < precision <= _DECIMAL_DIGITS_MAX:
            return AvroType(
                found.kind,
                found.name,
                "decimal",
                size=found.size,
                precision=precision,
                scale=int(content.get("scale", 0)),
            )
        return found

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._source} is not a schema for a table: {what}.")


def _full_name(name: str, namespace: str | None) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def check_can_read(reader: AvroType, writer: AvroType, at: str = "") -> None:
    """Refuse, by name, what Avro's rules of resolution forbid a reader of the writer's data."""
    where = at or reader.name or reader.kind
    if writer.kind == "union":
        for each in writer.parts:
            check_can_read(reader, each, at)
        return
    if reader.kind == "union":
        if not any(_can_read(each, writer) for each in reader.parts):
            raise _refused(where, writer, "none of the union's types")
        return
    if reader.kind != writer.kind:
        if reader.kind not in _PROMOTIONS.get(writer.kind, ()):
            raise _refused(where, writer, reader.kind)
        return
    match reader.kind:
        case "record":
            _check_record(reader, writer, at)
        case "array" | "map":
            check_can_read(reader.parts[0], writer.parts[0], f"{where}[]")
        case "enum":
            missing = sorted(set(writer.symbols) - set(reader.symbols))
            if missing and not reader.has_default:
                raise SchemaChangeError(
                    f"Field {where}: symbol {missing[0]} was removed and the enum has no default."
                )
        case "fixed" if reader.size != writer.size:
            raise SchemaChangeError(
                f"Field {where}: fixed of {writer.size} bytes cannot become one of {reader.size}."
            )
    if reader.logical == "decimal" and (reader.scale, reader.precision) != (
        writer.scale,
        writer.precision,
    ):
        raise SchemaChangeError(f"Field {where}: a decimal's precision and scale cannot change.")


def _check_record(reader: AvroType, writer: AvroType, at: str) -> None:
    written = {each.name: each for each in writer.fields}
    for each in reader.fields:
        where = f"{at}.{each.name}" if at else each.name
        old = next((written[name] for name in (each.name, *each.aliases) if name in written), None)
        if old is not None:
            check_can_read(each.type, old.type, where)
        elif not each.has_default:
            raise SchemaChangeError(
                f"Field {where} was added without a default, so older records cannot be read."
            )


def _can_read(reader: AvroType, writer: AvroType) -> bool:
    try:
        check_can_read(reader, writer)
    except SchemaChangeError:
        return False
    return True


def _refused(where: str, writer: AvroType, wanted: str) -> SchemaChangeError:
    return SchemaChangeError(f"Field {where}: {writer.kind} cannot become {wanted}.")
