"""`klamm controller`: show the controller, and move its role to another broker."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.completion import complete_broker
from klamm.cli.options import AsJson, BootstrapServer, CommandConfig, group, open_admin, security_of
from klamm.cli.render import say, show_json, stdout, table
from klamm.client import configs, topics
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.client.configs import ConfigResource
from klamm.errors import ConfigError
from klamm.protocol.codes import ErrorCode, KafkaError

app = group("The controller: show it, and move its role.")

_COLUMNS = {
    "controller": lambda b: b.id,
    "address": lambda b: b.address,
    "rack": lambda b: b.rack,
}


@app.command()
def show(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show which broker is controller.

    \b
    Example: klamm controller show
    """
    with open_admin(bootstrap_server, command_config) as admin:
        view = topics.describe(admin, [])
    holder = next((each for each in view.brokers if each.id == view.controller), None)
    if holder is None:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "no broker is controller at the moment.")
    if as_json:
        show_json(asdict(holder))
    else:
        stdout().print(table([holder], _COLUMNS))


@app.command()
def move(
    id: Annotated[
        int, typer.Argument(metavar="ID", autocompletion=complete_broker, show_default=False)
    ],
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT[/CHROOT]", help="Default: zookeeper.connect of a broker."),
    ] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="Brokers of Apache Kafka also compete for the role.")
    ] = 5,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Move the controller's role to another broker.

    \b
    Example: klamm controller move 2 --zookeeper 127.0.0.1:2181
    """
    import asyncio

    from klamm.local.controller_move import move_controller

    found = zookeeper or _zookeeper(bootstrap_server, command_config)
    asyncio.run(move_controller(found, id, attempts, say, security_of(command_config)))


def _zookeeper(bootstrap_server: str, command_config: Path | None) -> str:
    """The `zookeeper.connect` of a broker."""
    with open_admin(bootstrap_server, command_config) as admin:
        broker = topics.describe(admin, []).brokers[0]
        for setting in configs.describe(admin, ConfigResource.broker(broker.id)):
            if setting.name == "zookeeper.connect" and setting.value:
                return setting.value
    raise ConfigError(f"Broker {broker.id} names no ZooKeeper; give its address with --zookeeper.")
