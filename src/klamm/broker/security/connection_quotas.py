"""How many connections there may be, and how fast they may come (SEC-19).

Counts are per broker, per listener and per address; rates per broker, per listener and per address.
The machine says what becomes of a new connection; accepting late and closing is the server's part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from klamm.broker.security.quotas import DEFAULT_ENTITY, QuotaWindow, SampledRate
from klamm.errors import ConfigError

NO_LIMIT: Final = 2**31 - 1
#: Above this number of rates, those of addresses that have not connected lately are dropped.
_RATES_MAX: Final = 1000


class Fate(Enum):
    """The decision about a new connection: accept it, or close it."""

    ACCEPT = "accept"
    #: The address has too many connections, or makes them too fast: closed after the delay.
    CLOSE = "close"


class Admission(NamedTuple):
    """A decision, carried out after the delay."""

    fate: Fate
    delay_ms: int = 0

    @property
    def is_refused(self) -> bool:
        return self.fate is Fate.CLOSE


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The settings; those of listeners are by lower-case name."""

    total: int = NO_LIMIT
    per_ip: int = NO_LIMIT
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    creation_rate: int = NO_LIMIT
    of_listener: Mapping[str, int] = field(default_factory=dict)
    creation_rate_of_listener: Mapping[str, int] = field(default_factory=dict)


def parse_overrides(text: str) -> dict[str, int]:
    """Read `max.connections.per.ip.overrides`: `host:count` pairs separated by commas."""
    overrides: dict[str, int] = {}
    for pair in text.split(","):
        if not pair.strip():
            continue
        host, _, count = pair.strip().rpartition(":")
        if not host or not count.strip().isdigit():
            raise ConfigError(
                f"Invalid value {text} for configuration max.connections.per.ip.overrides:"
                f" {pair.strip()} is not of the form address:count"
            )
        overrides[host.strip()] = int(count)
    return overrides


class ConnectionQuotas:
    """Counts connections and decides about new ones."""

    def __init__(self, limits: ConnectionLimits, *, inter_broker: str, window: QuotaWindow) -> None:
        self.limits = limits
        self._inter_broker = inter_broker.lower()
        self._window = window
        self._per_ip: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._rates: dict[str, SampledRate] = {}
        #: `connection_creation_rate` by address, with `<default>` for the others.
        self.ip_rates: dict[str, float] = {}

    @property
    def total(self) -> int:
        return self._per_ip.total()

    def has_room(self, listener: str) -> bool:
        """Whether the listener may accept; the inter-broker listener always may (`is_over`)."""
        name = listener.lower()
        if self._per_listener[name] >= self.limits.of_listener.get(name, NO_LIMIT):
            return False
        return self.total < self.limits.total or name == self._inter_broker

    def is_over(self) -> bool:
        """Whether the connection that was idle longest has to go for one between brokers."""
        return self.total > self.limits.total

    def on_accepted(self, listener: str, ip: str, now_ms: int) -> Admission:
        """Count a connection and decide about it; `on_closed` has to follow in either case."""
        name = listener.lower()
        self._per_ip[ip] += 1
        self._per_listener[name] += 1
        if self._per_ip[ip] > self.limits.per_ip_overrides.get(ip, self.limits.per_ip):
            return Admission(Fate.CLOSE)
        ip_limit = self.ip_rates.get(ip, self.ip_rates.get(DEFAULT_ENTITY))
        if ip_limit is not None:
            delay_ms = self._delay_ms(f"ip {ip}", ip_limit, now_ms)
            if delay_ms > 0:
                # The attempt does not count, or the address would never come within its rate.
                self._rates[f"ip {ip}"].unrecord(1)
                return Admission(Fate.CLOSE, delay_ms)
        delay_ms = 0
        if name != self._inter_broker and self.limits.creation_rate < NO_LIMIT:
            delay_ms = self._delay_ms("broker", self.limits.creation_rate, now_ms)
        listener_rate = self.limits.creation_rate_of_listener.get(name, NO_LIMIT)
        if listener_rate < NO_LIMIT:
            delay_ms = max(delay_ms, self._delay_ms(f"listener {name}", listener_rate, now_ms))
        return Admission(Fate.ACCEPT, delay_ms)

    def on_closed(self, listener: str, ip: str) -> None:
        """Forget a connection."""
        self._per_listener[listener.lower()] -= 1
        self._per_ip[ip] -= 1
        if self._per_ip[ip] <= 0:
            del self._per_ip[ip]

    def _delay_ms(self, of: str, limit: float, now_ms: int) -> int:
        rate = self._rates.get(of)
        if rate is None:
            if len(self._rates) >= _RATES_MAX:
                kept = ((key, each) for key, each in self._rates.items() if each.is_used(now_ms))
                self._rates = dict(kept)
            rate = self._rates[of] = SampledRate(self._window)
        rate.record(1, now_ms)
        return round(min(rate.throttle_ms(limit, now_ms), self._window.sample_ms))
