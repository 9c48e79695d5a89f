"""A controller that records its history: procedures in `World`, on a clock that tests set."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from klamm.config.broker import BrokerConfig
from klamm.core import effects
from klamm.core.events import Event, QueuedEvent
from klamm.core.procedures.dispatch import handle
from klamm.history.recorder import History
from klamm.history.spool import read_spool
from tests.support.procedure_world import World


class Clock:
    """Time that passes only when told to; it starts on 2001-09-09 at 01:46:40 UTC."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return 1e9 + self.at

    def monotonic(self) -> float:
        return self.at


class Elect(Event):
    """Stands for the event that makes the node the controller."""


class Resign(Event):
    """Stands for the event that ends the node's term."""


def history_config(directory: Path, **more: str) -> BrokerConfig:
    properties = {
        "broker.id": "1",
        "zookeeper.connect": "localhost:2181",
        "log.dirs": str(directory / "logs"),
        "klamm.history.dir": str(directory / "history"),
    }
    return BrokerConfig.from_properties(properties | more)


class RecordedController(World):
    """A world whose controller has a history. Each effect takes a millisecond.

    Tests hand over events one by one; those that the world queues meanwhile are not handled.
    """

    def __init__(self, directory: Path, brokers: Iterable[int] = (1, 2, 3), **config: str) -> None:
        self.clock = Clock()
        self.config = history_config(directory, **config)
        self.history = History(self.config, self.clock)
        self.is_active = False
        super().__init__(brokers)

    def share_zookeeper_of(self, other: World) -> None:
        """Find what another controller has left in ZooKeeper."""
        self.nodes, self.registrations, self.views = other.nodes, other.registrations, other.views
        self._zxid = other._zxid + 100

    def allow_unclean_elections(self, topic: str) -> None:
        config = {"config": {"unclean.leader.election.enable": "true"}}
        self.create(f"/config/topics/{topic}", config)

    def fail_announcements(self) -> None:
        """From now on no request reaches a broker, and its event fails."""

        def refuse(effect: effects.Effect) -> None:
            if isinstance(effect, effects.SendRequestBatch):
                raise RuntimeError("no way to announce")

        self.faults.before = refuse

    # Events

    def fail_over(self, broker: int = 1, epoch: int | None = 1) -> None:
        self._begin(Elect(), "watch on /controller")
        super().fail_over(broker, epoch)
        self.is_active = True
        self.history.end("done", self.ctx)

    def handle(self, event: Event, cause: str = "a test") -> None:
        assert self.is_active
        self._begin(event, cause)
        outcome = "done"
        try:
            self.run(handle(self.ctx, event))
        except RuntimeError as error:
            outcome = f"failed: {error!r}"
        self.history.end(outcome, self.ctx)

    def resign(self, outcome: str = "done") -> None:
        self._begin(Resign(), "ZooKeeper session expired")
        self.is_active = False
        self.history.end(outcome, None)

    def _begin(self, event: Event, cause: str) -> None:
        epoch = self.cluster.controller_epoch if self.is_active else 0
        queued = QueuedEvent(event, self.clock.monotonic(), cause)
        self.clock.at += 0.005
        self.history.begin(queued, epoch, self.clock.now())

    def _perform(self, effect: effects.Effect) -> Any:
        reply = super()._perform(effect)
        self.clock.at += 0.001
        self.history.performed(self.cluster, effect, reply, 0.001)
        return reply

    def records(self) -> list[dict[str, Any]]:
        """All that has been recorded so far, as the spool has it."""
        self.history.spool.flush()
        directory = self.config.klamm_history_dir
        return [row for batch in read_spool(directory) for row in batch.to_pylist()]
