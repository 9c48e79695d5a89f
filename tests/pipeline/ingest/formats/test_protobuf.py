"""Protobuf by columns, beside Google's own library message by message."""

import datetime
import sys

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import ConfigError
from klamm.pipeline.ingest.formats import protobuf_schema
from klamm.pipeline.ingest.formats.protobuf import ProtobufParser
from klamm.pipeline.ingest.formats.protobuf_schema import read_protobuf_schema

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum State { NEW = 0; DONE = 1; }
message Order {
  message Line { string sku = 1; optional sint32 count = 2; repeated Line2 more = 3; }
  message Line2 { fixed32 a = 1; }
  int64 id = 1;
  double amount = 2;
  string name = 3;
  State state = 4;
  repeated int32 numbers = 5;
  repeated string tags = 6;
  map<string, int64> counts = 7;
  repeated Line lines = 8;
  Line first = 9;
  bytes raw = 10;
  bool paid = 11;
  uint64 big = 12;
  optional float ratio = 13;
  oneof choice { string left = 14; int32 right = 15; }
  google.protobuf.Timestamp at = 16;
  sfixed64 s64 = 17;
  fixed64 f64 = 18;
  uint32 u32 = 19;
  sint64 z64 = 20;
  sfixed32 s32 = 21;
}
"""


@pytest.fixture(scope="module")
def order():
    """The message for tasks, and Google's class for it."""
    message = read_protobuf_schema(PROTO, "order.proto", None)
    found = descriptor_pb2.FileDescriptorSet.FromString(
        protobuf_schema._compiled(PROTO, "order.proto", {})
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(found.file[-1])
    return message, message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
line = st.fixed_dictionaries(
    {"sku": st.text(max_size=4)},
    optional={
        "count": i32,
        "more": st.lists(st.fixed_dictionaries({"a": st.integers(0, 2**32 - 1)}), max_size=2),
    },
)
orders = st.fixed_dictionaries(
    {},
    optional={
        "id": i64,
        "amount": st.floats(allow_nan=False),
        "name": st.text(max_size=20),
        "state": st.integers(0, 3),
        "numbers": st.lists(i32, max_size=4),
        "tags": st.lists(st.text(max_size=3), max_size=3),
        "counts": st.dictionaries(st.text(max_size=2), i64, max_size=3),
        "lines": st.lists(line, max_size=3),
        "first": line,
        "raw": st.binary(max_size=5),
        "paid": st.booleans(),
        "big": st.integers(0, 2**64 - 1),
        "ratio": st.floats(width=32, allow_nan=False),
        "left": st.text(max_size=3),
        "s64": i64,
        "f64": st.integers(0, 2**64 - 1),
        "u32": st.integers(0, 2**32 - 1),
        "z64": i64,
        "s32": i32,
    },
)


def as_row(found):
    def of_line(each):
        return {
            "sku": each.sku,
            "count": each.count if each.HasField("count") else None,
            "more": [{"a": more.a} for more in each.more],
        }

    return {
        "id": found.id,
        "amount": found.amount,
        "name": found.name,
        "state": {0: "NEW", 1: "DONE"}.get(found.state, str(found.state)),
        "numbers": list(found.numbers),
        "tags": list(found.tags),
        "counts": dict(found.counts),
        "lines": [of_line(each) for each in found.lines],
        "first": of_line(found.first) if found.HasField("first") else None,
        "raw": found.raw,
        "paid": found.paid,
        "big": found.big,
        "ratio": found.ratio if found.HasField("ratio") else None,
        "left": found.left if found.HasField("left") else None,
        "right": found.right if found.HasField("right") else None,
        "at": None,
        "s64": found.s64,
        "f64": found.f64,
        "u32": found.u32,
        "z64": found.z64,
        "s32": found.s32,
    }


def rows(parsed):
    return [{**each, "counts": dict(each["counts"])} for each in parsed.rows.to_pylist()]


@given(records=st.lists(orders, max_size=6))
def test_columns_are_what_googles_library_reads(order, records):
    message, cls = order
    made = [cls(**each) for each in records]
    values = pa.array([each.SerializeToString() for each in made], pa.binary())
    parsed = ProtobufParser(message).parse(values)
    assert not parsed.bad
    assert rows(parsed) == [as_row(each) for each in made]
    parsed.rows.validate(full=True)


@given(values=st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_rows_or_bad(order, values):
    parsed = ProtobufParser(order[0]).parse(pa.array(values, pa.binary()))
    parsed.rows.validate(full=True)
    assert sorted([*parsed.kept.tolist(), *parsed.bad]) == list(range(len(values)))


def test_a_message_that_is_cut_is_bad_and_its_neighbours_are_not(order):
    message, cls = order
    whole = cls(id=5, name="x" * 30, first={"sku": "abc"}).SerializeToString()
    values = pa.array([whole, whole[:-2], whole], pa.binary())
    parsed = ProtobufParser(message).parse(values)
    assert list(parsed.bad) == [1]
    assert parsed.bad[1].startswith("Protobuf: ")
    assert [each["name"] for each in rows(parsed)] == ["x" * 30] * 2


def test_a_timestamp_is_a_time(order):
    message, cls = order
    made = cls()
    made.at.FromDatetime(datetime.datetime(2024, 5, 6, 7, 8, 9, 123456))
    values = pa.array([made.SerializeToString()], pa.binary())
    (row,) = rows(ProtobufParser(message).parse(values))
    assert row["at"] == datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC)


def test_a_descriptor_set_is_a_schema_too(order):
    content = protobuf_schema._compiled(PROTO, "order.proto", {})
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    assert read_protobuf_schema(text, "order.desc", "shop.Order") == order[0]


@pytest.mark.parametrize(
    ("text", "name", "what"),
    [
        ("message Order {", None, "cannot be compiled"),
        ("nonsense", None, "neither a .proto nor a descriptor set"),
        (PROTO, "Nope", "no message shop.Nope"),
        ('syntax = "proto3"; message A { A a = 1; }', None, "contains itself"),
    ],
)
def test_a_schema_that_is_none_is_refused(text, name, what):
    with pytest.raises(ConfigError, match=what):
        read_protobuf_schema(text, "order.proto", name)


def test_a_missing_library_is_named_with_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(ConfigError, match=r"pip install 'klamm\[ingest\]'"):
        read_protobuf_schema(PROTO, "order.proto", None)
