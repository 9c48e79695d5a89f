"""Records of the metadata log, as Apache Kafka's own classes write them."""

import base64
import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.primitives import encode_tagged
from klamm.protocol.schema.fields import wire_fields
from klamm.protocol.schema.metadata_records import (
    DECLARED_RECORDS,
    MetadataRecordType,
    decode_control_type,
    decode_leader_change,
    decode_metadata_record,
    decode_snapshot_timestamp,
    record_name,
)

#: Values in every declared version, and what `MetadataRecordSerde` of Apache Kafka 3.9.1 wrote for
#: them; the names of the fields are those of Kafka's own JSON, which leaves tagged ones out that
#: have their default.
SAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parent / "metadata_records.jsonl").read_text().splitlines()
]
#: The types of Apache Kafka 3.9.1 (`MetadataRecordType`), and two of 4.0 and later.
TYPES = {
    "RegisterBrokerRecord": 0,
    "UnregisterBrokerRecord": 1,
    "TopicRecord": 2,
    "PartitionRecord": 3,
    "ConfigRecord": 4,
    "PartitionChangeRecord": 5,
    "FenceBrokerRecord": 7,
    "UnfenceBrokerRecord": 8,
    "RemoveTopicRecord": 9,
    "DelegationTokenRecord": 10,
    "UserScramCredentialRecord": 11,
    "FeatureLevelRecord": 12,
    "ClientQuotaRecord": 14,
    "ProducerIdsRecord": 15,
    "BrokerRegistrationChangeRecord": 17,
    "AccessControlEntryRecord": 18,
    "RemoveAccessControlEntryRecord": 19,
    "NoOpRecord": 20,
    "ZkMigrationStateRecord": 21,
    "RemoveUserScramCredentialRecord": 22,
    "BeginTransactionRecord": 23,
    "EndTransactionRecord": 24,
    "AbortTransactionRecord": 25,
    "RemoveDelegationTokenRecord": 26,
    "RegisterControllerRecord": 27,
    "ClearElrRecord": 28,
    "UnregisterControllerRecord": 29,
}


def as_kafka_shows(body: Any) -> dict[str, Any]:
    """A decoded struct as Kafka's JSON."""
    shown = {}
    for each in wire_fields(type(body)):
        value = getattr(body, each.name)
        if each.is_tagged and value == each.default:
            continue
        first, *others = each.name.split("_")
        shown[first + "".join(map(str.title, others))] = _shown(value)
    return shown


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes)[:22].decode()
    if hasattr(value, "__dataclass_fields__"):
        return as_kafka_shows(value)
    return value


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s['record']}-{s['version']}")
def test_records_are_read_as_kafka_wrote_them(sample: dict[str, Any]):
    record = decode_metadata_record(bytes.fromhex(sample["bytes"]))
    assert (record.name, record.version) == (sample["record"], sample["version"])
    assert as_kafka_shows(record.body) == sample["values"]


def test_every_declared_version_has_a_sample():
    assert {(TYPES[each["record"]], each["version"]) for each in SAMPLES} == {
        (key, version)
        for key, declared in DECLARED_RECORDS.items()
        for version in declared.versions
    }


def test_types_are_those_of_kafka():
    assert {record_name(each): int(each) for each in MetadataRecordType} == TYPES


@pytest.mark.parametrize(("type_", "name"), [(20, "NoOpRecord"), (99, "type 99")])
def test_types_that_are_not_decoded_have_a_name(type_: int, name: str):
    record = decode_metadata_record(bytes([1, type_, 0]) + b"anything")
    assert (record.name, record.body) == (name, None)


FENCED = bytes.fromhex("010700000000030000000000000009")


def test_a_tag_that_is_not_declared_is_skipped():
    record = decode_metadata_record(FENCED + encode_tagged([(7, b"news")]))
    assert (record.body.id, record.body.epoch) == (3, 9)


@pytest.mark.parametrize("size", range(3, len(FENCED)))
def test_a_record_that_is_cut_short_is_refused(size: int):
    with pytest.raises(RemoteProtocolError, match="a FenceBrokerRecord cannot be read"):
        decode_metadata_record(FENCED[:size])


def test_a_version_that_is_not_declared_is_refused():
    with pytest.raises(RemoteProtocolError, match="a TopicRecord has version 1; klamm reads 0 to"):
        decode_metadata_record(b"\x01\x02\x01")


def test_another_frame_is_refused():
    with pytest.raises(RemoteProtocolError, match="frame version 0, not 1"):
        decode_metadata_record(b"\x00\x02\x00")


def test_control_records_tell_their_type_the_leader_and_the_time_of_a_snapshot():
    assert decode_control_type(struct.pack(">hh", 0, 3)) == 3
    assert decode_leader_change(struct.pack(">hi", 1, 101) + b"\x01\x01\x00") == 101
    assert decode_snapshot_timestamp(struct.pack(">hqb", 0, 1_700_000_000_000, 0)) == 17 * 10**11


@pytest.mark.parametrize("decode", [decode_control_type, decode_leader_change])
@pytest.mark.parametrize("content", [None, b"\0"])
def test_control_records_that_are_cut_short_are_refused(decode: Any, content: bytes | None):
    with pytest.raises(RemoteProtocolError):
        decode(content)
