"""The console script `klamm`.

Commands that run a process have a light front of their own, because a broker has to be up in a
second and small while idle; all others are a typer application, loaded when one is asked for.
Whatever goes wrong ends as one sentence on stderr and one of the contract's exit codes.
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
    """Run one command line; the number that comes back is the exit code."""
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
