"""Messages as bytes, and messages by chance, for tests of what reads and writes them."""

from typing import Any

from hypothesis import strategies as st

from klamm.protocol.codec.encoding import Values, encode_parts
from klamm.protocol.schema.fields import WireField, wire_fields


def encode_struct(schema: Any, values: Values) -> bytes:
    """The bytes of one message, without its header."""
    parts: list[bytes] = []
    encode_parts(schema, values, parts.append)
    return b"".join(parts)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


#: kio keeps times as datetime and timedelta, which do not reach as far as Kafka's integers do.
TIMES = st.integers(0, 1 << 40)

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": signed(8),
    "int16": signed(16),
    "int32": signed(32),
    "int64": signed(64),
    "float64": st.floats(allow_nan=False),
    "uint16": st.integers(0, 0xFFFF),
    "error_code": st.integers(-1, 127),
    "timedelta_i32": signed(32),
    "timedelta_i64": TIMES,
    "datetime_i64": TIMES,
    "string": st.text(max_size=9),
    "bytes": st.binary(max_size=9),
    "records": st.binary(max_size=9),
    "uuid": st.none() | st.uuids().filter(lambda each: each.int != 0),
}


def values(schema: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Values of a message, as the encoder takes them."""
    required = {each.name: value(each) for each in wire_fields(schema) if not each.is_tagged}
    tagged = {each.name: value(each) for each in wire_fields(schema) if each.is_tagged}
    return st.fixed_dictionaries(required, optional=tagged)


def value(each: WireField) -> st.SearchStrategy[Any]:
    one = PRIMITIVES[each.kafka_type] if each.struct_type is None else values(each.struct_type)
    whole = st.lists(one, max_size=3) if each.is_array else one
    may_be_null = each.is_nullable and not each.is_tagged and each.kafka_type != "uuid"
    return st.none() | whole if may_be_null else whole
