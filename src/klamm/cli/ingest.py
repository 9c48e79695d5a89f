"""`klamm ingest`: parse, call, render."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.live import Live
from rich.text import Text

from klamm.cli.completion import complete_topic
from klamm.cli.options import (
    BootstrapServer,
    CommandConfig,
    properties_of,
    require_extra,
    settings,
)
from klamm.cli.render import say, show_json, stderr
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.errors import ConfigError, KlammError
from klamm.names import counted

if TYPE_CHECKING:
    from klamm.pipeline.ingest.options import IngestOptions
    from klamm.pipeline.ingest.run import Summary

#: All cores, and a task that dies is run again, up to four times.
_LOCAL_MASTER: Final = "local[*,4]"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_MB: Final = 1e6
_PASS_OVER: Final = "name --allow-data-loss"


def ingest(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC...", autocompletion=complete_topic, show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:NAME", help="delta:PATH, iceberg:CATALOG.TABLE or parquet:PATH."
        ),
    ] = None,
    format: Annotated[str, typer.Option(metavar="raw|json|avro|protobuf")] = "raw",
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON Schema or columns, an Avro schema, a .proto or its descriptor set.",
        ),
    ] = None,
    registry: Annotated[
        str | None, typer.Option(metavar="URL", help="A Confluent-compatible schema registry.")
    ] = None,
    message: Annotated[
        str | None, typer.Option(help="The Protobuf message; else the first of the schema.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="What names a row, for upserts.")
    ] = None,
    mode: Annotated[str, typer.Option(metavar="append|upsert")] = "append",
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SQL",
            help="A condition that rows must fulfil. Others are kept aside with the dead letters, "
            "or, with 'drop:' or 'fail:' before the condition, dropped, or fail the run.",
        ),
    ] = None,
    max_bad: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Stop when more records than this do not parse."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read what is there, commit, and end (the default).")
    ] = False,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="At most a batch so often (--continuous)."),
    ] = 5.0,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The query's memory; else beside the table."),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN|day(COLUMN),...", help="Partition the table."),
    ] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Keep headers (format raw).")] = False,
    starting: Annotated[
        str, typer.Option(metavar="earliest|latest", help="Where a new query begins.")
    ] = "earliest",
    allow_data_loss: Annotated[
        bool,
        typer.Option(
            "--allow-data-loss",
            help="Pass over offsets that retention or a deleted topic took, instead of stopping.",
        ),
    ] = False,
    batch_records: Annotated[
        int, typer.Option(min=1, help="The most records of one commit.")
    ] = 2_000_000,
    file_size: Annotated[
        str, typer.Option(metavar="SIZE", help="What small files are compacted to.")
    ] = "128m",
    retain: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Delete versions older than this, such as 7d."),
    ] = None,
    catalog_property: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A property of the Iceberg catalog."),
    ] = None,
    command_config: CommandConfig = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Serve metrics for Prometheus there.")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write a project for spark-pipelines instead of ingesting."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            "--remote",
            metavar="URL",
            help="The Spark master, or sc://HOST:PORT of Spark Connect; local[*] unless submitted.",
        ),
    ] = None,
) -> None:
    """Bring a table up to date with topics, each offset once, however often it is killed.

    \b
    Example: klamm ingest orders --to delta:lake/orders --format json
    Example: klamm ingest orders --to parquet:lake/raw --continuous
    Example: klamm ingest a --to delta:lake/a --format json --mode upsert --key id
    """
    if init is not None:
        from klamm.pipeline.ingest.project import write_project

        for path in write_project(init, topics or ["orders"], bootstrap_server):
            typer.echo(path)
        return
    if not topics:
        raise typer.BadParameter("name at least one topic", param_hint="TOPIC")
    if to is None:
        raise typer.BadParameter("name a table, such as delta:lake/orders", param_hint="--to")
    if once and continuous:
        raise typer.BadParameter("name either --once or --continuous")
    from klamm.pipeline.ingest import options as parse

    try:
        chosen = parse.IngestOptions(
            topics=tuple(dict.fromkeys(topics)),
            to=parse.parse_target(to),
            bootstrap_servers=bootstrap_server,
            format=format,  # type: ignore[arg-type]  # IngestOptions checks it
            schema=None if schema is None else _read_schema(schema),
            schema_name="" if schema is None else str(schema),
            registry=registry,
            message=message,
            key=_listed(key),
            mode=mode,  # type: ignore[arg-type]  # IngestOptions checks it
            expectations=tuple(parse.parse_expectation(each) for each in expect or ()),
            max_bad=max_bad,
            checkpoint=checkpoint,
            partition_by=tuple(parse.parse_partition(each) for each in _listed(partition_by)),
            include_headers=headers,
            starting=starting,
            allow_data_loss=allow_data_loss,
            batch_records=batch_records,
            file_bytes=parse.parse_bytes(file_size),
            retain_s=None if retain is None else parse.parse_duration_s(retain),
            kafka=properties_of(command_config),
            catalog=settings(catalog_property, "--catalog-property"),
        )
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    _run(
        chosen,
        continuous=continuous,
        every_s=every,
        master=master,
        as_json=as_json,
        metrics_port=metrics_port,
    )


def _run(
    options: IngestOptions,
    *,
    continuous: bool,
    every_s: float,
    master: str | None,
    as_json: bool,
    metrics_port: int | None,
) -> None:
    require_extra("spark", "ingest")
    from klamm.pipeline.ingest.metrics import serve_metrics
    from klamm.pipeline.ingest.run import ingest_topics
    from klamm.pipeline.session import TaskFailedError, spark_session

    if master is None and _SUBMITTED not in os.environ:
        master = _LOCAL_MASTER
    with (
        serve_metrics(metrics_port) as measure,
        # No row passes through the JVM, so it is set up for little data.
        spark_session(master, progress=False, little=True) as spark,
        _stopped_by_signals(spark) as stop,
        _shown() as show,
    ):

        def on_progress(summary: Summary) -> None:
            show(summary)
            measure(summary)

        try:
            summary = ingest_topics(
                spark,
                options,
                continuous=continuous,
                every_s=every_s,
                stop=stop,
                on_progress=on_progress,
            )
        except (TaskFailedError, OSError) as error:
            raise KlammError(_advised(f"{options.to}: {error}")) from error
        except KlammError as error:
            raise KlammError(_advised(str(error))) from error
    if as_json:
        show_json(summary.to_json() | {"to": str(options.to)})
        return
    for line in summed_up(summary, options):
        say(line)


def _advised(message: str) -> str:
    """An error with the option of this command where it speaks of the source's."""
    return message.replace('set the source option "failOnDataLoss" to "false"', _PASS_OVER)


