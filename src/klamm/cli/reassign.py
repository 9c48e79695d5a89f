"""`klamm reassign`: what kafka-reassign-partitions does, with the same JSON."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from klamm.cli.completion import complete_brokers, complete_topics
from klamm.cli.options import AsJson, BootstrapServer, CommandConfig, broker_ids, group, open_admin
from klamm.cli.render import say, show_json, show_rows, stderr
from klamm.client import reassignments
from klamm.client.admin import DEFAULT_BOOTSTRAP, Admin
from klamm.client.brokers import with_log_dirs
from klamm.client.reassignments import COMPLETED, IN_PROGRESS, NOT_AS_PLANNED, Plan
from klamm.errors import ConfigError, KlammError
from klamm.names import TopicPartition, counted

app = group("Move replicas; the JSON is that of kafka-reassign-partitions.")

PlanFile = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", show_default=False, help="A plan; - reads it from stdin."),
]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        "--reassignment-json-file", metavar="FILE", help="The plan, under the name of Kafka's tool."
    ),
]
_STDIN: Final = Path("-")
_LOOK_INTERVAL_S: Final = 0.25

_MOVES = {
    "topic": lambda m: m.topic,
    "partition": lambda m: m.partition,
    "replicas": lambda m: m.replicas,
    "adding": lambda m: m.adding or None,
    "removing": lambda m: m.removing or None,
}
_PROGRESS = {
    "topic": lambda p: p.topic,
    "partition": lambda p: p.partition,
    "status": lambda p: p.status,
    "replicas": lambda p: p.replicas,
    "target": lambda p: p.target,
}


@app.command()
def generate(
    topic_names: Annotated[
        str | None,
        typer.Option(
            "--topics", metavar="A,B", autocompletion=complete_topics, help="Topics to spread."
        ),
    ] = None,
    topics_file: Annotated[
        Path | None,
        typer.Option(
            "--topics-to-move-json-file",
            metavar="FILE",
            help="Topics to spread, from a file of Kafka's tool.",
        ),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers",
            "--broker-list",
            metavar="1,2,3",
            autocompletion=complete_brokers,
            help="The brokers to use; default: all.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another number gives another plan.")] = 0,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Propose a plan that spreads topics evenly over brokers and racks.

    The plan goes to stdout, so that it can be kept in a file; with --json, what is now as well.

    \b
    Example: klamm reassign generate --topics orders --brokers 1,2,3 > plan.json
    """
    if (topic_names is None) == (topics_file is None):
        raise typer.BadParameter(
            "give one of them", param_hint="--topics / --topics-to-move-json-file"
        )
    names = (
        topic_names.split(",")
        if topic_names is not None
        else reassignments.decode_topics(_read(topics_file), str(topics_file))
    )
    with open_admin(bootstrap_server, command_config) as admin:
        chosen = broker_ids(brokers, "--brokers") if brokers is not None else with_log_dirs(admin)
        chance = random.Random(seed)
        proposed = reassignments.propose_plan(
            admin, names, chosen, start=chance.randrange(1 << 30), shift=chance.randrange(1 << 30)
        )
        now = reassignments.current_replicas(admin, proposed)
    plan = reassignments.encode_plan(proposed)
    if as_json:
        show_json({"current": reassignments.encode_plan(now), "proposed": plan})
        return
    typer.echo(json.dumps(plan))
    changed = sum(now[name] != proposed[name] for name in proposed)
    say(f"{changed} of {counted(len(proposed), 'partition')} would change.")


