"""`klamm brokers`: list and describe the brokers of a cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from klamm.cli.completion import complete_broker
from klamm.cli.options import AsJson, BootstrapServer, CommandConfig, group, open_admin
from klamm.cli.render import show_json, show_rows, stdout, table
from klamm.client import brokers, configs, topics
from klamm.client.admin import DEFAULT_BOOTSTRAP, LiveBroker
from klamm.client.configs import ConfigResource
from klamm.client.topics import ClusterDescription
from klamm.protocol.codes import ErrorCode, KafkaError

app = group("Brokers: list the live ones, and describe one.")


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker with its numbers of leaders and replicas."""

    id: int
    host: str
    port: int
    rack: str | None
    controller: bool
    leaders: int
    replicas: int
    preferred: int


_COLUMNS = {
    "id": lambda b: b.id,
    "address": lambda b: f"{b.host}:{b.port}",
    "rack": lambda b: b.rack,
    "controller": lambda b: "yes" if b.controller else "",
    "leads": lambda b: b.leaders,
    "preferred for": lambda b: b.preferred,
    "replicas": lambda b: b.replicas,
}
_LOG_DIRS = {
    "log directory": lambda d: d.path,
    "replicas": lambda d: d.replicas,
    "bytes": lambda d: d.bytes,
    "free": lambda d: d.usable_bytes if d.usable_bytes >= 0 else None,
    "error": lambda d: d.error,
}


@app.command("list")
def list_(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """List the live brokers with their numbers of leaders and replicas.

    \b
    Example: klamm brokers list
    """
    with open_admin(bootstrap_server, command_config) as admin:
        view = topics.describe(admin)
    rows = [_row(broker, view) for broker in view.brokers]
    show_rows(rows, _COLUMNS, as_json=as_json, empty="No broker is alive.")


@app.command()
def describe(
    id: Annotated[
        int, typer.Argument(metavar="ID", autocompletion=complete_broker, show_default=False)
    ],
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show one broker: leaders, replicas, log directories and settings that are not defaults.

    \b
    Example: klamm brokers describe 1
    """
    with open_admin(bootstrap_server, command_config) as admin:
        view = topics.describe(admin)
        broker = next((each for each in view.brokers if each.id == id), None)
        if broker is None:
            alive = ", ".join(str(each.id) for each in view.brokers)
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {id}; alive are {alive}."
            )
        row = _row(broker, view)
        directories = brokers.log_dirs(admin, id)
        given = [
            each
            for each in configs.describe(admin, ConfigResource.broker(id))
            if each.source != "default" and not each.sensitive
        ]
    if as_json:
        show_json(
            asdict(row)
            | {
                "log_dirs": [asdict(each) for each in directories],
                "configs": {each.name: each.value for each in given},
            }
        )
        return
    console = stdout()
    console.print(table([row], _COLUMNS))
    console.print()
    if directories:
        console.print(table(directories, _LOG_DIRS))
    else:
        console.print("no log directories: this node can be controller and hosts no replicas")
    console.print()
    columns = {"setting": lambda s: s.name, "value": lambda s: s.value, "from": lambda s: s.source}
    console.print(table(given, columns))


def _row(broker: LiveBroker, view: ClusterDescription) -> BrokerRow:
    partitions = list(view.partitions())
    return BrokerRow(
        broker.id,
        broker.host,
        broker.port,
        broker.rack,
        broker.id == view.controller,
        leaders=sum(each.leader == broker.id for each in partitions),
        replicas=sum(broker.id in each.replicas for each in partitions),
        preferred=sum(each.replicas[:1] == (broker.id,) for each in partitions),
    )
