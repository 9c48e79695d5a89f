"""Build the wheel, install it into an empty environment elsewhere, and use it from there.

The tests run from the tree, where a file that was forgotten in the wheel is still found.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_PARTS: Final = ("pyproject.toml", "README.md", "LICENSE", "src")
_IMPORT_EVERYTHING: Final = """
import importlib, pathlib, pkgutil, sys
import klamm
assert pathlib.Path(klamm.__file__).is_relative_to(sys.prefix), klamm.__file__
# One runs the console script, and one is for pytest to import, which not everybody has.
left_out = {"klamm.__main__", "klamm.pytest_plugin"}
found = {module.name for module in pkgutil.walk_packages(klamm.__path__, "klamm.")}
names = sorted(found - left_out) + ["pyspark_klamm"]
for name in names:
    importlib.import_module(name)
print(f"{len(names)} modules import from {sys.prefix}")
"""
#: A cluster, the command line and the plugin in an environment without any extra.
_USE_WITHOUT_EXTRAS: Final = """
import importlib.util, subprocess, sys
for name in ("pandas", "matplotlib"):
    assert importlib.util.find_spec(name) is None, f"{name} is installed"
from klamm import Cluster
with Cluster(1) as cluster:
    cluster.create_topic("orders")
    command = [sys.executable, "-m", "klamm", "topics", "list", "-b", cluster.bootstrap_servers]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "orders" in shown, shown
for command, extra in (("snapshot --zookeeper localhost:1", "spark"), ("demo", "report")):
    line = [sys.executable, "-m", "klamm", *command.split(), "--out", "x"]
    told = subprocess.run(line, capture_output=True, text=True)
    assert told.returncode == 1 and f"klamm[{extra}]" in told.stderr, told
print("a cluster and the command line need no extra")
"""
_OTHER_SITE: Final = re.compile(r"(?:https?:)?//[a-z0-9-]+\.[a-z][^\s\"']*", re.IGNORECASE)
#: Names of XML vocabularies, which nobody opens, and a comment that says whose code it is.
_NAMES_ONLY: Final = re.compile(
    r"http://www\.w3\.org/(?:1998/Math/MathML|1999/xhtml|2000/svg)|"
    r"https://github\.com/leeoniya/uPlot(?= \(v)"
)
_TYPED_USE: Final = """
from klamm.config.broker import BrokerConfig
config = BrokerConfig.from_properties({"zookeeper.connect": "localhost:2181"})
port: int = config.listeners[0].port
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="klamm-wheel-") as name:
        elsewhere = Path(name)
        wheel = build(elsewhere)
        check_contents(wheel)
        binaries = install(wheel, elsewhere)
        run(binaries / "klamm", "--help", cwd=elsewhere)
        run(binaries / "python", "-c", _USE_WITHOUT_EXTRAS, cwd=elsewhere)
        add_extras(wheel, binaries)
        run(binaries / "python", "-c", _IMPORT_EVERYTHING, cwd=elsewhere)
        check_types(binaries, elsewhere)
    print(f"{wheel.name}: installs, runs, imports and is typed")


def build(elsewhere: Path) -> Path:
    """Build from a copy, as setuptools would pick up what an earlier build left in the tree."""
    source = elsewhere / "source"
    source.mkdir()
    for part in _PARTS:
        here = ROOT / part
        if here.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(here, source / part, ignore=ignored)
        else:
            shutil.copy(here, source / part)
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*command, "--wheel-dir", elsewhere, source, cwd=elsewhere)
    (wheel,) = elsewhere.glob("klamm-*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Every file of the package is in the wheel, also those that are not Python."""
    package = ROOT / "src"
    expected = {
        path.relative_to(package).as_posix()
        for name in ("klamm", "pyspark_klamm")
        for path in (package / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        check_no_other_site(archive, sorted(names))
    missing = sorted(expected - names)
    if missing:
        raise SystemExit(f"{wheel.name} lacks {', '.join(missing)}")
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        raise SystemExit(f"{wheel.name} lacks the licence")


def check_no_other_site(archive: zipfile.ZipFile, names: list[str]) -> None:
    """No file that the console gives to a browser asks anything of another site."""
    for name in names:
        if name.startswith("klamm/console/static/") and "LICENSE" not in name:
            text = _NAMES_ONLY.sub("", archive.read(name).decode())
            if found := _OTHER_SITE.search(text):
                raise SystemExit(f"{name} in {archive.filename} names another site: {found[0]}")


def install(wheel: Path, elsewhere: Path) -> Path:
    environment = elsewhere / "environment"
    venv.create(environment, with_pip=True)
    binaries = environment / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", wheel, cwd=elsewhere)
    return binaries


def add_extras(wheel: Path, binaries: Path) -> None:
    """Add all extras, so that every module can be imported."""
    pip = (binaries / "python", "-m", "pip", "install", "--quiet")
    run(*pip, f"{wheel}[report,ingest]", cwd=wheel.parent)


def check_types(binaries: Path, elsewhere: Path) -> None:
    """A type checker finds py.typed and believes the annotations."""
    user = elsewhere / "user.py"
    user.write_text(_TYPED_USE)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", elsewhere / "cache")
    run(*mypy, "--python-executable", binaries / "python", user, cwd=elsewhere)


def run(*command: str | Path, cwd: Path) -> None:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if result.returncode != 0:
        shown = " ".join(str(part) for part in command[:6])
        raise SystemExit(f"{shown} failed\n{result.stdout}{result.stderr}")
    print(result.stdout.strip() if len(result.stdout) < 300 else f"{command[0]} answered")


if __name__ == "__main__":
    main()
