"""Kafka's znodes: where they are and what is in them, as pure functions between bytes and values.

Encoders write the newest version of each znode, with the keys in the order that Kafka 3.9 uses.
Decoders accept every version that Kafka has written, ignore unknown keys and key order (ZK-4), and
raise `MalformedZnodeError`, which names the path, on anything else. Where a rule requires leniency
(ZK-6, ZK-13, ZK-16, REASG-1), the decoder returns the value that the rule names.
"""

import base64
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

import orjson

from klamm.errors import MalformedZnodeError
from klamm.names import TopicPartition
from klamm.zookeeper.fields import (
    Json,
    brokers,
    integer,
    integer_at,
    json_object,
    malformed,
    object_at,
    object_if_json,
    text_at,
)

# --- paths ----------------------------------------------------------------------------------------

CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
ISR_CHANGES: Final = "/isr_change_notification"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
CONFIG: Final = "/config"
CONFIG_CHANGES: Final = "/config/changes"
CLUSTER_ID: Final = "/cluster/id"
FEATURE: Final = "/feature"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"

#: Prefixes of sequential nodes; ZooKeeper appends ten digits.
LOG_DIR_EVENT_PREFIX: Final = f"{LOG_DIR_EVENTS}/log_dir_event_"
CONFIG_CHANGE_PREFIX: Final = f"{CONFIG_CHANGES}/config_change_"

#: What every broker creates at its start, where it is missing (ZK-2).
PERSISTENT_PATHS: Final = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)

#: The entity whose configuration holds for all that have none of their own (ZK-18).
DEFAULT_ENTITY: Final = "<default>"


def broker_path(broker: int) -> str:
    """The registration of a broker."""
    return f"/brokers/ids/{broker}"


def topic_path(topic: str) -> str:
    """The assignment of a topic."""
    return f"/brokers/topics/{topic}"


def partitions_path(topic: str) -> str:
    """The parent of a topic's partitions."""
    return f"/brokers/topics/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """The parent of a partition's state."""
    return f"/brokers/topics/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    """The leader and ISR of a partition."""
    return f"/brokers/topics/{topic}/partitions/{partition}/state"


def delete_topic_path(topic: str) -> str:
    """The request to delete a topic."""
    return f"/admin/delete_topics/{topic}"


def config_path(entity_path: str) -> str:
    """The configuration of an entity, such as `topics/T`, `brokers/1` or `users/U/clients/C`."""
    return f"/config/{entity_path}"


def sequence_number(name: str) -> int:
    """The number that ZooKeeper appended to the name or path of a sequential node."""
    return int(name[-10:])


def flaw(path: str, data: bytes | None) -> MalformedZnodeError | None:
    """Why a node that a lenient decoder took for empty cannot be read; None if it has no data."""
    try:
        if data is not None:
            json_object(path, data)
    except MalformedZnodeError as error:
        return error
    return None


# --- the controller -------------------------------------------------------------------------------


def encode_controller(broker: int, timestamp_ms: int) -> bytes:
    """Encode `/controller` (ZK-5)."""
    return b'{"version":2,"brokerid":%d,"timestamp":"%d","kraftControllerEpoch":-1}' % (
        broker,
        timestamp_ms,
    )


def decode_controller(data: bytes | None) -> int:
    """The controller's id; -1, none known, for content that is not JSON (ZK-6)."""
    json = object_if_json(CONTROLLER, data)
    return -1 if json is None else integer_at(CONTROLLER, json, "brokerid")


def encode_controller_epoch(epoch: int) -> bytes:
    """The epoch as decimal text (ZK-7)."""
    return b"%d" % epoch


def decode_controller_epoch(data: bytes | None) -> int:
    """The epoch in decimal text."""
    if data is None or not re.fullmatch(rb"-?[0-9]+", data):
        malformed(CONTROLLER_EPOCH, f"a decimal number is expected, not {data!r}")
    return int(data)


# --- brokers --------------------------------------------------------------------------------------


class RegisteredEndpoint(NamedTuple):
    """Where one of a broker's listeners is reached."""

    listener: str
    security_protocol: str
    host: str
    port: int


class FeatureRange(NamedTuple):
    """The versions of a feature that a broker supports."""

    min_version: int
    max_version: int


