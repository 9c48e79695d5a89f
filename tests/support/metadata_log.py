"""A metadata log of KRaft made by hand: records in batches, as a controller appends them."""

import struct
import uuid
from pathlib import Path
from typing import Any

from klamm.protocol.codec.encoding import encode_parts
from klamm.protocol.codec.primitives import encode_uvarint
from klamm.protocol.records import Batch, Record, build_batch
from klamm.protocol.schema.metadata_records import (
    DECLARED_RECORDS,
    ControlRecordType,
    MetadataRecordType,
)

T = MetadataRecordType
SEGMENT = "00000000000000000000.log"


def topic_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=1000 + number)


def value_of(type_: int, version: int | None = None, **values: Any) -> bytes:
    """The value of a record; fields that are not given are as in an unchanged registration."""
    declared = DECLARED_RECORDS.get(type_)
    parts: list[bytes] = []
    if declared is None:
        version, parts = version or 0, [b"\0"]
    else:
        version = declared.last if version is None else version
        encode_parts(declared.schema(version), values, parts.append)
    return b"".join([b"\x01", encode_uvarint(type_), encode_uvarint(version), *parts])


def registered(broker: int, epoch: int = 0, *, fenced: bool = True) -> bytes:
    return value_of(
        T.REGISTER_BROKER,
        broker_id=broker,
        is_migrating_zk_broker=False,
        incarnation_id=uuid.UUID(int=broker),
        broker_epoch=epoch,
        end_points=[
            {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092, "security_protocol": 0}
        ],
        features=[],
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
    )


def changed_broker(broker: int, *, fenced: int = 0, shutting_down: int = 0) -> bytes:
    return value_of(
        T.BROKER_REGISTRATION_CHANGE,
        broker_id=broker,
        broker_epoch=0,
        fenced=fenced,
        in_controlled_shutdown=shutting_down,
    )


def created_topic(number: int, name: str) -> bytes:
    return value_of(T.TOPIC, name=name, topic_id=topic_id(number))


def created_partition(topic: int, partition: int, replicas: list[int], **values: Any) -> bytes:
    given = {
        "partition_id": partition,
        "topic_id": topic_id(topic),
        "replicas": replicas,
        "isr": replicas,
        "removing_replicas": [],
        "adding_replicas": [],
        "leader": replicas[0],
        "leader_epoch": 0,
        "partition_epoch": 0,
        "directories": [],
    }
    return value_of(T.PARTITION, **given | values)


def changed_partition(topic: int, partition: int, **values: Any) -> bytes:
    return value_of(T.PARTITION_CHANGE, partition_id=partition, topic_id=topic_id(topic), **values)


class LogBuilder:
    """Batches one after the other; each is a second later than the one before."""

    def __init__(self, epoch: int = 1, offset: int = 0) -> None:
        self.epoch = epoch
        self.offset = offset
        self.at_ms = 1_700_000_000_000
        self.batches: list[Batch] = []

    def append(self, *values: bytes) -> Batch:
        """A batch of metadata records."""
        return self._add([Record(None, value, self.at_ms) for value in values])

    def elect(self, leader: int, epoch: int) -> Batch:
        """A LEADER_CHANGE."""
        self.epoch = epoch
        key = struct.pack(">hh", 0, ControlRecordType.LEADER_CHANGE)
        value = struct.pack(">hi", 0, leader) + b"\x01\x01\x00"
        return self._add([Record(key, value, self.at_ms)], control=True)

    def idle(self) -> Batch:
        return self.append(value_of(T.NO_OP))

    def _add(self, records: list[Record], *, control: bool = False) -> Batch:
        batch = build_batch(
            records, base_offset=self.offset, leader_epoch=self.epoch, control=control
        )
        self.offset = batch.header.last_offset + 1
        self.at_ms += 1000
        self.batches.append(batch)
        return batch

    def snapshot(self, *values: bytes) -> bytes:
        """The bytes of a checkpoint with these records."""
        header_key = struct.pack(">hh", 0, ControlRecordType.SNAPSHOT_HEADER)
        header = Record(header_key, struct.pack(">hqb", 0, self.at_ms, 0), self.at_ms)
        batches = [
            build_batch([header], control=True),
            build_batch([Record(None, value, self.at_ms) for value in values], base_offset=1),
        ]
        return b"".join(batch.data for batch in batches)

    def bytes(self) -> bytes:
        return b"".join(batch.data for batch in self.batches)

    def write(self, directory: Path, name: str = SEGMENT) -> Path:
        """Write the batches to a segment."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(self.bytes())
        return directory
