"""Users, ACLs and quotas in the API: on an open cluster, and on one of `klamm up --secure`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from klamm import Cluster
from tests.console.conftest import RunningConsole
from tests.support.command_line import Result, interruptible, run_here
from tests.support.ports import free_base_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real
ALICE = {
    "resource_type": "Topic",
    "name": "orders",
    "pattern": "Literal",
    "principal": "User:alice",
    "permission": "Allow",
    "operation": "Read",
    "host": "*",
}


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningConsole, Callable[..., Result]]]:
    """The console of a secured cluster of one broker, and the command line beside it."""
    folder = tmp_path_factory.mktemp("secured")
    with (folder / "up.log").open("w") as log:
        process = subprocess.Popen(
            interruptible(
                *(sys.executable, "-m", "klamm", "up", "--secure", "--brokers", "1", "--json"),
                *("--base-port", str(free_base_port(1)), "--data-dir", str(folder / "data")),
            ),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        options = ("--command-config", ready["command_config"])

        def klamm(*arguments: str) -> Result:
            return run_here(*arguments, *options, bootstrap=ready["bootstrap_servers"])

        klamm("topics", "create", "orders", "--partitions", "2").ok()
        yield RunningConsole(process, ready["console"]), klamm
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (folder / "up.log").read_text()
        process.stdout.close()


def test_a_secured_cluster_is_shown_with_the_link_that_up_prints(secured):
    console, klamm = secured
    assert console.get("/api/cluster")["level"] == "good"
    assert console.get("/api/topics") == klamm("topics", "list", "--json").json()
    security = console.get("/api/security")
    assert security["authorizer"] == "kafka.security.authorizer.AclAuthorizer"
    assert security["console_protocol"] == "SASL_SSL"
    wait_until(lambda: console.get("/api/cluster")["history"] > 0, "the history")
    console.post("/api/topics/orders/records", {"value": "over TLS"})
    rows = console.get("/api/topics/orders/export?from=beginning&format=json").splitlines()
    assert [json.loads(row)["value"] for row in rows] == ["over TLS"]


def test_a_user_is_added_logs_in_and_is_removed(secured, tmp_path: Path):
    console, klamm = secured
    body = {"user": "alice", "password": "alice-pw-planted", "mechanism": "SCRAM-SHA-256"}
    assert "password" not in console.post("/api/users/add", body)
    assert console.get("/api/users") == klamm("users", "list", "--json").json()
    config = Path(console.get("/api/cluster")["command_config"]).read_text()
    mine = tmp_path / "alice.properties"
    lines = [line for line in config.splitlines() if not line.startswith("sasl.")]
    mine.write_text(
        "\n".join(
            [
                *lines,
                "sasl.mechanism=SCRAM-SHA-256",
                "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
                ' username="alice" password="alice-pw-planted";',
            ]
        )
    )
    bootstrap = console.get("/api/cluster")["bootstrap_servers"]
    alice = partial(run_here, bootstrap=bootstrap)
    options = ("--command-config", str(mine))
    # She is known, and may do nothing.
    wait_until(lambda: alice("topics", "list", "--json", *options).code == 0, "alice to log in")
    assert alice("topics", "list", "--json", *options).json() == []
    alice("groups", "reset-offsets", "g", "--topic", "orders", "--to-latest", *options)
    console.wait(
        "/api/denials",
        lambda found: any(
            row["error"].endswith("AUTHORIZATION_FAILED") for row in found["denials"]
        ),
    )
    removed = console.post("/api/users/remove", {"user": "alice"})
    assert removed == {"user": "alice", "mechanisms": ["SCRAM-SHA-256"]}
    assert console.get("/api/users") == []
    actions = json.dumps(console.get("/api/actions"))
    assert "users/add" in actions
    assert "planted" not in actions


def test_acls_are_added_filtered_explained_and_removed(secured):
    console, klamm = secured
    assert console.post("/api/acls/add", ALICE) == ALICE
    denial = ALICE | {
        "name": "ord",
        "pattern": "Prefixed",
        "permission": "Deny",
        "operation": "All",
    }
    console.post("/api/acls/add", denial)
    console.post("/api/acls/add", {**ALICE, "resource_type": "Group", "name": "billing"})
    assert len(console.get("/api/acls")) == 3
    assert console.get("/api/acls") == klamm("acls", "list", "--json").json()
    of_topic = console.get("/api/acls?topic=orders&principal=User:alice")
    said = klamm("acls", "list", "--topic", "orders", "--principal", "User:alice", "--json")
    assert of_topic == said.json()
    assert len(of_topic) == 2

    def explain() -> Any:
        query = {"principal": "User:alice", "operation": "Read", "topic": "orders"}
        shown = console.get(f"/api/acls/explain?{urlencode(query)}")
        told = klamm(
            *("acls", "explain", "--principal", "User:alice", "--operation", "Read"),
            *("--topic", "orders", "--json"),
        )
        assert shown == told.json()
        return shown

    denied = explain()
    assert denied["allowed"] is False
    assert denied["deciding"] == ["Deny All for User:alice from any host on Topic ord (prefixed)"]
    assert console.post("/api/acls/remove", denial) == [denial]
    assert explain()["allowed"] is True
    status, response = console.ask("/api/acls/remove", denial)
    assert (status, response["error"]) == (400, "BAD_REQUEST")
    newest = console.get("/api/actions")[1]
    assert (newest["action"], newest["with"]) == ("acls/remove", denial)


def test_without_an_authorizer_the_console_says_so(console: RunningConsole):
    assert console.get("/api/security")["authorizer"] is None
    status, response = console.ask("/api/acls")
    assert (status, response["error"]) == (409, "SECURITY_DISABLED")


def test_quotas_are_set_listed_and_removed(
    console: RunningConsole, klamm_cluster: Cluster, klamm_topic_prefix: str
):
    whose = {"user": f"{klamm_topic_prefix}<b>", "client": "loader", "ip": None}
    console.post("/api/quotas/set", whose | {"quotas": {"producer_byte_rate": 1048576}})
    console.post("/api/quotas/set", whose | {"quotas": {"request_percentage": 12.5}})
    bootstrap = klamm_cluster.bootstrap_servers
    wanted = whose | {"quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}}
    assert wanted in console.get("/api/quotas")
    said = run_here("quotas", "list", "--json", bootstrap=bootstrap).json()
    assert console.get("/api/quotas") == said
    console.post("/api/quotas/remove", whose | {"keys": ["request_percentage"]})
    removed = console.post("/api/quotas/remove", whose)
    assert removed == {"removed": ["producer_byte_rate"]}
    assert whose["user"] not in json.dumps(console.get("/api/quotas"))


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/users/add", {"user": "alice"}, "password is missing"),
        ("/api/users/add", {"user": "a", "password": "b", "mechanism": "MD5"}, "SCRAM-SHA-512"),
        ("/api/users/remove", {"user": "nobody-at-all"}, "no user nobody-at-all"),
        ("/api/acls/add", ALICE | {"operation": "Melt"}, "'Melt' is not one of"),
        ("/api/acls/add", ALICE | {"permision": "Deny"}, "An ACL has no 'permision'"),
        ("/api/users/add", {"user": "a", "password": "b", "mechanisms": 1}, "no 'mechanisms'"),
        ("/api/quotas/remove", {"user": "a", "clientid": "b"}, "A quota has no 'clientid'"),
        ("/api/acls/add", ALICE | {"resource_type": "Moon"}, "'Moon' is not one of"),
        ("/api/acls/explain?principal=User:a&operation=Read", None, "Say on what"),
        ("/api/acls?topic=a&group=b", None, "Give one of"),
        ("/api/quotas/set", {"user": "a", "quotas": {}}, "Say how much"),
        ("/api/quotas/set", {"user": "a", "quotas": {"producer_byte_rate": "1"}}, "Say how much"),
        ("/api/quotas/set", {"quotas": {"producer_byte_rate": 1}}, "Say whose"),
        ("/api/hanging?minutes=soon", None, "minutes is not a number"),
    ],
)
def test_bad_input_gets_a_clear_error(console: RunningConsole, path, body, said):
    status, response = console.ask(path, body)
    assert status == 400
    assert said in response["message"]
