"""`klamm history`: make tables and a report from the history of the controllers."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.cli.options import (
    HISTORY_TOPIC,
    BootstrapServer,
    CommandConfig,
    HistoryTopic,
    properties_of,
    require_extra,
    settings,
)
from klamm.cli.pipeline import Conf, Master
from klamm.cli.render import say, show_json, stdout, table
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.errors import KlammError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from klamm.pipeline.history.report_facts import ReportFacts

_EVERY_S: Final = 1.0


def history(
    out: Annotated[
        str, typer.Option(metavar="DIR", help="The folder for the tables and report.html.")
    ],
    spool: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR...", help="Read the histories of nodes from these folders."),
    ] = None,
    more_spools: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", hidden=True, show_default=False)
    ] = None,
    metadata_log: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Read the metadata log of a KRaft node from this directory."
        ),
    ] = None,
    kraft: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,...]", help="Read the metadata log from KRaft controllers."
        ),
    ] = None,
    topic: HistoryTopic = HISTORY_TOPIC,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new events until Ctrl-C.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="Seconds between updates, with --follow."),
    ] = _EVERY_S,
    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="A snapshot to take min.insync.replicas from; default: 1."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Make tables and a report from the history of the controllers.

    From the history topic, each time from where the last run stopped; from the nodes' spools; or,
    for Apache Kafka in KRaft mode, from the metadata log of its controllers.

    \b
    Example: klamm history --bootstrap-server 127.0.0.1:9092 --out history
    Example: klamm history --spool data/*/log-history --out history
    Example: klamm history --kraft 127.0.0.1:9093 --out history
    """
    if more_spools and not spool:
        raise typer.BadParameter(f"unexpected {more_spools[0]}; spools are named with --spool")
    named = {"--spool": spool, "--metadata-log": metadata_log, "--kraft": kraft}
    given = [option for option, value in named.items() if value]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other: name one source")
    require_extra("report", "history")
    from klamm.pipeline.history.metadata_log import MetadataLogInput
    from klamm.pipeline.history.sources import SpoolInput, TopicInput
    from klamm.pipeline.session import spark_session

    properties = properties_of(command_config)
    spark_settings = settings(conf, "--conf")
    source: SpoolInput | TopicInput | MetadataLogInput
    if spool:
        source = SpoolInput([*spool, *(more_spools or ())])
    elif metadata_log is not None:
        source = MetadataLogInput.from_directory(metadata_log)
    elif kraft is not None:
        source = MetadataLogInput.from_quorum(kraft, properties)
    else:
        source = TopicInput(bootstrap_server, topic, properties)
    source.check()
    # Spark plans and schedules here; the work is in its Python workers, not in generated code.
    with spark_session(master, settings=spark_settings, progress=False, little=True) as spark:
        min_isr = None if snapshot is None else _min_isr(spark, snapshot)
        try:
            facts = source.update(
                spark,
                out,
                min_isr=min_isr,
                follow_s=every if follow else None,
                on_facts=lambda facts: _show(facts, out, as_json=as_json),
            )
        except KeyboardInterrupt:
            if not follow:
                raise
            return
    if facts is None or not facts.counts["events"]:
        raise KlammError("The history has no events yet, so there is nothing to report.")


def _min_isr(spark: SparkSession, snapshot: str) -> dict[str, int]:
    """Topics that do not have Kafka's default, with what they have."""
    from klamm.pipeline.snapshot.snapshot import read_snapshot

    topics = read_snapshot(spark, snapshot).partitions.select("topic", "min_isr").distinct()
    found = topics.where("min_isr != 1").toArrow()
    return dict(zip(found["topic"].to_pylist(), found["min_isr"].to_pylist(), strict=True))


def _show(facts: ReportFacts, out: str, *, as_json: bool) -> None:
    from klamm.pipeline.history.report import REPORT
    from klamm.pipeline.history.report_facts import gap_sentence

    gaps = [gap_sentence(gap) for gap in facts.gaps]
    if as_json:
        show_json(
            {
                "from": facts.since.isoformat(),
                "until": facts.until.isoformat(),
                **facts.counts,
                "gaps": gaps,
                "tables": dict(facts.tables),
                "report": f"{out.rstrip('/')}/{REPORT}",
            }
        )
        return
    columns = {"TABLE": itemgetter(0), "ROWS": itemgetter(1)}
    stdout().print(table(sorted(facts.tables.items()), columns))
    for gap in gaps:
        say(gap)
    say(f"The tables and {REPORT} are in {out}.")
