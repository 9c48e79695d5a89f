"""`klamm observe`: write the history of a cluster that keeps none, from its ZooKeeper."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.options import CommandConfig, security_of
from klamm.cli.render import say
from klamm.names import counted

if TYPE_CHECKING:
    from klamm.history.observed import ObservedCluster
    from klamm.history.records import EventRecord


def observe(
    zookeeper: Annotated[
        str,
        typer.Option(metavar="HOST:PORT[/CHROOT]", help="The cluster's ZooKeeper, 3.6 or newer."),
    ],
    spool: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder for the history; made if missing.")
    ],
    history_topic: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Ship the history to this topic of the cluster, too."),
    ] = None,
    retention_bytes: Annotated[
        int,
        typer.Option(metavar="N", help="How large the folder may grow; -1: without limit."),
    ] = -1,
    command_config: CommandConfig = None,
) -> None:
    """Write the history of a cluster that keeps none, such as Apache Kafka's, until Ctrl-C.

    It only reads ZooKeeper: who is controller, brokers, leaders, ISRs and reassignments, and infers
    what was decided. klamm story, history and console read the folder with --spool.

    \b
    Example: klamm observe --zookeeper 10.0.0.5:2181/kafka --spool history
    """
    security = security_of(command_config)
    from klamm.history.arrow import encode_batches
    from klamm.history.observer import Observer
    from klamm.history.story import TOLD_ONE_BY_ONE, event_sentence

    def tell(record: EventRecord) -> None:
        row = next(iter(encode_batches([record]))).slice(0, 1).to_pylist()[0]
        total = sum(map(len, record.decisions))
        at = datetime.fromtimestamp(record.at / 1e6, UTC)
        sentence = event_sentence(row, row["decisions"][:TOLD_ONE_BY_ONE], total)
        typer.echo(
            f"{at:%Y-%m-%d %H:%M:%S} epoch {record.controller_epoch} #{record.seq}: {sentence}"
        )

    def ready(cluster: ObservedCluster) -> None:
        topics, rows = len(cluster.state.topics), len(cluster.state.all_rows())
        say(
            f"Observing {counted(len(cluster.state.brokers), 'broker')}, "
            f"{counted(topics, 'topic')} and {counted(rows, 'partition')} at {zookeeper}. "
            "Ctrl-C ends it."
        )

    observer = Observer(
        zookeeper,
        spool,
        retention_bytes=retention_bytes,
        history_topic=history_topic,
        security=security,
        on_record=tell,
    )
    asyncio.run(observer.run(ready))
