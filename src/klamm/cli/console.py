"""`klamm console`."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from klamm.cli.options import HISTORY_TOPIC, CommandConfig, HistoryTopic, security_of
from klamm.cli.render import say
from klamm.client.admin import DEFAULT_BOOTSTRAP


def console(
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT[,...]",
            envvar="KLAMM_BOOTSTRAP_SERVER",
            help=f"A broker, or several; {DEFAULT_BOOTSTRAP} unless there is another source.",
        ),
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT[/CHROOT]", help="Find the brokers here."),
    ] = None,
    spool: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR...", help="The histories of nodes; alone, they are looked at offline."
        ),
    ] = None,
    more_spools: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", hidden=True, show_default=False)
    ] = None,
    topic: HistoryTopic = HISTORY_TOPIC,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes any free one.")] = 8080,
    open_: Annotated[bool, typer.Option("--open", help="Open a browser, too.")] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let pages change the cluster.")
    ] = False,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where running moves are kept; else in the home folder."),
    ] = None,
    command_config: CommandConfig = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON when it is ready.")
    ] = False,
    control_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    listen_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Show a cluster in the browser: what is, what was and why, what would be; and move partitions.

    It listens on 127.0.0.1, and its link has a token that opens it.

    \b
    Example: klamm console --open
    Example: klamm console --bootstrap-server 10.0.0.5:9092 --allow-changes
    Example: klamm console --spool data/*/log-history
    """
    _leave_out_pandas()
    from klamm.console import link
    from klamm.console.session import ConsoleSettings, Session

    if more_spools and not spool:
        raise typer.BadParameter("directories come after --spool", param_hint="--spool")
    spools = (*(spool or ()), *(more_spools or ()))
    if bootstrap_server is None and zookeeper is None and not spools:
        bootstrap_server = DEFAULT_BOOTSTRAP
    settings = ConsoleSettings(
        bootstrap_server,
        zookeeper,
        spools,
        topic,
        allow_changes,
        state_dir,
        control_fd,
        security_of(command_config),
        command_config,
    )
    listening = link.listen(port) if listen_fd is None else socket.socket(fileno=listen_fd)

    def tell(url: str) -> None:
        if as_json:
            print(json.dumps({"url": url}), flush=True)
        else:
            print(f"The console is at {url}", flush=True)
            say("Ctrl-C stops it." + ("" if allow_changes else " It only looks."))
        if open_:
            typer.launch(url)

    session = Session(settings)
    session.start()
    # The brokers answer while the server is imported.
    from klamm.console import server

    server.run(session, listening, link.given_token(), on_ready=tell)


class _Absent(MetaPathFinder):
    """Makes the import of one package fail, as if it were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == self._package:
            raise ModuleNotFoundError(f"{name} is left out of this process", name=name)
        return None


def _leave_out_pandas() -> None:
    """Let pyarrow do without pandas, which it loads with the first array if it can.

    That would take 0.4 s and 40 MB, and the console makes no data frame.
    """
    sys.meta_path.insert(0, _Absent("pandas"))
