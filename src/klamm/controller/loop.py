"""The controller's event loop: handles one event after the other, and wins and loses the role.

One task takes events from the queue and handles each to its end; watches, requests, channels and
timers only add to the queue (EVT-1). While this node is not controller, only events about the role
are handled; requests get NOT_CONTROLLER (EVT-7).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

from klamm.controller import election
from klamm.controller.channels import ControllerChannels
from klamm.controller.event_queue import EventQueue, event_for
from klamm.controller.interpreter import Interpreter
from klamm.core.cluster import ClusterState
from klamm.core.context import Context, Settings
from klamm.core.effects import Procedure
from klamm.core.events import AutoRebalance, ControllerState, Event, QueuedEvent
from klamm.core.procedures.dispatch import handle, not_controller_response
from klamm.core.procedures.failover import on_controller_failover
from klamm.errors import FencedError, KlammError, SessionLostError
from klamm.history.records import ASKED_BY
from klamm.zookeeper.store import (
    EventKind,
    NoNodeError,
    SessionExpired,
    SessionStarted,
    Store,
    StoreEvent,
    WatchEvent,
)

#: Principal and address of the client that sent the current request; empty if unknown.
REQUESTER: Final[ContextVar[str]] = ContextVar("requester", default="")

log = logging.getLogger("klamm.controller")

_PAUSE_AFTER_FAILURE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RoleEvent(Event):
    """An event about the role itself; it is handled on every node, controller or not."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class Startup(RoleEvent):
    """The broker is registered and may take part in the election."""


@dataclass(frozen=True, slots=True)
class ControllerChange(RoleEvent):
    """`/controller` appeared or changed."""


@dataclass(frozen=True, slots=True)
class Reelect(RoleEvent):
    """`/controller` was deleted, or this node may take part in the election again."""


@dataclass(frozen=True, slots=True)
class Expire(RoleEvent):
    """The ZooKeeper session has expired, and with it the role."""


@dataclass(frozen=True, slots=True)
class Shutdown(RoleEvent):
    """The broker stops."""

    state = ControllerState.CONTROLLER_SHUTDOWN


class Recorder(Protocol):
    """Observes each event; the history and the metrics are recorders."""

    def begin(self, queued: QueuedEvent, epoch: int, at: float) -> None:
        """Called before an event is handled."""
        ...

    def end(self, outcome: str, context: Context | None) -> None:
        """Called after the event was handled."""
        ...


class World(Protocol):
    """Time and randomness, which a simulation replaces."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds of a monotonic clock."""
        ...

    random: random.Random


