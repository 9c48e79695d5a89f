"""What one console works with: the cluster, its history, and what it is allowed to do."""

import asyncio
import getpass
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from klamm.client import groups, reassignments
from klamm.client.admin import Admin
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.console.columns import ClusterColumns
from klamm.console.health import judge_health
from klamm.console.history import (
    DEFAULT_TOPIC,
    check_spools,
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
from klamm.console.watch import ClusterWatch, Moment, describe_health
from klamm.core.columns import NO_BROKER
from klamm.errors import ConfigError, KlammError
from klamm.net.librdkafka import librdkafka_settings

_CAUGHT_UP_S: Final = 10.0
_REASSIGNMENTS_S: Final = 3.0
#: The number of groups whose lag is sampled; groups on open pages come first.
_GROUPS_SAMPLED: Final = 200
_BROKERS_SAMPLED: Final = 12
#: A burst of more decisions than this is read from the brokers rather than folded in.
_FOLDED_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """What the command line says."""

    bootstrap_servers: str | None
    zookeeper: str | None = None
    spools: tuple[Path, ...] = ()
    history_topic: str = DEFAULT_TOPIC
    allow_changes: bool = False
    state_dir: Path | None = None
    #: The socket over which `klamm up` is asked to kill, pause or start its brokers.
    control_fd: int | None = None
    security: ClientSecurity = PLAINTEXT
    #: The file that `security` comes from, which pages name in their commands.
    command_config: Path | None = None


class Session:
    """Opens the sources, keeps them followed, and closes them."""

    def __init__(self, settings: ConsoleSettings) -> None:
        is_live = settings.bootstrap_servers is not None or settings.zookeeper is not None
        check_spools(settings.spools, may_come=is_live)
        self.settings = settings
        self.user = getpass.getuser()
        self.ledger = Ledger()
        self.stopping = asyncio.Event()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._encoded: tuple[Any, bytes] | None = None
        self._reassigned: list[dict[str, Any]] = []
        self._reassigned_at = -_REASSIGNMENTS_S
        bootstrap = settings.bootstrap_servers
        if bootstrap is None and settings.zookeeper is not None:
            bootstrap = asyncio.run(_brokers_in(settings.zookeeper))
        self.bootstrap_servers = bootstrap
        self.admin: Admin | None = None
        self.watch: ClusterWatch | None = None
        self.mover: Mover | None = None
        self.journal: Journal | None = None
        self.lessons: Lessons | None = None
        self.lags: Sampler | None = None
        self.rates: Sampler | None = None
        self.metrics: BrokerMetrics | None = None
        if bootstrap is not None:
            # The controller writes the client's name into the history, as the cause of an event.
            self.admin = Admin(
                bootstrap,
                client_id=f"klamm-console/{self.user}",
                timeout_s=10,
                security=settings.security,
            )
            self.watch = ClusterWatch(self.admin)
            self.metrics = BrokerMetrics(self.admin)
            self.lags = Sampler(
                partial(sample_lags, self.admin), self._groups, keys_max=_GROUPS_SAMPLED
            )
            self.rates = Sampler(self._sample_brokers, self._brokers, keys_max=_BROKERS_SAMPLED)
            if settings.control_fd is not None:
                self.lessons = Lessons(Control(settings.control_fd), self)
            if settings.allow_changes:
                folder = self._state_dir()
                self.mover = Mover(self.admin, folder / "moves.json", self.user)
                self.journal = Journal(folder / "actions.jsonl", self.user)
        elif not settings.spools:
            raise ConfigError(
                "The console needs a cluster (--bootstrap-server or --zookeeper) or a history "
                "(--spool DIR)."
            )

    def _state_dir(self) -> Path:
        """Where what is running is kept: one folder for each cluster."""
        if self.settings.state_dir is not None:
            return self.settings.state_dir
        assert self.admin is not None
        home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        return home / "klamm" / f"console-{self.admin.metadata([]).cluster_id}"

    @property
    def is_offline(self) -> bool:
        """Whether there is only a history to look at."""
        return self.watch is None

    def start(self) -> None:
        if self.watch is not None:
            self.watch.start()
        for each in (self.mover, self.lags, self.rates):
            if each is not None:
                each.start()
        if self.settings.spools:
            self._follow(follow_spools, list(self.settings.spools))
        elif self.bootstrap_servers is not None:
            self._follow(follow_topic, self.client_settings(), self.settings.history_topic)

    def _follow(self, follow: Any, *source: Any) -> None:
        arguments = (*source, self._on_batches, self._ending)
        thread = threading.Thread(target=follow, args=arguments, name="history", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        self._ending.set()
        for each in (self.mover, self.lags, self.rates):
            if each is not None:
                each.close()
        if self.watch is not None:
            self.watch.close()
        for thread in self._threads:
            thread.join(timeout=5)
        if self.admin is not None:
            self.admin.close()

    def _on_batches(self, batches: list[Any], is_all: bool) -> None:
        was_caught_up = self.ledger.caught_up.is_set()
        fresh = self.ledger.add(batches, is_all)
        if fresh and was_caught_up and self.watch is not None:
            self.watch.on_history([event.row for event in fresh], _decided(fresh))

    # What is sampled

    def _groups(self) -> list[str]:
        admin, _ = self.online()
        return [each.group for each in groups.list_groups(admin)]

    def _brokers(self) -> list[int]:
        _, watch = self.online()
        return [int(each) for each in watch.moment().columns.live]

    def _sample_brokers(self, ids: list[int]) -> dict[int, dict[str, float]]:
        assert self.metrics is not None
        _, watch = self.online()
        columns = watch.moment().columns
        return self.metrics.sample_all({broker: columns.led_by(broker) for broker in ids})

    def client_settings(self) -> dict[str, Any]:
        """What librdkafka has to know to reach the cluster."""
        return {
            "bootstrap.servers": self.bootstrap_servers or "",
            **librdkafka_settings(self.settings.security),
        }

    # Questions

    def online(self) -> tuple[Admin, ClusterWatch]:
        """The cluster; an error in a console that has only a history."""
        if self.admin is None or self.watch is None:
            raise ConfigError(
                "This console shows a saved history only; start it with --bootstrap-server to "
                "look at a cluster."
            )
        return self.admin, self.watch

    def columns(self, *, fresh: bool = False) -> ClusterColumns:
        """The cluster as it is, or as the history ends."""
        if self.watch is None:
            return self.past(None)
        return (self.watch.fresh() if fresh else self.watch.moment()).columns

    def past(self, position: int | None) -> ClusterColumns:
        """The cluster after an event, or (None) after the last one."""
        self.ledger.caught_up.wait(_CAUGHT_UP_S)
        count = len(self.ledger)
        if not count:
            raise KlammError(self.how_to_get_history())
        known = {}
        if self.watch is not None:
            known = {each.id: each for each in self.watch.moment().columns.brokers}
        return self.ledger.state_at(count - 1 if position is None else position, known)

    def moment(self) -> tuple[ClusterColumns, dict[str, Any], int, int]:
        """Columns, health, version and layout of what page Now shows."""
        if self.watch is not None:
            moment: Moment = self.watch.moment()
            return moment.columns, describe_health(moment.health), moment.version, moment.layout
        columns = self.past(None)
        health = describe_health(judge_health(columns, {}))
        health["text"] = f"At the end of this history: {health['text']}"
        return columns, health, len(self.ledger), len(self.ledger)

    def encoded(self, key: Any, encode: Callable[[], bytes]) -> bytes:
        """The bytes of the newest map, which are made once for all who look at it."""
        if self._encoded is None or self._encoded[0] != key:
            self._encoded = (key, encode())
        return self._encoded[1]

    def reassignments(self) -> list[dict[str, Any]]:
        """The reassignments under way, asked of the controller at most every few seconds."""
        admin, _ = self.online()
        if time.monotonic() - self._reassigned_at > _REASSIGNMENTS_S:
            self._reassigned = [asdict(each) for each in reassignments.list_reassignments(admin)]
            self._reassigned_at = time.monotonic()
        return self._reassigned

    def story(self, name: str) -> list[dict[str, Any]]:
        """The story of TOPIC-PARTITION, as `klamm story --json` tells it."""
        if not len(self.ledger):
            raise KlammError(self.how_to_get_history())
        told = self.ledger.story(name)
        rows = read_broker_rows(
            [each for each in self.settings.spools if each.is_dir()],
            self.bootstrap_servers or "",
            self.settings.history_topic,
            self.settings.security,
        )
        return tell_requests(told, rows, name)

    def controller_since(self, columns: ClusterColumns) -> str | None:
        """When the controller took office, if the history has it."""
        for event in reversed(self.ledger.recent(len(self.ledger))):
            if event.row["term"] == "began":
                is_same = event.row["controller"] == columns.controller
                return event.row["at"].isoformat() if is_same else None
        return None

    def how_to_get_history(self) -> str:
        """What to do where there is none."""
        return (
            "There is no history of this cluster. Brokers of klamm write one: set "
            f"klamm.history.topic={self.settings.history_topic} on them, or name the nodes' "
            "spools (klamm.history.dir) with --spool. Beside Apache Kafka, a klamm node with "
            "klamm.roles=controller writes it when it is controller."
        )


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


async def _brokers_in(connect: str) -> str:
    """The addresses of the brokers that are registered in ZooKeeper."""
    from klamm.zookeeper import znodes
    from klamm.zookeeper.session import open_store
    from klamm.zookeeper.store import NoNodeError

    store = await open_store(connect)
    try:
        ids = [int(name) for name in await store.children(znodes.BROKER_IDS)]
        addresses = []
        for broker in sorted(ids):
            data = (await store.get(znodes.broker_path(broker))).data
            registration = znodes.decode_broker(broker, data)
            addresses += [f"{each.host}:{each.port}" for each in registration.endpoints[:1]]
    except NoNodeError:
        raise ConfigError(f"There is no Kafka cluster at {connect}.") from None
    finally:
        await store.close()
    if not addresses:
        raise ConfigError(f"No broker is registered at {connect}.")
    return ",".join(addresses)
