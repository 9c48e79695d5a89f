import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.protocol.schema._kio import entity_reader
from klamm.protocol.schema.declare import field
from klamm.protocol.schema.fields import wire_fields
from klamm.protocol.schema.leader_and_isr import REQUEST
from klamm.protocol.schema.lookup import DECLARED, message_schema
from tests.support.messages import encode_struct

#: Values in every declared version, and what Apache Kafka 3.9.1's own classes wrote for them.
SAMPLES = [
    json.loads(line) for line in (Path(__file__).parent / "declared.jsonl").read_text().splitlines()
]


def with_uuids(schema: Any, values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no UUIDs: they were written as strings."""
    converted = dict(values)
    for each in wire_fields(schema):
        value = values[each.name]
        if each.kafka_type == "uuid":
            converted[each.name] = UUID(value)
        elif each.struct_type is not None:
            converted[each.name] = [with_uuids(each.struct_type, item) for item in value]
    return converted


def sample_id(sample: dict[str, Any]) -> str:
    return f"{sample['api']}-{sample['version']}-{sample['kind']}"


@pytest.mark.parametrize("sample", SAMPLES, ids=sample_id)
@pytest.mark.rule("API-3a", "CHAN-18", "CHAN-19", "CHAN-20", "CHAN-24", "CHAN-28", "CHAN-29")
def test_declared_messages_are_written_as_kafka_writes_them(sample: dict[str, Any]):
    schema = message_schema(sample["key"], sample["version"], sample["kind"])
    expected = bytes.fromhex(sample["bytes"])
    assert encode_struct(schema, with_uuids(schema, sample["values"])) == expected
    _, size = entity_reader(schema)(expected, 0)
    assert size == len(expected)


def test_every_declared_version_has_a_sample():
    assert {(each["key"], each["version"], each["kind"]) for each in SAMPLES} == {
        (int(key), version, kind)
        for (key, kind), declaration in DECLARED.items()
        for version in declaration.versions
    }


@pytest.mark.parametrize(
    ("versions", "expected"),
    [("0+", [0, 1, 2, 3]), ("2+", [2, 3]), ("0-1", [0, 1]), ("2", [2])],
)
def test_a_field_is_in_the_versions_it_names(versions: str, expected: list[int]):
    declared = field("any", "int32", versions)
    assert [version for version in range(4) if declared.is_in(version)] == expected


def test_a_version_beyond_the_declaration_does_not_exist():
    with pytest.raises(LookupError, match="not declared in version 8"):
        REQUEST.schema(8)
