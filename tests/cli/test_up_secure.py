"""`klamm up --secure`: one word, every command with its properties, and no secret anywhere."""

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from klamm.config.client_properties import ClientSecurity
from klamm.config.jaas import SCRAM_MODULE, format_jaas
from klamm.config.properties import format_properties, parse_properties
from klamm.net.librdkafka import librdkafka_settings
from tests.cli.test_up import running
from tests.support.command_line import Result, run_here
from tests.support.ports import free_base_port, free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

BOB = "planted-bob-password"


class Secured:
    """A cluster of one broker that `klamm up --secure` has made."""

    def __init__(self, ready: dict[str, Any], data: Path, metrics_port: int) -> None:
        self.ready = ready
        self.data = data
        self.metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        self.config = Path(ready["command_config"])
        self.bootstrap: str = ready["bootstrap_servers"]

    def run(self, *arguments: str, config: Path | None = None) -> Result:
        given = ("--command-config", str(config or self.config))
        return run_here(*arguments, *given, bootstrap=self.bootstrap)

    def properties(self, user: str, password: str) -> Path:
        """Client properties of another user."""
        options = {"username": user, "password": password}
        changed = {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": format_jaas(SCRAM_MODULE, options),
        }
        path = self.data / "security" / f"{user}.properties"
        path.write_text(format_properties(parse_properties(self.config.read_text()) | changed))
        return path

    def librdkafka(self, config: Path) -> dict[str, Any]:
        security = ClientSecurity.from_properties(parse_properties(config.read_text()))
        return {"bootstrap.servers": self.bootstrap, "log_level": 0} | librdkafka_settings(security)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    data = tmp_path_factory.mktemp("up") / "data"
    metrics_port = free_port()
    with running(
        *("--secure", "--brokers", "1", "--base-port", str(free_base_port(1)), "--json"),
        *("--data-dir", str(data), "--override", f"klamm.metrics.port={metrics_port}"),
    ) as process:
        assert process.stdout is not None
        yield Secured(json.loads(process.stdout.readline()), data, metrics_port)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def bob(up: Secured, tmp_path_factory: pytest.TempPathFactory) -> Path:
    password = tmp_path_factory.mktemp("bob") / "password"
    password.write_text(BOB)
    up.run("users", "add", "bob", "--password-file", str(password)).ok()
    config = up.properties("bob", BOB)
    wait_until(lambda: up.run("topics", "list", config=config).code == 0, "bob can log in")
    return config


COMMANDS = (
    ("topics", "describe"),
    ("brokers", "list"),
    ("brokers", "describe", "1"),
    ("controller", "show"),
    ("elect", "preferred", "--all"),
    ("reassign", "list"),
    ("controller", "move", "1"),
    ("configs", "describe", "--broker", "1"),
    ("groups", "list"),
    ("transactions", "list"),
    ("transactions", "hanging", "--topic", "secret-topic"),
    ("acls", "list"),
    ("users", "list"),
    ("quotas", "list"),
    ("consume", "secret-topic", "--exit"),
    ("story", "secret-topic-0"),
    ("story", "--requests"),
)


def test_every_command_takes_client_properties(up: Secured):
    up.run("topics", "create", "secret-topic", "--partitions", "1", "--replication-factor", "1")
    wait_until(lambda: up.run("story", "secret-topic-0").code == 0, "the history has the topic")
    for command in COMMANDS:
        up.run(*command).ok()
    run_here("topics", "list", bootstrap=up.bootstrap).failed(
        "No broker answers", "A listener with TLS or SASL needs --command-config."
    )


@pytest.mark.rule("SEC-9", "TXN-3", "TXN-4")
def test_transactions_need_acls_of_their_id(up: Secured, bob: Path):
    up.run("topics", "create", "paid", "--partitions", "1", "--replication-factor", "1").ok()
    settings = {**up.librdkafka(bob), "transactional.id": "bobs-1"}
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        Producer(settings).init_transactions(30)
    for rule in (
        ("--operation", "Write", "--transactional-id", "bobs-1"),
        ("--operation", "Write", "--topic", "paid"),
    ):
        up.run("acls", "add", "--principal", "User:bob", *rule).ok()

    def commit() -> bool:
        producer = Producer(settings)
        try:
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce("paid", b"by bob")
            producer.commit_transaction(30)
            return True
        except KafkaException:
            return False

    wait_until(commit, "the ACLs of bob to count")
    assert "by bob" in up.run("consume", "paid", "--exit").out
    told = wait_until(
        lambda: up.run("story", "--transactional-id", "bobs-1").out, "the story of bobs-1"
    )
    assert "User:bob at 127.0.0.1" in told
    # Whoever may not see the id is not told of it.
    assert "bobs-1" in up.run("transactions", "list").out


def fetch(url: str, headers: dict[str, str] | None = None) -> bytes:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {})) as page:
            return bytes(page.read())
    except urllib.error.HTTPError as error:
        return bytes(error.read())


@pytest.mark.rule("SEC-16")
def test_secrets_are_in_no_log_history_metric_error_or_page(up: Secured, bob: Path):
    passwords = json.loads((up.data / "security" / "passwords.json").read_text())
    secrets = {each.encode() for each in (BOB, *passwords.values())}
    for path in (up.data / "security").glob("*.pem"):
        for key in re.findall(rb"PRIVATE KEY-----\n(.*?)-----END", path.read_bytes(), re.DOTALL):
            secrets |= {line for line in key.split(b"\n") if len(line) >= 20}
    assert len(secrets) > 1 + len(passwords)
    wrong = up.properties("bob", "planted-wrong-password")
    secrets.add(b"planted-wrong-password")
    refused = up.run("topics", "list", config=wrong)
    assert refused.code == 1
    console, _, token = up.ready["console"].partition("?token=")
    pages = ("", "topics", "brokers", "groups", "time", "lessons")
    apis = ("cluster", "topics", "brokers", "groups", "partitions", "story/secret-topic-0")
    shown = {
        "the error of a wrong password": (refused.out + refused.err).encode(),
        "klamm users list": up.run("users", "list", "--json").out.encode(),
        "klamm configs": up.run("configs", "describe", "--broker", "1", "--json").out.encode(),
        "klamm story": up.run("story", "--requests", "--json").out.encode(),
        "metrics": fetch(up.metrics),
    }
    bearer = {"Authorization": f"Bearer {token}"}
    for page in (*pages, *(f"api/{each}" for each in apis)):
        shown[f"/{page}"] = fetch(console + page, bearer)
    for path in up.data.rglob("*"):
        is_private = path.name.endswith(".properties") or path.parent.name == "security"
        if path.is_file() and not is_private:
            shown[str(path.relative_to(up.data))] = path.read_bytes()
    assert any(name.endswith(".jsonl") for name in shown)
    assert b"kafka_server" in shown["metrics"]
    found = [name for name, data in shown.items() if any(each in data for each in secrets)]
    assert found == []
