"""`klamm story`: print what was decided about a partition or a transactional id, and who asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.completion import complete_partition, complete_transactional_id
from klamm.cli.options import (
    HISTORY_TOPIC,
    AsJson,
    BootstrapServer,
    CommandConfig,
    HistoryTopic,
    open_admin,
    security_of,
)
from klamm.client.admin import DEFAULT_BOOTSTRAP


def story(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC-PARTITION", autocompletion=complete_partition, show_default=False
        ),
    ] = None,
    spool: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR...", help="Read the histories of nodes from these folders."),
    ] = None,
    more_spools: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", hidden=True, show_default=False)
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            autocompletion=complete_transactional_id,
            help="Tell what became of a transactional id.",
        ),
    ] = None,
    requests: Annotated[
        bool, typer.Option("--requests", help="Tell who asked for what: administrative requests.")
    ] = False,
    topic: HistoryTopic = HISTORY_TOPIC,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Print what was decided about a partition, and why; or what became of a transactional id.

    \b
    Example: klamm story orders-0
    Example: klamm story orders-0 --spool data/broker-1/log-history
    Example: klamm story --transactional-id payments-1
    Example: klamm story --requests
    """
    from klamm.history.story import run, split_name

    spools = [*(spool or ()), *(more_spools or ())]
    if name is not None and (transactional_id is not None or requests):
        # Without TOPIC-PARTITION the first argument is another directory of --spool.
        spools.insert(len(spool or ()), Path(name))
        more_spools, name = spools, None
    if (name is not None) + (transactional_id is not None) + requests != 1:
        raise typer.BadParameter(
            "name one thing: TOPIC-PARTITION, --transactional-id ID or --requests"
        )
    if name is not None:
        split_name(name)  # raises before any request
    if more_spools and not spool:
        raise typer.BadParameter("directories come after --spool", param_hint="--spool")
    if not spools:
        with open_admin(bootstrap_server, command_config) as admin:
            admin.metadata([])  # raises if no broker answers
    run(
        name,
        transactional_id=transactional_id,
        spools=spools,
        bootstrap_servers=bootstrap_server,
        security=security_of(command_config),
        history_topic=topic,
        as_json=as_json,
        write=typer.echo,
    )
