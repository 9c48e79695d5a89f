"""The cluster as it is now: read again and again, and passed on to listeners.

A look at the brokers' names is cheap and is taken several times a second. The partitions are read
again when something happened, and otherwise at times that leave most of a broker to its clients:
reading takes at most a tenth of the time. In between, what the history says is folded in.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import numpy as np

from klamm.client.admin import Admin
from klamm.console.columns import ClusterColumns, ShownBroker
from klamm.console.health import Health, judge_health
from klamm.console.reading import read_columns, read_election_settings
from klamm.core.columns import padded, unpad, widen
from klamm.errors import KlammError, UnavailableError

log = logging.getLogger("klamm.console")

_LOOK_INTERVAL_S: Final = 0.25
_READ_INTERVAL_S: Final = 1.0
#: A second broker is asked whether the first is alive.
_SECOND_INTERVAL_S: Final = 1.0
#: Reading takes at most this share of the time, or after an event this one.
_SHARE: Final = 0.1
_SHARE_AFTER_EVENT: Final = 0.25
#: Settings of elections are read again after that time.
_SETTINGS_S: Final = 10.0
#: A change of more rows is not told row by row: the browser reads the map again.
_ROWS_TOLD_MAX: Final = 5000
#: A cluster of more partitions is not read for every question.
_DEAR_PARTITIONS: Final = 20_000


T = TypeVar("T")


class ChangeListeners(Generic[T]):
    """Functions that are called with each change, in the thread that made it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[T], None]] = []

    def add(self, listener: Callable[[T], None]) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        with self._lock:
            self._listeners.append(listener)

        def remove() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return remove

    def tell(self, change: T) -> None:
        """Call every listener with a change."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(change)


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """The cluster at one version; the layout changes when rows are other partitions."""

    version: int
    layout: int
    columns: ClusterColumns
    health: Health
    read_at: float
    problem: str | None = None


class ClusterWatch:
    """Keeps the newest `Moment`, in a thread of its own."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self._reading = threading.Lock()
        self._moment: Moment | None = None
        self._problem: str | None = None
        self._first = threading.Event()
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._listeners: ChangeListeners[dict[str, Any]] = ChangeListeners()
        self._known: dict[int, ShownBroker] = {}
        self._down_since: dict[int, datetime] = {}
        self._last_cost_s = 0.0
        self._settings: dict[str, tuple[int, bool]] = {}
        self._settings_at = 0.0
        self._thread = threading.Thread(target=self._run, name="cluster watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._wanted.set()
        self._thread.join(timeout=5)

    def listen(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call a listener with each change, in the watching thread; the result ends this."""
        return self._listeners.add(listener)

    def moment(self, timeout_s: float = 10.0) -> Moment:
        """The newest moment; waits for the first."""
        self._first.wait(timeout_s)
        moment = self._moment
        if moment is None:
            raise UnavailableError(self._problem or "No broker has answered yet.")
        return moment

    def wait_first(self, timeout_s: float) -> bool:
        """Wait until the cluster has been read; return whether it has."""
        return self._first.wait(timeout_s)

    def fresh(self) -> Moment:
        """A moment that is read now; the newest one where reading is expensive."""
        moment = self.moment()
        if len(moment.columns) <= _DEAR_PARTITIONS:
            self._read()
        return self.moment()

    def election_settings(self) -> dict[str, tuple[int, bool]]:
        """For each topic the least ISR and whether unclean leaders may be elected."""
        topics = self.moment().columns.topics
        is_old = time.monotonic() - self._settings_at > _SETTINGS_S
        if is_old or any(topic not in self._settings for topic in topics):
            self._settings = read_election_settings(self.admin, topics)
            self._settings_at = time.monotonic()
        return self._settings

    def forget_settings(self) -> None:
        """Drop the settings, which were changed: they are read again before their next use."""
        self._settings_at = 0.0

    def on_history(self, rows: Sequence[Mapping[str, Any]], decisions: Sequence[Any]) -> None:
        """Apply decisions of controllers to the columns, and read the metadata again soon."""
        for row in rows:
            for change in row["broker_changes"]:
                if change["change"] == "failed":
                    self._down_since[change["broker"]] = row["at"].astimezone()
        if decisions:
            self._fold(decisions)
        self._wanted.set()

    # In the thread

    def _run(self) -> None:
        next_read, next_second = 0.0, 0.0
        brokers: tuple[Any, ...] = ()
        while not self._stopping.is_set():
            now = time.monotonic()
            try:
                if now >= next_read:
                    self._read()
                    interval_s = max(_READ_INTERVAL_S, self._last_cost_s / _SHARE)
                    next_read = time.monotonic() + interval_s
                    moment = self._moment
                    if moment is not None:
                        brokers = _who(moment.columns.live.tolist(), moment.columns.controller)
                else:
                    response = self.admin.metadata([])
                    seen = _who([each.node_id for each in response.brokers], response.controller_id)
                    if seen != brokers:
                        next_read = 0.0
                        continue
                    if now >= next_second:
                        next_second = now + _SECOND_INTERVAL_S
                        if self.admin.ask_second():
                            next_read = 0.0
                            continue
                self._problem = None
            except KlammError as error:
                self._on_problem(str(error))
                next_read = 0.0
            except Exception as error:
                # Whatever it was, the next look may go well, and nobody else would take it.
                log.exception("the cluster could not be read")
                self._on_problem(repr(error))
                next_read = 0.0
            if self._wanted.wait(_LOOK_INTERVAL_S) and not self._stopping.is_set():
                self._wanted.clear()
                moment = self._moment
                last = 0.0 if moment is None else moment.read_at
                next_read = min(next_read, last + self._last_cost_s / _SHARE_AFTER_EVENT)
                self._stopping.wait(0.02)  # events come in bursts

    def _read(self) -> None:
        with self._reading:
            begun = time.monotonic()
            columns = read_columns(self.admin, self._known)
            self._last_cost_s = time.monotonic() - begun
            for each in columns.brokers:
                if each.live:
                    self._known[each.id] = each
                    self._down_since.pop(each.id, None)
                elif self._moment is not None and each.id not in self._down_since:
                    was = next((b for b in self._moment.columns.brokers if b.id == each.id), None)
                    if was is not None and was.live:
                        self._down_since[each.id] = datetime.now(UTC).astimezone()
            self._set(columns)

    def _fold(self, decisions: Sequence[Any]) -> None:
        """Put decisions of the history into the columns; metadata follows when it is read."""
        with self._reading:
            moment = self._moment
            if moment is None:
                return
            columns = moment.columns
            rows, leaders, epochs, isrs = [], [], [], []
            for topic, partition, leader, epoch, isr in decisions:
                row = columns.row_of.get((topic, partition))
                if row is not None and epoch >= columns.leader_epoch[row]:
                    rows.append(row)
                    leaders.append(leader)
                    epochs.append(epoch)
                    isrs.append(isr)
            if not rows:
                return
            fresh = padded(isrs, max(columns.isr.shape[1], *map(len, isrs)))
            isr = widen(columns.isr, fresh.shape[1]).copy()
            leader, leader_epoch = columns.leader.copy(), columns.leader_epoch.copy()
            leader[rows], leader_epoch[rows], isr[rows] = leaders, epochs, fresh
            self._set(
                replace(columns, leader=leader, leader_epoch=leader_epoch, isr=isr),
                read_at=moment.read_at,
            )

    def _set(self, columns: ClusterColumns, read_at: float | None = None) -> None:
        before = self._moment
        health = judge_health(columns, self._down_since)
        at = time.monotonic() if read_at is None else read_at
        if before is None:
            self._moment = Moment(1, 1, columns, health, at)
            self._first.set()
            return
        if before.problem is None and _is_same(before.columns, columns) and before.health == health:
            self._moment = replace(before, read_at=at)
            return
        same_rows = columns.has_same_rows(before.columns)
        layout = before.layout if same_rows else before.layout + 1
        moment = Moment(before.version + 1, layout, columns, health, at)
        self._moment = moment
        self._listeners.tell(_difference(before, moment))

    def _on_problem(self, text: str) -> None:
        self._problem = text
        before = self._moment
        if before is None or before.problem == text:
            return
        gone = tuple(replace(each, live=False) for each in before.columns.brokers)
        columns = replace(before.columns, brokers=gone)
        health = replace(judge_health(columns, self._down_since), text=f"No broker answers: {text}")
        moment = Moment(before.version + 1, before.layout, columns, health, before.read_at, text)
        self._moment = moment
        self._listeners.tell(_difference(before, moment))


def _who(brokers: Sequence[int], controller: int) -> tuple[Any, ...]:
    return (tuple(sorted(brokers)), controller)


def _is_same(a: ClusterColumns, b: ClusterColumns) -> bool:
    return (
        a.brokers == b.brokers
        and a.controller == b.controller
        and a.has_same_rows(b)
        and np.array_equal(a.leader, b.leader)
        and np.array_equal(a.leader_epoch, b.leader_epoch)
        and np.array_equal(a.replicas, b.replicas)
        and np.array_equal(a.isr, b.isr)
    )


def _difference(before: Moment, after: Moment) -> dict[str, Any]:
    """The difference between two moments, which a browser applies to its map."""
    columns = after.columns
    told: dict[str, Any] = {
        "version": after.version,
        "layout": after.layout,
        "health": describe_health(after.health),
        "controller": columns.controller,
        "brokers": [
            {"id": b.id, "host": b.host, "port": b.port, "rack": b.rack, "live": b.live}
            for b in columns.brokers
        ],
        "rows": None,
    }
    if after.layout != before.layout:
        return told
    old = before.columns
    width = max(columns.replicas.shape[1], old.replicas.shape[1])
    isr_width = max(columns.isr.shape[1], old.isr.shape[1])
    differs = (
        (columns.leader != old.leader)
        | (widen(columns.replicas, width) != widen(old.replicas, width)).any(axis=1)
        | (widen(columns.isr, isr_width) != widen(old.isr, isr_width)).any(axis=1)
    )
    rows = np.flatnonzero(differs)
    if len(rows) <= _ROWS_TOLD_MAX:
        told["rows"] = rows.tolist()
        told["leader"] = columns.leader[rows].tolist()
        told["replicas"] = [unpad(columns.replicas[row]) for row in rows]
        told["isr"] = [unpad(columns.isr[row]) for row in rows]
    return told


def describe_health(health: Health) -> dict[str, Any]:
    """The health as the pages get it."""
    return {
        "level": health.level,
        "text": health.text,
        "partitions": health.partitions,
        "leaderless": health.leaderless,
        "under_replicated": health.under_replicated,
    }
