"""The records of the metadata log of a KRaft quorum, as far as a history is made of them.

A record's value is the version of the frame (1), the type of the record, its version, and then its
fields, all in flexible form. Types that are only named here are not decoded.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.cleaning import cleaned
from klamm.protocol.codec.primitives import decode_uvarint
from klamm.protocol.codec.soundness import check_sound
from klamm.protocol.schema._kio import InvalidUnicode, entity_reader
from klamm.protocol.schema.declare import Declaration, Field, array, field, struct
from klamm.protocol.schema.lookup import Reader

_FRAME_VERSION: Final = 1
#: The version and the type.
_CONTROL_KEY: Final = Struct(">hh")
#: How LeaderChangeMessage and SnapshotHeaderRecord begin in all versions: version, value.
_LEADER_CHANGE: Final = Struct(">hi")
_SNAPSHOT_HEADER: Final = Struct(">hq")
#: In a PartitionChangeRecord: the leader stays.
LEADER_UNCHANGED: Final = -2
#: In a PartitionChangeRecord: the recovery state stays.
RECOVERY_UNCHANGED: Final = -1


class MetadataRecordType(IntEnum):
    """The number that a record begins with; the names are Kafka's."""

    REGISTER_BROKER = 0
    UNREGISTER_BROKER = 1
    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    FENCE_BROKER = 7
    UNFENCE_BROKER = 8
    REMOVE_TOPIC = 9
    DELEGATION_TOKEN = 10
    USER_SCRAM_CREDENTIAL = 11
    FEATURE_LEVEL = 12
    CLIENT_QUOTA = 14
    PRODUCER_IDS = 15
    BROKER_REGISTRATION_CHANGE = 17
    ACCESS_CONTROL_ENTRY = 18
    REMOVE_ACCESS_CONTROL_ENTRY = 19
    NO_OP = 20
    ZK_MIGRATION_STATE = 21
    REMOVE_USER_SCRAM_CREDENTIAL = 22
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25
    REMOVE_DELEGATION_TOKEN = 26
    REGISTER_CONTROLLER = 27
    CLEAR_ELR = 28
    UNREGISTER_CONTROLLER = 29


_T = MetadataRecordType


class ControlRecordType(IntEnum):
    """The type in the key of a control record of the quorum."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class MetadataRecord(NamedTuple):
    """A record of the metadata log; `body` is None if its type is not decoded."""

    type: int
    version: int
    body: Any

    @property
    def name(self) -> str:
        """Kafka's name of the type, or its number."""
        return record_name(self.type)


def record_name(type_: int) -> str:
    """Kafka's name of a type of records, or its number if klamm does not know it."""
    try:
        words = MetadataRecordType(type_).name
    except ValueError:
        return f"type {type_}"
    return f"{words.title().replace('_', '')}Record"


def _record(type_: MetadataRecordType, last: int, *fields: Field) -> Declaration:
    return Declaration(
        type_, "data", struct(record_name(type_), *fields), first=0, last=last, first_flexible=0
    )


def _unchanged_ids(name: str, tag: int, versions: str = "0+") -> Field:
    """Ids of brokers in a tagged field, null if they are as before."""
    return array(name, "int32", versions, nullable=True, tag=tag, default=None)


