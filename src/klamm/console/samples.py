"""Numbers over time, of what somebody looks at: the lag of groups, the rates of brokers.

Nobody's numbers are taken unasked. Whoever asks for a series has it sampled from then on, and it
ends some time after the last question.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from klamm.client import brokers, groups
from klamm.client.admin import Admin
from klamm.errors import KlammError

_INTERVAL_S: Final = 5.0
_KEPT: Final = 720  # an hour
_FORGOTTEN_AFTER_S: Final = 1800.0

Sample = Callable[[Any], dict[str, float]]


class Sampler:
    """Takes samples of each key that was asked for lately, in a thread of its own."""

    def __init__(self, sample: Sample, interval_s: float = _INTERVAL_S) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._asked: dict[Hashable, float] = {}
        self._kept: dict[Hashable, deque[tuple[float, dict[str, float]]]] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def series(self, key: Any) -> dict[str, list[float | None]]:
        """The samples of a key as columns, `at` in seconds; takes one if there is none yet."""
        with self._lock:
            self._asked[key] = time.monotonic()
            is_new = key not in self._kept
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
                self._thread.start()
        if is_new:
            self._take(key)
        with self._lock:
            rows = list(self._kept.get(key, ()))
        names = sorted({name for _, values in rows for name in values})
        return {
            "at": [at for at, _ in rows],
            **{name: [values.get(name) for _, values in rows] for name in names},
        }

    def close(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            with self._lock:
                now = time.monotonic()
                for key, asked in list(self._asked.items()):
                    if now - asked > _FORGOTTEN_AFTER_S:
                        del self._asked[key]
                        self._kept.pop(key, None)
                keys = list(self._asked)
            for key in keys:
                self._take(key)

    def _take(self, key: Hashable) -> None:
        try:
            values = self._sample(key)
        except KlammError:
            return  # a hole in the line says so
        with self._lock:
            self._kept.setdefault(key, deque(maxlen=_KEPT)).append((time.time(), values))


def sample_group(admin: Admin, group: str) -> dict[str, float]:
    """The lag of a group over all partitions, and the sum of what it has read."""
    found = groups.describe(admin, group)
    known = [each for each in found.positions if each.lag >= 0]
    return {
        "lag": float(sum(each.lag for each in known)),
        "read": float(sum(each.offset for each in known)),
    }


def sample_broker(admin: Admin, broker: int) -> dict[str, float]:
    """What a broker holds, and how long it takes to answer."""
    begun = time.perf_counter()
    admin.metadata_of(broker, [])
    answered = time.perf_counter() - begun
    directories = brokers.log_dirs(admin, broker)
    return {
        "latency_ms": answered * 1000,
        "bytes": float(sum(each.bytes for each in directories)),
        "replicas": float(sum(each.replicas for each in directories)),
    }


def time_left(series: dict[str, list[float | None]]) -> float | None:
    """Seconds until a lag is gone at the pace of the last minutes; None if it does not shrink."""
    at, lag = series["at"][-60:], series.get("lag", [])[-60:]
    if len(at) < 2 or lag[-1] is None or lag[0] is None:
        return None
    if lag[-1] == 0:
        return 0.0
    pace = (lag[0] - lag[-1]) / max(1e-9, (at[-1] or 0) - (at[0] or 0))
    return lag[-1] / pace if pace > 0 else None