class BrokerRegistration(NamedTuple):
    """The registration of a broker."""

    broker: int
    endpoints: tuple[RegisteredEndpoint, ...]
    rack: str | None = None
    features: Mapping[str, FeatureRange] = {}
    jmx_port: int = -1
    #: A node that only competes for the controller's role; Kafka's readers ignore the key.
    controller_only: bool = False


_ENDPOINT: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")


def encode_broker(registration: BrokerRegistration, timestamp_ms: int) -> bytes:
    """A registration in version 5 (ZK-10, ZK-11)."""
    endpoints = registration.endpoints
    plain = next((e for e in endpoints if e.security_protocol == "PLAINTEXT"), None)
    json: Json = {
        "features": {
            name: {"min_version": feature.min_version, "max_version": feature.max_version}
            for name, feature in registration.features.items()
        },
        "listener_security_protocol_map": {e.listener: e.security_protocol for e in endpoints},
        "endpoints": [
            f"{e.listener}://{f'[{e.host}]' if ':' in e.host else e.host}:{e.port}"
            for e in endpoints
        ],
        "jmx_port": registration.jmx_port,
        "port": plain.port if plain else -1,
        "host": plain.host if plain else None,
        "version": 5,
        "timestamp": str(timestamp_ms),
    }
    if registration.rack is not None:
        json["rack"] = registration.rack
    if registration.controller_only:
        json["klamm_roles"] = "controller"
    return orjson.dumps(json)


def decode_broker(broker: int, data: bytes | None) -> BrokerRegistration:
    """A registration in any version from 1 to 5 (ZK-10)."""
    path = broker_path(broker)
    json = json_object(path, data)
    version = integer_at(path, json, "version")
    if version < 1:
        malformed(path, f"there is no version {version} of a registration")
    jmx_port = integer_at(path, json, "jmx_port")
    rack = json.get("rack")
    if rack is not None and not isinstance(rack, str):
        malformed(path, f"rack is expected to be a string, not {rack!r}")
    if version == 1:
        host, port = text_at(path, json, "host"), integer_at(path, json, "port")
        endpoints: tuple[RegisteredEndpoint, ...] = (
            RegisteredEndpoint("PLAINTEXT", "PLAINTEXT", host, port),
        )
    else:
        endpoints = tuple(_decode_endpoints(path, json))
    features = {
        name: FeatureRange(
            integer_at(path, feature, "min_version"), integer_at(path, feature, "max_version")
        )
        for name, feature in _features_at(path, json, default={})
    }
    controller_only = json.get("klamm_roles") == "controller"
    return BrokerRegistration(broker, endpoints, rack, features, jmx_port, controller_only)


def _decode_endpoints(path: str, json: Json) -> Iterable[RegisteredEndpoint]:
    texts = json.get("endpoints")
    if not isinstance(texts, list):
        malformed(path, f"endpoints is expected to be a list, not {texts!r}")
    protocols = object_at(path, json, "listener_security_protocol_map", default={})
    for text in texts:
        match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            malformed(path, f"an endpoint is LISTENER://HOST:PORT, not {text!r}")
        listener, host, port = match.groups()
        # Before version 4 there is no map, and a listener has the name of its protocol (ZK-11).
        protocol = protocols.get(listener) if protocols else listener
        if not isinstance(protocol, str):
            malformed(path, f"listener {listener} has no security protocol")
        yield RegisteredEndpoint(listener, protocol, host, int(port))


def _features_at(path: str, json: Json, default: Json | None) -> Iterable[tuple[str, Json]]:
    features = object_at(path, json, "features", default)
    for name in features:
        yield name, object_at(path, features, name)


# --- topics and partitions ------------------------------------------------------------------------


class TopicAssignment(NamedTuple):
    """The replicas of a topic's partitions, and those that a reassignment adds or removes."""

    topic_id: uuid.UUID | None
    partitions: Mapping[int, Sequence[int]]
    adding: Mapping[int, Sequence[int]] = {}
    removing: Mapping[int, Sequence[int]] = {}


NO_PARTITIONS: Final = TopicAssignment(None, {})


def encode_topic(assignment: TopicAssignment) -> bytes:
    """An assignment in version 3 (ZK-12)."""
    json: Json = {"partitions": _replica_map(assignment.partitions)}
    if assignment.topic_id is not None:
        json["topic_id"] = encode_topic_id(assignment.topic_id)
    json["adding_replicas"] = _replica_map(assignment.adding, keep_empty=False)
    json["removing_replicas"] = _replica_map(assignment.removing, keep_empty=False)
    json["version"] = 3
    return orjson.dumps(json)


