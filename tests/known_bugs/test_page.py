"""The page about known bugs names tests, and they exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "known-bugs.md").read_text(encoding="utf-8")
#: The families that a controller for ZooKeeper mode is known for, as the page has to name them.
FAMILIES = (
    "stale controller after session expiry with requests in flight",
    "controller moved between two steps",
    "a broker bounced faster than its failure is noticed",
    "deletion stuck behind an offline replica",
    "reassignment resumed after failover with the target list changed",
    "reassignment cancelled while phase A waits",
    "a topic deleted and recreated with the same name",
    "ISR change racing with a leader change",
    "preferred election during reassignment",
    "watches lost while reconnecting",
    "LeaderAndIsr arriving out of order after a reconnect",
    "a zombie leader accepting writes",
    "an empty ISR",
    "a znode of 10,000 partitions",
    "malformed or half-written znodes",
    "notifications piled up while no controller was there",
)


def sections() -> dict[str, str]:
    """What stands below each heading."""
    _, *parts = re.split(r"^### (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def named_tests(text: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py::\w+)`", text)


def defined_in(path: Path) -> set[str]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(module) if isinstance(node, functions)}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_there_with_at_least_one_test(family: str):
    assert named_tests(sections()[family])


def test_the_tests_that_are_named_exist():
    named = (test.partition("::") for test in set(named_tests(PAGE)))
    missing = [(file, name) for file, _, name in named if name not in defined_in(TESTS / file)]
    assert missing == []


def test_no_test_of_the_package_is_forgotten():
    package = TESTS / "known_bugs"
    written = {
        f"known_bugs/{path.name}::{name}"
        for path in package.glob("test_*.py")
        if path != Path(__file__)
        for name in defined_in(path)
        if name.startswith("test_")
    }
    assert written <= set(named_tests(PAGE))
