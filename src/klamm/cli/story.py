"""`klamm story`: print what the controllers decided about one partition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.options import (
    HISTORY_TOPIC,
    AsJson,
    BootstrapServer,
    CommandConfig,
    open_admin,
    security_of,
)
from klamm.client.admin import DEFAULT_BOOTSTRAP


def story(
    name: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", show_default=False)],
    spool: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR...", help="Read the histories of nodes from these folders."),
    ] = None,
    more_spools: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", hidden=True, show_default=False)
    ] = None,
    topic: Annotated[str, typer.Option(help="The history topic.")] = HISTORY_TOPIC,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Print what the controllers decided about a partition, and why, in order.

    \b
    Example: klamm story orders-0
    Example: klamm story orders-0 --spool data/broker-1/log-history
    """
    from klamm.history.story import run, split_name

    split_name(name)  # raises before any request
    spools = [*(spool or ()), *(more_spools or ())]
    if more_spools and not spool:
        raise typer.BadParameter("directories come after --spool", param_hint="--spool")
    if not spools:
        with open_admin(bootstrap_server, command_config) as admin:
            admin.metadata([])  # raises if no broker answers
    run(
        name,
        spools=spools,
        bootstrap_servers=bootstrap_server,
        security=security_of(command_config),
        history_topic=topic,
        as_json=as_json,
        write=typer.echo,
    )
