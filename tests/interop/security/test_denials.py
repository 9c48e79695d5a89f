"""What somebody may not do is denied alike by a broker of either kind, in every API."""

import itertools
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from klamm.protocol.acls import CLUSTER_NAME, AclOperation, AclPermission, ResourceType
from klamm.protocol.apis import APIS
from klamm.protocol.apis import ApiKey as K
from tests.interop.security.dialogue import (
    SASL,
    Both,
    SecuredSolo,
    agree,
    exists,
    sample,
    versions,
)
from tests.support.raw import batch, fetch_values, produce_values

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Op, T, Deny = AclOperation, ResourceType, AclPermission.DENY


@pytest.mark.rule("SEC-9")
def test_every_version_of_every_api_denied(both: Both):
    """Somebody without any ACL asks for one of everything."""

    def dialogue(cluster: SecuredSolo) -> list[str]:
        cluster.remove_acls()
        lines = []
        for api, version in versions(SASL):
            with cluster.talk("dave") as talk:
                talk.raw.socket.settimeout(5)
                talk.ask(api, version, note="denied", **sample(api, version))
                lines += talk.lines
        return lines

    agree(both, dialogue)


#: What the table of SEC-9 speaks of.
SPOKEN_OF = [
    *((each, T.TOPIC) for each in (Op.READ, Op.WRITE, Op.CREATE, Op.DESCRIBE, Op.DELETE, Op.ALTER)),
    *((each, T.TOPIC) for each in (Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)),
    *((each, T.GROUP) for each in (Op.READ, Op.DESCRIBE, Op.DELETE)),
    *((each, T.TRANSACTIONAL_ID) for each in (Op.WRITE, Op.DESCRIBE)),
    *((each, T.CLUSTER) for each in (Op.CREATE, Op.CLUSTER_ACTION, Op.DESCRIBE_CONFIGS)),
    *((each, T.CLUSTER) for each in (Op.ALTER_CONFIGS, Op.IDEMPOTENT_WRITE, Op.ALTER, Op.DESCRIBE)),
]
#: Those that would wait, or change what the next question is about.
NOT_WHEN_ALLOWED = (*SASL, K.JOIN_GROUP, K.UPDATE_METADATA, K.INIT_PRODUCER_ID)


@pytest.mark.rule("SEC-9", "SEC-8")
@pytest.mark.parametrize(("operation", "type_"), SPOKEN_OF)
def test_everything_but_one_operation(both: Both, operation: AclOperation, type_: ResourceType):
    """erin may do everything except one thing, and asks for one of everything."""

    def dialogue(cluster: SecuredSolo) -> list[str]:
        cluster.remove_acls()
        for each in (T.TOPIC, T.GROUP, T.TRANSACTIONAL_ID):
            cluster.put("erin", Op.ALL, each, "*")
        cluster.put("erin", Op.ALL, T.CLUSTER)
        name = CLUSTER_NAME if type_ is T.CLUSTER else "*"
        cluster.put("erin", operation, type_, name, Deny)
        lines = []
        for key, api in APIS.items():
            if key in NOT_WHEN_ALLOWED:
                continue
            with cluster.talk("erin") as talk:
                talk.raw.socket.settimeout(10)
                talk.ask(K(key), api.max_version, note="erin", **sample(K(key), api.max_version))
                lines += talk.lines
        cluster.remove_acls()
        return lines

    agree(both, dialogue)


@pytest.mark.rule("SEC-9")
def test_parts_of_requests_are_denied(both: Both):
    """alice may do what each line says about `mine`, and nothing about `theirs`."""

    def dialogue(cluster: SecuredSolo) -> list[str]:
        cluster.remove_acls()
        topics = ("mine", "theirs")
        for topic in topics:
            if not exists(cluster, topic):
                cluster.create_topic(topic)
        with cluster.talk("admin") as talk:
            ids = {topic: talk.raw.topic_id(topic) for topic in topics}
            for group in topics:
                talk.raw.ask(K.OFFSET_COMMIT, 7, **_commit(group, *topics))
        lines: list[str] = []

        def grant(operation: AclOperation, type_: ResourceType, name: str = CLUSTER_NAME) -> None:
            cluster.put("alice", operation, type_, name)

        def ask(api: K, version: int, note: str = "", **body: Any) -> Any:
            with cluster.talk("alice") as talk:
                talk.raw.socket.settimeout(10)
                response = talk.ask(api, version, note=note, **body)
                lines.extend(re.sub(uuid_pattern, "an id", each) for each in talk.lines)
                return response

        uuid_pattern = "|".join(str(each) for each in ids.values())
        _ask_about_parts(grant, ask, ids)
        cluster.remove_acls()
        return lines

    agree(both, dialogue)


def _commit(group: str, *topics: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": 3,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "m",
                        "commit_timestamp": -1,
                    }
                ],
            }
            for topic in topics
        ],
    }


