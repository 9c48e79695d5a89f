"""`klamm history`: make tables and a report from the history of the controllers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from klamm.cli.options import HISTORY_TOPIC, BootstrapServer, CommandConfig, require_extra
from klamm.cli.pipeline import Master
from klamm.cli.render import say, show_json, stderr, stdout, table
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.config.properties import read_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from klamm.pipeline.history.folder import SpoolInput, TopicInput
    from klamm.pipeline.history.report_facts import ReportFacts

_EVERY_S: Final = 10.0


def history(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder for the tables and report.html.")
    ],
    spool: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR...", help="Read the histories of nodes from these folders."),
    ] = None,
    more_spools: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", hidden=True, show_default=False)
    ] = None,
    topic: Annotated[str, typer.Option(help="The history topic.")] = HISTORY_TOPIC,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new events until Ctrl-C.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="Seconds between updates, with --follow."),
    ] = _EVERY_S,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A snapshot to take min.insync.replicas from; default: 1."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    master: Master = None,
) -> None:
    """Make tables and a report from the history of the controllers.

    From the history topic, each time from where the last run stopped; or from the nodes' spools.

    \b
    Example: klamm history --bootstrap-server 127.0.0.1:9092 --out history
    Example: klamm history --spool data/*/log-history --out history
    """
    if more_spools and not spool:
        raise typer.BadParameter(f"unexpected {more_spools[0]}; spools are named with --spool")
    require_extra("report", "history")
    from klamm.pipeline.history.folder import SpoolInput, TopicInput
    from klamm.pipeline.session import are_little, spark_session

    spools = [*(spool or ()), *(more_spools or ())]
    properties = None if command_config is None else read_properties(command_config)
    source = SpoolInput(spools) if spools else TopicInput(bootstrap_server, topic, properties)
    source.check()
    # With --follow, the data grows: the settings for little data do not fit.
    little = bool(spools) and not follow and are_little(spools)
    with spark_session(master, progress=False, little=little) as spark:
        min_isr = None if snapshot is None else _min_isr(spark, snapshot)
        try:
            while True:
                facts = _refresh(spark, source, out, min_isr, may_be_empty=follow)
                if facts is not None:
                    _show(facts, out, as_json=as_json)
                if not follow:
                    return
                time.sleep(every)
        except KeyboardInterrupt:
            if not follow:
                raise


def _refresh(
    spark: SparkSession,
    source: SpoolInput | TopicInput,
    out: Path,
    min_isr: DataFrame | None,
    *,
    may_be_empty: bool,
) -> ReportFacts | None:
    """Update the folder; None if nothing is new or there are no events yet."""
    from klamm.pipeline.history.folder import RECORDS, TABLES, write_tables
    from klamm.pipeline.history.report import write_report
    from klamm.pipeline.session import planned_for

    with _progress(len(TABLES) + 2) as advance:
        advance("records")
        records = source.lay_down(spark, out)
        if records is None or (may_be_empty and records.isEmpty()):
            return None
        with planned_for(spark, [out / RECORDS]):
            tables = write_tables(records, out, min_isr=min_isr, on_table=advance)
            advance("report.html")
            return write_report(records, tables, out)


def _min_isr(spark: SparkSession, snapshot: Path) -> DataFrame:
    from klamm.pipeline.snapshot.snapshot import read_snapshot

    return read_snapshot(spark, str(snapshot)).partitions.select("topic", "min_isr").distinct()


@contextmanager
def _progress(steps: int) -> Iterator[Any]:
    """A progress bar on stderr; the yielded function starts a step with its name."""
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=stderr(), transient=True) as progress:
        task = progress.add_task("", total=steps)
        is_first = True

        def advance(name: str) -> None:
            nonlocal is_first
            progress.update(task, description=name, advance=0 if is_first else 1)
            is_first = False

        yield advance


def _show(facts: ReportFacts, out: Path, *, as_json: bool) -> None:
    from pyarrow import dataset

    from klamm.pipeline.history.folder import TABLES
    from klamm.pipeline.history.report import REPORT
    from klamm.pipeline.history.report_facts import gap_sentence

    rows = [
        {
            "table": each.name,
            "rows": dataset.dataset(out / each.name, format="parquet").count_rows(),
        }
        for each in TABLES
    ]
    gaps = [gap_sentence(gap) for gap in facts.gaps]
    if as_json:
        show_json(
            {
                "from": facts.since.isoformat(),
                "until": facts.until.isoformat(),
                **facts.counts,
                "gaps": gaps,
                "tables": {row["table"]: row["rows"] for row in rows},
                "report": str(out / REPORT),
            }
        )
        return
    columns = {"TABLE": lambda row: row["table"], "ROWS": lambda row: row["rows"]}
    stdout().print(table(rows, columns))
    for gap in gaps:
        say(gap)
    say(f"The tables and {REPORT} are in {out}.")
