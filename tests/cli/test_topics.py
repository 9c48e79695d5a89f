"""`klamm topics`, `brokers`, `configs` and `elect`, on klamm and on Apache Kafka."""

from tests.support.command_line import Klamm, run_here
from tests.support.waiting import wait_until


def described(klamm: Klamm, topic: str) -> list[dict]:
    """The partitions of a topic."""
    (found,) = klamm("topics", "describe", topic, "--json").json()
    return found["partitions"]


def test_a_topic_is_created_listed_described_altered_and_deleted(klamm: Klamm, topic: str):
    made = ("--partitions", "2", "--replication-factor", "2", "--config", "retention.ms=3600000")
    result = klamm("topics", "create", topic, *made).ok()
    assert result.out == ""
    assert "Created topic" in result.err

    partitions = described(klamm, topic)
    assert [each["partition"] for each in partitions] == [0, 1]
    assert all(len(each["replicas"]) == 2 for each in partitions)
    assert all(each["leader"] in each["isr"] for each in partitions)
    (shown,) = klamm("topics", "describe", topic, "--json").json()
    assert shown["configs"] == {"retention.ms": "3600000"}
    assert len(shown["topic_id"]) == 22

    (listed,) = [e for e in klamm("topics", "list", "--json").json() if e["topic"] == topic]
    assert (listed["partitions"], listed["replication_factor"]) == (2, 2)

    klamm("topics", "alter", topic, "--partitions", "4").ok()
    assert len(described(klamm, topic)) == 4
    klamm("topics", "alter", topic, "--partitions", "3").failed("INVALID_PARTITIONS")

    table = klamm("topics", "describe", topic).ok().out.splitlines()
    assert table[0].startswith(f"{topic}: 4 partitions, 2 replicas, id ")
    assert table[1].split() == [
        "topic",
        "partition",
        "leader",
        "epoch",
        "replicas",
        "isr",
        "offline",
    ]
    assert len(table) == 2 + 4

    klamm("topics", "delete", topic).ok()
    klamm("topics", "describe", topic).failed("UNKNOWN_TOPIC_OR_PARTITION")


def test_replicas_can_be_assigned_by_hand(klamm: Klamm, topic: str):
    klamm("topics", "create", topic, "--replica-assignment", "3:1,2:3,1:2").ok()
    assert [each["replicas"] for each in described(klamm, topic)] == [[3, 1], [2, 3], [1, 2]]
    klamm("topics", "alter", topic, "--partitions", "4", "--replica-assignment", "2:1").ok()
    assert described(klamm, topic)[3]["replicas"] == [2, 1]


def test_what_is_unknown_gets_a_suggestion(klamm: Klamm, topic: str):
    klamm("topics", "create", topic, "--partitions", "1", "--if-not-exists").ok()
    assert "exists" in klamm("topics", "create", topic, "--if-not-exists").ok().err
    klamm("topics", "create", topic).failed("TOPIC_ALREADY_EXISTS")
    mistyped = topic[:-1]
    hint = f"did you mean {topic}?"
    klamm("topics", "describe", mistyped).failed("UNKNOWN_TOPIC_OR_PARTITION", hint)
    klamm("topics", "delete", mistyped).failed("UNKNOWN_TOPIC_OR_PARTITION", hint)
    klamm("topics", "alter", mistyped, "--partitions", "9").failed(hint)
    klamm("produce", mistyped).failed(hint)
    klamm("consume", mistyped).failed(hint)
    klamm("configs", "describe", "--topic", mistyped).failed(hint)
    klamm("topics", "create", "new", "--config", "retention.mss=1").failed(
        "INVALID_CONFIG", "did you mean retention.ms?"
    )
    klamm("configs", "alter", "--topic", topic, "--set", "retenton.ms=1").failed(
        "INVALID_CONFIG", "did you mean retention.ms?"
    )
    klamm("configs", "describe", "--topic", topic, "--key", "cleanup").failed("cleanup.policy")


