"""`klamm snapshot`, `klamm whatif` and `klamm plan`: parse, call the pipeline, print."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Annotated, Final

import typer

from klamm.cli.options import (
    CommandConfig,
    broker_ids,
    properties_of,
    require_extra,
    settings,
)
from klamm.cli.render import say, show_json, stdout, table, waiting
from klamm.config.client_properties import ClientSecurity
from klamm.errors import ConfigError
from klamm.names import counted

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The Spark master; local[*] unless submitted to another."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A setting of Spark's, as for spark-submit."),
]
SnapshotDir = Annotated[
    str, typer.Option("--snapshot", metavar="DIR", help="The folder of the snapshot.")
]
_SHOWN: Final = 10
#: 50 MB/s: half of what a link of 1 Gbit/s carries.
_THROTTLE: Final = 50_000_000


def snapshot(
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the tables go.")],
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT[,...]")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT[/CHROOT]", help="Read the metadata from ZooKeeper."),
    ] = None,
    sizes: Annotated[bool, typer.Option(help="Ask the brokers how large partitions are.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    command_config: CommandConfig = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write a cluster's metadata as Parquet tables; also of Apache Kafka, with or without KRaft.

    \b
    Example: klamm snapshot --bootstrap-server 127.0.0.1:9092 --out snapshot
    Example: klamm snapshot --zookeeper 127.0.0.1:2181 --out snapshot
    """
    if (bootstrap_server is None) == (zookeeper is None):
        raise typer.BadParameter("name either --bootstrap-server or --zookeeper")
    require_extra("spark", "snapshot")
    properties = properties_of(command_config)
    spark_settings = settings(conf, "--conf")
    from klamm.pipeline.session import starting_session

    with (
        starting_session(master, settings=spark_settings, little=True) as started,
        waiting() as wait_for,
    ):
        from klamm.pipeline.output import output_folder
        from klamm.pipeline.snapshot.admin import snapshot_from_brokers
        from klamm.pipeline.snapshot.snapshot import write_snapshot
        from klamm.pipeline.snapshot.zookeeper import snapshot_from_zookeeper

        wait_for("reading the cluster")
        if zookeeper is not None:
            taken = snapshot_from_zookeeper(
                zookeeper,
                with_sizes=sizes,
                tell=say,
                security=ClientSecurity.from_properties(properties),
            )
        else:
            assert bootstrap_server is not None
            taken = snapshot_from_brokers(
                bootstrap_server,
                started,
                with_sizes=sizes,
                tell=say,
                client_properties=properties,
            )
        wait_for("starting Spark")
        spark = started()
        wait_for("writing the tables")
        rows = write_snapshot(spark, taken, str(output_folder(spark, out)))
    if as_json:
        show_json(taken.summary(rows) | {"out": out})
        return
    say(
        f"In {out}: {counted(rows['brokers'], 'broker')}, {counted(rows['topics'], 'topic')} and "
        f"{counted(rows['partitions'], 'partition')}."
    )


