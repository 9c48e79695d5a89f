"""Schemas of JSON records: a JSON Schema, Spark's JSON of a StructType, or a list of columns.

A list of columns is Spark's own: `id bigint, amount double, tags array<string>`.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from klamm.errors import ConfigError

_TYPES: Final = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_TEXT_FORMATS: Final = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}


def read_json_schema(text: str, name: str) -> pa.StructType:
    """The fields that a schema file names."""
    if not text.lstrip().startswith("{"):
        return _from_columns(text, name)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}") from None
    if content.get("type") == "struct":
        return _from_spark(content, name)
    if "properties" in content:
        return _object(content, content, name)
    raise ConfigError(
        f"{name} is neither a JSON Schema (with properties) nor Spark's JSON of a StructType."
    )


def _from_columns(text: str, name: str) -> pa.StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        struct = StructType.fromDDL(" ".join(text.split()))
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{name} is not a list of columns like 'id bigint, amount double': {reason}"
        ) from None
    return _arrow(struct)


def _from_spark(content: Mapping[str, Any], name: str) -> pa.StructType:
    from pyspark.sql.types import StructType

    try:
        return _arrow(StructType.fromJson(dict(content)))
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{name} is not Spark's JSON of a StructType: {error}") from None


def _arrow(struct: Any) -> pa.StructType:
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.struct([_nullable(each) for each in to_arrow_schema(struct)])


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type)


def _object(content: Mapping[str, Any], whole: Mapping[str, Any], at: str) -> pa.StructType:
    return pa.struct(
        [
            pa.field(name, _type(each, whole, f"{at}: {name}"))
            for name, each in content["properties"].items()
        ]
    )


def _type(content: Mapping[str, Any], whole: Mapping[str, Any], at: str) -> pa.DataType:
    """The type of one property; what may be several types, beside null, is refused."""
    content = _resolved(content, whole, at)
    kinds = content.get("type")
    if kinds is None:
        options = content.get("oneOf") or content.get("anyOf") or ()
        chosen = [each for each in options if each.get("type") != "null"]
        if len(chosen) == 1:
            return _type(chosen[0], whole, at)
        if "enum" in content and all(isinstance(each, str) for each in content["enum"]):
            return pa.string()
    names = [
        each for each in ([kinds] if isinstance(kinds, str) else kinds or ()) if each != "null"
    ]
    if len(names) != 1:
        raise ConfigError(f"{at} has no single type; a column has one.")
    match names[0]:
        case "object" if "properties" in content:
            return _object(content, whole, at)
        case "object":
            extra = content.get("additionalProperties")
            item = _type(extra, whole, at) if isinstance(extra, dict) else pa.string()
            return pa.map_(pa.string(), item)
        case "array":
            return pa.list_(_type(content.get("items", {"type": "string"}), whole, at))
        case "string":
            return _TEXT_FORMATS.get(content.get("format", ""), pa.string())
        case name if name in _TYPES:
            return _TYPES[name]
        case name:
            raise ConfigError(f"{at} has type {name}, which no column can have.")


def _resolved(content: Mapping[str, Any], whole: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    reference = content.get("$ref")
    if reference is None:
        return content
    found: Any = whole
    for name in str(reference).removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise ConfigError(f"{at} refers to {reference}, which the schema does not have.")
    return found
