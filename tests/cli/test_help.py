"""What every command says about itself, in a terminal of 80 columns."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.processes import COMMANDS

WIDTH = 80


def _paths(command: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield above
    for name, each in getattr(command, "commands", {}).items():
        if (*above, name)[0] not in COMMANDS:
            yield from _paths(each, (*above, name))


PATHS = sorted(_paths(typer.main.get_command(app)))


@cache
def help_of(path: tuple[str, ...]) -> str:
    shown = CliRunner().invoke(
        app,
        [*path, "--help"],
        prog_name="klamm",
        env={"COLUMNS": str(WIDTH)},
        terminal_width=WIDTH,
    )
    assert shown.exit_code == 0
    return shown.output


def _process_help(name: str, capsys: Any, monkeypatch: Any) -> str:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit) as ended:
        COMMANDS[name].run(["--help"])
    assert ended.value.code == 0
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal(path):
    assert [line for line in help_of(path).splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_that_run_a_process_keep_to_it_too(name, capsys, monkeypatch):
    shown = _process_help(name, capsys, monkeypatch)
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []
    assert "example" in shown


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_values_have_a_name_rather_than_a_type(path):
    for type_name in ("<int", "<float", "<str", "<path", "<bool", "INTEGER", "TEXT"):
        assert type_name not in help_of(path)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_nothing_is_cut_off(path):
    assert "…" not in help_of(path)
    texts = [line for line in help_of(path).splitlines()[1:] if " -" not in line]
    assert not any(line.endswith("...") for line in texts)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_paragraphs_are_filled(path):
    """A line within a paragraph ends where the next word would not have fitted."""
    lines = [line.rstrip() for line in help_of(path).splitlines()]
    prose = lines[2 : lines.index("", 2)]
    for line, following in pairwise(prose):
        if not line.lstrip().startswith("Example"):
            assert len(line) + 1 + len(following.split()[0]) > WIDTH - 2


def test_the_commands_are_listed_in_sections_with_all_of_their_text():
    shown = help_of(())
    titles = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles[0] == "Options:"
    assert "Administration, of Apache Kafka as well:" in titles
    flat = " ".join(shown.split())
    assert "Run a whole cluster on this machine until Ctrl-C; a second Ctrl-C kills it." in flat


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_who_asks_a_cluster_takes_client_properties_from_the_environment_too(path):
    shown = help_of(path)
    if "--bootstrap-server" in shown:
        assert "--command-config FILE" in shown
        assert "KLAMM_COMMAND_CONFIG" in shown.replace("\n", "").replace(" ", "")