def _ask_about_parts(
    grant: Callable[..., None], ask: Callable[..., Any], ids: dict[str, Any]
) -> None:
    named = [{"name": topic, "topic_id": None} for topic in ids]
    by_id = [{"name": None, "topic_id": id} for id in ids.values()]

    def metadata(version: int, topics: Any, **more: Any) -> None:
        ask(K.METADATA, version, **sample(K.METADATA, version, topics=topics, **more))

    def both_topics(api: K, version: int, **more: Any) -> None:
        one = sample(api, version)["topics"][0]
        key = "topic" if "topic" in one else "name"
        ask(
            api,
            version,
            **sample(api, version, topics=[{**one, key: topic} for topic in ids], **more),
        )

    def produce(transactional_id: str | None = None, *, transactional: bool = False) -> None:
        data = bytearray(batch(b"x"))
        if transactional:
            data[22] |= 0x10
        each = [produce_values(topic, bytes(data))["topic_data"][0] for topic in ids]
        body = {**produce_values("mine", b""), "transactional_id": transactional_id}
        for version in (3, 9, 11):
            note = f"{transactional_id} {transactional}"
            ask(K.PRODUCE, version, note, **{**body, "topic_data": each})

    # Describe
    grant(Op.DESCRIBE, T.TOPIC, "mine")
    for version in (1, 5, 9, 12):
        metadata(version, None)
        metadata(version, named)
        metadata(version, [{"name": "missing", "topic_id": None}], allow_auto_topic_creation=True)
    metadata(12, by_id)
    metadata(12, [{"name": None, "topic_id": uuid.UUID(int=5)}])
    for version in (1, 5, 9):
        both_topics(K.LIST_OFFSETS, version)
    for replica in (-1, -2, 1):
        both_topics(K.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=replica)
    produce()
    # Read
    grant(Op.READ, T.TOPIC, "mine")
    for replica in (-1, 1):
        one = fetch_values(None, 0, topic="mine", session_id=0, session_epoch=-1)
        other = fetch_values(None, 0, topic="theirs")["topics"]
        body = {**one, "replica_id": replica, "topics": [*one["topics"], *other]}
        for version in (4, 11, 12):
            ask(K.FETCH, version, **body)
        by_ids = [fetch_values(id, 0)["topics"][0] for id in (*ids.values(), uuid.UUID(int=5))]
        state = {"replica_id": replica, "replica_epoch": -1}
        # One at a time: responses are compared without their order, and ids are drawn.
        for version, topic in itertools.product((13, 16), by_ids):
            ask(K.FETCH, version, **{**body, "topics": [topic], "replica_state": state})
    both_topics(K.DESCRIBE_PRODUCERS, 0)
    # Write
    grant(Op.WRITE, T.TOPIC, "mine")
    produce(transactional=True)
    produce("theirs", transactional=True)
    produce("theirs")
    grant(Op.WRITE, T.TRANSACTIONAL_ID, "mine")
    produce("theirs", transactional=True)
    for id in ids:
        for version in (0, 2, 4):
            ask(
                K.ADD_PARTITIONS_TO_TXN,
                min(version, 3),
                **sample(
                    *(K.ADD_PARTITIONS_TO_TXN, min(version, 3)),
                    v3_and_below_transactional_id=id,
                    v3_and_below_producer_id=77,
                    v3_and_below_topics=[{"name": t, "partitions": [0]} for t in ids],
                ),
            )
            for group in ids:
                ask(
                    K.ADD_OFFSETS_TO_TXN,
                    version,
                    **sample(K.ADD_OFFSETS_TO_TXN, version, transactional_id=id, group_id=group),
                )
                both_topics(K.TXN_OFFSET_COMMIT, version, transactional_id=id, group_id=group)
            ask(K.END_TXN, version, **sample(K.END_TXN, version, transactional_id=id))
    ask(K.ADD_PARTITIONS_TO_TXN, 5, **sample(K.ADD_PARTITIONS_TO_TXN, 5))
    # Groups
    for version in (2, 5, 9):
        for group in ids:
            ask(K.OFFSET_COMMIT, version, **_commit(group, *ids))
    grant(Op.DESCRIBE, T.GROUP, "mine")
    indexes = [{"name": topic, "partition_indexes": [0, 1]} for topic in ids]
    for version in (1, 2, 5, 7):
        for group in ids:
            ask(K.OFFSET_FETCH, version, group_id=group, topics=indexes, require_stable=False)
            if version > 1:
                ask(K.OFFSET_FETCH, version, group_id=group, topics=None, require_stable=False)
    for topics in (indexes, None):
        groups = [
            {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
            for group in ids
        ]
        for version in (8, 9):
            ask(K.OFFSET_FETCH, version, groups=groups, require_stable=False)
    for version in (0, 3, 5):
        body = {"groups": [*ids, "missing"], "include_authorized_operations": True}
        ask(K.DESCRIBE_GROUPS, version, **body)
    for version in (0, 2, 4, 5):
        ask(K.LIST_GROUPS, version, states_filter=[], types_filter=[])
    for kind in (0, 1):
        for version in (1, 3):
            for key in ids:
                ask(K.FIND_COORDINATOR, version, key=key, key_type=kind)
        for version in (4, 6):
            ask(K.FIND_COORDINATOR, version, coordinator_keys=list(ids), key_type=kind)
    grant(Op.READ, T.GROUP, "mine")
    for version in (2, 5, 9):
        ask(K.OFFSET_COMMIT, version, **_commit("mine", *ids))
    for api in (K.JOIN_GROUP, K.SYNC_GROUP, K.HEARTBEAT, K.LEAVE_GROUP):
        ask(api, APIS[api].max_version, **sample(api, APIS[api].max_version, group_id="theirs"))
    for group in (*ids, "missing"):
        asked = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in ids]
        ask(K.OFFSET_DELETE, 0, group_id=group, topics=asked)
    grant(Op.DELETE, T.GROUP, "mine")
    grant(Op.DELETE, T.GROUP, "missing")
    for group in (*ids, "missing"):
        ask(K.OFFSET_DELETE, 0, group_id=group, topics=asked)
    ask(K.DELETE_GROUPS, 2, groups_names=["theirs", "missing"])
    # Transactions
    ask(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[*ids, "missing"])
    ask(K.LIST_TRANSACTIONS, 0, state_filters=["nonsense"], producer_id_filters=[])
    for id in (*ids, None):
        body = sample(K.INIT_PRODUCER_ID, 4, transactional_id=id)
        if id == "theirs":
            ask(K.INIT_PRODUCER_ID, 4, **body)
    ask(K.WRITE_TXN_MARKERS, 1, **sample(K.WRITE_TXN_MARKERS, 1))
    # Topics
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    grant(Op.CREATE, T.TOPIC, "mine-2")
    creation = [{"name": name, **new} for name in ("mine-2", "theirs-2", "mine")]
    for version in range(1, 8):
        ask(K.CREATE_TOPICS, version, topics=creation, timeout=1000, validate_only=True)
    grant(Op.DESCRIBE_CONFIGS, T.TOPIC, "mine-2")
    ask(K.CREATE_TOPICS, 7, topics=creation[1:], timeout=1000, validate_only=True)
    metadata(12, [{"name": "theirs-2", "topic_id": None}], allow_auto_topic_creation=True)
    more = [{"name": name, "count": 2, "assignments": None} for name in (*ids, "missing")]
    for version in (0, 3):
        ask(K.CREATE_PARTITIONS, version, topics=more, timeout=1000, validate_only=True)
    grant(Op.ALTER, T.TOPIC, "mine")
    for version in (0, 3):
        ask(K.CREATE_PARTITIONS, version, topics=more, timeout=1000, validate_only=True)
    both_topics(K.DELETE_RECORDS, 2)
    for version in (1, 4, 5):
        ask(K.DELETE_TOPICS, version, topic_names=["theirs", "missing"], timeout=1000)
    deleted = [{"name": None, "topic_id": ids["theirs"]}, {"name": "theirs", "topic_id": None}]
    deleted.append({"name": None, "topic_id": uuid.UUID(int=5)})
    deleted.append({"name": None, "topic_id": ids["mine"]})
    ask(K.DELETE_TOPICS, 6, topics=deleted, timeout=1000)
    grant(Op.DELETE, T.TOPIC, "missing")
    ask(K.DELETE_TOPICS, 6, topics=[{"name": "missing", "topic_id": None}], timeout=1000)
    # Configs
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
        for kind, name, key in (
            (2, "mine", "retention.ms"),
            (2, "theirs", "retention.ms"),
            (4, "1", "log.retention.ms"),
            (4, "", "log.retention.ms"),
            (8, "1", "root"),
        )
    ]
    for version in (1, 4):
        ask(
            K.DESCRIBE_CONFIGS,
            version,
            resources=resources,
            include_synonyms=False,
            include_documentation=False,
        )
    for api in (K.ALTER_CONFIGS, K.INCREMENTAL_ALTER_CONFIGS):
        entry = {"name": "retention.ms", "value": "1000", "config_operation": 0}
        changed = [
            {
                "resource_type": each["resource_type"],
                "resource_name": each["resource_name"],
                "configs": [entry],
            }
            for each in resources
        ]
        ask(api, 1, resources=changed, validate_only=True)
    # The cluster
    for version in (0, 1):
        ask(K.DESCRIBE_CLUSTER, version, **sample(K.DESCRIBE_CLUSTER, version))
    for operation in (Op.DESCRIBE, Op.CREATE, Op.ALTER, Op.CLUSTER_ACTION):
        grant(operation, T.CLUSTER)
        ask(K.DESCRIBE_CLUSTER, 1, **sample(K.DESCRIBE_CLUSTER, 1))
        metadata(9, [])
        ask(K.LIST_GROUPS, 4, states_filter=[], types_filter=[])
        ask(K.WRITE_TXN_MARKERS, 1, **sample(K.WRITE_TXN_MARKERS, 1))
        ask(K.CREATE_TOPICS, 7, topics=creation, timeout=1000, validate_only=True)
        both_topics(K.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=1)
