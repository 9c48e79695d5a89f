"""`klamm console` beside a real cluster: the contract's addresses, and what they say."""

import http.client
import io
import json
import operator
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from klamm import Cluster
from tests.console.conftest import RunningConsole, start_console
from tests.support.command_line import run_here
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture
def topic(klamm_cluster: Cluster, klamm_topic_prefix: str) -> str:
    name = klamm_topic_prefix + "orders"
    klamm_cluster.create_topic(name, partitions=3)
    return name


def stream(console: RunningConsole, path: str, last: str | None = None):
    """The events of a stream, one after another."""
    where = urlsplit(console.base)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    headers = {"Authorization": f"Bearer {console.token}"}
    if last is not None:
        headers["Last-Event-ID"] = last
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    event: dict[str, str] = {}
    try:
        while line := response.readline():
            text = line.decode().rstrip("\n")
            if text:
                name, _, value = text.partition(": ")
                event[name] = value
            elif "data" in event:
                yield event
                event = {}
            else:
                event = {}
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/api/topics", ("topics", "list")),
        ("/api/topics/{topic}", ("topics", "describe", "{topic}")),
        ("/api/brokers", ("brokers", "list")),
        ("/api/brokers/1", ("brokers", "describe", "1")),
        ("/api/groups", ("groups", "list")),
    ],
)
def test_the_api_says_what_the_command_line_says(console, klamm_cluster, topic, path, command):
    arguments = [each.format(topic=topic) for each in command]

    def look() -> tuple[Any, Any]:
        shown = console.get(path.format(topic=topic))
        said = run_here(*arguments, "--json", bootstrap=klamm_cluster.bootstrap_servers).json()
        if path == "/api/brokers/1":  # sizes grow while one looks
            for each in (shown, said):
                for directory in each["log_dirs"]:
                    directory["usable_bytes"] = directory["bytes"] = 0
        return shown, said

    # Leaders may change between the two looks, for another test's broker has come back.
    wait_until(lambda: operator.eq(*look()), f"{path} and {command} say the same")


def test_the_partitions_are_those_of_all_topics(console, klamm_cluster, topic):
    said = run_here("topics", "describe", "--json", bootstrap=klamm_cluster.bootstrap_servers)
    assert console.get("/api/partitions") == [
        partition for each in said.json() for partition in each["partitions"]
    ]


def test_a_story_is_that_of_the_command_line(console, klamm_cluster, topic):
    def shown() -> list[dict[str, Any]]:
        status, story = console.ask(f"/api/story/{topic}-0")
        return story if status == 200 else []

    def said() -> list[dict[str, Any]]:
        spools = [str(spool) for spool in klamm_cluster.spools]
        return run_here("story", f"{topic}-0", "--json", "--spool", *spools).json()

    # The controller and the broker that was asked write their histories each in its own time.
    for part in ("request", "decisions"):
        wait_until(lambda part=part: any(part in each for each in shown()), part)
    wait_until(lambda: shown() == said(), "the console and the command say the same")


def test_the_cluster_in_one_sentence(console, klamm_cluster, topic):
    found = console.get("/api/cluster")
    assert found["controller"] == klamm_cluster.controller_id()
    assert {each["id"]: each["state"] for each in found["brokers"]} == dict.fromkeys(
        klamm_cluster.broker_ids, "live"
    )
    assert found["health"].startswith("All ")


def test_the_token_is_needed_everywhere(console):
    for path in ("/api/cluster", "/api/events", "/api/whatif/worst"):
        status, response = console.ask(path, headers={"Accept": "*/*"})
        assert (status, response["error"]) == (403, "FORBIDDEN")


