"""The parts of one console: the cluster, its history, and its permissions."""

import asyncio
import getpass
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.client.admin import Admin
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.console.columns import ClusterColumns
from klamm.console.health import judge_health
from klamm.console.watch import ClusterWatch, Moment, describe_health
from klamm.errors import ConfigError, KlammError

if TYPE_CHECKING:
    from klamm.console.background import Background
    from klamm.console.ledger import Ledger

_CAUGHT_UP_S: Final = 10.0
#: How long the first map is waited for before anything else is begun.
_FIRST_READ_S: Final = 5.0
_FIRST_SERVED_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The options of the command line."""

    bootstrap_servers: str | None
    zookeeper: str | None
    spools: tuple[Path, ...]
    history_topic: str
    allow_changes: bool = False
    state_dir: Path | None = None
    #: The socket over which `klamm up` is asked to kill, pause or start its brokers.
    control_fd: int | None = None
    security: ClientSecurity = PLAINTEXT
    #: The file that `security` comes from, which pages name in their commands.
    command_config: Path | None = None


class Session:
    """Opens the sources, keeps them followed, and closes them.

    The first page needs the cluster as it is. Everything else (the history, samples, moves) is
    begun behind it, since a third of the time to start is spent on importing what that needs.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        is_live = settings.bootstrap_servers is not None or settings.zookeeper is not None
        _check_spools(settings.spools, may_come=is_live)
        self.settings = settings
        self.user = getpass.getuser()
        self.stopping = asyncio.Event()
        #: Set once a browser has the first map.
        self.first_served = threading.Event()
        self._ending = threading.Event()
        self._making = threading.Lock()
        self._background: Background | None = None
        self._encoded: tuple[Any, bytes] | None = None
        bootstrap = settings.bootstrap_servers
        if bootstrap is None and settings.zookeeper is not None:
            bootstrap = asyncio.run(_brokers_in(settings.zookeeper))
        self.bootstrap_servers = bootstrap
        self.admin: Admin | None = None
        self.watch: ClusterWatch | None = None
        if bootstrap is not None:
            # The controller writes the client's name into the history, as the cause of an event.
            self.admin = Admin(
                bootstrap,
                client_id=f"klamm-console/{self.user}",
                timeout_s=10,
                security=settings.security,
            )
            self.watch = ClusterWatch(self.admin)
        elif not settings.spools:
            raise ConfigError(
                "The console needs a cluster (--bootstrap-server or --zookeeper) or a history "
                "(--spool DIR)."
            )

    @property
    def is_offline(self) -> bool:
        """Whether there is only a history to look at."""
        return self.watch is None

    def start(self) -> None:
        """Begin to read the cluster."""
        if self.watch is not None:
            self.watch.start()

    def start_rest(self, then: Callable[[], object]) -> None:
        """Begin everything else behind the first page, in a thread; call `then` after that."""
        threading.Thread(target=self._begin_rest, args=(then,), name="rest", daemon=True).start()

    def _begin_rest(self, then: Callable[[], object]) -> None:
        if self.watch is not None:
            self.watch.wait_first(_FIRST_READ_S)
            self.first_served.wait(_FIRST_SERVED_S)
        if not self._ending.is_set():
            assert self.background is not None
            then()

    @property
    def background(self) -> "Background":
        """The work behind the pages; started when it is first needed."""
        with self._making:
            if self._background is None:
                from klamm.console.background import Background

                self._background = Background(self)
                self._background.start()
            return self._background

    @property
    def ledger(self) -> "Ledger":
        return self.background.ledger

    def ledger_if_read(self) -> "Ledger | None":
        """The history, if it has been read up to its end at the start."""
        begun = self._background
        return begun.ledger if begun is not None and begun.ledger.caught_up.is_set() else None

    def close(self) -> None:
        self._ending.set()
        with self._making:
            if self._background is not None:
                self._background.close()
        if self.watch is not None:
            self.watch.close()
        if self.admin is not None:
            self.admin.close()

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

    def read_ledger(self) -> "Ledger":
        """The history, once it is read; an error where there is none."""
        ledger = self.ledger
        ledger.caught_up.wait(_CAUGHT_UP_S)
        if not len(ledger):
            raise KlammError(self.how_to_get_history())
        return ledger

    def past(self, position: int | None) -> ClusterColumns:
        """The cluster after an event, or (None) after the last one."""
        ledger = self.read_ledger()
        known = {}
        if self.watch is not None:
            known = {each.id: each for each in self.watch.moment().columns.brokers}
        return ledger.state_at(len(ledger) - 1 if position is None else position, known)

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
        """The bytes of the newest map, which are made once for all pages."""
        if self._encoded is None or self._encoded[0] != key:
            self._encoded = (key, encode())
        return self._encoded[1]

    def controller_since(self, columns: ClusterColumns) -> str | None:
        """When the controller was elected, if the history has it."""
        ledger = self.ledger_if_read()
        began = None if ledger is None else ledger.last_term()
        if began is None or began["controller"] != columns.controller:
            return None
        at: str = began["at"].isoformat()
        return at

    def how_to_get_history(self) -> str:
        """How to get a history where there is none."""
        return (
            "There is no history of this cluster. Brokers of klamm write one: set "
            f"klamm.history.topic={self.settings.history_topic} on them, or name the nodes' "
            "spools (klamm.history.dir) with --spool. For Apache Kafka, klamm observe writes one "
            "from its ZooKeeper."
        )


def _check_spools(spools: tuple[Path, ...], *, may_come: bool) -> None:
    """Refuse a spool that is not there; beside a live cluster it may come, with its controller."""
    for directory in spools:
        if not directory.is_dir() and not may_come:
            raise ConfigError(
                f"There is no spool {directory}; klamm.history.dir says where each node has its own"
            )


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
