"""What a console does behind its pages: follow the history, sample, run moves, hold lessons.

It starts after the first page, which does not need most of its imports.
"""

import os
import threading
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.client import groups, reassignments
from klamm.console.history import (
    follow_spools,
    follow_topic,
    read_broker_rows,
    tell_requests,
)
from klamm.console.journal import Journal
from klamm.console.ledger import HistoryEvent, Ledger
from klamm.console.lessons import Control, Lessons
from klamm.console.metrics import BrokerMetrics
from klamm.console.moves import Mover
from klamm.console.samples import Sampler, sample_lags
from klamm.core.columns import NO_BROKER
from klamm.errors import KlammError
from klamm.net.librdkafka import librdkafka_settings

if TYPE_CHECKING:
    from klamm.console.session import Session

_REASSIGNMENTS_S: Final = 3.0
_RETRY_S: Final = 1.0
#: The number of groups whose lag is sampled; groups on open pages come first.
_GROUPS_SAMPLED: Final = 200
_BROKERS_SAMPLED: Final = 12
#: A burst of more decisions than this is read from the brokers rather than folded in.
_FOLDED_MAX: Final = 20_000


class Background:
    """The threads of a session other than the one that reads the cluster."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.ledger = Ledger()
        self.lags: Sampler | None = None
        self.rates: Sampler | None = None
        self.metrics: BrokerMetrics | None = None
        self.lessons: Lessons | None = None
        self._made: tuple[Mover, Journal] | None = None
        self._making = threading.Lock()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._reassigned: list[dict[str, Any]] = []
        self._reassigned_at = -_REASSIGNMENTS_S
        if session.admin is not None:
            self.metrics = BrokerMetrics(session.admin)
            self.lags = Sampler(
                partial(sample_lags, session.admin), self._groups, keys_max=_GROUPS_SAMPLED
            )
            self.rates = Sampler(self._sample_brokers, self._brokers, keys_max=_BROKERS_SAMPLED)
            if session.settings.control_fd is not None:
                self.lessons = Lessons(Control(session.settings.control_fd), session)

    def start(self) -> None:
        for each in (self.lags, self.rates):
            if each is not None:
                each.start()
        settings = self._session.settings
        if settings.spools:
            self._run(follow_spools, list(settings.spools), self._on_batches, self._ending)
        elif self._session.bootstrap_servers is not None:
            topic = settings.history_topic
            self._run(follow_topic, self.client_settings(), topic, self._on_batches, self._ending)
        if self._session.watch is not None and settings.allow_changes:
            self._run(self._go_on_moving)

    def _run(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="background", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        self._ending.set()
        mover = None if self._made is None else self._made[0]
        for each in (mover, self.lags, self.rates):
            if each is not None:
                each.close()
        for thread in self._threads:
            thread.join(timeout=5)

    # The history

    def _on_batches(self, batches: list[Any], is_all: bool) -> None:
        was_caught_up = self.ledger.caught_up.is_set()
        fresh = self.ledger.add(batches, is_all)
        watch = self._session.watch
        if fresh and was_caught_up and watch is not None:
            watch.on_history([event.row for event in fresh], _decided(fresh))

    def story(self, name: str) -> list[dict[str, Any]]:
        """The story of TOPIC-PARTITION, as `klamm story --json` tells it."""
        session = self._session
        told = session.read_ledger().story(name)
        rows = read_broker_rows(
            [each for each in session.settings.spools if each.is_dir()],
            session.bootstrap_servers or "",
            session.settings.history_topic,
            session.settings.security,
        )
        return tell_requests(told, rows, name)

    # What is sampled

    def _groups(self) -> list[str]:
        admin, _ = self._session.online()
        return [each.group for each in groups.list_groups(admin)]

    def _brokers(self) -> list[int]:
        _, watch = self._session.online()
        return [int(each) for each in watch.moment().columns.live]

    def _sample_brokers(self, ids: list[int]) -> dict[int, dict[str, float]]:
        assert self.metrics is not None
        _, watch = self._session.online()
        columns = watch.moment().columns
        return self.metrics.sample_all({broker: columns.led_by(broker) for broker in ids})

    def client_settings(self) -> dict[str, Any]:
        """The settings with which librdkafka reaches the cluster."""
        return {
            "bootstrap.servers": self._session.bootstrap_servers or "",
            **librdkafka_settings(self._session.settings.security),
        }

    # What is changed

    @property
    def mover(self) -> Mover | None:
        """Runs plans; None in a console that only looks."""
        made = self._changing()
        return None if made is None else made[0]

    @property
    def journal(self) -> Journal | None:
        """Says who changed what; None in a console that only looks."""
        made = self._changing()
        return None if made is None else made[1]

    def _changing(self) -> tuple[Mover, Journal] | None:
        session = self._session
        if session.admin is None or not session.settings.allow_changes:
            return None
        with self._making:
            if self._made is None:
                folder = self._state_dir()
                mover = Mover(session.admin, folder / "moves.json", session.user)
                self._made = mover, Journal(folder / "actions.jsonl", session.user)
                mover.start()
            return self._made

    def _go_on_moving(self) -> None:
        """Go on with a plan that an earlier console left, once the cluster can be reached."""
        while not self._ending.is_set():
            try:
                self._changing()
                return
            except KlammError:
                self._ending.wait(_RETRY_S)

    def _state_dir(self) -> Path:
        """The folder for the state of running moves: one for each cluster."""
        if self._session.settings.state_dir is not None:
            return self._session.settings.state_dir
        _, watch = self._session.online()
        home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        return home / "klamm" / f"console-{watch.moment().columns.cluster_id}"

    def reassignments(self) -> list[dict[str, Any]]:
        """The reassignments under way, asked of the controller at most every few seconds."""
        admin, _ = self._session.online()
        if time.monotonic() - self._reassigned_at > _REASSIGNMENTS_S:
            self._reassigned = [asdict(each) for each in reassignments.list_reassignments(admin)]
            self._reassigned_at = time.monotonic()
        return self._reassigned


def _decided(events: list[HistoryEvent]) -> list[tuple[str, int, int, int, list[int]]]:
    """The states that events made, in order."""
    if sum(event.total for event in events) > _FOLDED_MAX:
        return []
    return [
        (
            each["topic"],
            each["partition"],
            max(each["leader"], NO_BROKER),
            each["leader_epoch"],
            each["isr"],
        )
        for event in events
        for part in sorted(event.parts)
        for each in event.parts[part].to_pylist()
        if each["outcome"] == "done"
    ]
