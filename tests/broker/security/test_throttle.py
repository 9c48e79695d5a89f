"""Changes of partitions against the quota of their user (SEC-11a)."""

import asyncio
from typing import Any

import pytest

from klamm.broker.handlers.dispatch import Call
from klamm.broker.security.quotas import ClientQuotas
from klamm.broker.security.throttle import Throttle
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response, encode_response
from klamm.protocol.codes import ErrorCode
from tests.broker.security.test_guard import call_of

pytestmark = pytest.mark.rule("SEC-11a")
NEW = {"replication_factor": 1, "assignments": [], "configs": []}


class Topics:
    partitions_by_default = 7

    def name_of(self, topic_id: Any) -> str | None:
        return None

    def partitions_of(self, topic: str) -> int:
        return 40 if topic.startswith("old") else 0


class Broker:
    """A handler of one API behind the quota of one partition a second, and what reaches it."""

    def __init__(self, key: ApiKey, errors: dict[str, ErrorCode] | None = None) -> None:
        quotas = ClientQuotas()
        quotas.put(("nobody", None), {"controller_mutation_rate": "1"})
        self.key = key
        self.reached: list[str] = []
        self._errors = errors or {}
        self._handle = Throttle(quotas, Topics()).protect({key: self._handler})[key]

    def _handler(self, call: Call) -> dict[str, Any]:
        names = getattr(call.body, "topic_names", None)
        if names is None:
            names = [topic.name for topic in call.body.topics]
        self.reached += names
        results = [
            {
                "name": name,
                "error_code": self._errors.get(name, ErrorCode.NONE),
                "error_message": None,
                "num_partitions": -1,
                "replication_factor": -1,
            }
            for name in names
        ]
        return {"topics": results, "results": results, "responses": results}

    def ask(self, version: int, **body: Any) -> tuple[dict[str, int], int]:
        """The error of each topic, and the throttle time in ms."""
        call = call_of(self.key, version, {"timeout": 1000, **body})
        responding = self._handle(call)
        response = responding if isinstance(responding, dict) else asyncio.run(responding)
        read = decode_response(call.header, encode_response(call.header, response)[4:])
        for name in ("topics", "results", "responses"):
            if hasattr(read, name):
                codes = {each.name: each.error_code for each in getattr(read, name)}
        return codes, round(read.throttle_time.total_seconds() * 1000)

    def create(self, version: int = 7, *, check: bool = False, **sizes: int) -> Any:
        topics = [{"name": name, "num_partitions": size, **NEW} for name, size in sizes.items()]
        return self.ask(version, topics=topics, validate_only=check)


EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_topic_that_finds_the_bucket_overdrawn_is_refused_and_the_others_are_created():
    broker = Broker(ApiKey.CREATE_TOPICS)
    codes, delay_ms = broker.create(large=20, late=1)
    assert codes == {"large": 0, "late": EXCEEDED}
    assert broker.reached == ["large"]
    assert 8_000 < delay_ms <= 9_000
    codes, _ = broker.create(later=1)
    assert codes == {"later": EXCEEDED}
    assert broker.reached == ["large"]


def test_what_is_only_validated_is_not_limited():
    broker = Broker(ApiKey.CREATE_TOPICS)
    broker.create(large=20)
    assert broker.create(check=True, checked=50) == ({"checked": 0}, 0)
    assert "checked" in broker.reached


def test_a_topic_that_is_not_created_counts_for_nothing():
    broker = Broker(ApiKey.CREATE_TOPICS, {"there": ErrorCode.TOPIC_ALREADY_EXISTS})
    broker.create(there=20)
    assert broker.create(new=5) == ({"new": 0}, 0)


def test_a_topic_without_a_number_of_partitions_counts_as_many_as_it_gets():
    broker = Broker(ApiKey.CREATE_TOPICS)
    broker.create(a=-1)
    assert broker.create(b=5) == ({"b": 0}, 0)
    codes, _ = broker.create(c=1)
    assert codes == {"c": EXCEEDED}


def test_versions_that_do_not_know_the_error_are_accepted_and_throttled():
    broker = Broker(ApiKey.CREATE_TOPICS)
    broker.create(large=20)
    codes, delay_ms = broker.create(5, late=1)
    assert codes == {"late": 0}
    assert delay_ms > 8_000


def test_deleting_and_growing_count_the_partitions_of_the_topic():
    deleting = Broker(ApiKey.DELETE_TOPICS)
    names = ["old-1", "old-2", "missing"]
    assert deleting.ask(5, topic_names=names)[0] == {"old-1": 0, "old-2": EXCEEDED, "missing": 0}
    growing = Broker(ApiKey.CREATE_PARTITIONS)
    more = [{"name": name, "count": 60, "assignments": None} for name in names[:2]]
    assert growing.ask(3, topics=more, validate_only=False)[0] == {"old-1": 0, "old-2": EXCEEDED}