def _replica_map(replicas: Mapping[int, Sequence[int]], keep_empty: bool = True) -> Json:
    return {str(p): brokers for p, brokers in replicas.items() if keep_empty or brokers}


def decode_topic(topic: str, data: bytes | None) -> TopicAssignment:
    """An assignment in any version from 1 to 3; without data, or with data that is not JSON, that
    of a topic without partitions (ZK-13)."""
    path = topic_path(topic)
    json = object_if_json(path, data)
    if json is None:
        return NO_PARTITIONS
    topic_id = json.get("topic_id")
    return TopicAssignment(
        None if topic_id is None else decode_topic_id(path, topic_id),
        _decode_replica_map(path, json, "partitions"),
        _decode_replica_map(path, json, "adding_replicas"),
        _decode_replica_map(path, json, "removing_replicas"),
    )


def _decode_replica_map(path: str, json: Json, key: str) -> dict[int, Sequence[int]]:
    replicas = object_at(path, json, key, default={})
    if not replicas:
        return {}
    # Whole columns at a time: this runs for every partition of a cluster at failover.
    numbers = _partition_numbers(tuple(replicas))
    is_sound = (
        numbers is not None
        and set(map(type, replicas.values())) <= {list}
        and set(map(type, chain.from_iterable(replicas.values()))) <= {int}
    )
    if numbers is None or not is_sound:
        malformed(path, f"{key} is expected to map partitions to lists of broker ids")
    return dict(zip(numbers, replicas.values(), strict=True))


@lru_cache(maxsize=256)
def _partition_numbers(texts: tuple[str, ...]) -> tuple[int, ...] | None:
    """The numbers of partitions, which are the same in many topics; None if one is no number."""
    return tuple(map(int, texts)) if all(map(str.isdecimal, texts)) else None


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes)[:22].decode()


def decode_topic_id(path: str, text: object) -> uuid.UUID:
    """The id in 22 characters of URL-safe base64."""
    if not isinstance(text, str) or not re.fullmatch(r"[0-9A-Za-z_-]{22}", text):
        malformed(path, f"a topic id has 22 characters of URL-safe base64, not {text!r}")
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def new_topic_id(random_bytes: Callable[[int], bytes]) -> uuid.UUID:
    """A random version-4 id; never one of the reserved, nor one that looks like an option on a
    command line (ZK-14). The reserved ids, zero and one, are not of version 4."""
    while True:
        topic_id = uuid.UUID(bytes=random_bytes(16), version=4)
        if not encode_topic_id(topic_id).startswith("-"):
            return topic_id


class StateZnode(NamedTuple):
    """Leader and ISR of a partition, as written by the controller of `controller_epoch` (ZK-17)."""

    leader: int
    leader_epoch: int
    isr: Sequence[int]
    controller_epoch: int
    recovery: int = 0  # 1 after an unclean election, until the leader confirms


def encode_states(
    leaders: Iterable[int],
    leader_epochs: Iterable[int],
    isrs: Iterable[tuple[int, ...]],
    recoveries: Iterable[int],
    controller_epoch: int,
) -> Iterator[bytes]:
    """Many states, from columns.

    Negative ids, with which an ISR is filled up to the width of its column, are left out.
    """
    # Hundreds of thousands of these are written when a broker fails, so they are put together as
    # text, and the text of an ISR is made once.
    start = f'{{"controller_epoch":{controller_epoch},"leader":'
    texts: dict[tuple[int, ...], str] = {}
    for leader, leader_epoch, isr, recovery in zip(
        leaders, leader_epochs, isrs, recoveries, strict=True
    ):
        members = texts.get(isr)
        if members is None:
            members = texts[isr] = ",".join([str(broker) for broker in isr if broker >= 0])
        state = f',"leader_recovery_state":{recovery}' if recovery else ""
        yield (
            f'{start}{leader},"version":1{state},"leader_epoch":{leader_epoch},"isr":[{members}]}}'
        ).encode()


