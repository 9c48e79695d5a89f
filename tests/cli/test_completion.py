"""Shell completion of names that only the cluster knows."""

import pytest
import typer
from confluent_kafka import Producer
from typer._completion_classes import BashComplete

from klamm import Cluster
from klamm.cli.app import app
from klamm.client import groups
from klamm.names import TopicPartition


def completed(line: str, bootstrap_servers: str) -> list[str]:
    """What a shell is offered for the last word of a command line."""
    *words, last = line.split(" ")[1:]
    completion = BashComplete(typer.main.get_command(app), {}, "klamm", "_KLAMM_COMPLETE")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KLAMM_BOOTSTRAP_SERVER", bootstrap_servers)
        return [each.value for each in completion.get_completions(words, last)]


@pytest.mark.real
def test_every_command_completes_what_it_takes(klamm_cluster: Cluster):
    klamm_cluster.create_topic("completed-topic")
    groups.commit_offsets(
        klamm_cluster.admin, "completed-group", {TopicPartition("completed-topic", 0): 0}
    )
    producer = Producer(
        {
            "bootstrap.servers": klamm_cluster.bootstrap_servers,
            "transactional.id": "completed-id",
        }
    )
    producer.init_transactions(60)
    offered = {
        "klamm topics describe comp": ["completed-topic"],
        "klamm topics delete comp": ["completed-topic"],
        "klamm configs describe --topic comp": ["completed-topic"],
        "klamm elect preferred --topic comp": ["completed-topic"],
        "klamm consume comp": ["completed-topic"],
        "klamm ingest comp": ["completed-topic"],
        "klamm transactions abort --topic comp": ["completed-topic"],
        "klamm groups reset-offsets completed-group --topic comp": ["completed-topic"],
        "klamm story comp": ["completed-topic-0"],
        "klamm groups describe comp": ["completed-group"],
        "klamm consume completed-topic --group comp": ["completed-group"],
        "klamm transactions describe comp": ["completed-id"],
        "klamm story --transactional-id comp": ["completed-id"],
        "klamm brokers describe ": ["1", "2", "3"],
        "klamm configs describe --broker ": ["1", "2", "3"],
        "klamm controller move ": ["1", "2", "3"],
    }
    found = {line: completed(line, klamm_cluster.bootstrap_servers) for line in offered}
    assert found == offered


def test_a_cluster_that_does_not_answer_completes_nothing():
    assert completed("klamm groups describe x", "127.0.0.1:1") == []
