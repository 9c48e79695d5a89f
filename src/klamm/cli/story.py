"""`klamm story`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.options import AsJson, BootstrapServer
from klamm.client.admin import DEFAULT_BOOTSTRAP, Admin
from klamm.controller.story import DEFAULT_TOPIC, run, split_name


def story(
    name: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", show_default=False)],
    spool: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="The history of one node; may be repeated."),
    ] = None,
    topic: Annotated[str, typer.Option(help="The topic that has the history.")] = DEFAULT_TOPIC,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Tell what the controller decided about a partition, and why, in order.

    \b
    Example: klamm story orders-0
    Example: klamm story orders-0 --spool data/broker-1/log-history
    """
    split_name(name)  # raises before anybody is asked
    if not spool:
        with Admin(bootstrap_server) as admin:
            admin.metadata([])  # raises in one sentence when nobody is there
    run(
        name,
        spools=spool or (),
        bootstrap_servers=bootstrap_server,
        history_topic=topic,
        as_json=as_json,
        write=typer.echo,
    )