def whatif(
    snapshot: SnapshotDir,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where tables and report.html go.")],
    fail: Annotated[
        str | None,
        typer.Option(metavar="brokers:N|racks:N", help="Every set of N brokers, or of N racks."),
    ] = None,
    set_: Annotated[
        str | None,
        typer.Option("--set", metavar="brokers:3,7", help="One set of brokers or racks."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scenarios as JSON.")] = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Simulate failures on a snapshot: which partitions lose their leader, and who leads then.

    \b
    Example: klamm whatif --snapshot snapshot --fail racks:1 --out whatif
    Example: klamm whatif --snapshot snapshot --set brokers:3,7 --out whatif
    """
    if (fail is None) == (set_ is None):
        raise typer.BadParameter("name either --fail or --set")
    kind, _, what = (fail or set_ or "").partition(":")
    option = "--fail" if set_ is None else "--set"
    if kind not in ("brokers", "racks") or not what:
        raise typer.BadParameter("expected is brokers:... or racks:...", param_hint=option)
    if set_ is None and not (what.isdecimal() and int(what) > 0):
        raise typer.BadParameter(f"{what!r} is not a number of {kind}", param_hint=option)
    if set_ is not None and kind == "brokers":
        broker_ids(what, option)
    require_extra("report", "whatif")

    spark_settings = settings(conf, "--conf")
    check_snapshot(snapshot)
    from klamm.pipeline.session import are_little, starting_session

    little = are_little([Path(snapshot)])
    with (
        starting_session(master, settings=spark_settings, little=little) as started,
        waiting() as wait_for,
    ):
        wait_for("starting Spark")
        from klamm.pipeline.output import output_folder
        from klamm.pipeline.snapshot.snapshot import read_snapshot
        from klamm.pipeline.whatif.frames import play_through, write_answer
        from klamm.pipeline.whatif.report import render_report
        from klamm.pipeline.whatif.whatif import broker_failures, named_failure, rack_failures

        spark = started()
        folder = output_folder(spark, out)
        wait_for("reading the snapshot")
        frames = read_snapshot(spark, snapshot)
        racks = frames.racks()
        if set_ is not None:
            failures = named_failure(racks, kind, [name.strip() for name in what.split(",")])
        elif kind == "brokers":
            failures = broker_failures(racks, int(what))
        else:
            failures = rack_failures(racks, int(what))
        warnings = []
        without = [str(broker) for broker, rack in racks.items() if rack is None]
        if kind == "racks" and without:
            warnings.append(f"Brokers without a rack fail with none: {', '.join(without)}.")
        for warning in warnings:
            say(warning)
        wait_for(f"playing through {counted(len(failures), 'failure')}")
        answer = play_through(frames, failures)
        wait_for("writing the tables")
        written = write_answer(answer, str(folder))
        wait_for("writing report.html")
        (folder / "report.html").write(render_report(written, warnings).encode())
    if as_json:
        show_json(written.ranked.drop_columns("key").to_pylist())
        return
    rows = written.worst.slice(0, _SHOWN).to_pylist()
    shown = ("scenario", "leaderless", "unclean", "below_min_isr", "leaders_moved")
    stdout().print(table(rows, {name: itemgetter(name) for name in shown}))
    say(f"{len(failures):,} scenarios are in {out}, the worst first in report.html.")


def plan(
    snapshot: SnapshotDir,
    out: Annotated[str, typer.Option(metavar="FILE", help="The file for the whole plan.")],
    add_brokers: Annotated[
        str | None, typer.Option(metavar="IDS", help="Ids of brokers that get replicas, as in 7,8.")
    ] = None,
    remove_brokers: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Ids of brokers that lose all replicas, as in 3,4."),
    ] = None,
    set_rf: Annotated[int | None, typer.Option(help="The new replication factor.", min=1)] = None,
    topics: Annotated[
        str, typer.Option(metavar="REGEX", help="The topics that --set-rf changes.")
    ] = ".*",
    capacities: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='JSON like {"1": {"replicas": 4000, "bytes": 1e12}}.'),
    ] = None,
    sizes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSON like {"orders": 5e9, "audit-0": 1e6}: bytes, or rates, of the partitions '
            "of a topic or of one partition, instead of the snapshot's sizes.",
        ),
    ] = None,
    pin: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Topics whose replicas do not move.")
    ] = None,
    rack: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=NAME", help="The rack of a broker that does not run yet."),
    ] = None,
    wave_moves: Annotated[
        int | None,
        typer.Option(help="Moves of a broker in one wave (default: 5% of its replicas).", min=1),
    ] = None,
    throttle: Annotated[
        int,
        typer.Option(
            metavar="BYTES", help="Bytes a second of a broker, for the times in the page.", min=1
        ),
    ] = _THROTTLE,
    explore: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Try N variants too, and show those that no other beats."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Another seed gives another plan of the same quality.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Plan a reassignment that repairs racks, balances, and does what the options ask for.

    \b
    Example: klamm plan --snapshot snapshot --add-brokers 7,8 --out plan.json
    Example: klamm plan --snapshot snapshot --set-rf 3 --topics 'a.*' --out a.json
    """
    require_extra("report", "plan")
    from klamm.pipeline.planner.frames import read_capacities, read_sizes
    from klamm.pipeline.planner.planner import Demands

    demands = Demands(
        add=broker_ids(add_brokers, "--add-brokers") if add_brokers else (),
        remove=broker_ids(remove_brokers, "--remove-brokers") if remove_brokers else (),
        replication_factor=set_rf,
        topics=topics,
        pin=pin,
        racks={
            broker_ids(broker, "--rack")[0]: name
            for broker, name in settings(rack, "--rack").items()
        },
        capacities={} if capacities is None else read_capacities(capacities),
        seed=seed,
    )
    given_sizes = None if sizes is None else read_sizes(sizes)
    demands.check()
    spark_settings = settings(conf, "--conf")
    check_snapshot(snapshot)
    from klamm.pipeline.session import are_little, starting_session

    little = are_little([Path(snapshot)])
    with (
        starting_session(master, settings=spark_settings, little=little) as started,
        waiting() as wait_for,
    ):
        wait_for("starting Spark")
        from klamm.pipeline.output import output_folder
        from klamm.pipeline.planner.explore import explore as try_variants
        from klamm.pipeline.planner.explore import write_explored
        from klamm.pipeline.planner.frames import ordered_partitions, with_sizes
        from klamm.pipeline.planner.output import summarise, write_plan
        from klamm.pipeline.planner.planner import make_plan
        from klamm.pipeline.planner.waves import default_limit, make_waves
        from klamm.pipeline.snapshot.snapshot import read_snapshot

        spark = started()
        file = output_folder(spark, out)
        wait_for("reading the snapshot")
        frames = read_snapshot(spark, snapshot)
        partitions = ordered_partitions(frames)
        if given_sizes is not None:
            partitions = with_sizes(partitions, given_sizes)
        wait_for(f"planning {counted(partitions.num_rows, 'partition')}")
        planned = make_plan(partitions, frames.racks(), demands)
        waves = make_waves(planned, wave_moves or default_limit(planned))
        wait_for("writing the plan")
        write_plan(file, partitions, planned, waves, facts=frames.facts, throttle=throttle)
        explored = None
        if explore is not None:
            wait_for(f"trying {explore:,} variants")
            explored = try_variants(spark, partitions, frames.racks(), demands, explore)
            write_explored(file.parent, spark, explored, frames.facts)
    for note in planned.notes:
        say(note)
    summary = summarise(planned, len(waves))
    if as_json:
        show_json(summary if explored is None else summary | {"explore": explored.to_pylist()})
        return
    for what in ("replicas", "bytes"):
        if (moved := summary[f"{what}_moved"]) is not None:
            typer.echo(f"{what} moved: {moved:,} (at least {summary[f'lower_bound_{what}']:,})")
    typer.echo(f"at least that much, because {planned.bound.reason}")
    if explored is not None:
        best = [row for row in explored.to_pylist() if row["is_best"]]
        shown = ("options", "replicas_moved", "bytes_moved", "deviation_percent", "lost_at_worst")
        stdout().print(table(best, {name: itemgetter(name) for name in shown}))
        say("These variants are beaten by no other; all are in explore/ and explore.html.")
    say(
        f"{counted(len(planned.changed), 'partition')} in {counted(len(waves), 'wave')} "
        f"{'is' if len(planned.changed) == 1 else 'are'} in {out} and beside it."
    )


def check_snapshot(snapshot: str) -> None:
    """Refuse a folder of this machine that is not there, before Spark starts.

    An address of another file system is for Spark to look at, and so is a relative path where the
    default file system is another.
    """
    folder = Path(snapshot)
    if folder.is_absolute() and not folder.is_dir():
        raise ConfigError(
            f"{snapshot} is not a snapshot: there is no such folder. Take one with "
            "`klamm snapshot`."
        )
