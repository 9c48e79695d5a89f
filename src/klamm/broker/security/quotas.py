"""Client quotas: bytes, request time and partition mutations per user and client (SEC-11, 11a).

Rates are measured as Kafka measures them: over `quota.window.num` samples of
`quota.window.size.seconds`, where a younger window counts as full. Who goes beyond the limit is
delayed until the average is within it again. Everything here is arithmetic on times that are
handed in; muting connections is the server's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

DEFAULT_ENTITY: Final = "<default>"
#: (user, client id); None where the entity does not speak of it.
Entity: TypeAlias = tuple[str | None, str | None]


class Quota(Enum):
    """What can be limited; the value is the key in znodes and requests."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"


@dataclass(frozen=True, slots=True)
class QuotaWindow:
    """How rates are averaged."""

    samples: int = 11
    sample_ms: int = 1000

    @property
    def full_ms(self) -> int:
        """The part of the window that always counts."""
        return (self.samples - 1) * self.sample_ms


class SampledRate:
    """A sum over the last samples, per second."""

    __slots__ = ("_samples", "_window")

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._samples: deque[list[float]] = deque()  # [start, sum]

    def record(self, value: float, now_ms: int) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window.sample_ms:
            samples.append([now_ms, 0.0])
            if len(samples) > self._window.samples:
                samples.popleft()
        samples[-1][1] += value

    def unrecord(self, value: float) -> None:
        """Take back what was recorded last."""
        if self._samples:
            self._samples[-1][1] -= value

    def is_used(self, now_ms: int) -> bool:
        """Whether anything was recorded that still counts."""
        return self.measure(now_ms)[0] > 0

    def measure(self, now_ms: int) -> tuple[float, float]:
        """The rate per second, and the length of the window in ms that it was measured over."""
        window = self._window
        samples = self._samples
        while samples and now_ms - samples[0][0] >= window.samples * window.sample_ms:
            samples.popleft()
        elapsed_ms = now_ms - samples[0][0] if samples else 0
        full = elapsed_ms // window.sample_ms
        missing = max(0, window.samples - 1 - full)
        window_ms = elapsed_ms + missing * window.sample_ms
        total = sum(each[1] for each in samples)
        return (total / (window_ms / 1000) if window_ms else 0.0), float(window_ms)

    def throttle_ms(self, limit: float, now_ms: int) -> float:
        """How long to wait until the rate is within `limit` again."""
        rate, window_ms = self.measure(now_ms)
        if rate <= limit:
            return 0.0
        return (rate - limit) / limit * window_ms if limit > 0 else window_ms


class TokenBucket:
    """Mutations: the bucket holds a whole window of the rate and may go below zero once."""

    __slots__ = ("_at_ms", "_tokens", "_window")

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._tokens: float | None = None
        self._at_ms = 0

    def refill(self, limit: float, now_ms: int) -> float:
        """The tokens there are now."""
        burst = limit * self._window.samples * self._window.sample_ms / 1000
        if self._tokens is None:
            self._tokens = burst
        elapsed_ms = max(0, now_ms - self._at_ms)
        self._tokens = min(burst, self._tokens + elapsed_ms / 1000 * limit)
        self._at_ms = now_ms
        return self._tokens

    def take(self, count: float, limit: float, now_ms: int) -> None:
        self._tokens = self.refill(limit, now_ms) - count

    def throttle_ms(self, limit: float, now_ms: int) -> float:
        tokens = self.refill(limit, now_ms)
        return -tokens / limit * 1000 if tokens < 0 and limit > 0 else 0.0


#: Which entities are asked for a limit, most specific first. The flags say whose traffic is
#: counted together: one user's, one client's, or one client's of one user.
_ORDER: Final = (
    (False, False, True, True),
    (False, True, True, True),
    (False, None, True, False),
    (True, False, True, True),
    (True, True, True, True),
    (True, None, True, False),
    (None, False, False, True),
    (None, True, False, True),
)


