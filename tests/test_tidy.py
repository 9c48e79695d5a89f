"""The order of the source tree.

Imports point one way, state machines are pure, a class name has one meaning, every module and every
setting is used, and no file depends on one machine.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import pytest

from klamm.config.broker import BrokerConfig
from klamm.config.topics import TopicConfig

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

#: Imports point from a later line to an earlier one. The parts of a leaf line do not know each
#: other.
LAYERS = (
    ("names", "errors"),
    ("config", "processes", "slices", "temporary"),
    ("core", "protocol", "zookeeper"),
    ("metrics",),
    ("net",),
    ("history",),
    ("controller", "broker", "client"),
    ("node",),
    ("pipeline",),
    ("local", "console"),
    ("cli", "pytest_plugin", "pyspark_klamm", "__main__"),
)
STRANGERS = (
    frozenset({"core", "protocol", "zookeeper"}),
    frozenset({"controller", "broker", "client"}),
)
#: third-party package: the only parts of klamm that may know it.
KNOWN_ONLY_TO = {
    "kazoo": {"zookeeper"},
    "kio": {"protocol"},
    "typer": {"cli"},
    "starlette": {"console"},
    "uvicorn": {"console"},
    "pyspark": {"cli", "pipeline", "local", "pyspark_klamm"},
}
#: A file with more lines than this is two rooms.
LINES_MAX = 660
#: The one module beside the package: Spark registers what it finds under such a name.
SPARK_LOOKS_FOR = "pyspark_klamm"
IMPURE = frozenset(
    {"asyncio", "datetime", "io", "logging", "os", "pathlib", "random", "secrets", "shutil"}
    | {"socket", "subprocess", "tempfile", "threading", "time", "uuid"}
)


@dataclass(frozen=True)
class Import:
    """One import of one module by another, wherever in the file it stands."""

    module: str
    imported: str


@cache
def modules() -> dict[str, Path]:
    names = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


@cache
def imports() -> tuple[Import, ...]:
    return tuple(
        Import(module, imported)
        for module, path in modules().items()
        for imported in _imported_by(module, ast.parse(path.read_text(encoding="utf-8")))
    )


def _imported_by(module: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            yield node.module
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules():
                    yield f"{node.module}.{alias.name}"


def part_of(module: str) -> str | None:
    """The part of klamm that a module belongs to; the package itself belongs to none."""
    parts = module.split(".")
    if parts[0] == SPARK_LOOKS_FOR:
        return SPARK_LOOKS_FOR
    return parts[1] if parts[0] == "klamm" and len(parts) > 1 else None


def rank(part: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if part in layer)


def test_every_part_has_its_place():
    parts = {part for module in modules() if (part := part_of(module)) is not None}
    assert parts <= {part for layer in LAYERS for part in layer}


def test_imports_point_one_way():
    wrong = []
    for each in imports():
        importer, imported = part_of(each.module), part_of(each.imported)
        if importer is None or imported is None or importer == imported:
            continue
        are_strangers = any({importer, imported} <= group for group in STRANGERS)
        if rank(imported) > rank(importer) or are_strangers:
            wrong.append(f"{each.module} imports {each.imported}")
    assert not wrong


def test_third_party_packages_stay_where_they_belong():
    wrong = [
        f"{each.module} imports {each.imported}"
        for each in imports()
        if (home := KNOWN_ONLY_TO.get(each.imported.partition(".")[0])) is not None
        and part_of(each.module) not in home
    ]
    assert not wrong


#: State machines of the broker: events in, effects out, without sockets, files, clocks or chance.
#: A name that ends in a dot stands for all modules of that package but those in EDGES.
STATE_MACHINES = (
    "klamm.broker.delayed.operations",
    "klamm.broker.fetch.session_handler",
    "klamm.broker.fetch.sessions",
    "klamm.broker.groups.",
    "klamm.broker.replication.fetcher",
    "klamm.broker.replication.isr",
    "klamm.broker.replication.partition",
    "klamm.broker.replication.throttle",
    "klamm.broker.transactions.",
)
#: Modules of those packages that connect a state machine to logs, clocks and other brokers.
EDGES = {
    "klamm.broker.groups.codec",
    "klamm.broker.groups.service",
    "klamm.broker.transactions.codec",
    "klamm.broker.transactions.marker_writer",
    "klamm.broker.transactions.peers",
    "klamm.broker.transactions.producer_ids",
    "klamm.broker.transactions.service",
    "klamm.broker.transactions.verifier",
}


def is_state_machine(module: str) -> bool:
    if module in EDGES:
        return False
    return module in STATE_MACHINES or any(
        name.endswith(".") and module.startswith(name) for name in STATE_MACHINES
    )


def test_the_core_is_pure():
    allowed = (sys.stdlib_module_names - IMPURE) | {"klamm", "numpy"}
    wrong = [
        f"{each.module} imports {each.imported}"
        for each in imports()
        if part_of(each.module) == "core"
        and (
            each.imported.partition(".")[0] not in allowed
            or each.imported.startswith("numpy.random")
        )
    ]
    assert not wrong


def test_the_state_machines_of_the_broker_are_pure():
    # Ids of topics are of the type uuid.UUID; drawing one is forbidden below.
    allowed = (sys.stdlib_module_names - IMPURE) | {"klamm", "uuid"}
    machines = {module: path for module, path in modules().items() if is_state_machine(module)}
    assert {name for name in STATE_MACHINES if not name.endswith(".")} <= machines.keys()
    wrong = [
        f"{each.module} imports {each.imported}"
        for each in imports()
        if each.module in machines and each.imported.partition(".")[0] not in allowed
    ]
    wrong += [
        f"{module} draws a random id"
        for module, path in machines.items()
        if re.search(r"\buuid[14]\(", path.read_text(encoding="utf-8"))
    ]
    assert not wrong


def test_a_class_name_has_one_meaning():
    defined: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(module)
    assert {name: where for name, where in defined.items() if len(where) > 1} == {}


def test_no_file_is_larger_than_two_rooms():
    lines = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n")
        for path in modules().values()
    }
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


def test_configuration_needs_nothing_but_the_standard_library():
    allowed = sys.stdlib_module_names | {"klamm"}
    wrong = [
        f"{each.module} imports {each.imported}"
        for each in imports()
        if part_of(each.module) == "config" and each.imported.partition(".")[0] not in allowed
    ]
    assert not wrong


def test_every_field_of_the_configuration_is_read_by_code_outside_of_it():
    read = {
        node.attr
        for module, path in modules().items()
        if part_of(module) != "config"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    declared = {field.name for kind in (BrokerConfig, TopicConfig) for field in fields(kind)}
    assert declared - read == set()


#: Parts of a simulated world, which begins in tests.
FOR_SIMULATION = {"klamm.core.invariants", "klamm.zookeeper.memory"}


def entry_points() -> set[str]:
    """Where a run can begin: what the package offers, and the modules that are run as processes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["scripts"], *project.get("entry-points", {}).values()]
    begun = {target.partition(":")[0] for group in groups for target in group.values()}
    begun |= {
        name
        for name, path in modules().items()
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    return begun | {"klamm", "klamm.__main__", SPARK_LOOKS_FOR} | FOR_SIMULATION


def test_no_module_is_dead():
    reached: set[str] = set()
    queue = sorted(entry_points())
    while queue:
        module = queue.pop()
        if module in reached or module not in modules():
            continue
        reached.add(module)
        # Importing a module runs the packages around it as well.
        queue.append(module.rpartition(".")[0])
        queue += [each.imported for each in imports() if each.module == module]
    # A part that is still empty is a place kept free, not a dead module.
    empty = {name for name, path in modules().items() if not path.read_text().strip()}
    dead = sorted(set(modules()) - reached - empty)
    assert not dead, "nothing that runs imports " + ", ".join(dead)


_SKIPPED = frozenset(
    {".git", ".venv", ".setup", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
    | {"__pycache__", "build", "dist", "out", "spark-warehouse"}
)


def own_files() -> list[Path]:
    """The files of the project as text, without what is installed or made from others."""

    def below(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name in _SKIPPED or path.name.endswith(".egg-info"):
                continue
            if path.is_dir():
                yield from below(path)
            elif path.suffix not in (".png", ".parquet", ".arrow", ".bin"):
                yield path

    return list(below(ROOT))


#: Said in pieces, so that this file does not find itself.
_FORBIDDEN = {
    "a path of one machine": re.compile(
        r"(?<![\w.~}])/(?:home|root|Users|work|opt|private|mnt|srv|tmp)" + r"/(?!kafka-logs\b)\w"
    ),
    "the host of a registry": re.compile(
        r"pypi\.org|pythonhosted\.org|repo\d?\.maven\.(?:org|apache)" + r"|registry\.npmjs"
    ),
    "work left for later": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
}


@pytest.mark.parametrize("what", list(_FORBIDDEN))
def test_no_file_mentions(what: str):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in own_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if _FORBIDDEN[what].search(line)
    ]
    assert not found


def test_the_lock_pins_every_dependency_by_version_and_hash_and_names_no_host():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.findall(
        r"^(\S+)==\S+(?: ;[^\\\n]*)? \\\n((?:    --hash=.*\n)+)", lock, re.MULTILINE
    )
    pinned = {name for name, _ in entries}
    assert len(re.findall(r"^[a-z]", lock, re.MULTILINE)) == len(entries)
    assert "://" not in lock
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = [*pyproject["project"]["dependencies"], *pyproject["dependency-groups"]["dev"]]
    names = {re.split(r"[^A-Za-z0-9_-]", requirement)[0].lower() for requirement in asked}
    assert names <= pinned


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    listed = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    # The check of the machine comes before every other target and is not one to ask for.
    assert listed == set(phony[1].split()) - {"machine"}


def test_ci_runs_the_test_command_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^make demo\b", readme, re.MULTILINE)
    assert re.search(r"^make test\b", readme, re.MULTILINE)
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1] == "make test"


def test_decision_records_are_listed_in_their_index():
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text(encoding="utf-8")
    records = {path.name for path in folder.glob("[0-9]*.md")}
    assert set(re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", index)) == records
    numbers = [name[:4] for name in sorted(records)]
    assert len(numbers) == len(set(numbers))


#: Folders of tests that mirror no module, because they show what several do together.
CROSS_CUTTING = frozenset(
    {
        "browser",
        "chaos",
        "soak",
        "interop",
        "known_bugs",
        "real",
        "simulation",
        "support",
        "tools",
        "traces",
    }
)


def test_tests_mirror_modules():
    """`test_<module>.py` or `test_<module>_<aspect>.py`, in the folder that mirrors its package."""
    stray = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        folder = path.relative_to(ROOT / "tests").parent
        if folder.parts and folder.parts[0] not in CROSS_CUTTING:
            package = SRC / "klamm" / folder
            names = {each.stem.lstrip("_") for each in package.iterdir()} | {package.name}
            words = path.stem.removeprefix("test_").split("_")
            if not any("_".join(words[:end]) in names for end in range(1, len(words) + 1)):
                stray.append(str(path.relative_to(ROOT)))
    assert not stray, "name them after the module that they test: " + ", ".join(stray)
