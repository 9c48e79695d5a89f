"""`klamm topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from klamm.cli.completion import complete_topic
from klamm.cli.options import (
    AsJson,
    BootstrapServer,
    CommandConfig,
    TopicName,
    assignment,
    group,
    open_admin,
    settings,
)
from klamm.cli.render import say, show_json, show_rows, stdout, table
from klamm.client import configs, topics
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.client.configs import ConfigResource
from klamm.client.topics import NewTopic, TopicDescription
from klamm.names import counted

app = group("Topics: create, list, describe, alter and delete them.")

_PARTITIONS = {
    "topic": lambda p: p.topic,
    "partition": lambda p: p.partition,
    "leader": lambda p: p.leader if p.leader >= 0 else "none",
    "epoch": lambda p: p.leader_epoch,
    "replicas": lambda p: p.replicas,
    "isr": lambda p: p.isr,
    "offline": lambda p: p.offline or None,
}
_TOPICS = {
    "topic": lambda t: t.topic,
    "partitions": lambda t: len(t.partitions),
    "replication": lambda t: t.replication_factor,
    "under-replicated": lambda t: sum(p.is_under_replicated for p in t.partitions),
    "unavailable": lambda t: sum(p.is_unavailable for p in t.partitions),
    "internal": lambda t: t.internal,
}


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions; default: num.partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Replicas; default: default.replication.factor.")
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(metavar="1:2:3,2:3:1", help="The replicas of each partition."),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting; may be repeated.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Create a topic.

    \b
    Example: klamm topics create orders --partitions 6 --replication-factor 3
    Example: klamm topics create orders --config retention.ms=3600000
    Example: klamm topics create orders --replica-assignment 1:2,2:3
    """
    if replica_assignment is not None and (partitions or replication_factor):
        raise typer.BadParameter(
            "it says how many partitions and replicas there are; leave out --partitions and "
            "--replication-factor",
            param_hint="--replica-assignment",
        )
    topic = NewTopic(
        name,
        partitions or -1,
        replication_factor or -1,
        assignment(replica_assignment),
        settings(config, "--config"),
    )
    with open_admin(bootstrap_server, command_config) as admin:
        if if_not_exists and any(name == topic.name for topic in admin.metadata(None).topics):
            say(f"Topic {name} exists.")
            return
        made = topics.create(admin, topic)
        topics.wait_until_known(admin, name, made)
    say(f"Created topic {name}.")


@app.command("list")
def list_(
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave out internal topics.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """List the topics.

    \b
    Example: klamm topics list --json
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = topics.describe(admin).topics
    rows = [topic for topic in found if not (exclude_internal and topic.internal)]
    if as_json:
        show_json(
            [
                {
                    "topic": topic.topic,
                    "topic_id": topic.topic_id,
                    "internal": topic.internal,
                    "partitions": len(topic.partitions),
                    "replication_factor": topic.replication_factor,
                    "under_replicated": sum(p.is_under_replicated for p in topic.partitions),
                    "unavailable": sum(p.is_unavailable for p in topic.partitions),
                }
                for topic in rows
            ]
        )
        return
    show_rows(rows, _TOPICS, as_json=False, empty="There are no topics.")


@app.command()
def describe(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            autocompletion=complete_topic,
            show_default=False,
            help="Default: all topics.",
        ),
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with an incomplete ISR.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a leader.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show the partitions of a topic, or of all: leader, epoch, replicas and ISR.

    \b
    Example: klamm topics describe orders
    Example: klamm topics describe --under-replicated
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = topics.describe(admin, None if name is None else [name]).topics
        overrides = {
            topic.topic: {
                each.name: each.value
                for each in configs.describe(admin, ConfigResource.topic(topic.topic))
                if each.source == "topic"
            }
            for topic in found
            if as_json or name is not None
        }

    def shown(topic: TopicDescription) -> list[topics.PartitionDescription]:
        return [
            each
            for each in topic.partitions
            if (not under_replicated or each.is_under_replicated)
            and (not unavailable or each.is_unavailable)
        ]

    filtered = under_replicated or unavailable
    if as_json:
        show_json(
            [
                asdict(topic)
                | {
                    "configs": overrides[topic.topic],
                    "partitions": [asdict(each) for each in shown(topic)],
                }
                for topic in found
                if shown(topic) or not filtered
            ]
        )
        return
    if name is not None and not filtered:
        (topic,) = found
        said = [f"{key}={value}" for key, value in overrides[name].items()]
        stdout().print(
            f"{topic.topic}: {counted(len(topic.partitions), 'partition')}, "
            f"{counted(topic.replication_factor, 'replica')}, id {topic.topic_id or 'none'}"
            + (f", {', '.join(said)}" if said else ""),
            markup=False,
        )
    rows = [each for topic in found for each in shown(topic)]
    if rows:
        stdout().print(table(rows, _PARTITIONS))
    else:
        say("No partition is like that." if filtered else "There are no topics.")


@app.command()
def alter(
    name: TopicName,
    partitions: Annotated[
        int, typer.Option(min=1, show_default=False, help="The new number of partitions.")
    ],
    replica_assignment: Annotated[
        str | None,
        typer.Option(metavar="1:2:3,2:3:1", help="The replicas of each new partition."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Give a topic more partitions.

    \b
    Example: klamm topics alter orders --partitions 12
    """
    with open_admin(bootstrap_server, command_config) as admin:
        topics.add_partitions(admin, name, partitions, assignment(replica_assignment))
        topics.wait_until_known(admin, name, partitions)
    say(f"Topic {name} has {counted(partitions, 'partition')}.")


@app.command()
def delete(
    name: TopicName,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Delete a topic and everything in it.

    \b
    Example: klamm topics delete orders
    """
    with open_admin(bootstrap_server, command_config) as admin:
        topics.delete(admin, name)
        topics.wait_until_known(admin, name, None)
    say(f"Deleted topic {name}.")
