"""Build the wheel `pyspark-klamm`: format("klamm") alone, for a Spark that somebody else manages.

    python tools/spark_wheel.py [DIRECTORY]          (default: dist)

It is made from the same tree as klamm, of the modules that the source and the sink import, and does
not depend on pyspark: `pip install` leaves the Spark that is there alone. It has klamm's own module
names, so an environment has either this wheel or klamm. The path of the wheel is printed.
"""

import ast
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
#: Whatever these import goes along.
_BEGINNINGS: Final = ("pyspark_klamm", "klamm.pipeline.source")
#: What the modules import besides klamm and Spark. Bounds are as wide as they can be, because a
#: managed Spark brings most of these.
DEPENDENCIES: Final = (
    "confluent-kafka>=2.8",
    "cramjam>=2.9",
    "crc32c>=2.7",
    "kio>=0.6.5,<0.7",
    "numpy>=1.26",
    "pyarrow>=15",
)
#: Imported only to take certificates out of PKCS12 and JKS files.
OPTIONAL: Final = frozenset({"cryptography"})
#: These name modules that they load only on request of commands outside of this wheel.
_LAZY: Final = frozenset({SOURCE / "klamm" / "__init__.py", SOURCE / "klamm/pipeline/__init__.py"})
_PROJECT: Final = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "pyspark-klamm"
version = "{version}"
description = "Kafka topics and clusters in Spark without a jar: format(\\"klamm\\") by itself."
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = "{python}"
dependencies = {dependencies}

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
klamm = ["py.typed"]
"""


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    print(build(target))


def build(target: Path) -> Path:
    """Build the wheel into a directory; its path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory(prefix="pyspark-klamm-") as name:
        copy = Path(name)
        for path in sorted(modules()):
            place = copy / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
        (copy / "src" / "klamm" / "py.typed").touch()
        shutil.copy(ROOT / "LICENSE", copy)
        shutil.copy(ROOT / "docs" / "spark.md", copy / "README.md")
        text = _PROJECT.format(
            version=project["version"],
            python=project["requires-python"],
            dependencies=list(DEPENDENCIES),
        )
        (copy / "pyproject.toml").write_text(text)
        target.mkdir(parents=True, exist_ok=True)
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        options = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(target.resolve()))
        subprocess.run([*pip, *options, str(copy)], check=True)
    return target / f"pyspark_klamm-{project['version']}-py3-none-any.whl"


def modules() -> set[Path]:
    """The files that the source and the sink consist of, with what they import."""
    found: set[Path] = set()
    waiting = [each for name in _BEGINNINGS for each in _files(name)]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in () if path in _LAZY else _imported(path):
            waiting += _named(name)
    return found


def _files(package: str) -> list[Path]:
    return list((SOURCE / package.replace(".", "/")).rglob("*.py"))


def third_parties() -> set[str]:
    """The packages of others that the modules import, Spark apart."""
    names = {name.split(".")[0] for path in modules() for name in _imported(path, of="")}
    return names - sys.stdlib_module_names - {"klamm", "pyspark"}


def _imported(path: Path, of: str = "klamm") -> set[str]:
    """The names of a package that a file imports, wherever in it; of all if it has no name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
    return {name for name in names if not of or name.split(".")[0] == of}


def _named(name: str) -> list[Path]:
    """The file of a module, and those of the packages that it is in."""
    parts = name.split(".")
    paths = []
    for count in range(1, len(parts) + 1):
        place = SOURCE.joinpath(*parts[:count])
        candidates = (place / "__init__.py", place.with_suffix(".py"))
        paths += [path for path in candidates if path.exists()]
    return paths


if __name__ == "__main__":
    main()
