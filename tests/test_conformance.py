"""The conformance table is current, and cites rules that exist."""

from pathlib import Path

import pytest

from tools import conformance

ROOT = Path(__file__).resolve().parent.parent


def test_the_committed_table_is_current():
    committed = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    assert committed == conformance.render(), "run `make docs` and commit docs/conformance.md"


def test_every_cited_rule_exists():
    assert conformance.unknown_citations() == []


def test_a_reason_stands_only_beside_rules_that_no_test_cites():
    known = {rule for section in conformance.read_sections() for rule in section.rules}
    cited = {citation.rule for citation in conformance.read_citations()}
    reasons = conformance.read_reasons().keys()
    assert reasons <= known
    assert not reasons & cited


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project with three rules, of which one has a reason."""
    spec = tmp_path / "docs" / "spec"
    spec.mkdir(parents=True)
    (spec / "controller.md").write_text(
        "# C\n## 1. First\n* **ONE-1** a\n* **ONE-2** b (see TWO-1)\n## 2. Words\nnothing\n"
    )
    (spec / "broker.md").write_text("# B\n## 1. Table\n| # | x |\n|---|---|\n| TWO-E1 | y |\n")
    (spec / "transactions.md").write_text("# T\n")
    (spec / "security.md").write_text("# S\n")
    (spec / "not-testable.md").write_text("| rule | reason |\n| --- | --- |\n| ONE-2 | no |\n")
    (tmp_path / "tests").mkdir()
    return tmp_path


def cite(tree: Path, text: str) -> list[conformance.Citation]:
    (tree / "tests" / "test_it.py").write_text("import pytest\n" + text)
    return conformance.read_citations(tree)


def test_rules_are_bullets_and_rows_of_tables(tree: Path):
    assert [(each.title, each.rules) for each in conformance.read_sections(tree)] == [
        ("1. First", ["ONE-1", "ONE-2"]),
        ("1. Table", ["TWO-E1"]),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '@pytest.mark.rule("ONE-1")\ndef test_a(): ...\n',
        '@pytest.mark.rule("ONE-1")\nasync def test_a(): ...\n',
        '@pytest.mark.rule("ONE-1")\nclass TestIt:\n    def test_a(self): ...\n',
        'pytestmark = pytest.mark.rule("ONE-1")\ndef test_a(): ...\n',
        '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.rule("ONE-1"))])\n'
        "def test_a(x): ...\n",
        'CASES = [pytest.param(1, marks=pytest.mark.rule("ONE-1"))]\n'
        '@pytest.mark.parametrize("x", CASES)\ndef test_a(x): ...\n',
    ],
)
def test_markers_are_found_wherever_pytest_takes_them(tree: Path, text: str):
    assert cite(tree, text) == [conformance.Citation("ONE-1", "test_it.py::test_a")]


def test_the_table_counts_what_is_shown_excused_and_left(tree: Path):
    cite(tree, '@pytest.mark.rule("ONE-1")\ndef test_a(): ...\n')
    text = conformance.render(tree)
    assert "1 of 3 rules are shown by a test, 1 have a stated reason" in text
    assert "| ONE-1 | test_it.py::test_a |" in text
    assert "| ONE-2 | not testable: no |" in text
    assert "- broker 1. Table: TWO-E1" in text


def test_a_rule_that_does_not_exist_is_noticed(tree: Path):
    cite(tree, '@pytest.mark.rule("TWO-1")\ndef test_a(): ...\n')
    assert [each.rule for each in conformance.unknown_citations(tree)] == ["TWO-1"]
