"""`klamm configs`: show and change the settings of topics and brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.completion import complete_broker
from klamm.cli.options import (
    AsJson,
    BootstrapServer,
    CommandConfig,
    TopicOption,
    group,
    open_admin,
    settings,
)
from klamm.cli.render import say, show_rows
from klamm.client import configs
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.client.configs import DEFAULT, ConfigResource

app = group("Settings of topics and brokers.")

BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="ID",
        autocompletion=complete_broker,
        help="A broker, or `default` for the defaults of all brokers.",
    ),
]
_COLUMNS = {
    "setting": lambda s: s.name,
    "value": lambda s: "(hidden)" if s.sensitive else s.value,
    "from": lambda s: s.source,
    "changes": lambda s: "at start" if s.read_only else "any time",
}


@app.command()
def describe(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include defaults; --json always does.")
    ] = False,
    key: Annotated[list[str] | None, typer.Option(help="Only this key; may be repeated.")] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show the settings of a topic or of a broker, and where each comes from.

    \b
    Example: klamm configs describe --topic orders
    Example: klamm configs describe --broker 1 --all
    """
    resource = _resource(topic, broker)
    with open_admin(bootstrap_server, command_config) as admin:
        found = configs.describe(admin, resource)
    for name in key or ():
        if all(name != each.name for each in found):
            raise configs.unknown_key(resource, name)
    if key:
        found = [each for each in found if each.name in key]
    elif not (everything or as_json):
        found = [each for each in found if each.source != "default"]
    show_rows(found, _COLUMNS, as_json=as_json, empty=f"Nothing is set for {resource}.")


@app.command()
def alter(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", "--config", metavar="KEY=VALUE", help="May be repeated."),
    ] = None,
    removed: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="KEY", help="Return to the default; may be repeated."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Change some settings of a topic or of a broker.

    \b
    Example: klamm configs alter --topic orders --set retention.ms=3600000
    Example: klamm configs alter --topic orders --delete cleanup.policy
    Example: klamm configs alter --broker default --set log.retention.ms=3600000
    """
    resource = _resource(topic, broker)
    changes = settings(changed, "--set")
    if not changes and not removed:
        raise typer.BadParameter("nothing to change", param_hint="--set / --delete")
    with open_admin(bootstrap_server, command_config) as admin:
        configs.alter(admin, resource, changes, removed or ())
    say(f"Changed the settings of {resource}.")
    # Brokers accept unknown keys, since a plug-in may define them.
    for name in configs.unknown_names(resource, changes):
        say(f"Beware: {configs.unknown_key(resource, name)}")


def _resource(topic: str | None, broker: str | None) -> ConfigResource:
    if (topic is None) == (broker is None):
        raise typer.BadParameter("give one of them", param_hint="--topic / --broker")
    if topic is not None:
        return ConfigResource.topic(topic)
    if broker == DEFAULT:
        return ConfigResource.broker(None)
    if broker is None or not broker.isdecimal():
        raise typer.BadParameter(f"{broker!r} is not a broker's id", param_hint="--broker")
    return ConfigResource.broker(int(broker))
