"""The console script `klamm`.

`klamm broker` and `klamm zookeeper` have a light parser of their own, because a broker has to start
in a second and stay small. All other commands are a typer application, imported when one is used.
An error is printed as one sentence on stderr; docs/interfaces.md has the exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from klamm.errors import KlammError

DONE: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _dispatch(given)
    except KlammError as error:
        print(f"klamm: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def _dispatch(arguments: list[str]) -> None:
    from klamm.cli.processes import COMMANDS

    if arguments and arguments[0] in COMMANDS:
        COMMANDS[arguments[0]].run(arguments[1:])
        return
    from klamm.cli.app import app

    app(arguments, prog_name="klamm")
