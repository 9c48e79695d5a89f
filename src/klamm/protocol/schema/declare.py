"""Declaring a message once for all its versions.

kio has one frozen dataclass per struct and version. Written out by hand, LeaderAndIsr alone would
be forty classes with hardly visible differences. Here each field names the versions that have it,
as in Kafka's own definitions, and the dataclass of a version is derived on first use. kio's reader
and writer accept these classes as their own.
"""

import uuid
from collections.abc import Callable
from dataclasses import Field as DataclassField
from dataclasses import dataclass, make_dataclass
from dataclasses import field as dataclass_field
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from klamm.protocol.schema._kio import (
    EntityType,
    KioErrorCode,
    i8,
    i16,
    i32,
    i32Timedelta,
    i64,
    u16,
)

_PYTHON_TYPES: Final[dict[str, Any]] = {
    "bool": bool,
    "int8": i8,
    "int16": i16,
    "int32": i32,
    "int64": i64,
    "uint16": u16,
    "string": str,
    "uuid": uuid.UUID | None,
    "error_code": KioErrorCode,
    "timedelta_i32": i32Timedelta,
}

_REQUIRED: Final = object()

Kind: TypeAlias = Literal["request", "response"]


class Struct(NamedTuple):
    """Fields in wire order, some of them only in some versions."""

    name: str
    fields: tuple["Field", ...]


class Field(NamedTuple):
    """One field; `versions` reads like Kafka's: `2+`, `0-1` or `0`."""

    name: str
    type: str | Struct
    versions: str
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: object

    def is_in(self, version: int) -> bool:
        """Whether this version of the message carries the field."""
        if self.versions.endswith("+"):
            return version >= int(self.versions[:-1])
        first, _, last = self.versions.partition("-")
        return int(first) <= version <= int(last or first)


def struct(name: str, *fields: Field) -> Struct:
    """Declare a struct."""
    return Struct(name, fields)


def field(
    name: str,
    type: str | Struct,
    versions: str = "0+",
    *,
    nullable: bool = False,
    tag: int | None = None,
    default: object = _REQUIRED,
) -> Field:
    """Declare a field that holds one value."""
    return Field(name, type, versions, False, nullable, tag, default)


def array(
    name: str,
    type: str | Struct,
    versions: str = "0+",
    *,
    nullable: bool = False,
    tag: int | None = None,
    default: object = _REQUIRED,
) -> Field:
    """Declare a field that holds any number of values."""
    return Field(name, type, versions, True, nullable, tag, default)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A message in the versions `first..last`.

    `key` is the API of a request or response, and the type of a record (`data`).
    """

    key: int
    kind: Kind | Literal["data"]
    body: Struct
    first: int
    last: int
    first_flexible: int

    @property
    def versions(self) -> range:
        """Those that are declared."""
        return range(self.first, self.last + 1)

    def schema(self, version: int) -> type[Any]:
        """The dataclass for one version."""
        if version not in self.versions:
            raise LookupError(f"{self.body.name} is not declared in version {version}")
        return _dataclass(self, self.body, version)


@cache
def _dataclass(message: Declaration, declared: Struct, version: int) -> type[Any]:
    # kio keeps the fields of a class in the order of the wire; keyword-only fields let one with a
    # default stand before one without.
    fields = [
        (each.name, _annotation(message, each, version), _metadata(each))
        for each in declared.fields
        if each.is_in(version)
    ]
    is_body = declared is message.body
    return make_dataclass(
        declared.name,
        fields,
        namespace={
            "__type__": EntityType[message.kind] if is_body else EntityType.nested,
            "__version__": i16(version),
            "__flexible__": version >= message.first_flexible,
            "__api_key__": i16(message.key),
        },
        frozen=True,
        slots=True,
        kw_only=True,
    )


def _annotation(message: Declaration, declared: Field, version: int) -> Any:
    one: Any = (
        _dataclass(message, declared.type, version)
        if isinstance(declared.type, Struct)
        else _PYTHON_TYPES[declared.type]
    )
    whole = tuple[one, ...] if declared.is_array else one
    return whole | None if declared.is_nullable else whole


def _metadata(declared: Field) -> DataclassField[Any]:
    metadata: dict[str, Any] = {}
    if isinstance(declared.type, str):
        metadata["kafka_type"] = declared.type
    if declared.tag is not None:
        metadata["tag"] = declared.tag
    make: Callable[..., DataclassField[Any]] = dataclass_field
    if declared.default is _REQUIRED:
        return make(metadata=metadata)
    return make(metadata=metadata, default=declared.default)
