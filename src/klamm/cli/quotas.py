"""`klamm quotas`: how much users, clients and addresses may use."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from klamm.cli.completion import complete_user
from klamm.cli.options import AsJson, BootstrapServer, CommandConfig, group, open_admin, settings
from klamm.cli.render import say, show_json, show_rows
from klamm.client import quotas
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.client.quotas import DEFAULT, QuotaEntity

app = group("How much users, clients and addresses may use.")

User = Annotated[
    str | None,
    typer.Option(autocompletion=complete_user, help="Of this user; <default> for all others."),
]
Client = Annotated[str | None, typer.Option(help="Of this client id; <default> for all others.")]
Ip = Annotated[str | None, typer.Option(help="Of this address; <default> for all others.")]
_COLUMNS = {
    "user": lambda q: q.user or "",
    "client": lambda q: q.client or "",
    "ip": lambda q: q.ip or "",
    "quotas": lambda q: ", ".join(f"{key}={value:g}" for key, value in q.quotas.items()),
}


def _entity(user: str | None, client: str | None, ip: str | None) -> QuotaEntity:
    if user is None and client is None and ip is None:
        raise typer.BadParameter("one of them is needed", param_hint="--user / --client / --ip")
    return QuotaEntity(user, client, ip)


@app.command("set")
def set_(
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", show_default=False)],
    user: User = None,
    client: Client = None,
    ip: Ip = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Set quotas: producer_byte_rate, consumer_byte_rate, request_percentage,
    controller_mutation_rate, and for addresses connection_creation_rate.

    \b
    Example: klamm quotas set --user alice producer_byte_rate=1048576
    """
    entity = _entity(user, client, ip)
    try:
        numbers = {key: float(value) for key, value in settings(values, "KEY=VALUE").items()}
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="KEY=VALUE") from None
    with open_admin(bootstrap_server, command_config) as admin:
        quotas.alter(admin, entity, numbers)
    if as_json:
        show_json([{**asdict(entity), "quotas": numbers}])
    else:
        say(f"Set {', '.join(numbers)}.")


@app.command()
def remove(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY...", show_default=False)] = None,
    user: User = None,
    client: Client = None,
    ip: Ip = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Remove quotas: the named ones, or all of an entity.

    \b
    Example: klamm quotas remove --user alice
    """
    entity = _entity(user, client, ip)
    with open_admin(bootstrap_server, command_config) as admin:
        removed = quotas.remove(admin, entity, keys or ())
    if as_json:
        show_json([{**asdict(entity), "removed": removed}])
    else:
        say(f"Removed {', '.join(removed) or 'nothing'}.")


@app.command("list")
def list_(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show all quotas.

    \b
    Example: klamm quotas list --json
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = quotas.describe(admin)
    show_rows(found, _COLUMNS, as_json=as_json, empty=f"There are no quotas, {DEFAULT} or other.")
