"""Shell completion of names that only the cluster knows."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from confluent_kafka import Producer
from typer._completion_classes import BashComplete

from klamm import Cluster
from klamm.cli.app import app
from klamm.client import groups, users
from klamm.names import TopicPartition


def completed(line: str, bootstrap_servers: str) -> list[str]:
    """What a shell is offered for the last word of a command line."""
    *words, last = line.split(" ")[1:]
    completion = BashComplete(typer.main.get_command(app), {}, "klamm", "_KLAMM_COMPLETE")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KLAMM_BOOTSTRAP_SERVER", bootstrap_servers)
        return [each.value for each in completion.get_completions(words, last)]


#: Parameters that sound like a name in the cluster, and are a number, a pattern, a file, of a
#: snapshot that is on disk, or of a cluster of which only ZooKeeper is named.
_NOT_IN_THE_CLUSTER = {
    "observe --history-topic",
    "up --brokers",
    "topics create --partitions",
    "topics alter --partitions",
    "elect --partition",
    "produce --partition",
    "consume --partition",
    "transactions abort --partition",
    "reassign generate --topics-to-move-json-file",
    "ingest --partition-by",
    "whatif --fail",
    "whatif --set",
    "plan --topics",
    "plan --add-brokers",
    "plan --remove-brokers",
}
_WORDS = ("topic", "group", "broker", "user", "partition", "transactional", "principal")


def parameters(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every parameter of every command, by the command's name and its own."""
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, f"{path}{name} ")
    if not hasattr(command, "commands"):
        for parameter in command.params:
            yield path + parameter.opts[0], parameter


def test_every_parameter_that_names_what_a_cluster_has_is_completed():
    missing = {
        name
        for name, parameter in parameters(typer.main.get_command(app))
        if any(word in f"{parameter.metavar} {parameter.name}".lower() for word in _WORDS)
        and not parameter._custom_shell_complete
    }
    assert missing == _NOT_IN_THE_CLUSTER


@pytest.mark.real
def test_every_command_completes_what_it_takes(klamm_cluster: Cluster):
    klamm_cluster.create_topic("completed-topic")
    groups.commit_offsets(
        klamm_cluster.admin, "completed-group", {TopicPartition("completed-topic", 0): 0}
    )
    users.add(klamm_cluster.admin, "completed-user", "secret")
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
        "klamm acls add --topic comp": ["completed-topic"],
        "klamm reassign generate --topics other,comp": ["other,completed-topic"],
        "klamm story comp": ["completed-topic-0"],
        "klamm groups describe comp": ["completed-group"],
        "klamm consume completed-topic --group comp": ["completed-group"],
        "klamm acls explain --group comp": ["completed-group"],
        "klamm transactions describe comp": ["completed-id"],
        "klamm story --transactional-id comp": ["completed-id"],
        "klamm users remove comp": ["completed-user"],
        "klamm acls list --principal User:comp": ["User:completed-user"],
        "klamm brokers describe ": ["1", "2", "3"],
        "klamm configs describe --broker ": ["1", "2", "3"],
        "klamm reassign generate --brokers 1,": ["1,1", "1,2", "1,3"],
        "klamm controller move ": ["1", "2", "3"],
    }
    found = {line: completed(line, klamm_cluster.bootstrap_servers) for line in offered}
    assert found == offered


def test_a_cluster_that_does_not_answer_completes_nothing():
    assert completed("klamm groups describe x", "127.0.0.1:1") == []
