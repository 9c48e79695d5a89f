"""Consumer groups: their members, their committed offsets, and changes to these."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.client import topics
from klamm.client.admin import Admin, check, partitions_by_topic, suggestion
from klamm.errors import UnavailableError
from klamm.names import LATEST, TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.primitives import Cursor
from klamm.protocol.codes import ErrorCode, KafkaError

_UNKNOWN: Final = -1
_CONSUMER: Final = -1  # as a replica id
_DEAD: Final = "Dead"
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a listing."""

    group: str
    state: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group, and its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The committed offset and the end of one partition; -1 is unknown."""

    topic: str
    partition: int
    offset: int
    end: int
    member_id: str | None

    @property
    def lag(self) -> int:
        return -1 if _UNKNOWN in (self.offset, self.end) else max(0, self.end - self.offset)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members and offsets."""

    group: str
    state: str
    protocol: str
    members: tuple[MemberDescription, ...]
    positions: tuple[GroupOffset, ...]


def list_groups(admin: Admin) -> list[GroupListing]:
    """The groups of all coordinators."""
    listed = []
    for broker in topics.describe(admin, []).brokers:
        response = admin.ask_broker(
            broker.id, ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []}
        )
        check(response.error_code)
        listed += [
            GroupListing(
                each.group_id, getattr(each, "group_state", ""), each.protocol_type, broker.id
            )
            for each in response.groups
        ]
    return sorted(listed, key=lambda each: each.group)


def describe(admin: Admin, group: str) -> GroupDescription:
    """Describe one group; raises if it does not exist."""
    asked = {"groups": [group], "include_authorized_operations": False}
    (found,) = admin.ask_coordinator(group, ApiKey.DESCRIBE_GROUPS, asked).groups
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or found.group_state == _DEAD:
        raise _unknown_group(admin, group)
    check(found.error_code)
    members = tuple(
        MemberDescription(
            each.member_id,
            getattr(each, "group_instance_id", None),
            each.client_id,
            each.client_host,
            _decode_assignment(bytes(each.member_assignment)),
        )
        for each in found.members
    )
    owners = {name: each.member_id for each in members for name in each.assignment}
    committed = committed_offsets(admin, group)
    names = sorted({*committed, *owners})
    ends = offsets_at(admin, names, LATEST)
    positions = tuple(
        GroupOffset(
            *name, committed.get(name, _UNKNOWN), ends.get(name, _UNKNOWN), owners.get(name)
        )
        for name in names
    )
    return GroupDescription(group, found.group_state, found.protocol_data, members, positions)


def delete(admin: Admin, group: str) -> None:
    """Delete a group that has no members."""
    response = admin.ask_coordinator(group, ApiKey.DELETE_GROUPS, {"groups_names": [group]})
    for result in response.results:
        if result.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise _unknown_group(admin, group)
        check(result.error_code)


def committed_offsets(admin: Admin, group: str) -> dict[TopicPartition, int]:
    """The offsets that a group has committed."""
    asked = {"group_id": group, "topics": None, "require_stable": False}
    response = admin.ask_coordinator(group, ApiKey.OFFSET_FETCH, asked)
    check(getattr(response, "error_code", ErrorCode.NONE))
    return {
        TopicPartition(topic.name, each.partition_index): each.committed_offset
        for topic in response.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


def commit_offsets(admin: Admin, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members; creates the group if needed."""
    asked = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": number,
                        "committed_offset": offsets[TopicPartition(topic, number)],
                        "committed_metadata": "",
                    }
                    for number in numbers
                ],
            }
            for topic, numbers in partitions_by_topic(list(offsets)).items()
        ],
    }
    response = admin.ask_coordinator(group, ApiKey.OFFSET_COMMIT, asked)
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                raise KafkaError(
                    ErrorCode.NON_EMPTY_GROUP,
                    f"group {group} has members; stop them before its offsets are changed.",
                )
            check(each.error_code)


def offsets_at(
    admin: Admin, names: Sequence[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """The first offset at or after a point in time, by partition.

    A time after the last record gives the end. Partitions that have no leader, or are gone, are
    left out.
    """

    def attempt() -> dict[TopicPartition, int]:
        view = admin.metadata(sorted({topic for topic, _ in names}))
        leaders: dict[int, list[TopicPartition]] = {}
        for topic in view.topics:
            for each in topic.partitions:
                name = TopicPartition(topic.name, each.partition_index)
                if name in wanted and each.leader_id >= 0:
                    leaders.setdefault(each.leader_id, []).append(name)
        found: dict[TopicPartition, int] = {}
        for leader, led in leaders.items():
            found |= _ask_leader(admin, leader, led, timestamp_ms)
        return found

    if not names:
        return {}
    wanted = set(names)
    found: dict[TopicPartition, int] = admin.retry(attempt, "A leader")
    beyond = [name for name, offset in found.items() if offset < 0]
    if beyond and timestamp_ms >= 0:
        found |= offsets_at(admin, beyond, LATEST)
    return found


def _ask_leader(
    admin: Admin, leader: int, names: Iterable[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    asked = {
        "replica_id": _CONSUMER,
        "isolation_level": 0,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "current_leader_epoch": -1, "timestamp": time_ms}
                    for number in numbers
                ],
            }
            for topic, numbers in partitions_by_topic(list(names)).items()
        ],
        "timeout": admin.timeout_ms,
    }
    response = admin.ask_broker(leader, ApiKey.LIST_OFFSETS, asked)
    found: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for each in topic.partitions:
            check(each.error_code, f"{topic.name}-{each.partition_index}")
            found[TopicPartition(topic.name, each.partition_index)] = each.offset
    return found


def _unknown_group(admin: Admin, group: str) -> KafkaError:
    try:
        known = [each.group for each in list_groups(admin)]
    except UnavailableError:
        known = []  # without the list, the error has no suggestion
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}{suggestion(group, known) or '.'}"
    )


def _decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions assigned to a consumer; none while the group is rebalancing."""
    if not data:
        return ()
    cursor = Cursor(memoryview(data), _INT16.size, is_flexible=False)  # after the version
    names: list[TopicPartition] = []
    for _ in range(_number(cursor, _INT32)):
        topic = bytes(cursor.take(_number(cursor, _INT16))).decode()
        names += [
            TopicPartition(topic, _number(cursor, _INT32)) for _ in range(_number(cursor, _INT32))
        ]
    return tuple(names)


def _number(cursor: Cursor, layout: struct.Struct) -> int:
    (number,) = cursor.unpack(layout)
    return int(number)