def summed_up(summary: Summary, options: IngestOptions) -> list[str]:
    """The end of a run, for people."""
    rate = summary.records / summary.seconds if summary.seconds else 0
    lines = [
        f"{counted(summary.records, 'record')} in {counted(summary.batches, 'batch', 'batches')} "
        f"{'is' if summary.records == 1 else 'are'} in {options.to}, "
        f"{rate:,.0f} records/s; the table has {counted(summary.files, 'file')}."
    ]
    if summary.bad:
        bad = counted(summary.bad, "record that does not parse is", "records that do not parse are")
        lines.append(f"{bad} in {options.to.dead_letters}.")
    for each in options.expectations:
        if count := summary.broken.get(each.sql):
            done = "dropped" if each.action == "drop" else f"kept in {options.to.dead_letters}"
            lines.append(f"{counted(count, 'row breaks', 'rows break')} {each.sql!r}: {done}.")
    if summary.lag:
        lines.append(f"{counted(summary.lag, 'record')} came in the meantime.")
    return lines


@contextmanager
def _shown() -> Iterator[Any]:
    """A line on stderr that says how far the run has got; one for each batch without a terminal."""
    console = stderr()
    if not console.is_terminal:
        said = ""

        def show(summary: Summary) -> None:
            nonlocal said
            if (line := _line(summary)) != said:
                say(line)
            said = line

        yield show
        return
    with Live(Text("starting"), console=console, transient=True) as live:
        yield lambda summary: live.update(Text(_line(summary)))


def _line(summary: Summary) -> str:
    seconds = max(summary.seconds, 1e-3)
    rate = summary.records / seconds
    left = f", {summary.lag / rate:,.0f} s left" if rate and summary.lag else ""
    return (
        f"batch {summary.batches}: {counted(summary.records, 'record')}, "
        f"{summary.bytes / _MB / seconds:,.1f} MB/s, lag {summary.lag:,}{left}"
    )


@contextmanager
def _stopped_by_signals(spark: Any) -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM let the batch under way be committed; a second one ends it at once."""
    from klamm.pipeline.session import cancel_jobs

    stop = threading.Event()

    def on_signal(*_: object) -> None:
        if stop.is_set():
            cancel_jobs(spark)
            raise KeyboardInterrupt
        stop.set()

    before = {each: signal.signal(each, on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _read_schema(path: Path) -> str:
    """The text of a schema file; a descriptor set, which is bytes, as Latin-1."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--schema {path} cannot be read: {error.strerror}") from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(each.strip() for each in (text or "").split(",") if each.strip())
