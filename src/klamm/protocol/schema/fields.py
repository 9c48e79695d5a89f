"""Reads the wire format of a struct from the fields of its dataclass, kio's or klamm's."""

from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_origin

#: How `struct` packs the types of fixed width; times are whole milliseconds.
FIXED_FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}

#: In place of a default: the field has to be given.
REQUIRED: Final = object()

_NO_TAG: Final = -1


class WireField(NamedTuple):
    """One field of a struct."""

    name: str
    kafka_type: str  # empty for a struct
    struct_type: Any
    is_array: bool
    is_nullable: bool
    tag: int
    default: Any  # in the encoder's terms

    @property
    def is_tagged(self) -> bool:
        """Whether it stands in the tagged section rather than in its place."""
        return self.tag != _NO_TAG


def wire_fields(schema: Any) -> list[WireField]:
    """The fields of a struct in the order of the wire."""
    return [_describe(each) for each in fields(schema)]


def _describe(declared: Field[Any]) -> WireField:
    annotation: Any = declared.type
    alternatives = () if get_origin(annotation) is tuple else get_args(annotation)
    is_nullable = NoneType in alternatives
    if is_nullable:
        (annotation,) = (each for each in alternatives if each is not NoneType)
    is_array = get_origin(annotation) is tuple
    one = get_args(annotation)[0] if is_array else annotation
    kafka_type = declared.metadata.get("kafka_type", "")
    return WireField(
        declared.name,
        kafka_type,
        one if is_dataclass(one) else None,
        is_array,
        is_nullable,
        declared.metadata.get("tag", _NO_TAG),
        _default(declared, kafka_type, is_array, is_nullable),
    )


def _default(declared: Field[Any], kafka_type: str, is_array: bool, is_nullable: bool) -> Any:
    if is_dataclass(declared.default):  # of a tagged struct, which is written when it is given
        return None
    if isinstance(declared.default, timedelta):
        return declared.default // timedelta(milliseconds=1)
    if declared.default is not MISSING:
        return declared.default
    if is_nullable:
        return None
    if is_array:
        return ()
    if kafka_type == "error_code" or declared.name == "throttle_time":
        return 0
    return REQUIRED
