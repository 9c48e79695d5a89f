"""The options that several commands share, and the parsing of their values."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from klamm.cli.completion import complete_topic
from klamm.cli.help import Application
from klamm.client.admin import Admin
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.config.properties import read_properties
from klamm.errors import ConfigError

#: The history topic of `klamm up`, and the default of commands that read a history.
HISTORY_TOPIC: Final = "__klamm_history"


BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT[,...]",
        envvar="KLAMM_BOOTSTRAP_SERVER",
        help="One or more brokers.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar="KLAMM_COMMAND_CONFIG",
        help="Client properties of Kafka's, for a secured cluster.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON rather than a table.")]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic, show_default=False)
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", autocompletion=complete_topic, help="One topic."),
]
HistoryTopic = Annotated[
    str,
    typer.Option(
        "--topic", metavar="TOPIC", autocompletion=complete_topic, help="The history topic."
    ),
]


def security_of(command_config: Path | None) -> ClientSecurity:
    """What the file of client properties says about security."""
    return PLAINTEXT if command_config is None else ClientSecurity.load(command_config)


def properties_of(command_config: Path | None) -> dict[str, str]:
    """The client properties in the file; none without one."""
    return {} if command_config is None else read_properties(command_config)


def open_admin(bootstrap_server: str, command_config: Path | None) -> Admin:
    """A client for administration."""
    return Admin(bootstrap_server, security=security_of(command_config))


def group(help: str) -> typer.Typer:
    """A command with subcommands."""
    return Application(help=help)


def settings(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse `key=value` arguments; BadParameter names the wrong one."""
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint=option)
        found[key.strip()] = value
    return found


def broker_ids(text: str, option: str) -> list[int]:
    """Parse broker ids, as in `1,2,3`."""
    return _numbers(text, ",", option)


def assignment(text: str | None) -> list[list[int]]:
    """Parse the replicas of each partition, as in `1:2:3,2:3:1`."""
    if text is None:
        return []
    return [_numbers(each, ":", "--replica-assignment") for each in text.split(",")]


def _numbers(text: str, separator: str, option: str) -> list[int]:
    try:
        return [int(number) for number in text.split(separator)]
    except ValueError:
        example = separator.join("123")
        raise typer.BadParameter(
            f"{text!r} is not a list of broker ids like {example}", param_hint=option
        ) from None


#: The packages of an extra that a command imports.
_EXTRAS: Final = {
    "spark": ("pyspark", "pandas"),
    "report": ("pyspark", "pandas", "matplotlib"),
}


def require_extra(extra: str, command: str) -> None:
    """Say what to install before a command begins that needs more than `pip install klamm`."""
    # Finding a package does not import it, which would take a second.
    missing = [name for name in _EXTRAS[extra] if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"klamm {command} needs {' and '.join(missing)}: pip install 'klamm[{extra}]'"
        )
