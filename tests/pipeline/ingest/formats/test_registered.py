"""Schemas from a registry over HTTP: frames, evolution, and what is refused."""

import io
import json

import fastavro
import pyarrow as pa
import pytest

from klamm.errors import ConfigError, UnavailableError
from klamm.pipeline.ingest import registry as client
from klamm.pipeline.ingest.formats.choice import choose_format
from klamm.pipeline.ingest.options import IngestOptions, TableTarget
from klamm.pipeline.ingest.registry import Registry
from tests.pipeline.ingest.formats.test_protobuf import PROTO, order  # noqa: F401
from tests.pipeline.ingest.registry_server import serving

V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "old", "type": ["null", "string"]}],
}
V2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": "string", "default": ""},
    ],
}
BROKEN = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}],
}


@pytest.fixture
def registry():
    with serving() as found:
        yield found


def options(registry, format="avro", **more):
    return IngestOptions(
        topics=("orders",),
        to=TableTarget("parquet", "nowhere"),
        bootstrap_servers="",
        format=format,
        registry=registry.url,
        **more,
    )


def framed(schema_id, payload):
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def avro(schema, schema_id, record):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return framed(schema_id, out.getvalue())


def values(*each):
    return pa.array(list(each), pa.binary())


def test_records_of_several_schemas_are_rows_of_one_table(registry):
    first, second = registry.register("orders-value", V1), registry.register("orders-value", V2)
    sample = values(avro(V1, first, {"id": 1, "old": "a"}))
    chosen = choose_format(options(registry), None, lambda: sample)
    batch = values(
        avro(V2, second, {"id": 2**40, "note": "n"}),
        avro(V1, first, {"id": 1, "old": "a"}),
        b"no frame",
        framed(first, b"\xff"),
    )
    before = chosen.parser.parse(batch)
    assert before.unknown_schemas == {second}
    chosen.learn(before.unknown_schemas)
    parsed = chosen.parser.parse(batch)
    assert parsed.rows.to_pylist() == [
        {"id": 2**40, "old": None, "note": "n"},
        {"id": 1, "old": "a", "note": None},
    ]
    assert parsed.kept.tolist() == [0, 1]
    assert parsed.bad[2] == "Avro: the value does not begin with the frame of a registry"
    assert parsed.bad[3].startswith("Avro: ")
    assert [each.name for each in chosen.schema][:3] == ["id", "old", "note"]


def test_a_change_that_avro_forbids_is_refused_by_name(registry):
    first, third = registry.register("orders-value", V1), registry.register("orders-value", BROKEN)
    sample = values(avro(V1, first, {"id": 1, "old": None}))
    chosen = choose_format(options(registry), None, lambda: sample)
    with pytest.raises(ConfigError, match="Field id: int cannot become string"):
        chosen.learn({third})


def test_an_id_is_asked_for_once_and_a_checkpoint_needs_no_registry(registry):
    first = registry.register("orders-value", V1)
    sample = values(avro(V1, first, {"id": 1, "old": None}))
    chosen = choose_format(options(registry), None, lambda: sample)
    chosen.learn({first})
    assert registry.requests.count(f"/schemas/ids/{first}") == 1
    kept = json.loads(json.dumps(chosen.to_json()))
    registry.requests.clear()
    again = choose_format(options(registry), kept, lambda: sample)
    assert again.parser.parse(sample).rows.to_pylist() == [{"id": 1, "old": None}]
    assert registry.requests == []


def test_without_records_the_newest_schema_of_the_topic_counts(registry):
    registry.register("orders-value", V1)
    chosen = choose_format(options(registry), None, lambda: values())
    assert chosen.schema.names[:2] == ["id", "old"]


def test_references_are_followed(registry):
    registry.register(
        "address", {"type": "record", "name": "A", "fields": [{"name": "c", "type": "string"}]}
    )
    whole = {"type": "record", "name": "O", "fields": [{"name": "a", "type": "A"}]}
    reference = {"name": "A", "subject": "address", "version": 1}
    registry.register("orders-value", whole, references=[reference])
    chosen = choose_format(options(registry), None, lambda: values())
    assert str(chosen.schema.field("a").type) == "struct<c: string>"


