"""Reassignments: plans in the JSON of kafka-reassign-partitions, their execution and progress."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from klamm.client import configs, topics
from klamm.client.admin import Admin, check, partitions_by_topic
from klamm.client.configs import ConfigResource
from klamm.errors import ConfigError
from klamm.names import TopicPartition, counted
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError

#: The target replicas of each partition; the first is the preferred leader.
Plan: TypeAlias = Mapping[TopicPartition, Sequence[int]]

_VERSION: Final = 1
_SETTLING_S: Final = 2.0
_PAUSE_S: Final = 0.1
_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_LEADERS: Final = "leader.replication.throttled.replicas"
_FOLLOWERS: Final = "follower.replication.throttled.replicas"


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReassignmentProgress:
    """The status of one partition of a plan: completed, in progress, or not as planned."""

    topic: str
    partition: int
    status: str
    replicas: tuple[int, ...]
    target: tuple[int, ...]


COMPLETED: Final = "completed"
IN_PROGRESS: Final = "in progress"
#: No reassignment is in progress and the replicas differ from the plan: it was cancelled,
#: replaced or never started.
NOT_AS_PLANNED: Final = "not as planned"


@dataclass(frozen=True, slots=True)
class RefusedReassignment:
    """A partition for which the request was refused."""

    topic: str
    partition: int
    error: str
    message: str | None


# The JSON


def decode_plan(text: str | bytes, source: str) -> dict[TopicPartition, tuple[int, ...]]:
    """A plan from its JSON; ConfigError names the source and what is wrong with it."""
    try:
        rows = _rows(json.loads(text), "partitions")
        plan: dict[TopicPartition, tuple[int, ...]] = {}
        for row in rows:
            name = TopicPartition(str(row["topic"]), int(row["partition"]))
            if name in plan:
                raise ValueError(f"{name} is in it twice")
            replicas = tuple(int(replica) for replica in row["replicas"])
            if len(set(replicas)) < len(replicas) or not replicas:
                raise ValueError(f"{name} cannot have replicas {list(replicas)}")
            if any(directory != "any" for directory in row.get("log_dirs", ())):
                raise ValueError("log_dirs other than 'any' cannot be chosen")
            plan[name] = replicas
    except KeyError as error:
        raise ConfigError(f"{source} is not a reassignment: {error} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source} is not a reassignment: {error}") from None
    if not plan:
        raise ConfigError(f"{source} is not a reassignment: it has no partitions")
    return plan


def encode_plan(plan: Plan) -> dict[str, Any]:
    """A plan as the object that its JSON holds."""
    return {
        "version": _VERSION,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "replicas": list(replicas),
                "log_dirs": ["any"] * len(replicas),
            }
            for (topic, partition), replicas in sorted(plan.items())
        ],
    }


def decode_topics(text: str | bytes, source: str) -> list[str]:
    """The topic names in the JSON that lists topics to move."""
    try:
        return [str(row["topic"]) for row in _rows(json.loads(text), "topics")]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source} is not a list of topics to move: {error}") from None


def read_waves(path: Path) -> list[tuple[str, dict[TopicPartition, tuple[int, ...]]]]:
    """Read the plan of a file, or the plans of a directory in the order of their names."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path} has no plan in it: expected are files like 001.json")
    return [(file.name, decode_plan(_read(file), str(file))) for file in files]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _rows(value: Any, key: str) -> list[Any]:
    if value.get("version", _VERSION) != _VERSION:
        raise ValueError(f"version {value['version']} is not known")
    rows: list[Any] = value[key]
    return rows


# The cluster


