"""The console script: what it lists, what it loads, and how it ends."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from klamm.cli.app import app
from klamm.cli.main import main
from klamm.cli.processes import COMMANDS
from tests.support.command_line import run_here, run_process


def klamm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from klamm.cli.main import main; sys.exit(main())"
    command = (sys.executable, "-c", program, *arguments)
    return subprocess.run(command, capture_output=True, text=True)


def commands() -> list[tuple[str, ...]]:
    """Every command of the application for people, with its group."""
    found: list[tuple[str, ...]] = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        for name, each in command.commands.items():
            if hasattr(each, "commands"):
                walk(each, (*path, name))
            elif name not in COMMANDS:
                found.append((*path, name))

    walk(typer.main.get_command(app), ())
    return found


def test_help_lists_every_command():
    result = klamm("--help")
    assert result.returncode == 0
    for name in (*COMMANDS, *(path[0] for path in commands())):
        assert f" {name} " in result.stdout


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_explains_itself_with_an_example_that_it_would_accept(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    result = run_here(*path, "--help").ok()
    example = re.findall(r"Example: (.*?)\s*$", result.out, re.MULTILINE)
    assert example, result.out
    for line in example:
        words = shlex.split(line.split(" | ")[-1].split(" > ")[0])
        assert words[: len(path) + 1] == ["klamm", *path]
        # Parsing alone: what the command would do is another test's matter.
        command = typer.main.get_command(app)
        for name in path:
            command = command.commands[name]  # type: ignore[attr-defined]
        command.make_context(path[-1], words[len(path) + 1 :])


def test_the_shell_can_be_taught_to_complete():
    # The shell is named, since the tests may not run below a shell.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = run_process("--show-completion", "bash", environment=named)
    assert shown.code == 0
    environment = {
        "_KLAMM_COMPLETE": "complete_bash",
        "COMP_WORDS": "klamm topics de",
        "COMP_CWORD": "2",
    }
    words = run_process(environment=environment).out.split()
    assert words == ["describe", "delete"]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_process_command_explains_itself_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"example:\n  klamm {name}" in capsys.readouterr().out


def test_process_commands_do_without_what_only_people_need():
    program = (
        "import sys, klamm.cli.main, klamm.cli.processes\n"
        "import klamm.config.broker\n"
        "print([name for name in ('typer', 'rich', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["broker"],
        ["broker", "file", "--override", "novalue"],
        ["broker", "file", "--over", "a=b"],
        ["zookeeper", "--port", "many"],
        ["demo", "--nonsense"],
        ["topics"],
        ["topics", "create"],
        ["topics", "create", "t", "--partitions", "0"],
        ["topics", "create", "t", "--replica-assignment", "1:x"],
        ["topics", "create", "t", "--replica-assignment", "1:2", "--partitions", "1"],
        ["topics", "create", "t", "--config", "novalue"],
        ["configs", "describe"],
        ["configs", "describe", "--topic", "t", "--broker", "1"],
        ["configs", "describe", "--broker", "one"],
        ["configs", "alter", "--topic", "t"],
        ["elect", "preferred"],
        ["elect", "preferred", "--all", "--topic", "t"],
        ["elect", "worst", "--all"],
        ["reassign", "generate"],
        ["reassign", "cancel"],
        ["controller", "move", "one"],
        ["groups", "reset-offsets", "g"],
        ["groups", "reset-offsets", "g", "--to-datetime", "soon"],
        ["consume", "t", "--format", "%s", "--json"],
        ["up", "--brokers", "0"],
    ],
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str]):
    result = run_here(*arguments)
    assert result.code == 2
    assert result.out == "" or arguments == ["topics"], "a group without a command shows its help"


def test_a_failure_is_one_sentence_on_stderr_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "server.properties"
    file.write_text("zookeeper.connect=localhost:2181\nbroker.idd=1\n")
    assert main(["broker", str(file)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "klamm: broker.idd is not a key that Kafka or klamm knows; the nearest is broker.id\n"
    )


def test_an_override_replaces_what_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "server.properties"
    file.write_text("zookeeper.connect=localhost:2181\nbroker.id=1\n")
    assert main(["broker", str(file), "--override", "broker.id=-7"]) == 1
    assert "Invalid value -7 for configuration broker.id" in capsys.readouterr().err
