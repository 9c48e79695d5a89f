"""Run the tests, and those that failed once more, alone.

Many tests watch real processes through real sockets on a machine that others use as well. One that
fails among its neighbours and passes by itself is a race: it is named at the end, to be mended, and
does not hide whether a change is sound. One that fails twice has failed. More than a few failures
are no coincidence, and are not tried again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

TESTS_FAILED: Final = 1
MOST_TRIED_AGAIN: Final = 12


def run(arguments: list[str], cache: Path) -> tuple[int, list[str]]:
    """The exit code, and the tests that failed."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
    code = subprocess.run(command, check=False).returncode
    failures = cache / "v" / "cache" / "lastfailed"
    return code, sorted(json.loads(failures.read_text())) if failures.exists() else []


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        code, failed = run(sys.argv[1:], Path(directory) / "first")
        if code != TESTS_FAILED or not 0 < len(failed) <= MOST_TRIED_AGAIN:
            return code
        print(f"\nOnce more, alone: {len(failed)} that failed.", flush=True)
        code, failed_again = run(failed, Path(directory) / "second")
    races = set(failed) - set(failed_again) if code in (0, TESTS_FAILED) else set()
    for test in sorted(races):
        print(f"A race, to be mended: {test} failed among others and passed alone.")
    return code


if __name__ == "__main__":
    sys.exit(main())
