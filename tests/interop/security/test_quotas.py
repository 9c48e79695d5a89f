"""Quotas and limits of connections hold alike at a broker of either kind."""

import contextlib
import socket
import uuid
from typing import Any

import pytest

from klamm.protocol.acls import AclOperation, ResourceType
from klamm.protocol.apis import ApiKey as K
from klamm.protocol.codec.frames import encode_request
from klamm.protocol.codec.headers import RequestHeader
from tests.interop.security.dialogue import (
    PATIENCE_S,
    Both,
    SecuredSolo,
    agree,
    alter_broker,
)
from tests.support.raw import batch, fetch_values, produce_values
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Op, T = AclOperation, ResourceType


# Quotas


def quota(entity: dict[str, str | None], *ops: tuple[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": k, "entity_name": v} for k, v in entity.items()],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in ops
        ],
    }


@pytest.mark.rule("SEC-11b")
def test_quotas_are_altered_and_described(both: Both):
    rate = ("producer_byte_rate", 1e9)
    entries = [
        quota({"user": "q1"}, rate),
        quota({"user": "q1"}, ("consumer_byte_rate", 2e9), ("request_percentage", 150.5)),
        quota({"user": None}, rate),
        quota({"client-id": "c1"}, rate),
        quota({"client-id": None}, rate),
        quota({"user": "q1", "client-id": "c1"}, rate),
        quota({"client-id": "c1", "user": "q2"}, rate),
        quota({"user": "q1", "client-id": None}, rate),
        quota({"user": None, "client-id": None}, rate),
        quota({"user": "q/ü *%"}, rate),
        quota({"ip": "10.0.0.9"}, ("connection_creation_rate", 100.0)),
        quota({"ip": None}, ("connection_creation_rate", 1000.0)),
        quota({"ip": "10.0.0.9"}, rate),
        quota({"ip": "no such host.invalid"}, ("connection_creation_rate", 100.0)),
        quota({"ip": "10.0.0.9", "user": "q1"}, ("connection_creation_rate", 100.0)),
        quota({"user": "q1"}, ("connection_creation_rate", 100.0)),
        quota({"user": "q1"}, ("nonsense", 1.0)),
        quota({"user": "q1"}, ("nonsense", None)),
        quota({"group": "q1"}, rate),
        quota({"": "q1"}, rate),
        quota({"user": ""}, rate),
        quota({}, rate),
        quota({"user": "q3"}, ("producer_byte_rate", 0.0)),
        quota({"user": "q3"}, ("producer_byte_rate", -1.0)),
        quota({"user": "q3"}, ("producer_byte_rate", 1.5)),
        quota({"user": "q3"}, ("controller_mutation_rate", 1.5)),
        quota({"user": "q3"}, ("request_percentage", 0.0)),
        quota({"user": "q3"}, ("producer_byte_rate", 1e30)),
        quota({"user": "q3"}, rate, rate),
        quota({"user": "q3"}),
        quota({"user": "q4"}, ("producer_byte_rate", None)),
        quota({"ip": "10.0.0.9"}, ("connection_creation_rate", 1.5)),
        quota({"ip": "10.0.0.9"}, ("connection_creation_rate", 0.0)),
    ]

    def part(kind: str, match_type: int, match: str | None = None) -> dict[str, Any]:
        return {"entity_type": kind, "match_type": match_type, "match": match}

    filters = [
        [],
        *([part(kind, 2)] for kind in ("user", "client-id", "ip", "group", "")),
        *([part(kind, 1)] for kind in ("user", "client-id", "ip")),
        [part("user", 0, "q1")],
        [part("user", 0, "nobody")],
        [part("user", 0, "q/ü *%")],
        [part("ip", 0, "10.0.0.9")],
        [part("user", 0, "q1"), part("client-id", 0, "c1")],
        [part("client-id", 0, "c1"), part("user", 0, "q1")],
        [part("user", 2), part("client-id", 2)],
        [part("user", 1), part("client-id", 1)],
        [part("user", 0, "q1"), part("user", 0, "q2")],
        [part("ip", 2), part("user", 2)],
    ]

    def dialogue(cluster: SecuredSolo) -> list[str]:
        with cluster.talk("admin") as talk:
            talk.raw.socket.settimeout(10)
            for entry in entries:
                for version in (0, 1):
                    talk.ask(
                        K.ALTER_CLIENT_QUOTAS, version, entries=[entry], validate_only=version == 0
                    )
            talk.ask(K.ALTER_CLIENT_QUOTAS, 1, entries=[], validate_only=False)
            for components in filters:
                for strict in (False, True):
                    talk.ask(K.DESCRIBE_CLIENT_QUOTAS, 1, components=components, strict=strict)
            talk.lines += _quota_znodes(cluster)
            for entry in entries:
                removed = {**entry, "ops": [{**op, "remove": True} for op in entry["ops"]]}
                talk.ask(K.ALTER_CLIENT_QUOTAS, 1, entries=[removed], validate_only=False)
            talk.ask(K.DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False)
            talk.lines += _quota_znodes(cluster)
            return talk.lines

    agree(both, dialogue)


