"""Brokers that fail over again and again while something else runs: the fixture `klamm_chaos`.

One broker at a time is killed, shut down in order or paused, until the cluster has noticed; then it
comes back, and the next one fails only when every replica is in sync again. So a topic with three
replicas stays available to a client that handles errors, and nothing acknowledged by all is lost.
The seed decides which broker fails, how, and for how long.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from klamm.client.topics import PartitionDescription
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.local.broker_process import ProcessState
from klamm.names import counted

if TYPE_CHECKING:
    from klamm.local.cluster import Cluster

_POLL_S: Final = 0.05
#: A seed is short enough to be copied by hand.
SEED_MAX: Final = 999_999
#: For how long a broker stays away after the cluster has noticed, at most.
_AWAY_MAX_S: Final = 1.5
_REST_MAX_S: Final = 0.5


class ChaosAction(StrEnum):
    """One kind of failure of a broker."""

    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"


class Failover(NamedTuple):
    """One broker that failed and came back."""

    at: float  # seconds since 1970
    action: ChaosAction
    broker: int
    was_controller: bool
    seconds: float  # until every replica was in sync again

    def __str__(self) -> str:
        role = " (the controller)" if self.was_controller else ""
        return f"{self.action} broker {self.broker}{role}, back after {self.seconds:.1f} s"


class Chaos:
    """Keeps failing brokers over, in a thread, from `start` to `stop`."""

    def __init__(
        self,
        cluster: "Cluster",
        seed: int | None = None,
        *,
        actions: Sequence[str] = tuple(ChaosAction),
    ) -> None:
        self.seed = random.randint(0, SEED_MAX) if seed is None else seed
        try:
            self._actions = [ChaosAction(each) for each in actions]
        except ValueError:
            known = ", ".join(ChaosAction)
            raise ConfigError(f"actions={actions!r}: there are {known}") from None
        if not self._actions:
            raise ConfigError(f"actions= is empty: there are {', '.join(ChaosAction)}")
        #: What has happened so far; a broker that is away is not in it yet.
        self.failovers: list[Failover] = []
        self._cluster = cluster
        self._chance = random.Random(self.seed)
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="klamm chaos", daemon=True)

    def start(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, with every broker back; raises if one could not be brought back."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._error is not None:
            raise self._error
        self._cluster.heal()

    def wait_failovers(self, count: int, *, timeout_s: float = 120.0) -> None:
        """Wait until this many failovers have been completed since the start."""
        deadline = time.monotonic() + timeout_s
        while len(self.failovers) < count:
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline or self._stopped.is_set():
                raise UnavailableError(
                    f"Waited for {count} failovers; there were {len(self.failovers)}."
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __str__(self) -> str:
        return f"seed {self.seed}, {counted(len(self.failovers), 'failover')}"

    def _run(self) -> None:
        try:
            # Time for a test to create its topics, which needs all brokers.
            self._stopped.wait(_REST_MAX_S)
            while not self._stopped.wait(self._chance.uniform(0, _REST_MAX_S)):
                self._fail_one()
        except Exception as error:
            self._error = error

    def _fail_one(self) -> None:
        # All is drawn before anything is looked at, so that a seed means the same each time.
        broker = self._chance.choice(self._cluster.broker_ids)
        action = self._chance.choice(self._actions)
        away_s = self._chance.uniform(0, _AWAY_MAX_S)
        if self._cluster.broker(broker).state is not ProcessState.RUNNING:
            return  # the test itself has done something to it
        at, began = time.time(), time.monotonic()
        was_controller = self._cluster.controller_id() == broker
        getattr(self._cluster, action.value)(broker)
        self._wait(lambda: broker not in self._cluster.registered())
        self._stopped.wait(away_s)
        self._bring_back(broker)
        self._wait(self._all_in_sync)
        seconds = time.monotonic() - began
        self.failovers.append(Failover(at, action, broker, was_controller, seconds))

    def _bring_back(self, broker: int) -> None:
        process = self._cluster.broker(broker)
        if process.state is ProcessState.PAUSED:
            self._cluster.resume(broker)
        elif not process.is_alive:
            self._cluster.start(broker)

    def _all_in_sync(self) -> bool:
        """Whether nothing would be lost if another broker failed now."""
        ids = set(self._cluster.broker_ids)
        try:
            return ids <= self._cluster.registered() and all(
                _is_in_sync(each, ids) for each in self._cluster.partitions().values()
            )
        except (KlammError, TimeoutError):
            return False  # the partitions change while they are read

    def _wait(self, is_so: Callable[[], bool]) -> None:
        while not self._stopped.is_set() and not is_so():
            time.sleep(_POLL_S)


def _is_in_sync(partition: PartitionDescription, brokers: set[int]) -> bool:
    replicas = set(partition.replicas) & brokers
    return partition.leader in replicas and replicas <= set(partition.isr)
