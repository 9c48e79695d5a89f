"""Run the demo and keep what it shows as a picture: docs/demo.svg."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from rich.console import Console

from klamm.local.demo.tour import run

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs" / "demo.svg"
#: A path of the project, since it is in the picture.
REPORT: Final = Path("out") / "demo"
_WIDTH: Final = 110


def main() -> None:
    console = Console(record=True, width=_WIDTH, highlight=False)
    shutil.rmtree(REPORT, ignore_errors=True)
    run(console=console, out=REPORT)
    console.save_svg(str(PICTURE), title="klamm demo")
    print(f"\nrecorded in {PICTURE.name}")


if __name__ == "__main__":
    main()
