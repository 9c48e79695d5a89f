"""What Produce and Fetch ask before they answer: for how long the client has to wait.

Both answers are encoded by their handlers, so the throttle time has to be known there. The quotas
themselves are in `klamm.broker.security`.
"""

from typing import Final, Protocol

from klamm.broker.handlers.dispatch import Call


class ByteQuotas(Protocol):
    """Counts the bytes of produce requests and of fetch responses."""

    def produce_ms(self, call: Call) -> int:
        """Count a Produce request; the throttle time of its answer in ms."""

    def fetch_ms(self, call: Call, size: int) -> int:
        """Count a Fetch answer; if the client has to wait, the answer has to be emptied."""

    def fetch_bytes_max(self, call: Call) -> int | None:
        """What the window allows a consumer; None for no limit."""


class _NoQuotas:
    """No quota: do not wait."""

    def produce_ms(self, call: Call) -> int:
        return 0

    def fetch_ms(self, call: Call, size: int) -> int:
        return 0

    def fetch_bytes_max(self, call: Call) -> int | None:
        return None


NO_QUOTAS: Final = _NoQuotas()
