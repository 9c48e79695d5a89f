"""Distributions that can be added up: durations with their percentiles, and counts over time.

Both take a bounded number of entries however long the history is, and what they hold does not
depend on the order in which values came or on how they were divided among shards.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_PERCENTILES: Final = {"p50": 50, "p90": 90, "p99": 99}
#: Durations are told apart to three digits.
_DIGITS: Final = 3
#: The narrowest bucket of time, and how many buckets a series may cover before it gets wider ones.
_NARROWEST_US: Final = 62_500
_BUCKETS_MAX: Final = 120


class Durations:
    """Counts of durations in microseconds, with the longest duration of each bucket."""

    def __init__(self, buckets: Mapping[str, Iterable[int]] | None = None) -> None:
        self._buckets = {int(key): tuple(entry) for key, entry in (buckets or {}).items()}

    def add(self, micros: int, count: int = 1) -> None:
        """Count a duration."""
        self._put(_rounded(micros), count, micros)

    def merge(self, other: "Durations") -> None:
        """Add the counts of another."""
        for key, (count, longest) in other._buckets.items():
            self._put(key, count, longest)

    def summary(self) -> dict[str, Any]:
        """`count`, the percentiles and `max`, in seconds."""
        total = sum(count for count, _ in self._buckets.values())
        row: dict[str, Any] = {"count": total}
        for name, percent in _PERCENTILES.items():
            # The smallest bucket that has this share of all at or below it.
            rank, so_far = -(-percent * total // 100), 0
            for key in sorted(self._buckets):
                so_far += self._buckets[key][0]
                if so_far >= rank:
                    row[name] = self._buckets[key][1] / 1e6
                    break
        row["max"] = max(longest for _, longest in self._buckets.values()) / 1e6
        return row

    def items(self) -> Iterator[tuple[int, int]]:
        """Each bucket's lower end in microseconds, and its count."""
        return ((key, self._buckets[key][0]) for key in sorted(self._buckets))

    def __len__(self) -> int:
        return len(self._buckets)

    def to_json(self) -> dict[str, Any]:
        return {str(key): entry for key, entry in self._buckets.items()}

    def _put(self, key: int, count: int, longest: int) -> None:
        before, before_longest = self._buckets.get(key, (0, 0))
        self._buckets[key] = (before + count, max(before_longest, longest))


class TimeSeries:
    """Numbers in buckets of time, whose width doubles as the time that they cover grows.

    Of the numbers of one bucket the `mode` takes the `sum`, the largest (`peak`) or the `last`.
    """

    def __init__(
        self,
        *,
        mode: str = "sum",
        width_us: int = _NARROWEST_US,
        values: Mapping[str, int] | None = None,
    ) -> None:
        self.width_us = width_us
        self._mode = mode
        self._values = {int(key): value for key, value in (values or {}).items()}

    def add(self, at: int, value: int = 1) -> None:
        """Count a value at a time."""
        self._put(at // self.width_us, value)
        self._fit()

    def add_interval(self, start: int, end: int, value: int) -> None:
        """Count a value in each bucket from one time to another."""
        end = max(start, end)
        while end // self.width_us - start // self.width_us >= _BUCKETS_MAX:
            self.widen(self.width_us * 2)
        for key in range(start // self.width_us, end // self.width_us + 1):
            self._put(key, value)
        self._fit()

    def widen(self, width_us: int) -> None:
        """Join buckets until they have this width."""
        while self.width_us < width_us:
            values, self._values = self._values, {}
            self.width_us *= 2
            for key in sorted(values):
                self._put(key >> 1, values[key])

    def items(self) -> Iterator[tuple[int, int]]:
        """The beginning of each bucket that is not empty, and its number."""
        return ((key * self.width_us, self._values[key]) for key in sorted(self._values))

    def to_json(self) -> dict[str, Any]:
        values = {str(key): value for key, value in self._values.items()}
        return {"mode": self._mode, "width_us": self.width_us, "values": values}

    def _put(self, key: int, value: int) -> None:
        before = self._values.get(key, 0)
        match self._mode:
            case "sum":
                value += before
            case "peak":
                value = max(before, value)
        self._values[key] = value

    def _fit(self) -> None:
        while self._values and max(self._values) - min(self._values) >= _BUCKETS_MAX:
            self.widen(self.width_us * 2)


def _rounded(micros: int) -> int:
    """The number with its later digits as zeros."""
    size: int = 10 ** max(0, len(str(micros)) - _DIGITS)
    return micros // size * size