def _quota_znodes(cluster: SecuredSolo) -> list[str]:
    lines = []
    for kind in ("users", "clients", "ips"):
        root = f"/config/{kind}"
        for name in sorted(cluster.zk.get_children(root) if cluster.zk.exists(root) else ()):
            path = f"{root}/{name}"
            config = (cluster.znode(path) or {"config": {}})["config"]
            rates = {k: v for k, v in config.items() if not k.startswith("SCRAM")}
            if rates or len(rates) == len(config):
                lines.append(f"{path}: {sorted(rates.items())}")
            inner = f"{path}/clients"
            if cluster.zk.exists(inner):
                lines += [
                    f"{inner}/{each}: {cluster.znode(f'{inner}/{each}')}"
                    for each in sorted(cluster.zk.get_children(inner))
                ]
    return lines


def _set_quota(cluster: SecuredSolo, *entries: dict[str, Any]) -> None:
    """Set quotas and wait until they count: they are followed in the order of their changes."""
    canary = f"canary-{uuid.uuid4().hex[:8]}"
    last = quota({"client-id": canary}, ("producer_byte_rate", 1.0))
    with cluster.talk("admin") as talk:
        for entry in (*entries, last):
            body = {"entries": [entry], "validate_only": False}
            response = talk.raw.ask(K.ALTER_CLIENT_QUOTAS, 1, **body)
            assert response.entries[0].error_code == 0, response

    def is_throttled() -> bool:
        with cluster.talk("admin", client_id=canary) as talk:
            body = produce_values("there", batch(b"x" * 100))
            return bool(talk.raw.ask(K.PRODUCE, 9, **body).throttle_time)

    wait_until(is_throttled, "the quotas are in force", PATIENCE_S)
    with cluster.talk("admin") as talk:
        unset = quota({"client-id": canary}, ("producer_byte_rate", None))
        talk.raw.ask(K.ALTER_CLIENT_QUOTAS, 1, entries=[unset], validate_only=False)


@pytest.mark.rule("SEC-11")
def test_one_request_beyond_its_rate_is_throttled_alike(both: Both):
    """After a pause, a request of B bytes waits for B / rate - 10 s."""
    rate = 5_000.0

    def dialogue(cluster: SecuredSolo) -> list[str]:
        clients = [f"slow-{number}" for number in range(3)]
        _set_quota(
            cluster,
            quota({"user": "admin", "client-id": clients[0]}, ("producer_byte_rate", rate)),
            quota({"client-id": clients[1]}, ("producer_byte_rate", rate)),
            quota({"client-id": clients[2]}, ("consumer_byte_rate", rate)),
        )
        lines = []
        values = produce_values("there", batch(b"x" * 60_000))
        for client in clients:
            with cluster.talk("admin", client_id=client) as talk:
                response = talk.raw.ask(K.PRODUCE, 9, **values)
                code = response.responses[0].partition_responses[0].error_code
                lines.append(f"produce by {client}: {code} {_delay(response)}")
        # The second fetch exceeds the rate: its response is empty.
        with cluster.talk("admin", client_id=clients[2]) as talk:
            outside = {"session_id": 0, "session_epoch": -1}
            body = fetch_values(None, 0, topic="there", max_bytes=40_000, **outside)
            for _ in range(2):
                response = talk.raw.ask(K.FETCH, 11, **body)
                sizes = [len(p.records or b"") for t in response.topics for p in t.partitions]
                lines.append(f"fetch: {round(response.throttle_time_ms / 1000)} {sizes}")
        return lines

    agree(both, dialogue)