class SystemWorld:
    """The real clock and a real random source."""

    def __init__(self) -> None:
        self.random: random.Random = random.SystemRandom()

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Controller:
    """The controller of one node; it is active while the node has the role."""

    def __init__(
        self,
        broker_id: int,
        settings: Settings,
        store: Store,
        channels: ControllerChannels,
        interpreter: Interpreter,
        recorder: Recorder,
        world: World,
        on_session_lost: Callable[[], None],
    ) -> None:
        self.broker_id = broker_id
        self.settings = settings
        self.active_id = election.NOBODY
        self.context: Context | None = None
        self.state = ControllerState.IDLE
        self.queue = EventQueue(world.monotonic, self._preempt)
        self._store = store
        self._channels = channels
        self._interpreter = interpreter
        self._recorders = [recorder]
        self._world = world
        self._on_session_lost = on_session_lost
        #: Held while one session is replaced by the next.
        self._session_change = asyncio.Lock()
        self._expiry_begun = asyncio.Event()
        #: Cleared while a failover is under way.
        self._failover_ended = asyncio.Event()
        self._failover_ended.set()
        self._has_taken_over = False
        self._timers: set[asyncio.TimerHandle] = set()
        self._after_event: list[Callable[[], None]] = []
        self._session_observers: list[Callable[[StoreEvent], None]] = []
        interpreter.attach(self.queue, self._schedule)
        channels.attach(self.queue)

    @property
    def is_active(self) -> bool:
        """Whether this node has the role (ELEC-10)."""
        return self.active_id == self.broker_id

    def after_each_event(self, callback: Callable[[], None]) -> None:
        """Call back after every event, for gauges and for requests that wait for a state."""
        self._after_event.append(callback)

    def observe(self, recorder: Recorder) -> None:
        """Add a recorder."""
        self._recorders.append(recorder)

    def observe_session(self, callback: Callable[[StoreEvent], None]) -> None:
        """Call back for every event of the ZooKeeper session and its watches."""
        self._session_observers.append(callback)

    # Input

    def submit(self, event: Event, cause: str, respond: Callable[[Any], None]) -> None:
        """Queue the event of a request; `respond` is called with the response."""
        requester = REQUESTER.get()
        told = f"{cause}{ASKED_BY}{requester}" if requester else cause
        self.queue.put(event, cause=told, respond=respond)

    async def wait_taken_over(self, deadline: float) -> None:
        """While a failover is under way, wait for its end, at most until the deadline.

        Until then the context has only some of the brokers and topics.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._failover_ended.wait()

    @property
    def known_cluster(self) -> ClusterState | None:
        """The cluster, if this node is controller and has read all of it."""
        if self.context is None or not self.is_active or not self._has_taken_over:
            return None
        return self.context.cluster

    async def enter_election(self) -> None:
        """Take part in the election, after the broker has registered."""
        async with self._session_change:
            self.queue.put(Startup(), cause="broker registered")

    async def follow_session(self) -> None:
        """Put an event into the queue for each watch and session change, until the store is
        closed.
        """
        async for happened in self._store.events():
            for observer in self._session_observers:
                observer(happened)
            match happened:
                case WatchEvent(kind, election.CONTROLLER):
                    gone = kind is EventKind.DELETED
                    self.queue.put(
                        Reelect() if gone else ControllerChange(), cause="watch on /controller"
                    )
                case WatchEvent(_, election.MOVE):
                    self.queue.put(Reelect(), cause="watch on a move of the controller")
                case WatchEvent():
                    event = event_for(happened)
                    if event is not None and self.is_active:
                        self.queue.put(event, cause=f"watch on {happened.path}")
                case SessionExpired(session_id):
                    await self.expire("ZooKeeper session expired", session_id)
                case SessionStarted():
                    log.info("[Controller id=%s] ZooKeeper session started", self.broker_id)
                case _:
                    pass

    async def expire(self, cause: str, session_id: int | None = None) -> None:
        """Resign because the session is lost or has to be given up, then open a new one (ELEC-15).

        Both processes of the node may report the same loss: if `session_id` was replaced meanwhile,
        nothing is done.
        """
        async with self._session_change:
            if session_id not in (None, self._store.session_id):
                return
            self._on_session_lost()
            self._expiry_begun.clear()
            self.queue.clear_and_put(Expire(), cause=cause)
            await self._expiry_begun.wait()
            while True:
                with contextlib.suppress(SessionLostError):
                    return await self._store.renew()

    def _preempt(self, queued: QueuedEvent) -> None:
        """Give the requester of an event that is not handled its response (EVT-6, EVT-7)."""
        if queued.respond is not None:
            response = not_controller_response(queued.event)
            if response is not None:
                queued.respond(response)

    def _schedule(self, event: Event, delay_s: float) -> None:
        def due() -> None:
            self._timers.discard(handle)
            self.queue.put(event, cause="timer")

        handle = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers.add(handle)

    # The loop

    async def run(self) -> None:
        """Handle events until shutdown."""
        while True:
            queued = await self.queue.take()
            self.state = queued.event.state
            epoch = self.context.cluster.controller_epoch if self.context else 0
            for recorder in self._recorders:
                recorder.begin(queued, epoch, self._world.now())
            outcome = "done"
            try:
                if isinstance(queued.event, Shutdown):
                    self._resign()
                    return
                await self._handle(queued)
            except FencedError as error:
                outcome = f"fenced: {error}"
                await self._on_fenced()
            except SessionLostError as error:
                # The Expire that follows cleans up.
                outcome = f"session lost: {error}"
            except Exception as error:
                outcome = f"failed: {error!r}"
                self._complain(f"error while handling {queued.event}", error)
            finally:
                for recorder in self._recorders:
                    recorder.end(outcome, self.context)
                self._interpreter.flush_remarks(self.context)
                self.state = ControllerState.IDLE
                for callback in self._after_event:
                    callback()

    async def _handle(self, queued: QueuedEvent) -> None:
        match queued.event:
            case Startup():
                await election.watch_controller(self._store)
                await self._elect()
            case ControllerChange():
                await self._look_at_role()
            case Reelect():
                await self._look_at_role()
            case Expire():
                self._expiry_begun.set()
                self.active_id = election.NOBODY
                self._resign()
            case event if self.is_active and self.context is not None:
                await self._carry_out(handle(self.context, event), queued)
            case _:
                self._preempt(queued)

    async def _carry_out(self, procedure: Procedure[Any], queued: QueuedEvent | None) -> None:
        assert self.context is not None, "only an active controller runs procedures"
        await self._interpreter.run(procedure, self.context, queued)

    # The role

    async def _look_at_role(self) -> None:
        """Set the watch again, resign if the role is lost, and take part in the election."""
        was_active = self.is_active
        self.active_id = await election.watch_controller(self._store)
        if was_active and not self.is_active:
            self._resign()
        if not self.is_active:
            await self._elect()

    async def _on_fenced(self) -> None:
        """A write was fenced: read `/controller` and resign if another node has the role
        (EVT-8).
        """
        with contextlib.suppress(SessionLostError):
            was_active = self.is_active
            self.active_id = await election.watch_controller(self._store)
            if was_active and not self.is_active:
                self._resign()
            if self.is_active:
                # The epoch was raised but `/controller` is still ours: no node could act. Start
                # over.
                await self._give_up()
            if self.active_id == election.NOBODY:
                self.queue.put(Reelect(), cause="fenced, and there is no controller")

    async def _elect(self) -> None:
        """Take part in the election, and run the failover if it is won (ELEC-2..9)."""
        wanted = await election.named_by_operator(self._store)
        if wanted not in (election.NOBODY, self.broker_id):
            log.info("[Controller id=%s] standing back for %s", self.broker_id, wanted)
            return
        try:
            result = await election.elect(
                self._store,
                self.broker_id,
                lambda: int(self._world.now() * 1000),
                is_named=wanted == self.broker_id,
            )
            if not isinstance(result, election.Won):
                self.active_id = result
                log.info("[Controller id=%s] controller is %s", self.broker_id, result)
                # Set the watch again, to notice a controller that was deleted meanwhile. An
                # unreadable node blocks the election until it is removed, so trying again would
                # change nothing (ZK-6).
                if await self._store.exists(election.CONTROLLER, watch=True) is None:
                    self.queue.put(Reelect(), cause="no controller after a lost election")
                return
            self.active_id = self.broker_id
            self._has_taken_over = False
            self._failover_ended.clear()
            try:
                await self._take_over(result)
                self._has_taken_over = True
            finally:
                self._failover_ended.set()
        except (FencedError, SessionLostError):
            raise
        except Exception as error:
            self._complain("the failover failed", error)
            had_role = await self._give_up()
            # Another broker may succeed. The pause keeps failing elections from repeating at full
            # speed.
            await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            if not had_role:
                self.queue.put(Reelect(), cause="the election failed")

    async def _take_over(self, won: election.Won) -> None:
        """Read the cluster and act on it, as the controller that was just elected (ELEC-9)."""
        await election.watch_controller(self._store)
        cluster = ClusterState()
        cluster.controller_id = self.broker_id
        cluster.controller_epoch = won.epoch
        self.context = Context(cluster, self.settings)
        self._interpreter.fence = won.fence
        log.info(
            "[Controller id=%s] elected, epoch %s, epoch zkVersion %s",
            self.broker_id,
            won.epoch,
            won.fence.version,
        )
        await self._carry_out(on_controller_failover(self.context), None)

    async def _give_up(self) -> bool:
        """Resign, and delete `/controller` if this session owns it; returns whether it did.

        The owner of the node is as good as a fence: only this session can have created it.
        """
        self._resign()
        self.active_id = election.NOBODY
        stat = await self._store.exists(election.CONTROLLER)
        if stat is not None and stat.ephemeral_owner == self._store.session_id:
            with contextlib.suppress(NoNodeError):
                await self._store.delete(election.CONTROLLER)
            return True
        self.active_id = await election.read_controller(self._store)
        return False

    def _complain(self, what: str, error: Exception) -> None:
        """Log a KlammError as one line, anything else with its traceback."""
        trace = None if isinstance(error, KlammError) else error
        log.error("[Controller id=%s] %s: %s", self.broker_id, what, error, exc_info=trace)

    def _resign(self) -> None:
        """Drop the state, timers and channels of the controller's term (RESIGN-1, RESIGN-2)."""
        if self.context is not None:
            log.info("[Controller id=%s] resigned", self.broker_id)
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        # The next term has a timer of its own.
        self.queue.drop(lambda event: isinstance(event, AutoRebalance))
        self._channels.close_all()
        self._interpreter.fence = None
        self._has_taken_over = False
        self.context = None
