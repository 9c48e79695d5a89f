"""`klamm reassign` and `klamm controller move`, on klamm and on Apache Kafka."""

import json
from pathlib import Path

from tests.cli.conftest import AnyCluster
from tests.cli.test_topics import described
from tests.support.command_line import Klamm, run_here
from tests.support.waiting import wait_until


def plan_of(topic: str, *replicas: list[int]) -> dict:
    rows = [
        {"topic": topic, "partition": number, "replicas": each}
        for number, each in enumerate(replicas)
    ]
    return {"version": 1, "partitions": rows}


def write(path: Path, plan: dict) -> str:
    path.write_text(json.dumps(plan))
    return str(path)


def replicas(klamm: Klamm, topic: str) -> list[list[int]]:
    return [each["replicas"] for each in described(klamm, topic)]


def throttles(klamm: Klamm, topic: str) -> set[str]:
    found = set()
    for resource in (("--topic", topic), ("--broker", "1"), ("--broker", "2"), ("--broker", "3")):
        rows = klamm("configs", "describe", *resource, "--json").json()
        found |= {
            row["name"]
            for row in rows
            if "throttled" in row["name"] and row["source"] in ("topic", "broker, dynamic")
        }
    return found


def wait_throttles(klamm: Klamm, topic: str, expected: set[str]) -> None:
    """Brokers hear of changed settings a moment after the command has written them."""
    wait_until(lambda: throttles(klamm, topic) == expected, f"throttles {sorted(expected)}")


def test_a_plan_is_generated_executed_verified_and_led_back(
    klamm: Klamm, topic: str, tmp_path: Path
):
    klamm("topics", "create", topic, "--replica-assignment", "1:2,2:1").ok()
    klamm("produce", topic, stdin=b"a\nb\nc\n").ok()

    generated = klamm(
        "reassign", "generate", "--topics", topic, "--brokers", "2,3", "--seed", "7"
    ).ok()
    plan = tmp_path / "plan.json"
    plan.write_text(generated.out)
    both = klamm(
        "reassign", "generate", "--topics", topic, "--broker-list", "2,3", "--seed", "7", "--json"
    ).json()
    assert both["proposed"] == json.loads(generated.out), "the same seed, the same plan"
    assert [row["replicas"] for row in both["current"]["partitions"]] == [[1, 2], [2, 1]]
    targets = [row["replicas"] for row in both["proposed"]["partitions"]]
    assert all(set(each) == {2, 3} for each in targets)

    klamm("reassign", "verify", str(plan)).failed("not as planned")
    done = klamm("reassign", "execute", str(plan), "--throttle", "10000000", "--wait").ok()
    rollback = write(tmp_path / "back.json", json.loads(done.out))
    assert "2/2" in done.err, "a progress bar, not in the way of the result"
    assert replicas(klamm, topic) == targets
    rows = klamm("reassign", "verify", "--reassignment-json-file", str(plan), "--json").json()
    assert {row["status"] for row in rows} == {"completed"}
    wait_throttles(klamm, topic, set())

    klamm("reassign", "execute", rollback, "--wait").ok()
    assert replicas(klamm, topic) == [[1, 2], [2, 1]]
    assert klamm("consume", topic, "--exit").ok().out.count("\n") == 3
    assert klamm("reassign", "list", "--json").json() == []


def test_waves_are_executed_one_after_the_other(klamm: Klamm, topic: str, tmp_path: Path):
    klamm("topics", "create", topic, "--replica-assignment", "1,2").ok()
    waves = tmp_path / "waves"
    waves.mkdir()
    write(waves / "001.json", plan_of(topic, [3]))
    second = {"version": 1, "partitions": [{"topic": topic, "partition": 1, "replicas": [3]}]}
    write(waves / "002.json", second)
    done = klamm("reassign", "execute", str(waves)).ok()
    assert done.err.index("001.json") < done.err.index("002.json")
    assert replicas(klamm, topic) == [[3], [3]]
    back = json.loads(done.out)["partitions"]
    assert [row["replicas"] for row in back] == [[1], [2]]


