"""The console script: what it lists, what it loads, and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from klamm.cli.main import main
from klamm.cli.processes import COMMANDS


def klamm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from klamm.cli.main import main; sys.exit(main())"
    command = (sys.executable, "-c", program, *arguments)
    return subprocess.run(command, capture_output=True, text=True)


def test_help_lists_every_command():
    result = klamm("--help")
    assert result.returncode == 0
    for name in (*COMMANDS, "demo"):
        assert f" {name} " in result.stdout


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
    ],
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str]):
    result = klamm(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""


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