def _delay(response: Any) -> int:
    """The delay in whole seconds, so that a slow machine does not make a difference."""
    return round(response.throttle_time.total_seconds())


@pytest.mark.rule("SEC-11a")
def test_mutations_beyond_their_rate_are_refused_or_delayed(both: Both):
    def dialogue(cluster: SecuredSolo) -> list[str]:
        _set_quota(cluster, quota({"user": "bob"}, ("controller_mutation_rate", 1.0)))
        lines: list[str] = []
        run = f"mutated-{uuid.uuid4().hex[:6]}"
        cluster.put("bob", Op.ALL, T.CLUSTER)
        cluster.put("bob", Op.ALL, T.TOPIC, "*")

        def ask(api: K, version: int, **body: Any) -> None:
            with cluster.talk("bob") as talk:
                response = talk.raw.ask(api, version, **body, timeout=10_000)
                (result,) = (
                    getattr(response, "topics", None)
                    or getattr(response, "responses", None)
                    or response.results
                )
                lines.append(
                    f"{api.name} {version}: {result.error_code} {result.error_message!r} "
                    f"{bool(response.throttle_time)}"
                )

        def create(version: int, partitions: int, *, check: bool = False) -> None:
            new = {"replication_factor": 1, "assignments": [], "configs": []}
            name = f"{run}-{len(lines)}-{partitions}"
            topic = {"name": name, "num_partitions": partitions, **new}
            ask(K.CREATE_TOPICS, version, topics=[topic], validate_only=check)

        create(7, 40)
        create(7, 1)
        create(7, 1, check=True)
        create(6, 1)
        more = {"name": "there", "count": 3, "assignments": None}
        ask(K.CREATE_PARTITIONS, 3, topics=[more], validate_only=False)
        ask(K.DELETE_TOPICS, 6, topics=[{"name": f"{run}-0-40", "topic_id": None}])
        ask(K.DELETE_TOPICS, 6, topics=[{"name": f"{run}-missing", "topic_id": None}])
        ask(K.DELETE_TOPICS, 5, topic_names=[f"{run}-0-40"])
        create(5, 1)
        cluster.remove_acls()
        return lines

    agree(both, dialogue)


# Connections


@pytest.mark.rule("SEC-19")
def test_connections_of_an_address_are_limited_at_run_time(both: Both):
    there = ("127.0.0.77", 0)

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        alter_broker(cluster, {"max.connections.per.ip.overrides": f"{there[0]}:2"}, lines)
        port = cluster.ports["PLAINTEXT"]

        def served() -> socket.socket | None:
            """A connection that ApiVersions was answered on; None if it was closed."""
            header = RequestHeader(K.API_VERSIONS, 0, 1, "raw")
            connected = socket.create_connection(("127.0.0.1", port), 20, there)
            with contextlib.suppress(ConnectionError):
                connected.sendall(encode_request(header, {}))
                if connected.recv(4):
                    return connected
            connected.close()
            return None

        def is_limited() -> bool:
            held = [served() for _ in range(3)]
            for each in held:
                if each is not None:
                    each.close()
            return sum(each is not None for each in held) == 2

        wait_until(is_limited, "the limit counts", PATIENCE_S)
        lines.append("two of three are served")
        alter_broker(cluster, {"max.connections.per.ip.overrides": ""}, lines)
        for value in ("nonsense", "127.0.0.1", "127.0.0.1:"):
            alter_broker(cluster, {"max.connections.per.ip.overrides": value}, lines)
        for key, value in (
            ("max.connections", "-1"),
            ("max.connections", "nonsense"),
            ("max.connections.per.ip", "-1"),
            ("max.connection.creation.rate", "-1"),
            ("listener.name.plaintext.max.connections", "10000"),
            ("listener.name.plaintext.max.connections", None),
            ("listener.name.unknown.max.connections", "10"),
        ):
            alter_broker(cluster, {key: value}, lines)
        return lines

    agree(both, dialogue)
