"""`klamm story`: what the controller decided, from the spools of the nodes and from the topic."""

import pytest

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

    told = wait_until(tell, "the history to reach its topic")
    assert f"{topic}-0 was created with leader 1" in told
    run_here(
        "story", "orders-0", "--topic", "nope", bootstrap=klamm_cluster.bootstrap_servers
    ).failed("klamm.history.topic=nope")
