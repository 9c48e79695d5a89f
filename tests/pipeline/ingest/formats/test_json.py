"""JSON by Arrow, beside the json module record by record."""

import datetime
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import ConfigError
from klamm.pipeline.ingest.formats.json import JsonParser, infer_fields
from klamm.pipeline.ingest.formats.json_schema import read_json_schema

FIELDS = pa.struct(
    [
        ("id", pa.int64()),
        ("amount", pa.float64()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("city", pa.string()), ("zip", pa.int64())])),
    ]
)
GOOD = {"id": 1, "amount": 1.5, "name": "ä", "tags": ["x"], "at": {"city": "B", "zip": 5}}
rows = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "amount": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "name": st.none() | st.text(max_size=9),
        "tags": st.none() | st.lists(st.text(max_size=3), max_size=3),
        "at": st.none() | st.fixed_dictionaries({}, optional={"city": st.text(max_size=4)}),
        "more": st.integers() | st.text(max_size=3),
    },
)


def parse(*values, fields=FIELDS):
    return JsonParser(fields).parse(pa.array(list(values), pa.binary()))


def as_row(value):
    at = value.get("at")
    return {
        **{each.name: value.get(each.name) for each in FIELDS},
        "at": None if at is None else {"city": at.get("city"), "zip": at.get("zip")},
    }


@given(st.lists(rows, max_size=6))
def test_rows_are_what_the_json_module_reads(values):
    parsed = parse(*(json.dumps(each, indent=1).encode() for each in values))
    assert not parsed.bad
    assert parsed.rows.to_pylist() == [as_row(each) for each in values]


@pytest.mark.parametrize(
    "bad",
    [
        b"nope",
        b"",
        b" ",
        b"null",
        b"5",
        b"[1]",
        b'{"id":1',
        b'{"id":1}{"id":2}',
        b'{"id":1}}\n{"_":{"id":2}',
        b'{"id":1}]}\n{"_":[{"id":2}',
        b'{"id":1},{"id":2}',
        b'{"id":1},"id":{}',
        b'{"id":1}, "b": {}',
        b'{"id":1},"_":{"id":2}',
        b'{"id":1}],"b":[{}',
        b'{"id":1} ] , "_": [ {"id":2}',
        b'{"id":1} x {}',
        b'"}',
        b'{"id":"x"}',
        b'{"id":1.5}',
        b'{"id":99999999999999999999}',
        b'{"name":5}',
        b'{"id":1,"id":2}',
        b'{"name":"\xff"}',
        b"\x00\x01\x02",
    ],
)
def test_one_bad_value_is_set_aside_with_a_reason_and_its_neighbours_are_kept(bad):
    good = json.dumps(GOOD).encode()
    parsed = parse(good, good, bad, good)
    assert list(parsed.bad) == [2]
    assert parsed.bad[2].startswith("JSON")
    assert " in row " not in parsed.bad[2]
    assert parsed.kept.tolist() == [0, 1, 3]
    assert parsed.rows.to_pylist() == [GOOD] * 3


@given(st.lists(st.binary(max_size=8) | st.just(b'{"id":1}') | st.just(b'{"id":""}'), max_size=20))
def test_any_bytes_are_rows_or_bad(values):
    parsed = parse(*values)
    assert sorted([*parsed.kept.tolist(), *parsed.bad]) == list(range(len(values)))
    for at, row in zip(parsed.kept.tolist(), parsed.rows.to_pylist(), strict=True):
        assert json.loads(values[at]).get("id") == row["id"]


@pytest.mark.parametrize("behind", [b',"b":{}', b'],"b":[{}', b"{}", b',{"id":2}', b" x{}"])
@pytest.mark.parametrize("fields", [FIELDS, pa.struct([("m", pa.map_(pa.string(), pa.int64()))])])
def test_text_behind_a_value_makes_it_bad_whichever_way_it_is_read(behind, fields):
    values = [b"{}", b"{}" + behind, b'{"at":[{}],"b":1}' if fields != FIELDS else b"{}"]
    parsed = parse(*values, fields=fields)
    assert list(parsed.bad) == [1]
    with pytest.raises(ConfigError, match="No schema can be inferred"):
        infer_fields(pa.array([b'{"id":1}' + behind], pa.binary()))