def decode_state(path: str, data: bytes | None) -> StateZnode | None:
    """A partition's state; None, no leadership info, for data that is not JSON (ZK-16)."""
    json = object_if_json(path, data)
    if json is None:
        return None
    return StateZnode(
        integer_at(path, json, "leader"),
        integer_at(path, json, "leader_epoch"),
        brokers(path, json.get("isr"), "isr"),
        integer_at(path, json, "controller_epoch"),
        integer(path, json.get("leader_recovery_state", 0), "leader_recovery_state"),
    )


class StateZnodes(NamedTuple):
    """Many states as columns; `at` are the positions of the rows that could be decoded."""

    at: list[int]
    leader: list[int]
    leader_epoch: list[int]
    isr: list[list[int]]
    controller_epoch: list[int]
    recovery: list[int]
    errors: list[MalformedZnodeError]


def decode_states(paths: Sequence[str], data: Sequence[bytes | None]) -> StateZnodes:
    """Many states, for columns. What cannot be read comes back in `errors`."""
    states = StateZnodes([], [], [], [], [], [], [])
    at, leader, leader_epoch, isr, controller_epoch, recovery, _ = states
    # A million of these are read at failover, nearly all of them sound. So they are taken for
    # sound, their types are checked by column, and only if that fails one looks at each.
    try:
        for i, content in enumerate(data):
            if content is not None:
                json = orjson.loads(content)
                leader.append(json["leader"])
                leader_epoch.append(json["leader_epoch"])
                isr.append(json["isr"])
                controller_epoch.append(json["controller_epoch"])
                recovery.append(json.get("leader_recovery_state", 0))
                at.append(i)
        numbers = chain(leader, leader_epoch, controller_epoch, recovery, *isr)
        if set(map(type, isr)) <= {list} and set(map(type, numbers)) <= {int}:
            return states
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        pass
    return _decode_states_one_by_one(paths, data)


def _decode_states_one_by_one(paths: Sequence[str], data: Sequence[bytes | None]) -> StateZnodes:
    found: list[tuple[int, StateZnode]] = []
    errors: list[MalformedZnodeError] = []
    for i, (path, content) in enumerate(zip(paths, data, strict=True)):
        try:
            state = decode_state(path, content)
        except MalformedZnodeError as error:
            errors.append(error)
        else:
            if state is not None:
                found.append((i, state))
            elif (not_json := flaw(path, content)) is not None:
                errors.append(not_json)
    return StateZnodes(
        [i for i, _ in found],
        [state.leader for _, state in found],
        [state.leader_epoch for _, state in found],
        [list(state.isr) for _, state in found],
        [state.controller_epoch for _, state in found],
        [state.recovery for _, state in found],
        errors,
    )


# --- notifications and requests through znodes ----------------------------------------------------


def decode_partitions(path: str, data: bytes | None) -> list[TopicPartition]:
    """A list of partitions: an ISR change notification, or a request for preferred leaders."""
    return [
        TopicPartition(text_at(path, row, "topic"), integer_at(path, row, "partition"))
        for row in _partition_rows(path, json_object(path, data))
    ]