def test_a_throttle_stays_until_the_plan_is_verified(klamm: Klamm, topic: str, tmp_path: Path):
    klamm("topics", "create", topic, "--replica-assignment", "1").ok()
    plan = write(tmp_path / "plan.json", plan_of(topic, [2]))
    klamm("reassign", "execute", plan, "--throttle", "1000000").ok()
    limits = {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
    }
    wait_throttles(klamm, topic, limits)
    klamm("reassign", "execute", plan, "--wait", "--additional").ok()
    klamm("reassign", "verify", plan).ok()
    wait_throttles(klamm, topic, set())


def test_a_move_that_cannot_end_is_listed_and_cancelled(klamm: Klamm, topic: str, tmp_path: Path):
    klamm("topics", "create", topic, "--replica-assignment", "1").ok()
    # Enough to be slow at a byte a second.
    klamm("produce", topic, stdin=(b"x" * 1000 + b"\n") * 2000).ok()
    plan = write(tmp_path / "plan.json", plan_of(topic, [2]))
    klamm("reassign", "execute", plan, "--throttle", "1").ok()
    (move,) = klamm("reassign", "list", "--json").json()
    assert (move["topic"], move["adding"], move["removing"]) == (topic, [2], [1])
    klamm("reassign", "execute", plan).failed("Other reassignments are in progress")
    klamm("reassign", "verify", plan).failed("in progress")
    klamm("reassign", "cancel", plan).ok()
    assert klamm("reassign", "list", "--json").json() == []
    wait_until(lambda: replicas(klamm, topic) == [[1]], "the replicas as before")
    wait_throttles(klamm, topic, set())
    assert "No reassignment was in progress" in klamm("reassign", "cancel", "--all").ok().err


def test_a_plan_that_makes_no_sense_is_refused(klamm: Klamm, topic: str, tmp_path: Path):
    klamm("topics", "create", topic, "--replica-assignment", "1").ok()
    unknown = write(tmp_path / "unknown.json", plan_of(topic, [2], [3]))
    klamm("reassign", "execute", unknown).failed("UNKNOWN_TOPIC_OR_PARTITION", f"{topic}-1")
    nobody = write(tmp_path / "nobody.json", plan_of(topic, [77]))
    klamm("reassign", "execute", nobody).failed("INVALID_REPLICA_ASSIGNMENT")
    klamm("reassign", "generate", "--topics", topic, "--brokers", "1,77").failed("77")
    klamm("reassign", "generate", "--topics", topic + "x").failed("did you mean")


def test_a_file_that_is_no_plan_is_refused_with_a_reason(tmp_path: Path):
    for text, said in (
        ("nonsense", "Expecting value"),
        ("{}", "'partitions' is missing"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"partitions": []}', "no partitions"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "[1, 1]"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "'replicas' is missing"),
    ):
        file = tmp_path / "plan.json"
        file.write_text(text)
        result = run_here("reassign", "verify", str(file)).failed("is not a reassignment", said)
        assert str(file) in result.err
    run_here("reassign", "verify", str(tmp_path / "none.json")).failed("cannot be read")
    run_here("reassign", "execute", str(tmp_path)).failed("is not a reassignment")
    assert run_here("reassign", "verify").code == 2


def test_the_controller_is_moved_to_the_broker_of_choice(klamm: Klamm, cluster: AnyCluster):
    holder = klamm("controller", "show", "--json").json()["id"]
    wanted = holder % 3 + 1
    klamm("controller", "move", str(wanted), "--attempts", "60").ok()
    assert klamm("controller", "show", "--json").json()["id"] == wanted
    again = klamm("controller", "move", str(wanted), "--zookeeper", cluster.zookeeper).ok()
    assert "already" in again.err
    klamm("controller", "move", "77").failed("not registered", "1, 2, 3")
