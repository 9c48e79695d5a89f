"""Which rule of the specifications is shown by which test.

    python tools/conformance.py            print the table
    python tools/conformance.py --write    put it into docs/conformance.md

Rules are read from docs/spec, citations from the `rule` markers in tests. Nothing is imported or
run, so the table can be made from a tree whose tests do not even start.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SPECIFICATIONS: Final = ("controller.md", "broker.md", "security.md", "transactions.md")
_RULE: Final = re.compile(r"\s*(?:[-*] \*\*|\| )(?P<id>[A-Z]+-[A-Z]?[0-9]+[a-z]?)(?:\*\*| \|)")
_SECTION: Final = re.compile(r"## (?P<title>.+)")
_NOT_TESTABLE: Final = re.compile(r"\| (?P<id>[A-Z]+-[A-Z]?[0-9]+[a-z]?) \| (?P<reason>.+?) \|")


@dataclass
class Section:
    """One numbered chapter of a specification, with its rules in their order."""

    specification: str
    title: str
    rules: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Citation:
    """One test that says which rule it shows."""

    rule: str
    test: str


def read_sections(root: Path = ROOT) -> list[Section]:
    """The chapters that define rules; an id that occurs twice belongs where it is first."""
    sections: list[Section] = []
    seen: set[str] = set()
    for name in SPECIFICATIONS:
        for line in (root / "docs" / "spec" / name).read_text(encoding="utf-8").splitlines():
            if heading := _SECTION.fullmatch(line):
                sections.append(Section(name, heading["title"]))
            elif (rule := _RULE.match(line)) and rule["id"] not in seen:
                seen.add(rule["id"])
                sections[-1].rules.append(rule["id"])
    return [section for section in sections if section.rules]


def read_reasons(root: Path = ROOT) -> dict[str, str]:
    """The rules that no test can show, each with the reason."""
    text = (root / "docs" / "spec" / "not-testable.md").read_text(encoding="utf-8")
    return {match["id"]: match["reason"] for match in _NOT_TESTABLE.finditer(text)}


def read_citations(root: Path = ROOT) -> list[Citation]:
    """Every `rule` marker of the test suite, on functions, classes, modules and parameters."""
    tests = root / "tests"
    return [
        citation
        for path in sorted(tests.rglob("test_*.py"))
        for citation in _citations_in(path, path.relative_to(tests).as_posix())
    ]


def _citations_in(path: Path, shown: str) -> Iterator[Citation]:
    module = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    assigned = {
        target.id: statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for_all = list(_rules_under(assigned["pytestmark"])) if "pytestmark" in assigned else []
    yield from _citations_under(module.body, shown, for_all, assigned)


def _citations_under(
    body: list[ast.stmt], shown: str, inherited: list[str], assigned: dict[str, ast.expr]
) -> Iterator[Citation]:
    for statement in body:
        if not isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        own = [rule for each in statement.decorator_list for rule in _rules_of(each, assigned)]
        if isinstance(statement, ast.ClassDef):
            yield from _citations_under(statement.body, shown, inherited + own, assigned)
        elif statement.name.startswith("test_"):
            for rule in dict.fromkeys(inherited + own):
                yield Citation(rule, f"{shown}::{statement.name}")


def _rules_of(decorator: ast.expr, assigned: dict[str, ast.expr]) -> Iterator[str]:
    """The ids in a decorator, and in the lists of cases that it takes from the module."""
    yield from _rules_under(decorator)
    for name in ast.walk(decorator):
        if isinstance(name, ast.Name) and name.id in assigned:
            yield from _rules_under(assigned[name.id])


def _rules_under(node: ast.AST) -> Iterator[str]:
    """The ids in every `pytest.mark.rule(...)` below `node`, so also those in `pytest.param`."""
    for call in ast.walk(node):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "rule"
        ):
            # Written out, or unpacked from tuples that are written out.
            for argument in call.args:
                for constant in ast.walk(argument):
                    if isinstance(constant, ast.Constant):
                        yield str(constant.value)


def unknown_citations(root: Path = ROOT) -> list[Citation]:
    """Markers that cite a rule which no specification defines."""
    known = {rule for section in read_sections(root) for rule in section.rules}
    return [citation for citation in read_citations(root) if citation.rule not in known]


def render(root: Path = ROOT) -> str:
    """The table, as Markdown."""
    sections = read_sections(root)
    reasons = read_reasons(root)
    tests: dict[str, list[str]] = {}
    for citation in read_citations(root):
        tests.setdefault(citation.rule, []).append(citation.test)
    rules = [rule for section in sections for rule in section.rules]
    shown = [rule for rule in rules if rule in tests]
    excused = [rule for rule in rules if rule not in tests and rule in reasons]
    lines = [
        "# Conformance",
        "",
        "Every rule of the specifications in [spec](spec/) with the tests that cite it. Made by"
        " `make docs` from the markers in `tests/`; `make conformance` prints it.",
        "",
        f"{len(shown)} of {len(rules)} rules are shown by a test, {len(excused)} have a stated"
        f" reason why none can, {len(rules) - len(shown) - len(excused)} are left.",
        "",
        "| section | rules | shown | not testable | left |",
        "| --- | --- | --- | --- | --- |",
        *(_summary(section, tests, reasons) for section in sections),
    ]
    for section in sections:
        lines += ["", f"## {_label(section)}", "", "| rule | shown by |", "| --- | --- |"]
        lines += [_row(rule, tests.get(rule), reasons.get(rule)) for rule in section.rules]
    left = [rule for rule in rules if rule not in tests and rule not in reasons]
    lines += ["", "## Cited by no test", ""]
    lines += [
        f"- {_label(section)}: {', '.join(missing)}"
        for section in sections
        if (missing := [rule for rule in section.rules if rule in left])
    ] or ["None."]
    return "\n".join(lines) + "\n"


def _label(section: Section) -> str:
    return f"{section.specification.removesuffix('.md')} {section.title}"


def _summary(section: Section, tests: dict[str, list[str]], reasons: dict[str, str]) -> str:
    shown = sum(rule in tests for rule in section.rules)
    excused = sum(rule not in tests and rule in reasons for rule in section.rules)
    total = len(section.rules)
    return f"| {_label(section)} | {total} | {shown} | {excused} | {total - shown - excused} |"


def _row(rule: str, tests: list[str] | None, reason: str | None) -> str:
    if tests is not None:
        return f"| {rule} | {'<br>'.join(sorted(tests))} |"
    return f"| {rule} | {'' if reason is None else f'not testable: {reason}'} |"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        (ROOT / "docs" / "conformance.md").write_text(render(), encoding="utf-8")
    else:
        print(render(), end="")
