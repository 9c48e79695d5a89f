"""`klamm up`: run a cluster in the foreground until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from klamm.cli.options import HISTORY_TOPIC, settings
from klamm.cli.render import say, stdout, table
from klamm.console.link import PORT, TOKEN_VARIABLE, given_token, link, listen
from klamm.names import counted
from klamm.processes import Child, tied_klamm

if TYPE_CHECKING:
    from klamm.local.cluster import Cluster
    from klamm.local.status import BrokerStatus, ClusterStatus

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_INTERVAL_S: Final = 0.5
#: The share of the time that may be spent on reading the status of a large cluster.
_SHARE_OF_LOOKING: Final = 0.1
_EVENTS_SHOWN: Final = 12
_KILLED: Final = 130
#: Settings that differ from those of a cluster for tests.
_SETTINGS: Final = {
    "zookeeper.session.timeout.ms": "6000",
    "klamm.history.topic": HISTORY_TOPIC,
}
_STATE_STYLES: Final = {
    "running": "green",
    "paused": "yellow",
    "stopped": "dim",
    "dead": "red",
}


def _state(broker: BrokerStatus) -> Text:
    style = "yellow" if broker.has_lost_session else _STATE_STYLES[broker.state]
    return Text(broker.state_text, style)


_BROKERS = {
    "broker": lambda b: b.id,
    "address": lambda b: b.address,
    "rack": lambda b: b.rack,
    "pid": lambda b: b.pid,
    "state": _state,
    "leads": lambda b: b.leaders,
    "replicas": lambda b: b.replicas,
}


def up(
    brokers: Annotated[int, typer.Option(min=1, help="Number of brokers.")] = 3,
    base_port: Annotated[
        int, typer.Option(min=1, max=65_535, help="Port of the first broker; the others follow.")
    ] = 9092,
    racks: Annotated[
        str | None, typer.Option(metavar="a,b,c", help="Assigned to the brokers in turn.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the data here; default: temporary.")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Use this ZooKeeper; default: start one."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A broker setting; may be repeated."),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="TLS, SASL and ACLs; certificates and users are made."),
    ] = False,
    console: Annotated[
        bool, typer.Option("--console/--no-console", help="Run the web console, too.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON when ready.")
    ] = False,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C; a second Ctrl-C kills it.

    Ready means that every broker is registered and that a controller is active.

    \b
    Example: klamm up --brokers 3 --racks a,b,c
    Example: klamm up --data-dir data --override log.retention.hours=1
    """
    from klamm.local.cluster import Cluster

    cluster = Cluster(
        brokers,
        racks=racks.split(",") if racks else None,
        config=_SETTINGS | settings(override, "--override"),
        base_port=base_port,
        data_dir=data_dir,
        zookeeper=zookeeper,
        security="sasl_ssl" if secure else None,
        # A broker reaches ZooKeeper directly until a lesson is about cutting it off.
        can_be_cut=False,
        # The console's charts are made of them.
        metrics=console,
    )
    with _Stopping(cluster) as stopping:
        begun = time.monotonic()
        try:
            cluster.start()
            stopping.is_orderly = True  # set before the line that says ready
        except KeyboardInterrupt:
            say("Stopped before it was ready.")
            return
        with ExitStack() as stack:
            url = None
            if console:
                # Lessons cut brokers off from a ZooKeeper that is the cluster's own.
                can_be_cut = zookeeper is None
                beside = stack.enter_context(
                    closing(ConsoleProcess(cluster, can_be_cut=can_be_cut))
                )
                url = beside.url
            _tell_ready(cluster, url, as_json, time.monotonic() - begun)
            _watch(cluster, stopping.asked, live=not as_json and sys.stdout.isatty())
        say("Stopping all brokers in order; Ctrl-C again kills them.")
        cluster.stop_brokers()
        cluster.close()
    if stopping.was_killed:
        raise typer.Exit(_KILLED)


class _Stopping:
    """Handles signals: abort the start, then ask for a controlled shutdown, then kill."""

    def __init__(self, cluster: Cluster) -> None:
        self.asked = threading.Event()
        self.is_orderly = False
        self.was_killed = False
        self._cluster = cluster

    def __enter__(self) -> _Stopping:
        self._previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.is_orderly:
            self.is_orderly = True  # do not interrupt the clean-up
            raise KeyboardInterrupt
        if self.asked.is_set():
            self.was_killed = True
            self._cluster.kill_brokers()
        self.asked.set()


