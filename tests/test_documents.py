"""What the documents tell users to type is typed here, in the order in which it stands there."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.command_line import Result, interruptible, run_here
from tests.support.ports import free_base_port
from tests.support.waiting import wait_until
from tools import compatibility, module_tests

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/operators.md", "docs/teaching.md")
#: Written to the history a moment after it happened.
_TAKES_A_MOMENT = "klamm story"
#: The tour has a test of its own, under a terminal.
_TESTED_ELSEWHERE = ("klamm demo",)


def commands(page: str) -> list[str]:
    """The lines after a prompt."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def python_blocks(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@contextmanager
def up(command: str) -> Iterator[str]:
    """`klamm up` as the page has it, on ports that are free here; the bootstrap servers."""
    process = subprocess.Popen(
        interruptible("/bin/sh", "-c", f"exec {command} --base-port {free_base_port(3)} --json"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["bootstrap_servers"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **more}


def run(command: str, bootstrap: str) -> Result:
    """A command line; in this process unless it takes a shell, since there are many."""
    if not set("|>") & set(shlex.split(command)):
        return run_here(*shlex.split(command)[1:], bootstrap=bootstrap)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=environment(KLAMM_BOOTSTRAP_SERVER=bootstrap),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (start, *others) = [each for each in commands(page) if each not in _TESTED_ELSEWHERE]
    with up(start) as bootstrap:
        for command in others:
            if command.startswith(_TAKES_A_MOMENT):
                again = partial(run, command, bootstrap)
                wait_until(lambda again=again: again().code == 0, command)
            else:
                done = run(command, bootstrap)
                assert done.code == 0, f"{command}: {done.err}"


def test_every_page_with_commands_is_in_the_list():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = {str(page.relative_to(ROOT)) for page in pages if "\n$ " in page.read_text("utf-8")}
    assert set(PAGES) == found


@pytest.mark.real
@pytest.mark.timeout(300)
def test_the_tests_and_programs_of_the_documents_run(tmp_path: Path):
    """The one in README is shorter, but has to work as well; both share a session's cluster."""
    (with_client, injected, chaos, program, *_) = python_blocks("docs/testing-with-klamm.md")
    (tmp_path / "test_with_client.py").write_text(with_client)
    (tmp_path / "test_injected.py").write_text(injected)
    (tmp_path / "test_chaos.py").write_text(chaos)
    (tmp_path / "test_short.py").write_text(python_blocks("README.md")[0])
    (tmp_path / "test_program.py").write_text(
        "def test_the_program():\n" + "".join(f"    {line}\n" for line in program.splitlines())
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_links_between_documents_lead_somewhere():
    broken = []
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def test_the_files_that_architecture_names_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text))
    assert len(named) > 40
    missing = [name for name in named if not (ROOT / "src" / "klamm" / name).exists()]
    assert not [name for name in missing if not (ROOT / name).exists()]


def test_every_file_of_the_interoperation_tests_is_described():
    text = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")
    room = ROOT / "tests" / "interop"
    files = {str(path.relative_to(room)) for path in room.rglob("test_*.py")}
    assert set(re.findall(r"^\| `((?:\w+/)?test_\w+\.py)` \|", text, re.MULTILINE)) == files


def test_the_compatibility_tables_are_what_the_code_has():
    assert compatibility.PAGE.read_text(encoding="utf-8").splitlines() == list(
        compatibility.lines()
    ), "make docs"


def test_the_table_from_modules_to_tests_is_current():
    assert module_tests.PAGE.read_text(encoding="utf-8") == module_tests.page(), "make docs"


def test_make_demo_is_the_tour():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo: .*\n\t@\$\(BIN\)/klamm demo$", makefile, re.MULTILINE)
