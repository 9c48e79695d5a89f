"""Print results: the same rows as a table or as JSON.

Results go to stdout, progress and messages to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Row = TypeVar("Row", bound=DataclassInstance)
else:
    Row = TypeVar("Row")

#: The width of a table that goes to a pipe: its lines are not wrapped.
_UNBROKEN: Final = 10_000
#: Heading: the function that gives the cell of a row.
Columns = Mapping[str, Callable[[Any], Any]]


def stdout() -> Console:
    """The console for results."""
    return Console(width=None if sys.stdout.isatty() else _UNBROKEN, highlight=False)


def stderr() -> Console:
    """The console for progress and messages."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one sentence to stderr."""
    stderr().print(Text(text))


@contextmanager
def waiting() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what a person waits for, and how long; gone at the end.

    The yielded function says what comes next.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda what: progress.update(task, description=what)


def show_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_rows(rows: Sequence[Row], columns: Columns, *, as_json: bool, empty: str) -> None:
    """Print rows as a table with these columns, or all of their fields as JSON."""
    if as_json:
        show_json([asdict(row) for row in rows])
    elif rows:
        stdout().print(table(rows, columns))
    else:
        say(empty)


def table(rows: Sequence[Any], columns: Columns) -> Table:
    """A plain table: numbers to the right, no lines. A cell that is Text keeps its style."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    cells = [[_as_text(get(row)) for get in columns.values()] for row in rows]
    for at, heading in enumerate(columns):
        is_number = all(row[at].plain.lstrip("-").isdecimal() for row in cells)
        made.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        made.add_row(*row)
    return made


def ids(brokers: Sequence[int]) -> str:
    """Broker ids separated by commas, as Kafka's tools print them."""
    return ",".join(map(str, brokers))


def _as_text(value: Any) -> Text:
    return value if isinstance(value, Text) else Text(_cell(value))


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case tuple() | list():
            return ids(value)
        case _:
            return str(value)