#: What is decoded, by type.
DECLARED_RECORDS: Final[Mapping[int, Declaration]] = MappingProxyType(
    {
        each.key: each
        for each in (
            _record(
                _T.REGISTER_BROKER,
                3,
                field("broker_id", "int32"),
                field("is_migrating_zk_broker", "bool", "2+"),
                field("incarnation_id", "uuid"),
                field("broker_epoch", "int64"),
                array(
                    "end_points",
                    struct(
                        "BrokerEndpoint",
                        field("name", "string"),
                        field("host", "string"),
                        field("port", "uint16"),
                        field("security_protocol", "int16"),
                    ),
                ),
                array(
                    "features",
                    struct(
                        "BrokerFeature",
                        field("name", "string"),
                        field("min_supported_version", "int16"),
                        field("max_supported_version", "int16"),
                    ),
                ),
                field("rack", "string", nullable=True),
                field("fenced", "bool"),
                field("in_controlled_shutdown", "bool", "1+"),
                array("log_dirs", "uuid", "3+", tag=0, default=()),
            ),
            _record(
                _T.UNREGISTER_BROKER,
                0,
                field("broker_id", "int32"),
                field("broker_epoch", "int64"),
            ),
            _record(_T.TOPIC, 0, field("name", "string"), field("topic_id", "uuid")),
            _record(
                _T.PARTITION,
                2,
                field("partition_id", "int32"),
                field("topic_id", "uuid"),
                array("replicas", "int32"),
                array("isr", "int32"),
                array("removing_replicas", "int32"),
                array("adding_replicas", "int32"),
                field("leader", "int32"),
                field("leader_recovery_state", "int8", tag=0, default=0),
                field("leader_epoch", "int32"),
                field("partition_epoch", "int32"),
                array("directories", "uuid", "1+"),
                _unchanged_ids("eligible_leader_replicas", 1, "2+"),
                _unchanged_ids("last_known_elr", 2, "2+"),
            ),
            _record(
                _T.CONFIG,
                0,
                field("resource_type", "int8"),
                field("resource_name", "string"),
                field("name", "string"),
                field("value", "string", nullable=True),
            ),
            _record(
                _T.PARTITION_CHANGE,
                2,
                field("partition_id", "int32"),
                field("topic_id", "uuid"),
                _unchanged_ids("isr", 0),
                field("leader", "int32", tag=1, default=LEADER_UNCHANGED),
                _unchanged_ids("replicas", 2),
                _unchanged_ids("removing_replicas", 3),
                _unchanged_ids("adding_replicas", 4),
                field("leader_recovery_state", "int8", tag=5, default=RECOVERY_UNCHANGED),
                array("directories", "uuid", "1+", nullable=True, tag=8, default=None),
                _unchanged_ids("eligible_leader_replicas", 6, "2+"),
                _unchanged_ids("last_known_elr", 7, "2+"),
            ),
            _record(_T.FENCE_BROKER, 0, field("id", "int32"), field("epoch", "int64")),
            _record(_T.UNFENCE_BROKER, 0, field("id", "int32"), field("epoch", "int64")),
            _record(_T.REMOVE_TOPIC, 0, field("topic_id", "uuid")),
            _record(
                _T.BROKER_REGISTRATION_CHANGE,
                2,
                field("broker_id", "int32"),
                field("broker_epoch", "int64"),
                # -1: unfenced, 0: as before, 1: fenced.
                field("fenced", "int8", tag=0, default=0),
                # 0: as before, 1: in controlled shutdown.
                field("in_controlled_shutdown", "int8", "1+", tag=1, default=0),
                array("log_dirs", "uuid", "2+", tag=2, default=()),
            ),
        )
    }
)


def decode_metadata_record(value: bytes) -> MetadataRecord:
    """Decode the value of a record of the metadata log.

    A version that is newer than those declared is refused: its fields are not known.
    """
    frame, at = decode_uvarint(value, 0)
    type_, at = decode_uvarint(value, at)
    version, at = decode_uvarint(value, at)
    if frame != _FRAME_VERSION:
        raise RemoteProtocolError(
            f"a record of the metadata log has frame version {frame}, not {_FRAME_VERSION}"
        )
    declared = DECLARED_RECORDS.get(type_)
    if declared is None:
        return MetadataRecord(type_, version, None)
    if version not in declared.versions:
        raise RemoteProtocolError(
            f"a {record_name(type_)} has version {version}; klamm reads 0 to {declared.last}"
        )
    try:
        return MetadataRecord(type_, version, _read(declared, version, value, at))
    except Exception as error:  # kio raises a handful of unrelated types for bytes it cannot read
        raise RemoteProtocolError(f"a {record_name(type_)} cannot be read: {error}") from error


def _read(declared: Declaration, version: int, value: bytes, at: int) -> Any:
    view = memoryview(value)
    read = _reader(declared, version)
    try:
        return read(view, at)[0]
    except (KeyError, InvalidUnicode):  # a tag that is not declared, or no UTF-8
        return read(memoryview(cleaned(declared.schema(version), view, at)), 0)[0]


@cache
def _reader(declared: Declaration, version: int) -> Reader:
    schema = declared.schema(version)
    read = entity_reader(schema)

    def read_checked(view: memoryview, at: int) -> tuple[Any, int]:
        check_sound(schema, view, at)
        body, size = read(view, at)
        return body, size

    return read_checked


def decode_control_type(key: bytes | None) -> int:
    """The type of a control record, from its key."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise RemoteProtocolError("a control record has no type")
    _, type_ = _CONTROL_KEY.unpack_from(key)
    return int(type_)


def decode_leader_change(value: bytes | None) -> int:
    """The id of the new leader, from the value of a LEADER_CHANGE record."""
    return _second_field(_LEADER_CHANGE, value)


def decode_snapshot_timestamp(value: bytes | None) -> int:
    """The timestamp of the last record in a snapshot, from the value of its SNAPSHOT_HEADER."""
    return _second_field(_SNAPSHOT_HEADER, value)


def _second_field(layout: Struct, value: bytes | None) -> int:
    if value is None or len(value) < layout.size:
        raise RemoteProtocolError("a control record is cut short")
    return int(layout.unpack_from(value)[1])
