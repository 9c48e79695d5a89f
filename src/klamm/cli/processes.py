"""The commands that run a process in the foreground: `klamm zookeeper` and `klamm broker`.

They parse with the standard library, and import the server only when they start it.
"""

from __future__ import annotations

import sys
from argparse import (
    SUPPRESS,
    ArgumentParser,
    ArgumentTypeError,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the console script; `run` takes the arguments that follow its name."""

    summary: str
    run: Callable[[Sequence[str]], None]


def run_zookeeper(arguments: Sequence[str]) -> None:
    """Run a ZooKeeper server, or an ensemble of them, until it is told to stop."""
    parser = _parser("zookeeper", "klamm zookeeper --port 2181 --data-dir data/zookeeper")
    parser.add_argument("--port", type=int, default=2181, help="0 takes any free one (2181)")
    parser.add_argument(
        "--ensemble",
        type=_positive,
        metavar="N",
        help="run N servers that form a quorum, at the port and those after it",
    )
    parser.add_argument(
        "--data-dir", type=Path, help="folder for the data; default: a temporary one"
    )
    parser.add_argument("--heap", default="512m", help="the Java heap (512m)")
    parser.add_argument(
        "--tls",
        type=Path,
        nargs="?",
        const=Path("zookeeper-tls"),
        metavar="DIR",
        help="serve over TLS to clients with a certificate; DIR gets (or has) the certificates "
        "(zookeeper-tls)",
    )
    options = parser.parse_args(arguments)
    from klamm.zookeeper.server import run_foreground

    tls = None
    if options.tls is not None:
        from klamm.local.security import zookeeper_stores

        tls = zookeeper_stores(options.tls)
        for line in tls.broker_settings():
            print(line, file=sys.stderr)
    run_foreground(options.port, options.data_dir, options.heap, options.ensemble, tls)


def run_broker(arguments: Sequence[str]) -> None:
    """Run a broker and its controller process until SIGTERM or Ctrl-C."""
    parser = _parser("broker", "klamm broker server.properties --override broker.id=2")
    parser.add_argument("file", type=Path, help="a server.properties in Kafka's format")
    parser.add_argument(
        "--override",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replaces a setting of the file; may be repeated",
    )
    # One end of a socket that a local cluster has made, to inject faults.
    parser.add_argument("--faults-fd", type=int, help=SUPPRESS)
    options = parser.parse_args(arguments)
    from klamm.config.broker import BrokerConfig

    config = BrokerConfig.load(options.file, dict(options.override))
    if config.without_effect:
        listed = ", ".join(config.without_effect)
        print(f"klamm: known, but without effect here: {listed}", file=sys.stderr)
    from klamm.node.node import run

    run(config, options.faults_fd)


def _parser(name: str, example: str) -> ArgumentParser:
    return ArgumentParser(
        prog=f"klamm {name}",
        description=COMMANDS[name].summary,
        epilog=f"example:\n  {example}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"a number from 1 on is expected, not {text!r}")
    return int(text)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key.strip(), value


COMMANDS: Final = {
    "zookeeper": Command(
        "Run a real ZooKeeper server, or an ensemble, in the foreground.", run_zookeeper
    ),
    "broker": Command("Run one broker, with its controller candidate.", run_broker),
}
