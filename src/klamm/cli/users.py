"""`klamm users`: SCRAM credentials."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.completion import complete_user
from klamm.cli.options import AsJson, BootstrapServer, CommandConfig, group, open_admin
from klamm.cli.render import say, show_json, show_rows
from klamm.client import users
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.errors import ConfigError
from klamm.net.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, ScramMechanism

app = group("Users who log in with SCRAM.")

_COLUMNS = {
    "user": lambda u: u.user,
    "mechanism": lambda u: u.mechanism,
    "iterations": lambda u: u.iterations,
}
Mechanism = Annotated[str, typer.Option(help="SCRAM-SHA-512 or SCRAM-SHA-256.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=complete_user, show_default=False)
]


def _mechanism(name: str) -> ScramMechanism:
    found = SCRAM_MECHANISMS.get(name.upper())
    if found is None:
        raise typer.BadParameter(
            f"{name!r} is not one of {', '.join(SCRAM_MECHANISMS)}", param_hint="--mechanism"
        )
    return found


def _password(file: Path | None) -> str:
    """The password in a file, or else the first line of stdin; never on the command line."""
    if file is None:
        if sys.stdin.isatty():
            return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
        return sys.stdin.readline().rstrip("\n")
    try:
        return file.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


@app.command()
def add(
    name: Name,
    mechanism: Mechanism = "SCRAM-SHA-512",
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the password; else it is asked for."),
    ] = None,
    iterations: Annotated[int, typer.Option(help="4096 to 16384.")] = ITERATIONS_MIN,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Add a user, or change a user's password.

    \b
    Example: klamm users add al --mechanism SCRAM-SHA-512 --password-file al.txt
    """
    scram = _mechanism(mechanism)
    password = _password(password_file)
    if not password:
        raise ConfigError("the password is empty")
    with open_admin(bootstrap_server, command_config) as admin:
        users.add(admin, name, password, scram, iterations)
    if as_json:
        show_json([asdict(users.ScramUser(name, scram.mechanism_name, iterations))])
    else:
        say(f"{name} can log in with {scram.mechanism_name}.")


@app.command("list")
def list_(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show the users and their mechanisms; nobody is shown a key.

    \b
    Example: klamm users list
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = users.describe(admin)
    show_rows(found, _COLUMNS, as_json=as_json, empty="There are no users.")


@app.command()
def remove(
    name: Name,
    mechanism: Annotated[
        str | None, typer.Option(help="One mechanism; else all that the user has.")
    ] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Remove a user's credentials; connections that exist go on.

    \b
    Example: klamm users remove alice
    """
    scram = None if mechanism is None else _mechanism(mechanism)
    with open_admin(bootstrap_server, command_config) as admin:
        chosen = users.remove_all(admin, name, scram)
    if as_json:
        show_json([{"user": name, "mechanism": each} for each in chosen])
    else:
        say(f"Removed {', '.join(chosen)} of {name}.")
