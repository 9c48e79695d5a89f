"""From `pip install` to the first query, by the commands of docs/lakehouse.md as they stand there.

    make lakehouse-test

The wheel is built and installed with its extra `ingest` into an empty environment, then every
command of the page's first section is run in a new folder. Says how long each took, and fails if
one fails or if all take more than three minutes together. How long the installation takes is a
matter of the network and of pip's cache.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.wheel_test import build

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "lakehouse.md"
WITHIN_S = 180.0
_SECTION = re.compile(r"^## The first query$(.*?)^## ", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


def first_commands(page: str) -> tuple[list[str], list[str]]:
    """The commands of both terminals, in their order; the first of the first one installs."""
    section = _SECTION.search(page)
    assert section is not None
    first, second = (block.rstrip("\n") for block in _BLOCK.findall(section[1]))
    return first.splitlines(), _whole(second)


def _whole(block: str) -> list[str]:
    """Commands; one whose quotes are open goes on in the next line."""
    commands: list[str] = []
    for line in block.splitlines():
        if commands and commands[-1].count('"') % 2:
            commands[-1] += f"\n{line}"
        else:
            commands.append(line)
    return commands


def main() -> int:
    (install, up), commands = first_commands(PAGE.read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        environment = folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        hidden = ("PYTHONPATH", "VIRTUAL_ENV")
        surroundings = {key: value for key, value in os.environ.items() if key not in hidden}
        surroundings["PATH"] = f"{environment / 'bin'}:{surroundings['PATH']}"
        began = time.monotonic()
        _run(install.replace("klamm[", f"{wheel}["), folder, surroundings)
        installed = time.monotonic()
        with (folder / "up.log").open("wb") as log:
            cluster = subprocess.Popen(
                [*up.split(), "--no-console", "--data-dir", str(folder / "data")],
                env=surroundings,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_ready(surroundings)
            for command in commands:
                _run(command, folder, surroundings)
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait(60)
        ended = time.monotonic()
    print(f"installed in {installed - began:.1f} s, first query after {ended - began:.1f} s")
    if ended - began > WITHIN_S:
        print(f"That is more than {WITHIN_S:g} s.", file=sys.stderr)
        return 1
    return 0


def _wait_ready(surroundings: dict[str, str]) -> None:
    deadline = time.monotonic() + 60
    while True:
        asked = subprocess.run(
            ["klamm", "brokers", "list", "--json"], env=surroundings, capture_output=True, text=True
        )
        if asked.returncode == 0 and asked.stdout.count('"id"') == 3:
            return
        if time.monotonic() > deadline:
            sys.exit(f"The cluster did not start: {asked.stderr}")


def _run(command: str, folder: Path, surroundings: dict[str, str]) -> None:
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=surroundings, capture_output=True, text=True
    )
    print(f"{time.monotonic() - began:6.1f} s  {command.splitlines()[0]}", flush=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    if "duckdb" in command:
        print(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
