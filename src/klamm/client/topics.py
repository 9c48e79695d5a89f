"""Topics and their partitions: describe, create, alter and delete them."""

import base64
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.client.admin import NO_LEADER, Admin, LiveBroker, check, suggestion
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.errors import UnavailableError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError

_BROKER_DEFAULT: Final = -1
_HEARD_WITHIN_S: Final = 10.0
#: How long a broker may take to say what it knows of a topic.
_ANSWERED_WITHIN_S: Final = 2.0
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition as a Metadata response has it; leader -1 means no leader."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_unavailable(self) -> bool:
        """Whether it has no leader, so that clients can neither write nor read it."""
        return self.leader == NO_LEADER


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic with its partitions in order."""

    topic: str
    topic_id: str | None
    internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication_factor(self) -> int:
        return max((len(each.replicas) for each in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster as one broker knows it."""

    cluster_id: str | None
    controller: int
    brokers: tuple[LiveBroker, ...]
    topics: tuple[TopicDescription, ...]

    def partitions(self) -> Iterable[PartitionDescription]:
        return (partition for topic in self.topics for partition in topic.partitions)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; brokers apply their defaults to what is left out."""

    name: str
    partitions: int = _BROKER_DEFAULT
    replication_factor: int = _BROKER_DEFAULT
    assignment: Sequence[Sequence[int]] = ()
    config: Mapping[str, str] = field(default_factory=dict)


def describe(admin: Admin, names: Sequence[str] | None = None) -> ClusterDescription:
    """The cluster with all topics, or with those that are named, each of which has to exist."""
    response = admin.metadata(names)
    for topic in response.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise unknown_topic(admin, topic.name)
        if not topic.partitions:
            check(topic.error_code, f"topic {topic.name}: {_sentence(topic.error_code)}")
    return ClusterDescription(
        cluster_id=response.cluster_id,
        controller=response.controller_id,
        brokers=tuple(
            sorted(
                LiveBroker(each.node_id, each.host, each.port, each.rack)
                for each in response.brokers
            )
        ),
        topics=tuple(
            TopicDescription(
                topic=topic.name,
                topic_id=_topic_id(getattr(topic, "topic_id", None)),
                internal=topic.is_internal,
                partitions=tuple(
                    PartitionDescription(
                        topic.name,
                        each.partition_index,
                        each.leader_id,
                        each.leader_epoch,
                        tuple(each.replica_nodes),
                        tuple(each.isr_nodes),
                        tuple(each.offline_replicas),
                    )
                    for each in sorted(topic.partitions, key=lambda each: each.partition_index)
                ),
            )
            for topic in sorted(response.topics, key=lambda topic: topic.name)
        ),
    )


def unknown_topic(admin: Admin, name: str) -> KafkaError:
    """The error that says so, and which topic may have been meant."""
    known = [topic.name for topic in admin.metadata(None).topics]
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"there is no topic {name}{suggestion(name, known) or '.'}",
    )


def create(admin: Admin, topic: NewTopic) -> int:
    """Create one topic; returns when the controller has done it, with the number of partitions."""
    response = admin.ask_controller(
        ApiKey.CREATE_TOPICS,
        {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "assignments": [
                        {"partition_index": number, "broker_ids": list(replicas)}
                        for number, replicas in enumerate(topic.assignment)
                    ],
                    "configs": [
                        {"name": name, "value": value} for name, value in topic.config.items()
                    ],
                }
            ],
            "timeout": admin.timeout_ms,
            "validate_only": False,
        },
        done_before=ErrorCode.TOPIC_ALREADY_EXISTS,
    )
    if response is None:
        (created,) = admin.metadata([topic.name]).topics
        return len(created.partitions)
    for result in response.topics:
        message = result.error_message
        if result.error_code == ErrorCode.INVALID_CONFIG:
            for name in topic.config:
                if name not in TOPIC_KEYS:
                    message = f"topics have no setting {name}{suggestion(name, TOPIC_KEYS) or '.'}"
        check(result.error_code, message)
    # Brokers before Kafka 2.4 do not return the number of partitions.
    return max(len(topic.assignment), topic.partitions, getattr(result, "num_partitions", 1))


def add_partitions(
    admin: Admin, name: str, total: int, assignment: Sequence[Sequence[int]] = ()
) -> None:
    """Grow a topic to `total` partitions; `assignment` has the replicas of the new ones."""
    response = admin.ask_controller(
        ApiKey.CREATE_PARTITIONS,
        {
            "topics": [
                {
                    "name": name,
                    "count": total,
                    "assignments": [{"broker_ids": list(replicas)} for replicas in assignment]
                    or None,
                }
            ],
            "timeout": admin.timeout_ms,
            "validate_only": False,
        },
    )
    for result in response.results:
        _check_named(admin, result.error_code, name, result.error_message)


def delete(admin: Admin, name: str) -> None:
    """Delete one topic; the brokers remove its data later."""
    response = admin.ask_controller(
        ApiKey.DELETE_TOPICS, {"topic_names": [name], "timeout": admin.timeout_ms}
    )
    for result in response.responses:
        _check_named(admin, result.error_code, name, getattr(result, "error_message", None))


def brokers_unaware_of(admin: Admin, name: str, partitions: int | None) -> set[int]:
    """The brokers that do not know yet that a topic has this many partitions, all with leaders.

    None stands for a topic that was deleted.
    """
    found = set()
    for broker in describe(admin, []).brokers:
        try:
            (topic,) = admin.metadata_of(broker.id, [name], timeout_s=_ANSWERED_WITHIN_S).topics
        except UnavailableError:
            continue  # the broker is shutting down, or hangs, and will be told when it is back
        except KafkaError as error:
            if error.code != ErrorCode.BROKER_NOT_AVAILABLE:
                raise
            continue  # the broker has left the cluster since the brokers were listed
        led = sum(each.leader_id >= 0 for each in topic.partitions)
        is_known = topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_known if partitions is None else led < partitions:
            found.add(broker.id)
    return found


def wait_until_known(admin: Admin, name: str, partitions: int | None) -> None:
    """Wait, up to a limit, until all brokers know a change that the controller has made."""
    deadline = time.monotonic() + _HEARD_WITHIN_S
    while brokers_unaware_of(admin, name, partitions) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def _check_named(admin: Admin, code: int, name: str, message: str | None) -> None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise unknown_topic(admin, name)
    check(code, message or f"topic {name}: {_sentence(code)}")


def _topic_id(value: uuid.UUID | None) -> str | None:
    """A topic id in the text form of Kafka's tools."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=") if value else None


def _sentence(code: int) -> str:
    return ErrorCode.of(code).message
