"""Quotas on requests: what is counted for a client, and how long a connection is muted (SEC-11).

The response tells the client and leaves at once; then nothing is read from the connection for that
time. Followers are exempt. Without any quota nothing is counted.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol

from klamm.broker.handlers.dispatch import (
    NO_RESPONSE,
    Call,
    EncodedResponse,
    Handler,
    HandlerResult,
    Result,
)
from klamm.broker.security.denials import awaited_values, response_values, with_body
from klamm.broker.security.quotas import ClientQuotas, Quota
from klamm.net.server import CLOSE
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.failures import failure
from klamm.protocol.codes import ErrorCode
from klamm.slices import paced

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


#: The list of a response that has the topics of a request.
_RESULTS: Final = {
    ApiKey.CREATE_TOPICS: "topics",
    ApiKey.CREATE_PARTITIONS: "results",
    ApiKey.DELETE_TOPICS: "responses",
}


class TopicSizes(Protocol):
    """What a broker knows about topics."""

    @property
    def partitions_by_default(self) -> int:
        """The partitions of a new topic whose creator does not say how many."""

    def name_of(self, topic_id: Any) -> str | None:
        """The name of a topic id; None for one that is not known."""

    def partitions_of(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if there is none."""


class Throttle:
    """Counts requests against the quotas of their users and clients."""

    def __init__(self, quotas: ClientQuotas, topics: TopicSizes) -> None:
        self._quotas = quotas
        self._topics = topics

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
            if strict_from is not None and self._mutates(call):
                return self._mutate(call, handler, is_strict=call.header.api_version >= strict_from)
            responding = handler(call)
            if inspect.isawaitable(responding):
                return self._later(call, responding)
            return self._told(call, responding, self._on_time(call, _now_ms()))

        return handle

    def _mutates(self, call: Call) -> bool:
        """Whether a request changes partitions of somebody whose changes are limited."""
        if getattr(call.body, "validate_only", False):
            return False
        return self._quotas.limit(Quota.MUTATION, *_whose(call)) is not None

    async def _later(self, call: Call, responding: Awaitable[Result]) -> Result:
        result = await responding
        delay_ms = self._on_time(call, _now_ms())
        if delay_ms > 0 and result != NO_RESPONSE:
            result = await awaited_values(call, result)
        return self._told(call, result, delay_ms)

    async def _mutate(self, call: Call, handler: Handler, *, is_strict: bool) -> Result:
        """Take the partitions of each topic out of the bucket; refuse what finds it overdrawn.

        A topic that does not find it overdrawn is let through whole (SEC-11a). One that fails
        for another reason counts for nothing.
        """
        user, client = _whose(call)
        now_ms = _now_ms()
        field = "topics" if hasattr(call.body, "topics") else "topic_names"
        results = _RESULTS[ApiKey(call.header.api_key)]
        taken: dict[str, int] = {}
        allowed, refused = [], []
        async for topic in paced(getattr(call.body, field)):
            if self._comes_to_nothing(topic):
                allowed.append(topic)
                continue
            if is_strict and not self._quotas.may_mutate(user, client, now_ms):
                refused.append(topic)
                continue
            name, count = self._partitions(topic)
            self._quotas.mutate(user, client, count, now_ms)
            taken[name] = count
            allowed.append(topic)
        values: dict[str, Any] = {results: []}
        if allowed:
            responding = handler(with_body(call, **{field: tuple(allowed)}) if refused else call)
            result = await responding if inspect.isawaitable(responding) else responding
            values = await awaited_values(call, result)
        for each in values[results]:
            if each["error_code"]:
                self._quotas.mutate(user, client, -taken.get(each["name"] or "", 0), now_ms)
        if refused:
            body = dataclasses.replace(call.body, **{field: tuple(refused)})
            values = {**values, results: [*values[results], *_exceeded(call, body, results)]}
        now_ms = _now_ms()
        delay_ms = self._on_time(call, now_ms)
        if refused or not is_strict:
            delay_ms = max(delay_ms, self._quotas.mutation_throttle_ms(user, client, now_ms))
        return self._told(call, values, delay_ms)

    def _comes_to_nothing(self, topic: Any) -> bool:
        """Whether a topic is created that exists, or one changed that does not, or not at all."""
        name, count = self._partitions(topic)
        exists = self._topics.partitions_of(name) > 0
        return exists if hasattr(topic, "num_partitions") else not exists or count == 0

    def _partitions(self, topic: Any) -> tuple[str, int]:
        """A topic of a request, and how many of its partitions are created or deleted."""
        if isinstance(topic, str):
            return topic, self._topics.partitions_of(topic)
        if hasattr(topic, "count"):
            return topic.name, max(0, topic.count - self._topics.partitions_of(topic.name))
        if hasattr(topic, "num_partitions"):
            given = max(topic.num_partitions, len(topic.assignments))
            return topic.name, given if given > 0 else self._topics.partitions_by_default
        name = topic.name or self._topics.name_of(topic.topic_id) or ""
        return name, self._topics.partitions_of(name)

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


def _exceeded(call: Call, body: Any, results: str) -> list[Any]:
    """The topics of a request that are refused."""
    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    response = failure(call.header, body, code)
    assert response is not None
    return [{**each, "error_message": None} for each in response[results]]