def current_replicas(
    admin: Admin, plan: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The present replicas of the partitions of a plan; raises if one does not exist."""
    wanted = list(plan)
    view = topics.describe(admin, sorted({topic for topic, _ in wanted}))
    found = {
        TopicPartition(each.topic, each.partition): each.replicas for each in view.partitions()
    }
    for topic, partition in wanted:
        if (topic, partition) not in found:
            count = sum(name == topic for name, _ in found)
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no {topic}-{partition}: the topic has {counted(count, 'partition')}.",
            )
    return {name: found[name] for name in wanted}


def propose_plan(
    admin: Admin, names: Sequence[str], brokers: Sequence[int], *, start: int, shift: int
) -> dict[TopicPartition, tuple[int, ...]]:
    """Spread topics over brokers as a new topic would be, rack-aware if all brokers have racks."""
    from klamm.core.assignment import AssignmentError, assign_replicas

    view = topics.describe(admin, names)
    racks = {broker.id: broker.rack for broker in view.brokers}
    missing = [broker for broker in brokers if broker not in racks]
    if missing:
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"not alive: {', '.join(map(str, missing))}; alive are "
            f"{', '.join(map(str, sorted(racks)))}.",
        )
    proposed: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in view.topics:
        try:
            rows = assign_replicas(
                {broker: racks[broker] for broker in brokers},
                len(topic.partitions),
                topic.replication_factor,
                start=start % len(brokers),
                shift=shift,
            )
        except AssignmentError as error:
            raise KafkaError(ErrorCode[error.kind.value], str(error)) from None
        for partition, replicas in zip(topic.partitions, rows.tolist(), strict=True):
            proposed[TopicPartition(topic.topic, partition.partition)] = tuple(replicas)
    return proposed


def alter(
    admin: Admin, plan: Mapping[TopicPartition, Sequence[int] | None]
) -> list[RefusedReassignment]:
    """Start reassignments, or (None) cancel them; returns the refused ones."""
    asked = {
        "timeout": admin.timeout_ms,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "replicas": plan[TopicPartition(topic, number)]}
                    for number in numbers
                ],
            }
            for topic, numbers in partitions_by_topic(list(plan)).items()
        ],
    }
    response = admin.ask_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, asked)
    check(response.error_code, response.error_message)
    return [
        RefusedReassignment(
            topic.name,
            each.partition_index,
            ErrorCode.of(each.error_code).name,
            each.error_message or ErrorCode.of(each.error_code).message,
        )
        for topic in response.responses
        for each in topic.partitions
        if each.error_code
    ]


def list_reassignments(
    admin: Admin, names: Iterable[TopicPartition] | None = None
) -> list[Reassignment]:
    """List the reassignments in progress of some partitions, or (None) of all."""
    wanted = None
    if names is not None:
        wanted = [
            {"name": topic, "partition_indexes": numbers}
            for topic, numbers in partitions_by_topic(list(names)).items()
        ]
    asked = {"timeout": admin.timeout_ms, "topics": wanted}
    response = admin.ask_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, asked)
    check(response.error_code, response.error_message)
    return sorted(
        (
            Reassignment(
                topic.name,
                each.partition_index,
                tuple(each.replicas),
                tuple(each.adding_replicas),
                tuple(each.removing_replicas),
            )
            for topic in response.topics
            for each in topic.partitions
        ),
        key=lambda move: (move.topic, move.partition),
    )


def verify(admin: Admin, plan: Plan) -> list[ReassignmentProgress]:
    """The status of each partition of a plan."""
    deadline = time.monotonic() + _SETTLING_S
    while True:
        rows = _look(admin, plan)
        # The controller knows of the end of a reassignment before the brokers do.
        is_settled = all(row.status != NOT_AS_PLANNED for row in rows)
        if is_settled or time.monotonic() > deadline:
            return rows
        time.sleep(_PAUSE_S)


def _look(admin: Admin, plan: Plan) -> list[ReassignmentProgress]:
    moving = {
        TopicPartition(each.topic, each.partition) for each in list_reassignments(admin, plan)
    }
    now = current_replicas(admin, plan)
    return [
        ReassignmentProgress(
            topic, partition, _status(name, moving, now[name], target), now[name], target
        )
        for name in sorted(plan)
        for (topic, partition), target in [(name, tuple(plan[name]))]
    ]


def _status(
    name: TopicPartition, moving: set[TopicPartition], now: tuple[int, ...], target: tuple[int, ...]
) -> str:
    if name in moving:
        return IN_PROGRESS
    return COMPLETED if now == target else NOT_AS_PLANNED


# Throttles


def throttle(admin: Admin, plan: Plan, bytes_per_s: int) -> None:
    """Limit the bandwidth of a plan's moves at the brokers that are involved.

    The present replicas of a partition send, and its new ones receive. Both sides are throttled;
    other replication is not.
    """
    now = current_replicas(admin, plan)
    moves = {TopicPartition(m.topic, m.partition): m for m in list_reassignments(admin, plan)}
    senders: dict[str, list[str]] = {}
    receivers: dict[str, list[str]] = {}
    brokers: set[int] = set()
    for name, target in plan.items():
        topic, partition = name
        move = moves.get(name)
        adding = move.adding if move else ()
        present = [broker for broker in now[name] if broker not in adding]
        new = [broker for broker in target if broker not in present]
        senders.setdefault(topic, []).extend(f"{partition}:{broker}" for broker in present)
        receivers.setdefault(topic, []).extend(f"{partition}:{broker}" for broker in new)
        brokers |= {*present, *target}
    for topic in senders:
        limits = {_LEADERS: ",".join(senders[topic]), _FOLLOWERS: ",".join(receivers[topic])}
        configs.alter(admin, ConfigResource.topic(topic), limits)
    alive = {broker.id for broker in topics.describe(admin, []).brokers}
    for broker in sorted(brokers & alive):
        rates = dict.fromkeys(_RATES, str(bytes_per_s))
        configs.alter(admin, ConfigResource.broker(broker), rates)


def clear_throttles(admin: Admin, plan: Iterable[TopicPartition]) -> None:
    """Remove every replication throttle from the topics of a plan and from all brokers."""
    for topic in sorted({topic for topic, _ in plan}):
        _clear(admin, ConfigResource.topic(topic), (_LEADERS, _FOLLOWERS))
    for broker in topics.describe(admin, []).brokers:
        _clear(admin, ConfigResource.broker(broker.id), _RATES)


def _clear(admin: Admin, resource: ConfigResource, keys: Sequence[str]) -> None:
    own = {each.name for each in configs.describe(admin, resource) if each.source in _OWN_SOURCES}
    if present := [key for key in keys if key in own]:
        configs.alter(admin, resource, {}, present)


_OWN_SOURCES: Final = ("topic", "broker, dynamic")
