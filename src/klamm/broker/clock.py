"""The two clocks of a broker: the wall clock, and a clock that never goes backwards."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in milliseconds since 1970."""

    def wall_ms(self) -> int:
        """The wall clock, for timestamps of records. An operator may set it back."""

    def steady_ms(self) -> int:
        """The steady clock, for deadlines and lags. It never goes backwards."""


class SystemClock:
    """The machine's clocks. The steady clock starts at wall time and then runs on its own."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def steady_ms(self) -> int:
        return int((time.monotonic() + self._offset_s) * 1000)