def _tell_ready(cluster: Cluster, console: str | None, as_json: bool, took_s: float) -> None:
    if as_json:
        processes = [cluster.broker(broker) for broker in cluster.broker_ids]
        ready: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "zookeeper": cluster.zookeeper,
            "brokers": [{"id": b.id, "port": b.port, "pid": b.pid} for b in processes],
        }
        if cluster.command_config is not None:
            ready["command_config"] = str(cluster.command_config)
        if console is not None:
            ready["console"] = console
        print(json.dumps(ready), flush=True)
        return
    say(f"Ready after {took_s:.1f} s; data in {cluster.data_dir}; Ctrl-C stops it.")
    stdout().print(
        f"bootstrap servers {cluster.bootstrap_servers}, ZooKeeper {cluster.zookeeper}",
        soft_wrap=True,
        markup=False,
    )
    if cluster.command_config is not None:
        stdout().print(
            f"secured; the administrator's client properties: {cluster.command_config}",
            soft_wrap=True,
            markup=False,
        )
    if console is not None:
        stdout().print(f"console {console}", soft_wrap=True, markup=False)
    sys.stdout.flush()


def _watch(cluster: Cluster, asked: threading.Event, *, live: bool) -> None:
    """Show the status on a terminal, or print events elsewhere, until a signal comes."""
    from klamm.local.status import describe_changes, read_status

    status = read_status(cluster)
    events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
    with _shown(status, live) as show:
        interval_s = _LOOK_INTERVAL_S
        while not asked.wait(interval_s):
            begun = time.monotonic()
            now = read_status(cluster)
            for event in describe_changes(status, now):
                told = f"{time.strftime('%H:%M:%S')} {event}"
                if live:
                    events.append(told)
                else:
                    say(told)
            status = now
            show(status, events)
            interval_s = max(_LOOK_INTERVAL_S, (time.monotonic() - begun) / _SHARE_OF_LOOKING)


@contextmanager
def _shown(
    status: ClusterStatus, live: bool
) -> Iterator[Callable[[ClusterStatus, deque[str]], None]]:
    if not live:
        yield lambda status, events: None
        return
    with Live(_picture(status, deque()), console=stdout(), auto_refresh=False) as display:
        yield lambda status, events: display.update(_picture(status, events), refresh=True)


def _picture(status: ClusterStatus, events: deque[str]) -> RenderableType:
    if status.is_known:
        who = "nobody" if status.controller is None else f"broker {status.controller}"
        line = (
            f"controller {who}, {counted(len(status.partitions), 'partition')}, "
            f"{status.under_replicated} under-replicated, {status.leaderless} leaderless"
        )
        is_well = not (status.under_replicated or status.leaderless) and status.controller
    else:
        line, is_well = "ZooKeeper does not respond", False
    return Group(
        table(status.brokers, _BROKERS),
        Text(line, style="green" if is_well else "yellow"),
        *(Text(event, style="dim") for event in events),
    )


class ConsoleProcess:
    """The console beside the cluster. Its link can be opened at once: the port listens before it
    serves."""

    def __init__(self, cluster: Cluster, *, can_be_cut: bool) -> None:
        from klamm.local.control import ClusterControl

        token = given_token()
        listening = listen(PORT, or_any=True)
        self.url = link(listening, token)
        control = ClusterControl(cluster, can_be_cut)
        spools = [cluster.broker(broker).spool for broker in cluster.broker_ids]
        config = cluster.command_config
        secured = () if config is None else (f"--command-config={config}",)
        descriptors = (listening.fileno(), control.child_end.fileno())
        self._child = Child(
            tied_klamm(
                "console",
                "--bootstrap-server",
                cluster.bootstrap_servers,
                "--allow-changes",
                f"--state-dir={cluster.data_dir / 'console'}",
                f"--listen-fd={descriptors[0]}",
                f"--control-fd={descriptors[1]}",
                *(f"--spool={spool}" for spool in spools),
                *secured,
            ),
            cluster.data_dir / "console.log",
            "console",
            pass_fds=descriptors,
            # Not on its command line, which everybody on the machine can read.
            env={**os.environ, TOKEN_VARIABLE: token},
        )
        listening.close()
        control.child_end.close()

    def close(self) -> None:
        self._child.end(signal.SIGTERM)
