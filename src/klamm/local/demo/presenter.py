"""Prints the steps of the tour, with their times and the claims that were checked."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from klamm.errors import KlammError

_INDENT: Final = (0, 0, 0, 3)


class Presenter:
    """Numbers and times the steps, and ends the tour at the first claim that does not hold.

    `pause` is called between the steps.
    """

    def __init__(self, console: Console, pause: Callable[[], None] = lambda: None) -> None:
        self._console = console
        self._pause = pause
        self._number = 0
        self._checked = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print the title of a step, and the time that it took."""
        if self._number:
            self._pause()
        self._number += 1
        self._console.print(f"\n[bold]{self._number}. {title}[/bold]")
        begun = time.perf_counter()
        yield
        self._console.print(f"   [dim]{time.perf_counter() - begun:.1f} s[/dim]")

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show on a terminal what the step waits for; gone afterwards."""
        return self._console.status(f"[dim]{what}[/dim]")

    def say(self, text: str, style: str = "") -> None:
        """Print one line."""
        self._console.print(Padding(Text(text, style=style), _INDENT, expand=False))

    def check(self, claim: str, holds: bool) -> None:
        """Print a claim that holds; KlammError if it does not."""
        if not holds:
            raise KlammError(f"The demo expected this, and it was not so: {claim}")
        self._checked += 1
        self._console.print(Padding(Text.assemble(("✓ ", "green"), claim), _INDENT, expand=False))

    def show(self, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a small table."""
        table = Table(*headings, box=None, padding=(0, 3, 0, 0), header_style="dim")
        for row in rows:
            table.add_row(*map(str, row))
        self._console.print(Padding(table, _INDENT, expand=False))

    def conclude(self) -> None:
        """Print the last line."""
        self._console.print(f"\nAll of it held: {self._checked} checks in {self._number} steps.")
