"""Clients that a Python worker keeps from one task to the next.

Spark runs one task after another in a Python worker. What a task has connected is of use to the
next one of the same settings, and is closed when it has been idle for a while.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Generic, TypeAlias, TypeVar

_T = TypeVar("_T")
_Key: TypeAlias = frozenset[tuple[str, str]]

#: Spark's own connector keeps producers for ten minutes and consumers for five, but it has one for
#: all tasks of an executor.
IDLE_S: Final = 120.0


class Pool(Generic[_T]):
    """The idle clients of one process, by their settings.

    `is_sound` says whether a client can be used again, `close` lets go of one that is not needed.
    A pool belongs to one process: a worker is forked before it runs its first task.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, str]], _T],
        *,
        is_sound: Callable[[_T], bool],
        close: Callable[[_T], None],
        idle_s: float = IDLE_S,
    ) -> None:
        self._make = make
        self._is_sound = is_sound
        self._close = close
        self._idle_s = idle_s
        self._lock = threading.Lock()
        #: Each with the time at which it was given back, the oldest first.
        self._idle: dict[_Key, list[tuple[float, _T]]] = {}
        self._timer: threading.Timer | None = None

    @contextmanager
    def borrowed(self, settings: Mapping[str, str]) -> Iterator[_T]:
        """Borrow a client with these settings; it is kept unless the block ends with an error."""
        key = frozenset(settings.items())
        client = self._take(key) or self._make(settings)
        try:
            yield client
        except BaseException:
            self._close(client)
            raise
        if self._is_sound(client):
            self._give_back(key, client)
        else:
            self._close(client)

    def _take(self, key: _Key) -> _T | None:
        while True:
            with self._lock:
                waiting = self._idle.get(key)
                if not waiting:
                    return None
                _, client = waiting.pop()
            if self._is_sound(client):
                return client
            self._close(client)

    def _give_back(self, key: _Key, client: _T) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append((time.monotonic(), client))
            if self._timer is None:
                self._start_timer()

    def _start_timer(self) -> None:
        self._timer = threading.Timer(self._idle_s, self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def _close_idle(self) -> None:
        with self._lock:
            self._timer = None
            recent = time.monotonic() - self._idle_s
            idle = [
                client
                for waiting in self._idle.values()
                for given_back_at, client in waiting
                if given_back_at <= recent
            ]
            left = {
                key: [each for each in waiting if each[0] > recent]
                for key, waiting in self._idle.items()
            }
            self._idle = {key: waiting for key, waiting in left.items() if waiting}
            if self._idle:
                self._start_timer()
        for client in idle:
            self._close(client)
