"""The two clocks of a broker: what time it is, and how much of it has passed."""

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since 1970, from two sources."""

    def wall_ms(self) -> int:
        """What records are dated with. An operator may set it back."""

    def steady_ms(self) -> int:
        """What deadlines and lags are measured with. Never goes backwards."""


class SystemClock:
    """The machine's clocks; the steady one starts at the wall's time and goes its own way."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    def steady_ms(self) -> int:
        return int((time.monotonic() + self._offset_s) * 1000)