def test_the_link_gives_a_page_and_a_cookie_that_opens_the_rest(console):
    where = urlsplit(console.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request("GET", f"/?{where.query}")
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/html")
    cookie = response.headers["set-cookie"].partition(";")[0]
    response.read()
    for path in ("/time", "/topics/any", "/static/main.js", "/api/cluster"):
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    connection.close()


def test_decisions_are_streamed_and_go_on_after_the_last(console, klamm_cluster, topic):
    def key(event):
        epoch, _, sequence = event["id"].partition(":")
        return int(epoch), int(sequence)

    events = stream(console, "/api/events")
    seen = next(event for event in events if topic in event["data"])
    events.close()
    assert json.loads(seen["data"])["id"] == seen["id"]
    klamm_cluster.create_topic(topic + "-more", partitions=1)
    later = stream(console, "/api/events", seen["id"])
    keys = []
    for event in later:
        keys.append(key(event))
        if f"{topic}-more" in event["data"]:
            break
    later.close()
    first = key(seen)
    # Of one controller there is no gap, and nothing twice.
    assert keys == [(first[0], first[1] + 1 + n) for n in range(len(keys))]


def test_what_if_is_answered_at_once(console, klamm_cluster, topic):
    response = console.post("/api/whatif", {"brokers": [1, 2]})
    assert response["scenario"] == "brokers:1,2"
    assert response["failed"] == [1, 2]
    assert [each["broker"] for each in response["brokers"]] == [3]
    assert response["leaders_moved"] >= 2


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/api/whatif", {"brokers": [99]}, 400, "no broker 99"),
        ("/api/whatif", {}, 400, "which fail"),
        ("/api/whatif", {"brokers": 1}, 400, "which fail"),
        ("/api/topics/nowhere", None, 404, "no topic nowhere"),
        ("/api/brokers/99", None, 404, "no broker 99"),
        ("/api/story/nonsense", None, 400, "TOPIC-PARTITION"),
        ("/api/history/zero", None, 400, "EPOCH:SEQUENCE"),
        ("/api/topics/create", {"topic": "no/slash"}, 409, "INVALID_TOPIC_EXCEPTION"),
        ("/api/moves", {"plan": "gone"}, 400, "preview it again"),
        ("/api/plans", {"remove": [1, 2, 3]}, 400, "No broker is left"),
        ("/api/plans", {"melt": 1}, 400, "no 'melt'"),
        ("/api/elections", {"kind": "rigged"}, 400, "preferred"),
        ("/api/lessons", None, 400, "klamm up"),
    ],
)
def test_bad_input_gets_a_clear_error(console, path, body, status, said):
    answered, response = console.ask(path, body)
    assert answered == status
    assert said in f"{response['error']} {response['message']}"


def test_a_console_changes_nothing_unless_it_may(klamm_cluster, tmp_path, topic):
    looking = start_console(
        "--bootstrap-server", klamm_cluster.bootstrap_servers, log=tmp_path / "console.log"
    )
    try:
        status, response = looking.ask("/api/topics/delete", {"topic": topic})
        assert status == 403
        assert "--allow-changes" in response["message"]
        assert looking.get("/api/cluster")["allow_changes"] is False
    finally:
        assert looking.end() == 0


def test_records_are_produced_scanned_and_exported(console, topic):
    for number in range(5):
        console.post(f"/api/topics/{topic}/records", {"value": json.dumps({"n": number})})
    told = []
    for event in stream(console, f"/api/topics/{topic}/records?from=beginning&filter=json.n%3E2"):
        told.append(json.loads(event["data"]))
        if told[-1].get("end"):
            break
    assert (told[-1]["scanned"], told[-1]["found"]) == (5, 2)
    values = [record["value"] for part in told for record in part.get("records", ())]
    assert sorted(values) == ['{"n": 3}', '{"n": 4}']
    address = f"/api/topics/{topic}/export?from=beginning&format="
    lines = console.get(address + "csv").decode().splitlines()
    assert lines[0] == "topic,partition,offset,timestamp,key,value,headers"
    assert len(lines) == 6
    rows = [json.loads(line) for line in console.get(address + "json").splitlines()]
    table = pq.read_table(io.BytesIO(console.get(address + "parquet")))
    assert sorted(table["value"].to_pylist()) == sorted(row["value"] for row in rows)


def test_a_saved_history_is_looked_at_offline(klamm_cluster, tmp_path, topic):
    spools = [f"--spool={spool}" for spool in klamm_cluster.spools]
    offline = start_console(*spools, log=tmp_path / "console.log")
    try:
        found = offline.get("/api/cluster")
        assert found["offline"] is True
        assert found["health"].startswith("At the end of this history: ")
        wait_until(lambda: offline.ask(f"/api/story/{topic}-0")[0] == 200, "the history")
        status, response = offline.ask("/api/groups")
        assert status == 400
        assert "--bootstrap-server" in response["message"]
    finally:
        assert offline.end() == 0


