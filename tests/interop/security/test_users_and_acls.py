"""Users and ACLs are changed, described and obeyed alike by a broker of either kind."""

import re
from typing import Any

import pytest

from klamm.protocol.acls import CLUSTER_NAME, AclOperation, AclPermission, PatternType, ResourceType
from klamm.protocol.apis import ApiKey as K
from tests.interop.security.dialogue import (
    Both,
    SecuredSolo,
    Talk,
    agree,
    sample,
    upsertion,
)
from tests.support.raw import fetch_values

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Op, T, Deny = AclOperation, ResourceType, AclPermission.DENY


# Users


@pytest.mark.rule("SEC-4a")
def test_users_are_altered_and_described(both: Both):
    up = upsertion

    def named(*names: str) -> list[dict[str, str]]:
        return [{"name": name} for name in names]

    def delete(user: str, mechanism: int) -> dict[str, Any]:
        return {"name": user, "mechanism": mechanism}

    changes: list[tuple[list[Any], list[Any]]] = [
        ([], []),
        ([], [up("u1", 1), up("u2", 2), up("u3", 1, iterations=16384)]),
        ([], [up("u1", 1), up("u1", 2)]),
        ([], [up("u1", 1), up("u1", 1)]),
        ([delete("u1", 1)], [up("u1", 1)]),
        ([delete("u1", 1)], [up("u1", 2)]),
        ([delete("u1", 1)], []),
        ([delete("u1", 2), delete("u2", 2)], []),
        ([delete("nobody", 1)], [up("u4", 1)]),
        ([delete("u4", 1), delete("u4", 2)], []),
        ([], [up("", 1)]),
        ([delete("", 1)], []),
        ([], [up("u5", 1, iterations=4095)]),
        ([], [up("u5", 1, iterations=16385)]),
        ([], [up("u5", 1, iterations=0)]),
        ([], [up("u5", 0)]),
        ([], [up("u5", 3)]),
        ([delete("u5", 3)], []),
        ([], [up("u5", 1), up("u5", 3)]),
        ([], [up("", 3)]),
        ([], [up("u5", 3, iterations=1)]),
        ([], [up("u6", 1), up("u7", 1, iterations=1)]),
        ([], [up("u8, with = signs", 1)]),
        ([], [up("ü/ä*%", 1)]),
        ([], [up("u9", 1, salt=b"")]),
        ([], [{**up("u10", 1), "salted_password": b""}]),
        ([], [{**up("u11", 1), "salted_password": b"short"}]),
    ]
    asked = [
        None,
        [],
        named("u2", "u3"),
        named("u3", "u2"),
        named("nobody"),
        named("u2", "u2"),
        named("u2", "nobody", "u2", "u3"),
        named(""),
    ]

    def dialogue(cluster: SecuredSolo) -> list[str]:
        with cluster.talk("admin") as talk:
            for deletions, upsertions in changes:
                talk.ask(
                    K.ALTER_USER_SCRAM_CREDENTIALS,
                    0,
                    deletions=deletions,
                    upsertions=upsertions,
                    note=f"{deletions} {[(u['name'], u['mechanism']) for u in upsertions]}",
                )
            for users in asked:
                talk.ask(K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
            for name in sorted(cluster.zk.get_children("/config/users")):
                stored = cluster.znode(f"/config/users/{name}") or {"config": {}}
                held = sorted(stored["config"].items())
                talk.lines.append(f"{name}: {re.sub('(salt|key)=[^,]*', 'that', str(held))}")
            return talk.lines

    agree(both, dialogue)


# ACLs


def acl(name: str = "orders", **changed: Any) -> dict[str, Any]:
    return {
        "resource_type": T.TOPIC,
        "resource_name": name,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:filtered",
        "host": "*",
        "operation": Op.READ,
        "permission_type": AclPermission.ALLOW,
        **changed,
    }


def acl_filter(**changed: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": T.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Op.ANY,
        "permission_type": AclPermission.ANY,
        **changed,
    }


@pytest.mark.rule("SEC-7a", "SEC-7")
def test_acls_are_created_filtered_and_deleted(both: Both):
    cluster_acl = {"resource_type": T.CLUSTER}
    created = [
        acl(),
        acl("order", resource_pattern_type=PatternType.PREFIXED),
        acl("*"),
        acl("*", resource_pattern_type=PatternType.PREFIXED),
        acl("other"),
        acl(operation=Op.ALL, permission_type=Deny),
        acl(operation=Op.WRITE, host="10.0.0.1"),
        acl(operation=Op.CLUSTER_ACTION),
        acl(principal="User:*"),
        acl(principal="Group:people"),
        acl("g", resource_type=T.GROUP),
        acl("x", resource_type=T.TRANSACTIONAL_ID),
        acl("t", resource_type=T.DELEGATION_TOKEN),
        acl("User:someone", resource_type=T.USER, operation=Op.CREATE_TOKENS),
        acl(CLUSTER_NAME, **cluster_acl),
        acl("other", **cluster_acl),
        acl(CLUSTER_NAME, **cluster_acl, resource_pattern_type=PatternType.PREFIXED),
        acl("kafka", **cluster_acl, resource_pattern_type=PatternType.PREFIXED),
        acl(""),
        acl("a/b"),
        acl("with space and ü"),
        acl(host="localhost"),
        acl(principal="User:with:colon"),
    ]
    filters = [
        acl_filter(),
        acl_filter(principal_filter="User:filtered"),
        acl_filter(principal_filter="filtered"),
        acl_filter(principal_filter=""),
        acl_filter(principal_filter="User:*"),
        acl_filter(host_filter="10.0.0.1"),
        acl_filter(host_filter="*"),
        acl_filter(operation=Op.ALL),
        acl_filter(operation=Op.READ),
        acl_filter(operation=Op.DESCRIBE),
        acl_filter(permission_type=Deny),
        acl_filter(resource_type_filter=T.GROUP),
        acl_filter(resource_type_filter=T.CLUSTER, resource_name_filter=CLUSTER_NAME),
        acl_filter(resource_type_filter=T.CLUSTER, resource_name_filter="other"),
        *(
            acl_filter(resource_name_filter=name, pattern_type_filter=pattern, **kind)
            for name in ("orders", "order", "o", "*", "orders-2", "", "a/b")
            for pattern in (
                PatternType.ANY,
                PatternType.MATCH,
                PatternType.LITERAL,
                PatternType.PREFIXED,
            )
            for kind in ({"resource_type_filter": T.TOPIC}, {})
        ),
        *(acl_filter(pattern_type_filter=pattern) for pattern in (1, 2, 3, 4)),
    ]

    def dialogue(cluster: SecuredSolo) -> list[str]:
        cluster.remove_acls()
        with cluster.talk("admin") as talk:
            for version in (1, 2, 3):
                for each in created:
                    talk.ask(K.CREATE_ACLS, version, creations=[each])
            talk.ask(K.CREATE_ACLS, 3, creations=created, note="all at once")
            talk.ask(K.CREATE_ACLS, 3, creations=[])
            for version in (1, 2, 3):
                for each in filters:
                    talk.ask(K.DESCRIBE_ACLS, version, **each)
            for root in ("/kafka-acl", "/kafka-acl-extended/prefixed"):
                for kind in sorted(cluster.zk.get_children(root)):
                    for name in sorted(cluster.zk.get_children(f"{root}/{kind}")):
                        held = cluster.znode(f"{root}/{kind}/{name}")
                        rows = sorted(str(sorted(each.items())) for each in held["acls"])
                        talk.lines.append(f"{root}/{kind}/{name}: {held['version']} {rows}")
            for some in (filters[5:7], filters[8:9], filters[20:21], [], filters[:2]):
                talk.ask(K.DELETE_ACLS, 3, filters=some)
                talk.ask(K.DESCRIBE_ACLS, 3, **acl_filter())
            return talk.lines

    agree(both, dialogue)


@pytest.mark.rule("SEC-8", "SEC-8a")
def test_decisions(both: Both):
    """Each row: the ACLs of carol, and what she may do then."""
    prefixed = PatternType.PREFIXED
    rows: list[list[dict[str, Any]]] = [
        [],
        [{}],
        [{"operation": Op.ALL}],
        [{"operation": Op.DESCRIBE}],
        [{"operation": Op.READ}, {"operation": Op.DESCRIBE, "permission": Deny}],
        [{"operation": Op.READ}, {"operation": Op.READ, "permission": Deny}],
        [{"operation": Op.READ}, {"operation": Op.ALL, "permission": Deny, "name": "*"}],
        [{"operation": Op.ALTER}],
        [{"operation": Op.DELETE}],
        [{"operation": Op.ALTER_CONFIGS}],
        [{"operation": Op.DESCRIBE_CONFIGS}],
        [{"operation": Op.CREATE}],
        [{"name": "the", "pattern": prefixed}],
        [
            {"name": "the", "pattern": prefixed},
            {"name": "th", "pattern": prefixed, "permission": Deny},
        ],
        [{"name": "*", "pattern": prefixed}],
        [{"name": "*"}],
        [{"user": "User:*"}],
        [{"user": "User:*", "permission": Deny}, {"user": "User:carol"}],
        [{"user": "Group:carol"}],
        [{"host": "127.0.0.1"}],
        [{"host": "127.0.0.2"}],
        [{"host": "10.0.0.1"}],
        [{"operation": Op.ALL}, {"host": "127.0.0.1", "permission": Deny}],
        [{"operation": Op.WRITE, "name": "*"}],
        [
            {"operation": Op.WRITE, "name": "*"},
            {"operation": Op.WRITE, "name": "*", "permission": Deny},
        ],
        [
            {"operation": Op.WRITE, "name": "q"},
            {"operation": Op.WRITE, "name": "q", "permission": Deny},
        ],
        [
            {"operation": Op.WRITE, "name": "qq", "pattern": prefixed},
            {"operation": Op.WRITE, "name": "q", "pattern": prefixed, "permission": Deny},
        ],
        [
            {"operation": Op.WRITE, "name": "q", "pattern": prefixed},
            {"operation": Op.WRITE, "name": "qq", "pattern": prefixed, "permission": Deny},
        ],
        [
            {"operation": Op.WRITE, "name": "q", "pattern": prefixed},
            {"operation": Op.WRITE, "name": "q", "permission": Deny},
        ],
        [{"operation": Op.ALL, "name": "q"}],
        [{"operation": Op.WRITE, "name": "q", "host": "10.0.0.1"}],
    ]

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for number, row in enumerate(rows):
            cluster.remove_acls()
            for each in row:
                given = {"user": "carol", "operation": Op.READ, "name": "there", **each}
                user, operation = given.pop("user"), given.pop("operation")
                cluster.put(user, operation, T.TOPIC, **given)
            with cluster.talk("carol") as talk:
                talk.lines.append(f"--- {number} {row}")
                _read_and_describe(talk)
                lines += talk.lines
        cluster.remove_acls()
        return lines

    agree(both, dialogue)


def _read_and_describe(talk: Talk) -> None:
    """Everything that one may do about the topic `there`, and with an idempotent producer."""
    body = sample(K.METADATA, 10, topics=[{"name": "there", "topic_id": None}])
    talk.ask(K.METADATA, 10, **body)
    outside = {"session_id": 0, "session_epoch": -1}
    talk.ask(K.FETCH, 11, **fetch_values(None, 0, partition=1, topic="there", **outside))
    resource = {
        "resource_type": 2,
        "resource_name": "there",
        "configuration_keys": ["retention.ms"],
    }
    talk.ask(
        K.DESCRIBE_CONFIGS,
        4,
        resources=[resource],
        include_synonyms=False,
        include_documentation=False,
    )
    response = talk.raw.ask(
        K.INIT_PRODUCER_ID, 4, **sample(K.INIT_PRODUCER_ID, 4, transactional_id=None)
    )
    talk.lines.append(f"InitProducerId: {response.error_code}")
