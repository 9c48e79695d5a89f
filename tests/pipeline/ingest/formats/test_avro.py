"""Avro by columns, beside fastavro record by record."""

import datetime
import decimal
import io
import json
import uuid

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import ConfigError
from klamm.pipeline.ingest.formats.avro import AvroParser
from klamm.pipeline.ingest.formats.avro_schema import (
    check_can_read,
    parse_avro_schema,
)

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "name", "type": "string"},
        {"name": "small", "type": "int"},
        {"name": "ratio", "type": "float"},
        {"name": "paid", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "address",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Address",
                    "fields": [
                        {"name": "city", "type": "string"},
                        {"name": "lines", "type": {"type": "array", "items": ["null", "int"]}},
                    ],
                },
            ],
        },
        {"name": "other", "type": ["null", "Address", "string"]},
    ],
}
address = st.fixed_dictionaries(
    {
        "city": st.text(max_size=20),
        "lines": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
    }
)
orders = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "amount": st.none() | st.floats(allow_nan=False),
        "name": st.text(max_size=200),
        "small": st.integers(-(2**31), 2**31 - 1),
        "ratio": st.floats(width=32, allow_nan=False),
        "paid": st.booleans(),
        "raw": st.binary(max_size=50),
        "state": st.sampled_from(["NEW", "DONE"]),
        "tags": st.lists(st.text(max_size=5), max_size=4),
        "counts": st.dictionaries(st.text(max_size=3), st.integers(-5, 2**40), max_size=3),
        "address": st.none() | address,
        "other": st.none() | st.tuples(st.just("shop.Address"), address) | st.text(max_size=4),
    }
)


def encoded(schema, record):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def parser(schema):
    return AvroParser(parse_avro_schema(json.dumps(schema), "order.avsc"))


def as_row(record):
    other = record["other"]
    if other is not None:
        is_text = isinstance(other, str)
        other = {
            "member0": None if is_text else other[1],
            "member1": other if is_text else None,
        }
    return {**record, "counts": list(record["counts"].items()), "other": other}


@given(st.lists(orders, max_size=8))
def test_columns_are_what_fastavro_reads_record_by_record(records):
    values = pa.array([encoded(ORDER, each) for each in records], pa.binary())
    parsed = parser(ORDER).parse(values)
    assert not parsed.bad
    assert parsed.rows.to_pylist() == [as_row(each) for each in records]
    parsed.rows.validate(full=True)


@given(st.lists(orders, min_size=3, max_size=5), st.data())
def test_a_record_that_is_cut_is_bad_and_its_neighbours_are_not(records, data):
    values = [encoded(ORDER, each) for each in records]
    at = data.draw(st.integers(0, len(values) - 1))
    values[at] = values[at][: data.draw(st.integers(0, len(values[at]) - 1))]
    parsed = parser(ORDER).parse(pa.array(values, pa.binary()))
    assert list(parsed.bad) == [at]
    assert parsed.bad[at].startswith("Avro: ")
    assert parsed.rows.to_pylist() == [as_row(r) for i, r in enumerate(records) if i != at]
    assert parsed.kept.tolist() == [each for each in range(len(values)) if each != at]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_are_rows_or_bad(values):
    parsed = parser(ORDER).parse(pa.array(values, pa.binary()))
    parsed.rows.validate(full=True)
    assert sorted([*parsed.kept.tolist(), *parsed.bad]) == list(range(len(values)))


def test_logical_types_become_times_days_and_decimals():
    def logical(kind, name, **more):
        return {"type": kind, "logicalType": name, **more}

    schema = {
        "type": "record",
        "name": "T",
        "fields": [
            {"name": "day", "type": logical("int", "date")},
            {"name": "ms", "type": logical("long", "timestamp-millis")},
            {"name": "us", "type": ["null", logical("long", "timestamp-micros")]},
            {"name": "local", "type": logical("long", "local-timestamp-millis")},
            {"name": "price", "type": logical("bytes", "decimal", precision=12, scale=2)},
            {
                "name": "fee",
                "type": {
                    "type": "fixed",
                    "name": "F",
                    "size": 6,
                    "logicalType": "decimal",
                    "precision": 10,
                    "scale": 3,
                },
            },
            {"name": "id", "type": logical("string", "uuid")},
        ],
    }
    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=datetime.UTC)
    record = {
        "day": datetime.date(2024, 5, 6),
        "ms": at,
        "us": at.replace(microsecond=123456),
        "local": at.replace(tzinfo=None),
        "price": decimal.Decimal("-12.34"),
        "fee": decimal.Decimal("1.005"),
        "id": uuid.UUID(int=5),
    }
    values = pa.array([encoded(schema, record)] * 2, pa.binary())
    (row, _) = parser(schema).parse(values).rows.to_pylist()
    assert row == {**record, "id": str(record["id"])}


def test_a_block_of_an_array_may_have_its_size_before_it():
    schema = {
        "type": "record",
        "name": "T",
        "fields": [{"name": "a", "type": {"type": "array", "items": "int"}}],
    }
    value = bytes([3, 4, 2, 4, 2, 6, 0])  # -2 items in 2 bytes: 1, 2; then 1 item: 3
    assert parser(schema).parse(pa.array([value], pa.binary())).rows.to_pylist() == [
        {"a": [1, 2, 3]}
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is not an Avro schema"),
        ('"string"', "rows of a table need a record"),
        ('{"type":"record","name":"A","fields":[{"name":"x","type":"B"}]}', "no type B"),
        ('{"type":"record","name":"A","fields":[{"name":"x","type":["null","A"]}]}', "itself"),
    ],
)
def test_a_schema_that_is_none_is_refused(text, what):
    with pytest.raises(ConfigError, match=what):
        parse_avro_schema(text, "order.avsc")


def record(*fields):
    return parse_avro_schema(
        json.dumps({"type": "record", "name": "R", "fields": list(fields)}), "r.avsc"
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({"name": "a", "type": "int"}, {"name": "a", "type": "long"}, None),
        ({"name": "a", "type": "float"}, {"name": "a", "type": "double"}, None),
        ({"name": "a", "type": "int"}, {"name": "a", "type": ["null", "int"]}, None),
        ({"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}, None),
        ({"name": "a", "type": "int"}, {"name": "b", "type": "int", "aliases": ["a"]}, None),
        ({"name": "a", "type": "int"}, {"name": "b", "type": "int"}, "b was added without"),
        ({"name": "a", "type": "long"}, {"name": "a", "type": "int"}, "a: long cannot become int"),
        ({"name": "a", "type": ["null", "int"]}, {"name": "a", "type": "int"}, "a: null cannot"),
        ({"name": "a", "type": "string"}, {"name": "a", "type": "int"}, "a: string cannot"),
    ],
)
def test_changes_follow_avros_rules_and_others_are_refused_by_name(old, new, reason):
    if reason is None:
        check_can_read(record(new), record(old))
    else:
        with pytest.raises(ConfigError, match=reason):
            check_can_read(record(new), record(old))
