"""Write requirements.lock: what pyproject.toml asks for, as names, versions and hashes.

One lock for every Python that klamm supports and for every platform, so the resolver is uv's; it
lives in an environment of its own that is thrown away. The lock names no index: whichever one the
installing machine uses has to deliver files with these hashes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESOLVER: Final = "uv==0.13.7"
HEADER: Final = "# Made by `make lock` from pyproject.toml. Names, versions and hashes; no index.\n"


def main() -> None:
    lock = ROOT / "requirements.lock"
    with tempfile.TemporaryDirectory() as environment:
        venv.create(environment, with_pip=True)
        binaries = Path(environment, "bin")
        subprocess.run([binaries / "python", "-m", "pip", "install", "-q", RESOLVER], check=True)
        command = [binaries / "uv", "pip", "compile", "pyproject.toml", "--group", "dev"]
        command += ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header"]
        command += ["--no-emit-index-url", "--no-emit-find-links", "--quiet", *sys.argv[1:]]
        resolved = subprocess.run(
            command,
            cwd=ROOT,
            env={"UV_SYSTEM_CERTS": "true", **os.environ},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    lock.write_text(HEADER + resolved.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