def test_arrays_of_objects_in_front_of_other_fields_are_read():
    fields = pa.struct([("l", pa.list_(pa.struct([("x", pa.int64())]))), ("id", pa.int64())])
    value = {"l": [{"x": 1}, {"x": 2}], "id": 3}
    parsed = parse(json.dumps(value).encode(), b'{"l":[{}],"id":4},"b":{}', fields=fields)
    assert parsed.rows.to_pylist() == [value]
    assert list(parsed.bad) == [1]


def test_a_value_that_pretends_to_be_two_rows_blames_no_other():
    trick, good = b'{"id":1}]}\n{"_":[{"id":2}', b'{"id":5}'
    parsed = parse(trick, good, b"nope", good, good)
    assert sorted(parsed.bad) == [0, 2]
    assert parsed.kept.tolist() == [1, 3, 4]


def test_thousands_with_bad_ones_among_them_keep_their_places():
    values = [json.dumps({"id": n}).encode() for n in range(5000)]
    for at in range(7, 5000, 500):
        values[at] = b'{"id": 1.5}' if at % 1000 == 7 else b"nope"
    parsed = parse(*values)
    assert sorted(parsed.bad) == list(range(7, 5000, 500))
    assert [each["id"] for each in parsed.rows.to_pylist()] == parsed.kept.tolist()


def test_times_days_decimals_and_maps_are_read():
    fields = pa.struct(
        [
            ("t", pa.timestamp("us", tz="UTC")),
            ("d", pa.date32()),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    value = b'{"t":"2024-05-06T07:08:09Z","d":"2024-05-06","m":{"a":1}}'
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    day = datetime.date(2024, 5, 6)
    (row,) = parse(value, fields=fields).rows.to_pylist()
    assert row == {"t": moment, "d": day, "m": [("a", 1)]}
    without_map = pa.struct([fields.field(0), fields.field(1)])
    parsed = parse(value, b'{"d":"soon"}', fields=without_map)
    assert parsed.rows.to_pylist() == [{"t": moment, "d": day}]
    assert list(parsed.bad) == [1]


def test_fields_are_inferred_from_all_samples():
    values = [
        b'{"a":1,"t":"2024-05-06T07:08:09Z","n":null,"o":{"x":1}}',
        b"garbage",
        b'{"a":2.5,"l":[1],"o":{"y":"z"},"e":{}}',
    ]
    found = infer_fields(pa.array(values, pa.binary()))
    assert {each.name: str(each.type) for each in found} == {
        "a": "double",
        "t": "string",
        "n": "string",
        "o": "struct<x: int64, y: string>",
        "l": "list<item: int64>",
        "e": "string",
    }


def test_without_an_object_nothing_is_inferred():
    with pytest.raises(ConfigError, match="No schema can be inferred"):
        infer_fields(pa.array([b"x", b"1"], pa.binary()))


def test_a_json_schema_is_columns():
    text = json.dumps(
        {
            "type": "object",
            "definitions": {"place": {"type": "object", "properties": {"c": {"type": "string"}}}},
            "properties": {
                "id": {"type": "integer"},
                "amount": {"type": ["null", "number"]},
                "at": {"type": "string", "format": "date-time"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "place": {"$ref": "#/definitions/place"},
                "more": {"type": "object", "additionalProperties": {"type": "integer"}},
                "kind": {"oneOf": [{"type": "null"}, {"enum": ["a", "b"]}]},
            },
        }
    )
    assert {each.name: str(each.type) for each in read_json_schema(text, "s.json")} == {
        "id": "int64",
        "amount": "double",
        "at": "timestamp[us, tz=UTC]",
        "tags": "list<item: string>",
        "place": "struct<c: string>",
        "more": "map<string, int64>",
        "kind": "string",
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is not JSON"),
        ("{}", "neither a JSON Schema"),
        ('{"properties":{"a":{"type":["string","integer"]}}}', "a has no single type"),
        ('{"properties":{"a":{"$ref":"#/x/y"}}}', "refers to #/x/y"),
        ('{"type":"struct","fields":[{"name":"a","type":"nope"}]}', "not Spark's JSON"),
    ],
)
def test_a_schema_that_is_none_is_refused(text, what):
    with pytest.raises(ConfigError, match=what):
        read_json_schema(text, "s.json")
