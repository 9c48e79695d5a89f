"""`klamm story`: what the controller decided, from the spools of the nodes and from the topic."""

import json

import pytest
from confluent_kafka import KafkaException, Producer

from klamm import Cluster
from tests.support.command_line import run_here
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


def test_the_story_of_a_partition_is_told_from_the_spools(
    klamm_cluster: Cluster, klamm_topic_prefix: str
):
    topic = klamm_topic_prefix + "orders"
    klamm_cluster.create_topic(topic)
    leader = klamm_cluster.leader(topic)
    klamm_cluster.stop(leader)
    name = f"{topic}-0"

    def tell(*options: str) -> str:
        result = run_here("story", name, *options, "--spool", *map(str, klamm_cluster.spools))
        return result.out if result.code == 0 else ""

    wait_until(lambda: "was handed over" in tell(), "the story to come to its end")
    told = tell().splitlines()
    created = next(line for line in told if f"{name} was created" in line)
    handed = next(line for line in told if f"{name} was handed over" in line)
    assert told.index(created) < told.index(handed)
    assert f"broker {leader} asked to shut down" in handed
    assert '"text"' in tell("--json")
    each = [f"--spool={spool}" for spool in klamm_cluster.spools]
    run_here("story", "nothing-0", *each).failed("says nothing about nothing-0")
    run_here("story", "orders").failed("expected is TOPIC-PARTITION")


@pytest.mark.klamm_cluster(brokers=1, config={"klamm.history.topic": "__klamm_history"})
def test_the_story_of_a_partition_is_told_from_the_topic(
    klamm_cluster: Cluster, klamm_topic_prefix: str
):
    topic = klamm_topic_prefix + "orders"
    klamm_cluster.create_topic(topic)

    def tell() -> str:
        result = run_here("story", f"{topic}-0", bootstrap=klamm_cluster.bootstrap_servers)
        return result.out if result.code == 0 else ""

    wait_until(lambda: f"{topic}-0 was created with leader 1" in tell(), "the controller's history")
    asked = "User:ANONYMOUS at 127.0.0.1 (client id klamm-cluster) asked for CreateTopics: "
    wait_until(lambda: asked in tell(), "the broker's history")
    run_here(
        "story", "orders-0", "--topic", "nope", bootstrap=klamm_cluster.bootstrap_servers
    ).failed("klamm.history.topic=nope")


@pytest.mark.klamm_cluster(brokers=1, config={"klamm.history.topic": "__klamm_history"})
def test_the_story_of_a_transactional_id_says_who_began_fenced_and_ended(
    klamm_cluster: Cluster, klamm_topic_prefix: str
):
    topic, id = klamm_topic_prefix + "orders", klamm_topic_prefix + "payments"
    klamm_cluster.create_topic(topic)
    zombie, producer = (
        Producer(
            {
                "bootstrap.servers": klamm_cluster.bootstrap_servers,
                "transactional.id": id,
                "client.id": name,
                "log_level": 0,
            }
        )
        for name in ("first", "second")
    )
    zombie.init_transactions(30)
    zombie.begin_transaction()
    zombie.produce(topic, b"a")
    zombie.flush()
    producer.init_transactions(30)
    with pytest.raises(KafkaException):
        zombie.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"b")
    producer.commit_transaction(30)

    def tell(*options: str, bootstrap: str | None = None) -> str:
        result = run_here("story", "--transactional-id", id, *options, bootstrap=bootstrap)
        return result.out if result.code == 0 else ""

    spools = ("--spool", *map(str, klamm_cluster.spools))
    wait_until(lambda: "commit is complete" in tell(*spools), "the transaction to be noted")
    began, fenced, refused, ended = (
        next(at for at, line in enumerate(tell(*spools).splitlines()) if clause in line)
        for clause in (
            f"(client id first) began a transaction with {topic}-0",
            "(client id second) asked for the id; producer id",
            "(client id first) was refused as fenced (EndTxn)",
            f"(client id second) asked to commit: {topic}-0",
        )
    )
    assert began < fenced < refused < ended
    servers = klamm_cluster.bootstrap_servers
    wait_until(lambda: "commit is complete" in tell(bootstrap=servers), "the topic to have it")
    assert json.loads(tell("--json", *spools))[0]["what"] == "initialized"
    asked = run_here("story", "--requests", *spools).out
    assert f"asked for CreateTopics: topic {topic}" in asked
    run_here("story", "--transactional-id", "nobody", *spools).failed("'nobody'")
    for wrong in ((f"{topic}-0", "--requests"), ()):
        assert run_here("story", *wrong).code == 2
