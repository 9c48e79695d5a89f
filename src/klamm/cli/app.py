"""The commands for people, as a typer application: parse, call, render."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from klamm.cli.processes import COMMANDS, Command

app = typer.Typer(
    name="klamm",
    help="A Kafka cluster in Python: ZooKeeper-mode controller, brokers, and a Spark pipeline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"klamm {version('klamm')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say it.")
    ] = False,
) -> None:
    """Options that come before any command."""


def _list_process(name: str, command: Command) -> None:
    """Let `klamm --help` list a command whose command line is parsed elsewhere."""

    @app.command(
        name,
        help=command.summary,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def run(context: typer.Context) -> None:
        command.run(context.args)


for _name, _command in COMMANDS.items():
    _list_process(_name, _command)


@app.command()
def demo() -> None:
    """Take the tour: every step is carried out, shown and checked.

    Example: klamm demo
    """
    from klamm.local.demo import run

    run()