def test_a_spool_that_is_not_there_is_refused(tmp_path: Path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "klamm",
            "console",
            "--port",
            "0",
            "--spool",
            str(tmp_path / "none"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "There is no spool" in done.stderr


@pytest.mark.interop
@pytest.mark.timeout(300)
def test_a_cluster_of_apache_kafka_is_shown_and_changed(kafka_cluster, tmp_path):
    beside = start_console(
        *("--bootstrap-server", kafka_cluster.bootstrap_servers, "--allow-changes"),
        *("--state-dir", str(tmp_path / "state")),
        log=tmp_path / "console.log",
    )
    try:
        body = {"topic": "beside-kafka", "partitions": 3, "replication_factor": 2}
        beside.post("/api/topics/create", body)
        found = beside.wait("/api/cluster", lambda cluster: cluster["history_hint"])
        assert found["level"] == "good"
        assert "klamm.history.topic" in found["history_hint"]
        said = run_here("topics", "list", "--json", bootstrap=kafka_cluster.bootstrap_servers)
        assert beside.get("/api/topics") == said.json()
        assert beside.post("/api/whatif", {"brokers": [1, 2]})["leaderless"] >= 1
        plan = beside.post("/api/plans", {"replication_factor": 3, "topics": "beside-kafka"})
        beside.post("/api/moves", {"plan": plan["id"], "throttle": 10_000_000})
        beside.wait("/api/moves", lambda moves: moves["job"]["status"] == "done")
        (topic,) = beside.get("/api/topics/beside-kafka")
        assert {len(each["replicas"]) for each in topic["partitions"]} == {3}
        status, response = beside.ask("/api/story/beside-kafka-0")
        assert status == 404
        assert "There is no history" in response["message"]
    finally:
        assert beside.end() == 0


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_brokers_transactions_and_access_of_apache_kafka_are_shown(kafka_cluster, tmp_path):
    here = partial(run_here, bootstrap=kafka_cluster.bootstrap_servers)
    beside = start_console(
        *("--bootstrap-server", kafka_cluster.bootstrap_servers, "--allow-changes"),
        *("--state-dir", str(tmp_path / "state")),
        log=tmp_path / "console.log",
    )
    try:
        beside.post("/api/topics/create", {"topic": "paid", "partitions": 2})
        given = here("produce", "paid", "--transactional-id", "loader", stdin=b"a\nb\n")
        read = here("consume", "paid", "--group", "billing", "--count", "2")
        assert (given.code, read.code) == (0, 0)
        # Page 7
        assert beside.get("/api/brokers") == here("brokers", "list", "--json").json()
        broker = beside.get("/api/brokers/1")
        assert broker["log_dirs"][0]["error"] is None
        settings = beside.get("/api/brokers/1/settings")
        assert "zookeeper.connect" in {each["name"] for each in settings}
        rates = beside.wait("/api/rates/1", lambda found: len(found["at"]) > 1)
        assert {"answer_ms", "bytes"} <= rates.keys()
        assert "bytes_in" not in rates  # Apache Kafka has its metrics behind JMX
        # Page 8
        ids = beside.get("/api/transactions")
        assert ids == here("transactions", "list", "--json").json()
        assert "loader" in {each["transactional_id"] for each in ids}
        beside.wait("/api/transactions/loader", lambda found: found["state"] == "CompleteCommit")
        assert beside.get("/api/hanging?minutes=0") == []
        assert beside.get("/api/security")["authorizer"] is None
        status, response = beside.ask("/api/acls")
        assert (status, response["error"]) == (409, "SECURITY_DISABLED")
        assert beside.get("/api/denials")["without"] == [1, 2, 3]
        beside.post("/api/users/add", {"user": "alice", "password": "alice-pw"})
        beside.wait("/api/users", lambda found: [each["user"] for each in found] == ["alice"])
        assert beside.get("/api/users") == here("users", "list", "--json").json()
        beside.post("/api/quotas/set", {"user": "alice", "quotas": {"producer_byte_rate": 1e6}})
        beside.wait("/api/quotas", lambda found: len(found) == 1)
        assert beside.get("/api/quotas") == here("quotas", "list", "--json").json()
        beside.post("/api/quotas/remove", {"user": "alice", "keys": ["producer_byte_rate"]})
        beside.wait("/api/quotas", lambda found: found == [])
        beside.post("/api/users/remove", {"user": "alice"})
        beside.wait("/api/users", lambda found: found == [])
        beside.wait("/api/lag", lambda found: "billing" in found["groups"])
    finally:
        assert beside.end() == 0