def test_settings_are_changed_and_given_back(klamm: Klamm, topic: str):
    klamm("topics", "create", topic, "--partitions", "1").ok()
    resource = ("--topic", topic)
    klamm(
        "configs", "alter", *resource, "--set", "retention.ms=5000", "--set", "segment.ms=60000"
    ).ok()

    def own() -> dict[str, str]:
        rows = klamm("configs", "describe", *resource, "--json").json()
        return {row["name"]: row["value"] for row in rows if row["source"] == "topic"}

    assert own() == {"retention.ms": "5000", "segment.ms": "60000"}
    klamm("configs", "alter", *resource, "--delete", "segment.ms").ok()
    assert own() == {"retention.ms": "5000"}
    shown = klamm("configs", "describe", *resource).ok().out.splitlines()
    assert any(line.split()[:3] == ["retention.ms", "5000", "topic"] for line in shown)


def test_brokers_share_defaults_that_can_be_changed_for_all(klamm: Klamm):
    resource = ("--broker", "default")
    klamm("configs", "alter", *resource, "--set", "log.retention.ms=123456789").ok()

    def at_broker_1() -> str:
        rows = klamm("configs", "describe", "--broker", "1", "--key", "log.retention.ms", "--json")
        return rows.json()[0]["value"]

    try:
        wait_until(lambda: at_broker_1() == "123456789", "the new default at broker 1")
        rows = klamm("configs", "describe", *resource, "--json").json()
        assert {"log.retention.ms": "123456789"}.items() <= {
            row["name"]: row["value"] for row in rows
        }.items()
    finally:
        klamm("configs", "alter", *resource, "--delete", "log.retention.ms").ok()
    klamm("configs", "alter", "--broker", "77", "--set", "a=b").failed("BROKER_NOT_AVAILABLE")


def test_brokers_are_listed_with_their_share(klamm: Klamm, topic: str):
    klamm("topics", "create", topic, "--replica-assignment", "1:2,1:2,2:3").ok()
    rows = {row["id"]: row for row in klamm("brokers", "list", "--json").json()}
    assert set(rows) == {1, 2, 3}
    assert sum(row["controller"] for row in rows.values()) == 1
    assert rows[1]["preferred"] >= 2
    controller = klamm("controller", "show", "--json").json()
    assert rows[controller["id"]]["controller"]
    assert rows[controller["id"]]["port"] == controller["port"]

    shown = klamm("brokers", "describe", "2", "--json").json()
    assert shown["id"] == 2
    assert shown["configs"]["broker.id"] == "2"
    assert sum(each["replicas"] for each in shown["log_dirs"]) == rows[2]["replicas"]
    klamm("brokers", "describe", "9").failed("BROKER_NOT_AVAILABLE", "1, 2, 3")


def test_preferred_leaders_are_elected_where_they_do_not_lead(klamm: Klamm, topic: str):
    klamm("topics", "create", topic, "--replica-assignment", "1:2").ok()
    (outcome,) = klamm("elect", "preferred", "--topic", topic, "--json").json()
    assert outcome["outcome"] == "ELECTION_NOT_NEEDED"
    klamm("elect", "preferred", "--all").ok()
    klamm("elect", "unclean", "--topic", topic, "--partition", "5").failed(
        "UNKNOWN_TOPIC_OR_PARTITION"
    )


def test_a_filter_leaves_out_what_is_well(klamm: Klamm, topic: str):
    klamm("topics", "create", topic, "--partitions", "1").ok()
    assert klamm("topics", "describe", topic, "--unavailable", "--json").json() == []
    assert klamm("topics", "describe", topic, "--under-replicated").ok().out == ""


def test_nobody_there_is_one_sentence():
    result = run_here("topics", "list", "--bootstrap-server", "127.0.0.1:1").failed(
        "No broker answers at 127.0.0.1:1"
    )
    assert len(result.err.splitlines()) == 1
    for command in (("produce", "t"), ("consume", "t"), ("story", "t-0"), ("groups", "list")):
        run_here(*command, "-b", "127.0.0.1:1").failed("No broker answers")
