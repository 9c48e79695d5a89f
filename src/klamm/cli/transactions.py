"""`klamm transactions`."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from klamm.cli.completion import complete_topic, complete_transactional_id
from klamm.cli.options import (
    AsJson,
    BootstrapServer,
    CommandConfig,
    TopicOption,
    group,
    open_admin,
)
from klamm.cli.render import say, show_json, show_rows, stdout
from klamm.client import transactions
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.names import TopicPartition

app = group("Transactions: who makes them, what they hold, and which of them hang.")

_COLUMNS = {
    "transactional id": lambda t: t.transactional_id,
    "coordinator": lambda t: t.coordinator,
    "producer id": lambda t: t.producer_id,
    "state": lambda t: t.state,
}
_OPEN = {
    "topic": lambda t: t.topic,
    "partition": lambda t: t.partition,
    "producer id": lambda t: t.producer_id,
    "producer epoch": lambda t: t.producer_epoch,
    "start offset": lambda t: t.start_offset,
    "last timestamp": lambda t: _moment(t.last_timestamp_ms),
}


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option(help="Ongoing, Empty, ...; may be repeated.")
    ] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """List the transactional ids of all coordinators.

    \b
    Example: klamm transactions list --state Ongoing
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = transactions.list_transactions(admin, state or ())
    show_rows(found, _COLUMNS, as_json=as_json, empty="There are no transactional ids.")


@app.command()
def describe(
    transactional_id: Annotated[
        str,
        typer.Argument(metavar="ID", autocompletion=complete_transactional_id, show_default=False),
    ],
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show a transactional id: its state, its producer and its partitions.

    \b
    Example: klamm transactions describe billing
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = transactions.describe(admin, transactional_id)
    if as_json:
        show_json(found.describe())
        return
    stdout().print(
        f"{found.transactional_id}: {found.state}, producer {found.producer_id} with epoch "
        f"{found.producer_epoch}, timeout {found.timeout_ms} ms, begun {_moment(found.start_ms)}, "
        f"partitions: {', '.join(map(str, found.partitions)) or 'none'}",
        markup=False,
    )


@app.command()
def hanging(
    topic: TopicOption = None,
    max_transaction_timeout: Annotated[
        int, typer.Option(min=0, metavar="MINUTES", help="Transactions may be as old as that.")
    ] = 15,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Find transactions that are open on a partition and that no coordinator will end.

    \b
    Example: klamm transactions hanging --topic orders
    """
    with open_admin(bootstrap_server, command_config) as admin:
        found = transactions.find_hanging(
            admin,
            transactions.partitions_of(admin, topic),
            max_transaction_timeout * 60_000,
            int(time.time() * 1000),
        )
    show_rows(found, _OPEN, as_json=as_json, empty="No transaction hangs.")


@app.command()
def abort(
    topic: Annotated[
        str, typer.Option(metavar="TOPIC", autocompletion=complete_topic, show_default=False)
    ],
    partition: Annotated[int, typer.Option(min=0, show_default=False)],
    start_offset: Annotated[
        int, typer.Option(min=0, help="As `hanging` shows it.", show_default=False)
    ],
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Abort a transaction on one partition, without asking its coordinator.

    Meant for what `klamm transactions hanging` has found: a transaction whose coordinator is at
    work is better ended by its producer.

    \b
    Example: klamm transactions abort --topic t --partition 0 --start-offset 4711
    """
    name = TopicPartition(topic, partition)
    with open_admin(bootstrap_server, command_config) as admin:
        found = transactions.abort(admin, name, start_offset)
    if as_json:
        show_json(asdict(found))
        return
    say(
        f"Aborted the transaction of producer {found.producer_id} on {name} that began at offset "
        f"{start_offset}."
    )


def _moment(ms: int) -> str:
    if ms < 0:
        return "never"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
