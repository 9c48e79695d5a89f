"""Faults that a test injects into the requests of a local cluster's clients.

This is the parent's side: it knows which faults hold, counts how often each has taken effect on all
brokers together, and tells brokers about both over their links (`klamm.node.fault_link`). All state
belongs to the cluster's event loop; a test sees it through `InjectedFault`.
"""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from klamm.broker.fault_injection import Fault
from klamm.errors import ConfigError, UnavailableError
from klamm.local.loop_thread import LoopThread

_POLL_S: Final = 0.02
#: How long a running broker may take to confirm a change.
_PATIENCE_S: Final = 15.0


class FaultHit(NamedTuple):
    """One request that a fault has hit."""

    at: float  # seconds since 1970
    broker: int
    client_id: str


class InjectedFault:
    """A fault that `Cluster.inject` has put in place, until it is used up or cleared.

    As a context manager it is cleared at the end of the block. `hits` lists the requests that it
    has hit, and `fired` counts them; both stay readable after the end.
    """

    def __init__(
        self, injector: "FaultInjector", fault: Fault, times: int | None, brokers: frozenset[int]
    ) -> None:
        self._injector = injector
        self.fault = fault
        self.times = times
        #: The brokers that it is for; empty for all of them.
        self.brokers = brokers
        self.hits: list[FaultHit] = []
        self.is_cleared = False

    @property
    def fired(self) -> int:
        """How many requests it has hit."""
        return len(self.hits)

    @property
    def remaining(self) -> int | None:
        """How many more requests it will hit; None if there is no limit."""
        if self.is_cleared:
            return 0
        return None if self.times is None else self.times - self.fired

    @property
    def is_active(self) -> bool:
        """Whether it can still hit a request."""
        return self.remaining != 0

    def clear(self) -> None:
        """End it; returns when no broker uses it any more."""
        self._injector.clear(self)

    def wait_fired(self, times: int | None = None, *, timeout_s: float = 30.0) -> None:
        """Wait until the fault has hit this many requests; by default its `times`."""
        wanted = times or self.times or 1
        deadline = time.monotonic() + timeout_s
        while self.fired < wanted:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"Waited {timeout_s:g} s for {wanted} hits; there were {self.fired} of {self}."
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __repr__(self) -> str:
        of = "" if self.times is None else f" of {self.times}"
        ended = "" if self.is_active else ", ended"
        return f"<{self.fault}; fired {self.fired}{of}{ended}>"


@dataclass(slots=True)
class _Link:
    """The parent's end of one broker's link."""

    writer: asyncio.StreamWriter
    confirmed: int = 0
    is_open: bool = True

    def has(self, version: int) -> bool:
        """Whether no request is served by older faults any more."""
        return self.confirmed >= version or not self.is_open


class FaultInjector:
    """The faults of a cluster, and the links to its brokers."""

    def __init__(self, loop_thread: LoopThread, running: Callable[[], Iterable[int]]) -> None:
        """`running` gives the brokers that can confirm a change."""
        self._loop_thread = loop_thread
        self._running = running
        self._faults: list[InjectedFault] = []
        self._links: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._confirmed = asyncio.Condition()
        self._version = 0
        self._next_id = 0

    @property
    def active(self) -> list[InjectedFault]:
        """The faults that can still hit a request, in the order in which they were injected."""
        return [each for each in self._faults if each.is_active]

    def inject(self, times: int | None, brokers: Iterable[int], **fault: Any) -> InjectedFault:
        """Put a fault in place; returns when every running broker has it."""
        if times is not None and (not isinstance(times, int) or times < 1):
            raise ConfigError(f"times={times!r} is not a number of requests from 1 on")
        self._next_id += 1
        made = InjectedFault(self, Fault.parse(self._next_id, **fault), times, frozenset(brokers))
        self._loop_thread.call(self._change, [*self.active, made])
        return made

    def clear(self, *cleared: InjectedFault) -> None:
        """End some faults; returns when no broker uses them any more."""
        for each in cleared:
            each.is_cleared = True
        if any(each in self._faults for each in cleared):
            self._loop_thread.call(self._change, self.active)

    def attach(self, broker: int) -> socket.socket:
        """A new link; the end for the broker's process, which already has the faults to read."""
        ours, theirs = socket.socketpair()
        self._loop_thread.call(self._attach, broker, ours)
        return theirs

    async def _attach(self, broker: int, ours: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=ours)
        link = self._links[broker] = _Link(writer)
        self._tell(broker, link)
        task = asyncio.create_task(self._serve(broker, link, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _change(self, faults: list[InjectedFault]) -> None:
        self._faults = faults
        version = self._tell_all()
        # A broker that is paused or has ended reads the change when it goes on.
        confirming = set(self._running()) & self._links.keys()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                async with self._confirmed:
                    await self._confirmed.wait_for(
                        lambda: all(self._links[each].has(version) for each in confirming)
                    )

    def _tell_all(self) -> int:
        self._version += 1
        for broker, link in self._links.items():
            self._tell(broker, link)
        return self._version

    def _tell(self, broker: int, link: _Link) -> None:
        faults = [
            each.fault.to_json()
            for each in self._faults
            if each.is_active and (not each.brokers or broker in each.brokers)
        ]
        _send(link, {"version": self._version, "faults": faults})

    async def _serve(self, broker: int, link: _Link, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                message = json.loads(line)
                if "version" in message:
                    link.confirmed = message["version"]
                    await self._notify()
                else:
                    granted = self._claim(message["fault"], broker, message["client"])
                    _send(link, {"claim": message["claim"], "granted": granted})
        link.is_open = False
        link.writer.close()
        await self._notify()

    async def _notify(self) -> None:
        async with self._confirmed:
            self._confirmed.notify_all()

    def _claim(self, id: int, broker: int, client_id: str) -> bool:
        """Count one more hit, if there is one left."""
        for each in self._faults:
            if each.fault.id == id and each.is_active:
                each.hits.append(FaultHit(time.time(), broker, client_id))
                if not each.is_active:
                    self._tell_all()
                return True
        return False


def _send(link: _Link, message: dict[str, Any]) -> None:
    if link.is_open:
        link.writer.write(json.dumps(message).encode() + b"\n")
