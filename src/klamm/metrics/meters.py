"""Meters, histograms and timers: what Kafka's metrics library computes, for a clock passed in.

Rates are exponentially weighted moving averages over one, five and fifteen minutes, brought forward
every five seconds, as in Kafka. Quantiles are those of the most recent observations.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

TICK_S: Final = 5.0
WINDOWS_MIN: Final = (1, 5, 15)
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
#: The number of observations that quantiles are computed from.
RECENT_MAX: Final = 1028


class Meter:
    """Counts, and knows how often it has done so lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.count = 0
        self._clock = clock
        self._began = self._ticked = clock()
        self._uncounted = 0
        self._rates: list[float] | None = None

    def mark(self, count: int = 1) -> None:
        """Something has happened that many times."""
        self._catch_up()
        self.count += count
        self._uncounted += count

    def mean_rate(self) -> float:
        """Events in a second since the beginning."""
        elapsed = self._clock() - self._began
        return self.count / elapsed if elapsed > 0 else 0.0

    def rates(self) -> list[float]:
        """Events in a second over each of `WINDOWS_MIN`."""
        self._catch_up()
        return [0.0] * len(WINDOWS_MIN) if self._rates is None else list(self._rates)

    def _catch_up(self) -> None:
        """Apply the ticks that have passed since the last call; no timer is needed."""
        ticks = int((self._clock() - self._ticked) / TICK_S)
        if ticks <= 0:
            return
        self._ticked += ticks * TICK_S
        latest, self._uncounted = self._uncounted / TICK_S, 0
        if self._rates is None:
            # The first interval is all there is to go by.
            self._rates = [latest] * len(WINDOWS_MIN)
            latest, ticks = 0.0, ticks - 1
        for at, minutes in enumerate(WINDOWS_MIN):
            kept = math.exp(-TICK_S / 60 / minutes)
            if ticks:
                first = self._rates[at] * kept + latest * (1 - kept)
                # Nothing was counted in the ticks after the first.
                self._rates[at] = first * kept ** (ticks - 1)


class Histogram:
    """Sum and number of all observations, and quantiles of the recent ones."""

    def __init__(self, count: int = 0, total: float = 0.0, recent: Iterable[float] = ()) -> None:
        """Begin with a count, a total and recent observations."""
        self.count = count
        self.sum = total
        self._recent: deque[float] = deque(recent, maxlen=RECENT_MAX)

    def observe(self, value: float) -> None:
        """Take in a value."""
        self.count += 1
        self.sum += value
        self._recent.append(value)

    def clear(self) -> None:
        """Forget everything."""
        self.count = 0
        self.sum = 0.0
        self._recent.clear()

    def quantiles(self) -> list[float]:
        """The value at each of `QUANTILES`, interpolated; not a number if there is none."""
        ordered = sorted(self._recent)
        if not ordered:
            return [math.nan] * len(QUANTILES)
        found = []
        for quantile in QUANTILES:
            position = quantile * (len(ordered) - 1)
            below = math.floor(position)
            above = min(below + 1, len(ordered) - 1)
            share = position - below
            found.append(ordered[below] * (1 - share) + ordered[above] * share)
        return found


class Timer:
    """A histogram of durations in milliseconds, and a meter of their number."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.meter = Meter(clock)
        self.durations_ms = Histogram()

    def observe(self, seconds: float) -> None:
        """Something took that long."""
        self.meter.mark()
        self.durations_ms.observe(seconds * 1000)