@dataclass
class ClientQuotas:
    """The limits in force and the traffic measured against them."""

    window: QuotaWindow = field(default_factory=QuotaWindow)
    mutation_window: QuotaWindow = field(default_factory=QuotaWindow)
    #: Whether there is a quota at all.
    is_active: bool = False
    _limits: dict[Entity, dict[Quota, float]] = field(default_factory=dict)
    _rates: dict[tuple[Quota, str, str], SampledRate] = field(default_factory=dict)
    _buckets: dict[tuple[str, str], TokenBucket] = field(default_factory=dict)

    #: Rates that have not been asked for are dropped when there are more than this.
    RATES_MAX: Final = 10_000

    def put(self, entity: Entity, settings: Mapping[str, str]) -> None:
        """Replace the limits of an entity by those of its znode; what is no number is no limit."""
        limits: dict[Quota, float] = {}
        for quota in Quota:
            try:
                limits[quota] = float(settings[quota.value])
            except (KeyError, ValueError):
                continue
        if limits:
            self._limits[entity] = limits
        else:
            self._limits.pop(entity, None)
        self.is_active = bool(self._limits)

    def limit(self, quota: Quota, user: str, client: str) -> tuple[float, str, str] | None:
        """The limit in force, with the user and the client whose traffic counts together."""
        for default_user, default_client, by_user, by_client in _ORDER:
            entity = (
                None if default_user is None else DEFAULT_ENTITY if default_user else user,
                None if default_client is None else DEFAULT_ENTITY if default_client else client,
            )
            value = self._limits.get(entity, {}).get(quota)
            if value is not None:
                return value, user if by_user else "", client if by_client else ""
        return None

    def record(self, quota: Quota, user: str, client: str, value: float, now_ms: int) -> int:
        """Count traffic; the time in ms that the connection has to be muted for."""
        found = self.limit(quota, user, client)
        if found is None:
            return 0
        limit, by_user, by_client = found
        rate = self._rate(quota, by_user, by_client)
        rate.record(value, now_ms)
        delay_ms = rate.throttle_ms(limit, now_ms)
        if quota is Quota.REQUEST:
            delay_ms = min(delay_ms, self.window.sample_ms)
        return round(delay_ms)

    def unrecord(self, quota: Quota, user: str, client: str, value: float) -> None:
        """Take back traffic that was not sent after all: a response that was emptied."""
        found = self.limit(quota, user, client)
        if found is not None:
            self._rate(quota, found[1], found[2]).unrecord(value)

    def bytes_max(self, quota: Quota, user: str, client: str) -> int | None:
        """What the whole window allows, so that no single response exceeds it."""
        found = self.limit(quota, user, client)
        return None if found is None else int(found[0] * self.window.full_ms / 1000)

    def _rate(self, quota: Quota, user: str, client: str) -> SampledRate:
        key = (quota, user, client)
        rate = self._rates.get(key)
        if rate is None:
            if len(self._rates) >= self.RATES_MAX:
                self._rates.clear()
            rate = self._rates[key] = SampledRate(self.window)
        return rate

    # Mutations

    def may_mutate(self, user: str, client: str, now_ms: int) -> bool:
        """Whether the bucket of partitions is not overdrawn (SEC-11a)."""
        found = self.limit(Quota.MUTATION, user, client)
        return found is None or self._bucket(found).refill(found[0], now_ms) >= 0

    def mutate(self, user: str, client: str, partitions: int, now_ms: int) -> None:
        """Take partitions that are created or deleted out of the bucket."""
        found = self.limit(Quota.MUTATION, user, client)
        if found is not None:
            self._bucket(found).take(partitions, found[0], now_ms)

    def mutation_throttle_ms(self, user: str, client: str, now_ms: int) -> int:
        """The time until the bucket is not overdrawn any more."""
        found = self.limit(Quota.MUTATION, user, client)
        return 0 if found is None else round(self._bucket(found).throttle_ms(found[0], now_ms))

    def _bucket(self, found: tuple[float, str, str]) -> TokenBucket:
        key = found[1:]
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self.mutation_window)
        return bucket