def test_protobuf_frames_name_the_message(registry, order):  # noqa: F811
    number = registry.register("orders-value", PROTO, "PROTOBUF")
    made = order[1](id=5, name="x").SerializeToString()
    first = framed(number, b"\0" + made)
    chosen = choose_format(options(registry, "protobuf"), None, lambda: values(first))
    in_full = framed(number, bytes([2, 0]) + made)
    nested = framed(number, bytes([4, 0, 0]))
    parsed = chosen.parser.parse(values(first, in_full, nested))
    assert [each["id"] for each in parsed.rows.to_pylist()] == [5, 5]
    assert parsed.bad == {2: "Protobuf: the message is shop.Order.Line, not shop.Order"}


def test_json_with_frames(registry):
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    number = registry.register("orders-value", schema, "JSON")
    good = framed(number, b'{"id":5}')
    chosen = choose_format(options(registry, "json"), None, lambda: values(good))
    parsed = chosen.parser.parse(values(good, b'{"id":5}', framed(number, b"x")))
    assert parsed.rows.to_pylist() == [{"id": 5}]
    assert sorted(parsed.bad) == [1, 2]


def test_keys_with_frames_name_the_rows_of_tombstones(registry):
    registry.register("orders-key", '"long"')
    first = registry.register("orders-value", V1)
    sample = values(avro(V1, first, {"id": 1, "old": None}))
    chosen = choose_format(options(registry, mode="upsert", key=("id",)), None, lambda: sample)
    assert chosen.key_parser.parse(values(framed(1, b"\x0a"))).rows.to_pylist() == [{"id": 5}]


def test_a_schema_of_another_type_is_refused(registry):
    registry.register("orders-value", PROTO, "PROTOBUF")
    with pytest.raises(ConfigError, match="is of type PROTOBUF, and the format is avro"):
        choose_format(options(registry), None, lambda: values())


def test_a_topic_without_schema_is_refused(registry):
    with pytest.raises(ConfigError, match="no subject orders-value"):
        choose_format(options(registry), None, lambda: values())


def test_records_of_an_id_that_the_registry_does_not_have_are_bad(registry, monkeypatch):
    monkeypatch.setattr(client, "_PAUSE_S", 0.01)
    number = registry.register("orders-value", V1)
    good = avro(V1, number, {"id": 1, "old": None})
    chosen = choose_format(options(registry), None, lambda: values(framed(77, b""), good))
    found = chosen.parser.parse(values(good, framed(77, b"x"), framed(78, b"y"), good))
    assert found.bad == {1: "Avro: the registry has no schema 77"}
    assert found.unknown_schemas == {78}
    chosen.learn({78})
    found = chosen.parser.parse(values(good, framed(77, b"x"), framed(78, b"y"), good))
    assert found.kept.tolist() == [0, 3]
    assert found.bad[2] == "Avro: the registry has no schema 78"
    assert found.unknown_schemas == set()


def test_a_schema_that_a_registry_hears_of_late_is_waited_for(registry, monkeypatch):
    def register(_):
        registry.register("orders-value", V1)

    monkeypatch.setattr(client.time, "sleep", register)
    assert Registry(registry.url).by_ids({1})[1].type == "AVRO"
    assert registry.requests == ["/schemas/ids/1"] * 2


def test_a_registry_that_fails_for_a_moment_is_asked_again(registry, monkeypatch):
    monkeypatch.setattr(client, "_PAUSE_S", 0.01)
    number = registry.register("orders-value", V1)
    registry.failures_left = 2
    assert Registry(registry.url).by_ids({number})[number].type == "AVRO"


def test_a_registry_that_is_down_is_unavailable(registry, monkeypatch):
    monkeypatch.setattr(client, "_PAUSE_S", 0.01)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        Registry("http://127.0.0.1:1").by_ids({1})


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="is not an address"):
        Registry("registry:8081")