def encode_reassignment(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """The pending reassignments by znode."""
    rows = [{"topic": t, "partition": p, "replicas": r} for (t, p), r in targets.items()]
    return orjson.dumps({"version": 1, "partitions": rows})


def decode_reassignment(data: bytes | None) -> dict[TopicPartition, list[int]]:
    """The requested reassignments; none if the data is not JSON (REASG-1)."""
    path = REASSIGN_PARTITIONS
    json = object_if_json(path, data)
    if json is None:
        return {}
    return {
        TopicPartition(text_at(path, row, "topic"), integer_at(path, row, "partition")): brokers(
            path, row.get("replicas"), "replicas"
        )
        for row in _partition_rows(path, json)
    }


def _partition_rows(path: str, json: Json) -> list[Json]:
    rows = json.get("partitions")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        malformed(path, f"partitions is expected to be a list of objects, not {rows!r}")
    return rows


class LogDirEvent(NamedTuple):
    """A broker's word that something happened to its log directories (1: one failed)."""

    broker: int
    event: int = 1


def encode_log_dir_event(event: LogDirEvent) -> bytes:
    """The content of a log directory notification."""
    return b'{"version":1,"broker":%d,"event":%d}' % event


def decode_log_dir_event(path: str, data: bytes | None) -> LogDirEvent:
    """The content of a log directory notification."""
    json = json_object(path, data)
    return LogDirEvent(integer_at(path, json, "broker"), integer_at(path, json, "event"))


# --- configuration --------------------------------------------------------------------------------


def encode_config(config: Mapping[str, str]) -> bytes:
    """The configuration of an entity (ZK-18)."""
    return orjson.dumps({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes | None) -> dict[str, str]:
    """The configuration of an entity; nothing is configured on a node without data."""
    if not data:
        return {}
    config = object_at(path, json_object(path, data), "config", default={})
    for key, value in config.items():
        if not isinstance(value, str):
            malformed(path, f"{key} is expected to be a string, not {value!r}")
    return config


def encode_config_change(entity_path: str) -> bytes:
    """The notification that the configuration of an entity changed (ZK-19)."""
    return orjson.dumps({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes | None) -> str:
    """The path, below `/config`, of the entity whose configuration changed."""
    json = json_object(path, data)
    version = integer_at(path, json, "version")
    if version == 1:
        entity_type = text_at(path, json, "entity_type")
        return f"{entity_type}/{text_at(path, json, 'entity_name')}"
    if version == 2:
        return text_at(path, json, "entity_path")
    malformed(path, f"there is no version {version} of a configuration change")


# --- the cluster ----------------------------------------------------------------------------------


def encode_cluster_id(cluster_id: str) -> bytes:
    """The id of the cluster."""
    return orjson.dumps({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes | None) -> str:
    """The id of the cluster."""
    return text_at(CLUSTER_ID, json_object(CLUSTER_ID, data), "id")


class FinalizedFeatures(NamedTuple):
    """The levels that the cluster's features have been finalized at."""

    enabled: bool
    levels: Mapping[str, int] = {}
    version: int = 2  # 1 when the inter-broker protocol is older than 3.3 (ZK-20)


def encode_features(features: FinalizedFeatures) -> bytes:
    """The finalized features in version 1 or 2 (ZK-20)."""
    levels: Json = {
        name: {"max_version_level": level}
        if features.version >= 2
        # Version 1 wants a range, of which only the upper end has ever meant something.
        else {"min_version_level": level, "max_version_level": level}
        for name, level in features.levels.items()
    }
    json = {"features": levels, "version": features.version, "status": int(features.enabled)}
    return orjson.dumps(json)


def decode_features(data: bytes | None) -> FinalizedFeatures:
    """The finalized features in any version."""
    json = json_object(FEATURE, data)
    version = integer_at(FEATURE, json, "version")
    if version < 1:
        malformed(FEATURE, f"there is no version {version} of the features")
    status = integer_at(FEATURE, json, "status")
    if status not in (0, 1):
        malformed(FEATURE, f"status is expected to be 0 or 1, not {status}")
    levels = {
        name: integer_at(FEATURE, feature, "max_version_level")
        for name, feature in _features_at(FEATURE, json, default=None)
    }
    return FinalizedFeatures(status == 1, levels, version)


#: How many producer ids a block holds.
PRODUCER_ID_BLOCK_SIZE: Final = 1000


class ProducerIdBlock(NamedTuple):
    """The producer ids from `start` to `end`, both included, given to a broker (ZK-21)."""

    broker: int
    start: int
    end: int


def next_producer_id_block(latest: ProducerIdBlock | None, broker: int) -> ProducerIdBlock:
    """The block after the latest one."""
    start = 0 if latest is None else latest.end + 1
    return ProducerIdBlock(broker, start, start + PRODUCER_ID_BLOCK_SIZE - 1)


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """The latest block, with its ends as strings."""
    return b'{"version":1,"broker":%d,"block_start":"%d","block_end":"%d"}' % block


def decode_producer_id_block(data: bytes | None) -> ProducerIdBlock | None:
    """The latest block; None if none has been allocated."""
    if not data:
        return None
    path = PRODUCER_ID_BLOCK
    json = json_object(path, data)
    start, end = text_at(path, json, "block_start"), text_at(path, json, "block_end")
    if not (re.fullmatch(r"[0-9]+", start) and re.fullmatch(r"[0-9]+", end)):
        malformed(path, f"a block of decimal numbers is expected, not {start!r} to {end!r}")
    return ProducerIdBlock(integer_at(path, json, "broker"), int(start), int(end))
