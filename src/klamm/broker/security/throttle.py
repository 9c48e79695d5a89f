"""Quotas on requests: what is counted for a client, and how long a connection is muted (SEC-11).

The response tells the client and leaves at once; then nothing is read from the connection for that
time. Followers are exempt. Without any quota nothing is counted.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from klamm.broker.handlers.dispatch import Call, EncodedResponse, Handler, HandlerResult, Result
from klamm.broker.security.guard import response_values
from klamm.broker.security.quotas import ClientQuotas, Quota
from klamm.net.server import CLOSE
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.failures import failure
from klamm.protocol.codes import ErrorCode

#: Bytes have a quota of their own here, and the handlers count them.
_COUNTED_BY_HANDLERS: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
#: Requests between brokers, and those before a client is known.
_EXEMPT: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
    }
)
#: The versions from which on a client understands THROTTLING_QUOTA_EXCEEDED (SEC-11a).
_STRICT_FROM: Final = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_TOPICS: 5,
}
_NS_PER_PERCENT: Final = 10_000_000


class Throttle:
    """Counts requests against the quotas of their users and clients."""

    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    def produce_ms(self, call: Call) -> int:
        """Count a Produce request; the throttle time of its response in ms."""
        if not self._quotas.is_active:
            return 0
        user, client = _whose(call)
        now_ms = _now_ms()
        delay_ms = self._quotas.record(Quota.PRODUCE, user, client, len(call.frame), now_ms)
        return self._mute(call, max(delay_ms, self._on_time(call, now_ms)))

    def fetch_ms(self, call: Call, size: int) -> int:
        """Count a Fetch response; if the client has to wait, the response has to be emptied."""
        if not self._quotas.is_active or call.body.replica_id >= 0:
            return 0
        user, client = _whose(call)
        now_ms = _now_ms()
        delay_ms = self._quotas.record(Quota.FETCH, user, client, size, now_ms)
        delay_ms = max(delay_ms, self._on_time(call, now_ms))
        if delay_ms > 0:
            self._quotas.unrecord(Quota.FETCH, user, client, size)
        return self._mute(call, delay_ms)

    def fetch_bytes_max(self, call: Call) -> int | None:
        """The bytes that the quota's window allows a consumer; None for no limit."""
        if not self._quotas.is_active or call.body.replica_id >= 0:
            return None
        return self._quotas.bytes_max(Quota.FETCH, *_whose(call))

    def protect(self, handlers: Mapping[ApiKey, Handler]) -> dict[ApiKey, Handler]:
        """Wrap handlers so that requests count; Produce and Fetch count by themselves."""
        return {
            key: handler
            if key in _COUNTED_BY_HANDLERS or key in _EXEMPT
            else self._counted(key, handler)
            for key, handler in handlers.items()
        }

    def _counted(self, key: ApiKey, handler: Handler) -> Handler:
        strict_from = _STRICT_FROM.get(key)

        def handle(call: Call) -> HandlerResult:
            if not self._quotas.is_active:
                return handler(call)
            if strict_from is not None:
                return self._mutate(call, handler, is_strict=call.header.api_version >= strict_from)
            responding = handler(call)
            if inspect.isawaitable(responding):
                return self._later(call, responding)
            return self._told(call, responding, self._on_time(call, _now_ms()))

        return handle

    async def _later(self, call: Call, responding: Awaitable[Result]) -> Result:
        result = await responding
        return self._told(call, result, self._on_time(call, _now_ms()))

    def _mutate(self, call: Call, handler: Handler, *, is_strict: bool) -> HandlerResult:
        """Let a change of partitions through whole, or refuse it, as the bucket says."""
        user, client = _whose(call)
        now_ms = _now_ms()
        if is_strict and not self._quotas.may_mutate(user, client, now_ms):
            refused = failure(call.header, call.body, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            assert refused is not None
            return self._told(
                call, refused, self._quotas.mutation_throttle_ms(user, client, now_ms)
            )
        if not getattr(call.body, "validate_only", False):
            self._quotas.mutate(user, client, _partitions(call.body), now_ms)
        return self._mutated(call, handler(call), is_strict=is_strict)

    async def _mutated(self, call: Call, responding: HandlerResult, *, is_strict: bool) -> Result:
        result = await responding if inspect.isawaitable(responding) else responding
        now_ms = _now_ms()
        delay_ms = self._on_time(call, now_ms)
        if not is_strict:
            delay_ms = max(delay_ms, self._quotas.mutation_throttle_ms(*_whose(call), now_ms))
        return self._told(call, result, delay_ms)

    def _on_time(self, call: Call, now_ms: int) -> int:
        """Count the time that the request took; 100 percent are one core."""
        percent = (time.perf_counter_ns() - call.begun) / _NS_PER_PERCENT
        return self._quotas.record(Quota.REQUEST, *_whose(call), percent, now_ms)

    def _told(self, call: Call, result: Result, delay_ms: int) -> Result:
        self._mute(call, delay_ms)
        if delay_ms <= 0 or (isinstance(result, EncodedResponse) and result.parts is None):
            return result
        return {**response_values(call, result), "throttle_time": delay_ms}

    def _mute(self, call: Call, delay_ms: int) -> int:
        if delay_ms > 0 and call.connection.hold != CLOSE:
            call.connection.hold = max(call.connection.hold, delay_ms / 1000)
        return delay_ms


def _whose(call: Call) -> tuple[str, str]:
    return call.connection.principal.partition(":")[2], call.header.client_id or ""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _partitions(body: Any) -> int:
    """The partitions that a request creates or deletes, as far as it says how many."""
    topics = getattr(body, "topics", None)
    if topics is None:
        return len(getattr(body, "topic_names", ()))
    return sum(
        max(1, getattr(topic, "num_partitions", 1), len(getattr(topic, "assignments", None) or ()))
        for topic in topics
    )
