"""All commands of the console script but the two that run a process, as a typer application."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli import (
    acls,
    brokers,
    configs,
    controller,
    groups,
    quotas,
    reassign,
    topics,
    transactions,
    users,
)
from klamm.cli.console import console
from klamm.cli.consume import consume
from klamm.cli.elect import elect
from klamm.cli.help import Application
from klamm.cli.history import history
from klamm.cli.ingest import ingest
from klamm.cli.observe import observe
from klamm.cli.options import require_extra
from klamm.cli.pipeline import plan, snapshot, whatif
from klamm.cli.processes import COMMANDS, Command
from klamm.cli.produce import produce
from klamm.cli.story import story
from klamm.cli.up import up

_RUNNING = "Running"
_ADMINISTRATION = "Administration, of Apache Kafka as well"
_RECORDS = "Records"
_PIPELINE = "The pipeline, on Spark"

app = Application(
    name="klamm",
    help="A Kafka cluster in Python: ZooKeeper-mode controller, brokers, and a Spark pipeline.",
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"klamm {version('klamm')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options that come before any command."""


def _list_process(name: str, command: Command) -> None:
    """List a command in `klamm --help` whose command line klamm.cli.processes parses."""

    @app.command(
        name,
        help=command.summary,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        rich_help_panel=_RUNNING,
    )
    def run(context: typer.Context) -> None:
        command.run(context.args)


for _name, _command in COMMANDS.items():
    _list_process(_name, _command)


app.command(rich_help_panel=_RUNNING)(up)


@app.command(rich_help_panel=_RUNNING)
def demo(
    step: Annotated[bool, typer.Option("--step", help="Wait for a key between the steps.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder for the report; by default a temporary one."),
    ] = None,
    spark: Annotated[
        bool, typer.Option(help="Run a Spark job that reads along, and make a report (Java 17).")
    ] = True,
) -> None:
    """Run the tour of a cluster; every step is carried out, shown and checked.

    \b
    Example: klamm demo --step
    """
    if spark:
        require_extra("report", "demo")
    from klamm.local.demo.tour import run

    run(_wait_for_key if step else _go_on, out=out, spark=spark)


def _go_on() -> None:
    """Do nothing between the steps."""


def _wait_for_key() -> None:
    """Wait for a key between the steps, if a person is at the terminal."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        typer.echo("   (any key goes on)", nl=False)
        typer.getchar()
        typer.echo()


for _name, _group in {
    "topics": topics.app,
    "brokers": brokers.app,
    "controller": controller.app,
    "reassign": reassign.app,
    "configs": configs.app,
    "groups": groups.app,
    "transactions": transactions.app,
    "acls": acls.app,
    "users": users.app,
    "quotas": quotas.app,
}.items():
    app.add_typer(_group, name=_name, rich_help_panel=_ADMINISTRATION)
app.command(rich_help_panel=_ADMINISTRATION)(elect)
app.command(rich_help_panel=_ADMINISTRATION)(story)
app.command(rich_help_panel=_ADMINISTRATION)(observe)
app.command(rich_help_panel=_ADMINISTRATION)(console)
app.command(rich_help_panel=_RECORDS)(produce)
app.command(rich_help_panel=_RECORDS)(consume)
for _maker in (history, snapshot, whatif, plan, ingest):
    app.command(rich_help_panel=_PIPELINE)(_maker)
