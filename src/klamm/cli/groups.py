"""`klamm groups`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from klamm.cli.completion import complete_group, complete_topic
from klamm.cli.options import AsJson, BootstrapServer, CommandConfig, group, open_admin
from klamm.cli.render import say, show_json, show_rows, stdout, table
from klamm.client import groups, offset_reset
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.client.offset_reset import OffsetTarget
from klamm.names import counted

app = group("Consumer groups: members, positions, and where they go on.")

GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", autocompletion=complete_group, show_default=False)
]

_COLUMNS = {
    "group": lambda g: g.group,
    "state": lambda g: g.state,
    "protocol": lambda g: g.protocol_type,
    "coordinator": lambda g: g.coordinator,
}
_POSITIONS = {
    "topic": lambda p: p.topic,
    "partition": lambda p: p.partition,
    "offset": lambda p: _known(p.offset),
    "end": lambda p: _known(p.end),
    "lag": lambda p: _known(p.lag),
    "member": lambda p: p.member_id,
}
_RESETS = {
    "topic": lambda r: r.topic,
    "partition": lambda r: r.partition,
    "offset": lambda r: _known(r.offset),
    "new offset": lambda r: r.new_offset,
}


@app.command("list")
def list_(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """List the groups.

    \b
    Example: klamm groups list
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = groups.list_groups(admin)
    show_rows(found, _COLUMNS, as_json=as_json, empty="There are no groups.")


@app.command()
def describe(
    name: GroupName,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show a group: its state, its members, and how far it has read.

    \b
    Example: klamm groups describe billing
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = groups.describe(admin, name)
    if as_json:
        positions = [asdict(each) | {"lag": each.lag} for each in found.positions]
        show_json(asdict(found) | {"positions": positions})
        return
    console = stdout()
    console.print(
        f"{found.group}: {found.state}, {counted(len(found.members), 'member')}"
        + (f", {found.protocol}" if found.protocol else ""),
        markup=False,
    )
    if found.positions:
        console.print(table(found.positions, _POSITIONS))


@app.command("reset-offsets")
def reset_offsets(
    name: GroupName,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:0,1]",
            autocompletion=complete_topic,
            help="May be repeated; default: all topics with committed offsets.",
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first offset.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To the committed offset.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option(help="By this number of records; negative goes back.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="2030-01-31T12:00:00Z", help="To the first record at or after this time."
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Execute it; by default only show it.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Change the offsets at which a group without members continues.

    \b
    Example: klamm groups reset-offsets pay --topic orders --to-earliest --execute
    """
    goals: list[OffsetTarget | int] = []
    if to_earliest:
        goals.append(offset_reset.to_earliest)
    if to_latest:
        goals.append(offset_reset.to_latest)
    if to_current:
        goals.append(offset_reset.to_current)
    if to_offset is not None:
        goals.append(offset_reset.to_offset(to_offset))
    if shift_by is not None:
        goals.append(offset_reset.shift_by(shift_by))
    if to_datetime is not None:
        goals.append(_milliseconds(to_datetime))
    if len(goals) != 1:
        raise typer.BadParameter("give exactly one", param_hint="--to-... / --shift-by")
    with open_admin(bootstrap_server, command_config) as admin:
        resets = offset_reset.plan_reset(admin, name, topic or (), goals[0])
        if execute:
            offset_reset.apply_reset(admin, name, resets)
    show_rows(resets, _RESETS, as_json=as_json, empty="There is nothing to reset.")
    if not execute:
        say("Nothing was changed; --execute does it.")


@app.command()
def delete(
    name: GroupName,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Delete a group that has no members, with its offsets.

    \b
    Example: klamm groups delete billing
    """
    with open_admin(bootstrap_server, command_config) as admin:
        groups.delete(admin, name)
    say(f"Deleted group {name}.")


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _milliseconds(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time like 2030-01-31T12:00:00Z", param_hint="--to-datetime"
        ) from None
    return int(at.timestamp() * 1000)
