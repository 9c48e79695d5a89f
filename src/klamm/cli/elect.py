"""`klamm elect`: elect preferred or unclean leaders."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from klamm.cli.options import AsJson, BootstrapServer, CommandConfig, TopicOption, open_admin
from klamm.cli.render import show_rows
from klamm.client import elections, topics
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.client.elections import ElectionType
from klamm.errors import KlammError
from klamm.names import counted

_COLUMNS = {
    "topic": lambda o: o.topic,
    "partition": lambda o: o.partition,
    "outcome": lambda o: o.outcome,
    "message": lambda o: o.message or "",
}


class ElectionChoice(StrEnum):
    """The kind of election, as the command line names it."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


def elect(
    kind: Annotated[ElectionChoice, typer.Argument(show_default=False)],
    topic: TopicOption = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="One partition of the topic; default: all.")
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="All partitions that need it.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Elect the preferred leaders, or unclean leaders where no replica is in sync.

    An unclean leader was not in sync: records that it does not have are lost.

    \b
    Example: klamm elect preferred --all
    Example: klamm elect unclean --topic orders --partition 3
    """
    if (topic is None) != everywhere:
        raise typer.BadParameter("give one of them", param_hint="--topic / --all")
    if partition is not None and topic is None:
        raise typer.BadParameter("it needs --topic", param_hint="--partition")
    with open_admin(bootstrap_server, command_config) as admin:
        partitions = None
        if topic is not None:
            (found,) = topics.describe(admin, [topic]).topics
            partitions = (
                [(topic, partition)]
                if partition is not None
                else [(topic, each.partition) for each in found.partitions]
            )
        outcomes = elections.elect(admin, ElectionType[kind.name], partitions)
    show_rows(outcomes, _COLUMNS, as_json=as_json, empty="No election was needed.")
    failed = [each for each in outcomes if each.failed]
    if failed:
        names = sorted({each.outcome for each in failed})
        failures = f"{len(failed)} of {counted(len(outcomes), 'election')} failed"
        raise KlammError(f"{', '.join(names)}: {failures}.")