@app.command()
def execute(
    file: PlanFile = None,
    kafkas_name: PlanOption = None,
    throttle: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="BYTES/S", help="Bytes per second for the moves of each broker."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the plan is completed.")] = False,
    additional: Annotated[
        bool,
        typer.Option("--additional", help="Start although other reassignments are in progress."),
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Carry out a plan, or the plans in a directory one after the other.

    Stdout gets the plan that leads back. A throttle stays until `klamm reassign verify` finds the
    plan completed, or is removed by --wait. A directory of plans is always waited for.

    \b
    Example: klamm reassign execute plan.json --throttle 50000000 --wait
    Example: klamm reassign execute waves/
    """
    waves = _waves(file, kafkas_name)
    with open_admin(bootstrap_server, command_config) as admin:
        if not additional and reassignments.list_reassignments(admin):
            raise KlammError(
                "Other reassignments are in progress (klamm reassign list): wait for them, cancel "
                "them, or add to them with --additional."
            )
        back = reassignments.current_replicas(
            admin, list(dict.fromkeys(name for _, plan in waves for name in plan))
        )
        encoded = reassignments.encode_plan(back)
        if as_json:
            show_json({"rollback": encoded, "partitions": len(back)})
        else:
            typer.echo(json.dumps(encoded))
            say("This is what the replicas are now; executing it leads back.")
        for name, plan in waves:
            _begin(admin, plan, throttle)
            if wait or len(waves) > 1:
                _wait(admin, plan, f"{name}:" if len(waves) > 1 else "moving")
        if throttle and (wait or len(waves) > 1):
            reassignments.clear_throttles(admin, back)


@app.command()
def verify(
    file: PlanFile = None,
    kafkas_name: PlanOption = None,
    preserve_throttles: Annotated[
        bool,
        typer.Option("--preserve-throttles", help="Keep throttles when the plan is completed."),
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Show the progress of a plan; exit code 0 means that it is completed.

    Once nothing of it is in progress, throttles are removed.

    \b
    Example: klamm reassign verify plan.json
    """
    plan = {name: to for _, each in _waves(file, kafkas_name) for name, to in each.items()}
    with open_admin(bootstrap_server, command_config) as admin:
        rows = reassignments.verify(admin, plan)
        if not preserve_throttles and all(row.status != IN_PROGRESS for row in rows):
            reassignments.clear_throttles(admin, plan)
    show_rows(rows, _PROGRESS, as_json=as_json, empty="The plan is empty.")
    for status in (NOT_AS_PLANNED, IN_PROGRESS):
        if count := sum(row.status == status for row in rows):
            raise KlammError(f"{count} of {counted(len(rows), 'partition')}: {status}.")


@app.command()
def cancel(
    file: PlanFile = None,
    kafkas_name: PlanOption = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="All reassignments in progress, instead of those of a plan."),
    ] = False,
    preserve_throttles: Annotated[
        bool, typer.Option("--preserve-throttles", help="Keep throttles.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Cancel the reassignments of a plan; partitions return to their old replicas.

    \b
    Example: klamm reassign cancel plan.json
    Example: klamm reassign cancel --all
    """
    if everything == ((file or kafkas_name) is not None):
        raise typer.BadParameter("give one of them", param_hint="FILE / --all")
    with open_admin(bootstrap_server, command_config) as admin:
        plan: list[TopicPartition] | None = None
        if not everything:
            plan = [name for _, each in _waves(file, kafkas_name) for name in each]
        moves = reassignments.list_reassignments(admin, plan)
        names = [TopicPartition(move.topic, move.partition) for move in moves]
        _report(reassignments.alter(admin, dict.fromkeys(names)), len(names))
        if names and not preserve_throttles:
            reassignments.clear_throttles(admin, names)
    show_rows(moves, _MOVES, as_json=as_json, empty="No reassignment was in progress.")
    if moves:
        say(f"Cancelled reassignments: {len(moves)}.")


@app.command("list")
def list_(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """List the reassignments in progress.

    \b
    Example: klamm reassign list
    """
    with open_admin(bootstrap_server, command_config) as admin:
        moves = reassignments.list_reassignments(admin)
    show_rows(moves, _MOVES, as_json=as_json, empty="No reassignment is in progress.")


def _waves(file: Path | None, kafkas_name: Path | None) -> list[tuple[str, Plan]]:
    path = file or kafkas_name
    if path is None or (file is not None and kafkas_name is not None):
        raise typer.BadParameter("name one plan", param_hint="FILE")
    if path == _STDIN:
        return [("stdin", reassignments.decode_plan(sys.stdin.read(), "stdin"))]
    return list(reassignments.read_waves(path))


def _read(path: Path | None) -> bytes:
    assert path is not None
    try:
        return sys.stdin.buffer.read() if path == _STDIN else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _begin(admin: Admin, plan: Plan, throttle: int | None) -> None:
    reassignments.current_replicas(admin, plan)  # raises for partitions that do not exist
    if throttle:
        reassignments.throttle(admin, plan, throttle)
    _report(reassignments.alter(admin, plan), len(plan))
    say(f"Moving {counted(len(plan), 'partition')}.")


def _report(refused: Sequence[reassignments.RefusedReassignment], asked: int) -> None:
    if refused:
        shown = "; ".join(f"{r.topic}-{r.partition} {r.error}: {r.message}" for r in refused[:5])
        more = f" (and {len(refused) - 5} more)" if len(refused) > 5 else ""
        were_refused = counted(asked, "partition was refused", "partitions were refused")
        raise KlammError(f"{len(refused)} of {were_refused}: {shown}{more}")


def _wait(admin: Admin, plan: Plan, what: str) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr()) as bar:
        task = bar.add_task(what, total=len(plan))
        while True:
            rows = reassignments.verify(admin, plan)
            bar.update(task, completed=sum(row.status != IN_PROGRESS for row in rows))
            if all(row.status != IN_PROGRESS for row in rows):
                break
            time.sleep(_LOOK_INTERVAL_S)
    wrong = [row for row in rows if row.status != COMPLETED]
    if wrong:
        names = ", ".join(f"{row.topic}-{row.partition}" for row in wrong[:5])
        are_wrong = counted(len(rows), "partition is not", "partitions are not")
        raise KlammError(f"{len(wrong)} of {are_wrong} as planned: {names}.")
