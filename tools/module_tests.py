"""docs/module-tests.md: the table that says which tests show which module.

A test file mirrors a module by its name: `test_<module>.py` or `test_<module>_<aspect>.py` in the
same folder. A module without such a file is listed with the test files that import it, and a module
that no test imports with the tests of the nearest module that uses it, or of whole clusters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SRC: Final = ROOT / "src" / "klamm"
TESTS: Final = ROOT / "tests"
PAGE: Final = ROOT / "docs" / "module-tests.md"
HEAD: Final = """# Which tests show which module

Paths are below `src/klamm` and `tests`. Run one file with `make test PYTEST=tests/FILE`.
`make docs` writes this page.
"""
#: As many test files are named for a module at most.
_SHOWN_MAX: Final = 4
_IMPORT: Final = re.compile(r"^ *(?:from \S+ import (?:\([^)]*\)|.*)|import .*)", re.MULTILINE)


def modules() -> list[Path]:
    """The modules with code, as paths below the package."""
    return sorted(
        path.relative_to(SRC)
        for path in SRC.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    )


def mirrors(module: Path) -> list[Path]:
    """The test files that have the module's name.

    A file belongs to the longest module name that it begins with: `test_control_decode.py` is not
    an aspect of `control.py` where there is a `control_decode.py`.
    """
    folder = TESTS / module.parent
    siblings = {path.stem.lstrip("_") for path in (SRC / module.parent).glob("*.py")}
    own = module.stem.lstrip("_")
    found = []
    for path in sorted(folder.glob("test_*.py")):
        name = path.stem.removeprefix("test_")
        candidates = [each for each in siblings if name == each or name.startswith(f"{each}_")]
        if candidates and max(candidates, key=len) == own:
            found.append(path.relative_to(TESTS))
    return found


def importers(module: Path, imports: dict[Path, str]) -> list[Path]:
    """The files that import the module, those of its own package first."""
    dotted = ".".join(("klamm", *module.with_suffix("").parts))
    package, _, leaf = dotted.rpartition(".")
    pattern = re.compile(
        rf"from {re.escape(dotted)} import|import {re.escape(dotted)}\b"
        rf"|from {re.escape(package)} import (?:\([^)]*|[^\n(]*)\b{leaf}\b"
    )
    found = [path for path, text in imports.items() if path != module and pattern.search(text)]
    return sorted(found, key=lambda path: (path.parts[0] != module.parts[0], path))


def read_imports(root: Path, pattern: str) -> dict[Path, str]:
    """The import statements of each file, one after the other."""
    return {
        path.relative_to(root): "\n".join(_IMPORT.findall(path.read_text(encoding="utf-8")))
        for path in sorted(root.rglob(pattern))
    }


def tests_of(module: Path, sources: dict[Path, str], tests: dict[Path, str]) -> list[Path]:
    """The tests of a module, or of the nearest module of its package that uses it."""
    queue, seen = [module], {module}
    while queue:
        each = queue.pop(0)
        if found := mirrors(each) or importers(each, tests):
            return found
        users = [user for user in importers(each, sources) if user.parts[0] == module.parts[0]]
        queue += [user for user in users if user not in seen]
        seen.update(users)
    return []


def lines() -> Iterator[str]:
    """The table, a row for each module."""
    sources, tests = read_imports(SRC, "*.py"), read_imports(TESTS, "test_*.py")
    yield "| module | tests |"
    yield "| --- | --- |"
    for module in modules():
        found = tests_of(module, sources, tests)
        shown = [f"`{path}`" for path in found[:_SHOWN_MAX]] or ["`real/`, `cli/`"]
        if len(found) > _SHOWN_MAX:
            shown.append(f"and {len(found) - _SHOWN_MAX} more")
        yield f"| `{module}` | {', '.join(shown)} |"


def page() -> str:
    """The whole page."""
    return "\n".join((HEAD, *lines(), ""))


def main() -> None:
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print("\n".join(lines()))


if __name__ == "__main__":
    main()
