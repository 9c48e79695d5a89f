"""Help that reads well in a terminal of 80 columns: plain text, commands in sections.

Typer's panels leave too little room for texts beside the options. Click alone cuts texts off, knows
no sections, and shows the type of a value where a name says more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

F = TypeVar("F", bound=Callable[..., Any])


class PlainCommand(TyperCommand):
    """A command whose help names its values: `--seed N`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for arguments that need words, and one for options."""
        arguments, options = [], []
        for param in self.get_params(ctx):
            is_argument = param.param_type_name == "argument"
            if not is_argument and param.metavar is None:
                param.metavar = _value_name(param, ctx)
            record = param.get_help_record(ctx)
            if record is not None and not is_argument:
                options.append(record)
            elif record is not None and getattr(param, "help", None):
                arguments.append((record[0].partition(" <")[0], record[1]))
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _value_name(option: Any, ctx: Any) -> str | None:
    """The name of an option's value; None for flags, and for choices, which are listed."""
    if option.is_flag:
        return None
    kind = option.display_type(ctx).strip("<>")
    if kind.startswith(("int", "float")):
        return "N"
    if kind.startswith(("str", "path", "list[str", "list[path")):
        return str(option.name).rpartition("_")[2].upper()
    return None


class SectionedGroup(TyperGroup):
    """A command with subcommands: its help lists them by panel, each with all of its text."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel, in the order of their first commands."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is None or command.hidden:
                continue
            title = getattr(command, "rich_help_panel", None)
            title = title if isinstance(title, str) else "Commands"
            first = (command.help or "").partition("\n\n")[0]
            sections.setdefault(title, []).append((name, " ".join(first.split())))
        for title, commands in sections.items():
            with formatter.section(title):
                formatter.write_dl(commands)


class Application(typer.Typer):
    """A typer application with such help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=SectionedGroup,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            **settings,
        )

    def command(self, *names: Any, **settings: Any) -> Callable[[F], F]:
        """Add a command, as in typer."""
        return super().command(*names, **{"cls": PlainCommand, **settings})
