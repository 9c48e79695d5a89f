"""Numbers over time: the lag of groups, the rates of brokers.

Samples are taken from the console's start, of as many keys as a bound allows; a key that somebody
has asked about comes first. Taking them needs at most a tenth of the time.
"""

import logging
import threading
import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from klamm.client import groups
from klamm.client.admin import Admin
from klamm.errors import KlammError
from klamm.names import LATEST, TopicPartition

log = logging.getLogger("klamm.console")

_INTERVAL_S: Final = 5.0
#: The first page comes first.
_FIRST_AFTER_S: Final = 2.0
#: Taking samples takes at most this share of the time.
_SHARE: Final = 0.1
_KEPT: Final = 720  # an hour
_TRIMMED: Final = 120
_FORGOTTEN_AFTER_S: Final = 1800.0
_HOLE: Final = float("nan")
#: The samples by which the pace of a group is judged.
_PACE: Final = 60

Values = Mapping[str, float]
Sample = Callable[[list[Any]], Mapping[Any, Values]]


class Series:
    """The samples of one key as columns of numbers, the last hour's."""

    def __init__(self) -> None:
        self._at = array("d")
        self._columns: dict[str, array[float]] = {}

    def add(self, at: float, values: Values) -> None:
        for name in values:
            if name not in self._columns:
                self._columns[name] = array("d", [_HOLE] * len(self._at))
        self._at.append(at)
        for name, column in self._columns.items():
            column.append(values.get(name, _HOLE))
        if len(self._at) >= _KEPT + _TRIMMED:
            for column in (self._at, *self._columns.values()):
                del column[:_TRIMMED]

    def describe(self) -> dict[str, list[float | None]]:
        """`at` in seconds, and a list for each name; None is a hole."""
        columns = {
            name: [None if value != value else value for value in self._columns[name]]
            for name in sorted(self._columns)
        }
        return {"at": list(self._at), **columns}


class Sampler:
    """Takes samples of keys, in a thread of its own.

    `unasked` says which keys are sampled without a question; at most `keys_max` are, those that
    were asked about lately among them.
    """

    def __init__(
        self,
        sample: Sample,
        unasked: Callable[[], Iterable[Any]] = tuple,
        *,
        keys_max: int,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._sample = sample
        self._unasked = unasked
        self._keys_max = keys_max
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._asked: dict[Hashable, float] = {}
        self._kept: dict[Hashable, Series] = {}
        self.left_out = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()

    def series(self, key: Any) -> dict[str, list[float | None]]:
        """The samples of a key as columns; takes one if there is none yet."""
        with self._lock:
            self._asked[key] = time.monotonic()
            is_new = key not in self._kept
        if is_new:
            self._take([key])
        with self._lock:
            found = self._kept.get(key)
            return {"at": []} if found is None else found.describe()

    def all(self) -> dict[Any, dict[str, list[float | None]]]:
        """The samples of every key."""
        with self._lock:
            return {key: series.describe() for key, series in self._kept.items()}

    def _run(self) -> None:
        pause_s = min(_FIRST_AFTER_S, self._interval_s)
        while not self._ending.wait(pause_s):
            begun = time.monotonic()
            try:
                self._take(self._choose())
            except KlammError:
                pass  # a hole in the lines says so
            except Exception:
                # The next round may succeed; nothing above this thread would handle the error.
                log.exception("samples could not be taken")
            pause_s = max(self._interval_s, (time.monotonic() - begun) / _SHARE)

    def _choose(self) -> list[Any]:
        unasked = list(self._unasked())
        with self._lock:
            now = time.monotonic()
            for key, at in list(self._asked.items()):
                if now - at > _FORGOTTEN_AFTER_S:
                    del self._asked[key]
            wanted = list(dict.fromkeys([*self._asked, *unasked]))
            chosen = wanted[: self._keys_max]
            self.left_out = len(wanted) - len(chosen)
            for key in set(self._kept) - set(chosen):
                del self._kept[key]
        return chosen

    def _take(self, keys: list[Any]) -> None:
        if not keys:
            return
        found = self._sample(keys)
        at = time.time()
        with self._lock:
            for key, values in found.items():
                self._kept.setdefault(key, Series()).add(at, values)


def sample_lags(admin: Admin, names: Sequence[str]) -> dict[str, Values]:
    """The lag of groups over all of their partitions, and how many records they have read.

    The end of a partition is asked for once, however many groups read it. A group gets no sample
    while the end of one of its partitions is unknown: the sum of the others is not its lag.
    """
    committed: dict[str, dict[TopicPartition, int]] = {}
    for group in names:
        try:
            committed[group] = groups.committed_offsets(admin, group)
        except KlammError:
            continue  # a hole in its line says so
    ends = groups.offsets_at(
        admin, sorted({n for each in committed.values() for n in each}), LATEST
    )
    return {
        group: {
            "lag": float(sum(max(0, ends[n] - at) for n, at in offsets.items())),
            "read": float(sum(offsets.values())),
        }
        for group, offsets in committed.items()
        if offsets.keys() <= ends.keys()
    }


def time_left(series: Mapping[str, Sequence[float | None]]) -> float | None:
    """Seconds until a lag is gone at the pace of the last minutes; None if it does not shrink."""
    known = [
        (at, lag)
        for at, lag in zip(series["at"][-_PACE:], series.get("lag", [])[-_PACE:], strict=True)
        if at is not None and lag is not None
    ]
    if len(known) < 2:
        return None
    (first_at, first), (last_at, last) = known[0], known[-1]
    if last == 0:
        return 0.0
    pace = (first - last) / max(1e-9, last_at - first_at)
    return last / pace if pace > 0 else None
