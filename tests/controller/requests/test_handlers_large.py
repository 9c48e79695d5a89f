"""Requests that name very many topics: others get their turn, and ZooKeeper is asked in bulk.

The whole controller runs on a ZooKeeper in memory; its brokers are only registered.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm import slices
from klamm.controller.requests.handlers import ControllerRequests
from klamm.controller.requests.topics import TopicAdmin
from klamm.core.procedures.failover import on_controller_failover
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode as E
from klamm.zookeeper import znodes
from tests.support.candidate import Node, running
from tests.support.event_loop import in_loop
from tests.support.recorded_controller import history_config

MANY = 5000


class Counting:
    """A store that counts the operations asked of it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._store, name)


class Asked:
    """The requests of one controller; time is counted in turns of its event loop."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self.store = Counting(node.store)
        topics = TopicAdmin(
            history_config(directory),
            self.store,
            node.controller,
            node.interpreter,
            node.request_sender,
            random.Random(7),
        )
        self.requests = ControllerRequests(node.controller, self.store, topics)

    async def ask(self, key: ApiKey, version: int, **body: Any) -> Any:
        header = RequestHeader(key, version, 1, "test")
        frame = encode_request(header, body)[4:]
        return decode_response(header, (await self.requests.handle(frame))[4:])

    async def turns_during(self, key: ApiKey, version: int, **body: Any) -> tuple[Any, int]:
        """The response, and how often others had their turn until it came."""
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        header = RequestHeader(key, version, 1, "test")
        frame = encode_request(header, body)[4:]
        counting = asyncio.create_task(count())
        try:
            response = await self.requests.handle(frame)
        finally:
            counting.cancel()
        return decode_response(header, response[4:]), turns


@asynccontextmanager
async def controller(directory: Path) -> AsyncIterator[Asked]:
    async with running(directory) as node:
        await node.register(1, 9)
        await node.controller.enter_election()
        await node.until(lambda: node.controller.known_cluster is not None)
        yield Asked(node, directory)


def _partitions(count: int) -> list[dict[str, Any]]:
    return [{"name": f"t{n}", "count": 3, "assignments": None} for n in range(count)]


@in_loop
async def test_many_unknown_topics_are_looked_up_in_bulk(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1)
    async with controller(tmp_path) as asked:
        response, turns = await asked.turns_during(
            ApiKey.CREATE_PARTITIONS, 3, topics=_partitions(MANY), timeout=1000, validate_only=False
        )
        assert {each.error_code for each in response.results} == {E.UNKNOWN_TOPIC_OR_PARTITION}
        assert [each.name for each in response.results] == [f"t{n}" for n in range(MANY)]
        assert asked.store.asked.total() <= 2
        assert turns > MANY


@in_loop
async def test_many_new_topics_are_checked_in_bulk(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1)
    names = [f"t{n}" for n in range(MANY)]
    async with controller(tmp_path) as asked:
        response, turns = await asked.turns_during(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": name,
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for name in [*names, "twice", "twice", "a.b", "a_b"]
            ],
            timeout=1000,
            validate_only=True,
        )
        codes = {each.name: each.error_code for each in response.topics}
        assert {codes[name] for name in [*names, "a.b", "a_b"]} == {E.NONE}
        assert codes["twice"] == E.INVALID_REQUEST
        assert asked.store.asked.total() <= 2
        assert turns > MANY


@in_loop
async def test_many_topics_are_deleted_in_bulk_and_repeats_share_the_result(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1)
    async with controller(tmp_path) as asked:
        for n in range(10):
            await asked.node.store.create(
                znodes.topic_path(f"t{n}"),
                znodes.encode_topic(znodes.TopicAssignment(None, {0: [1]})),
            )
        cluster = asked.node.controller.known_cluster
        assert cluster is not None
        await asked.node.until(lambda: len(cluster.topics) == 10)
        asked.store.asked.clear()
        response, turns = await asked.turns_during(
            ApiKey.DELETE_TOPICS,
            5,
            topic_names=[f"t{n}" for n in range(10)] * (MANY // 10),
            timeout=0,
        )
        assert {each.error_code for each in response.responses} == {E.REQUEST_TIMED_OUT}
        assert len(response.responses) == MANY
        assert asked.store.asked.total() <= 2
        assert turns > MANY
        assert len(await asked.node.store.children(znodes.DELETE_TOPICS)) == 10


@in_loop
async def test_partitions_by_the_thousand_become_several_events(tmp_path: Path) -> None:
    async with controller(tmp_path) as asked:
        seen: list[str] = []

        class Seen:
            def begin(self, queued: Any, epoch: int, at: float) -> None:
                seen.append(type(queued.event).__name__)

            def end(self, outcome: str, context: Any) -> None:
                pass

        asked.node.controller.observe(Seen())
        partitions = list(range(MANY))
        elected = await asked.ask(
            ApiKey.ELECT_LEADERS,
            2,
            election_type=0,
            topic_partitions=[{"topic": "t", "partitions": partitions * 2}],
            timeout=1000,
        )
        moved = await asked.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            timeout=1000,
            topics=[
                {
                    "name": "t",
                    "partitions": [{"partition_index": p, "replicas": [1]} for p in partitions],
                }
            ],
        )
        listed = await asked.ask(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            0,
            timeout=1000,
            topics=[{"name": "t", "partition_indexes": partitions}],
        )
        (of_topic,) = elected.replica_election_results
        assert [each.partition_id for each in of_topic.partition_result] == partitions
        (moves,) = moved.responses
        assert [each.partition_index for each in moves.partitions] == partitions
        assert {each.error_code for each in moves.partitions} == {E.UNKNOWN_TOPIC_OR_PARTITION}
        assert listed.topics == ()
        events = MANY // 1000
        assert Counter(seen) == {
            "ElectLeaders": events,
            "ApiReassignment": events,
            "ListReassignments": events,
        }


@in_loop
async def test_nothing_at_all_is_asked_of_the_controller_too(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        response = await Asked(node, tmp_path).ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=[]
        )
        assert response.error_code == E.NOT_CONTROLLER


# While a new controller takes over


@asynccontextmanager
async def taking_over(directory: Path, monkeypatch) -> AsyncIterator[tuple[Asked, asyncio.Event]]:
    """A controller whose failover waits for the event before it reads anything."""
    may_read = asyncio.Event()
    async with running(directory) as node:
        run = node.interpreter.run

        async def held(procedure: Any, context: Any, queued: Any) -> None:
            if getattr(procedure, "__name__", "") == on_controller_failover.__name__:
                await may_read.wait()
            await run(procedure, context, queued)

        monkeypatch.setattr(node.interpreter, "run", held)
        await node.register(1, 9)
        await node.controller.enter_election()
        await node.until(lambda: node.controller.is_active)
        yield Asked(node, directory), may_read
        may_read.set()


def _new_topic() -> dict[str, Any]:
    return {
        "name": "new",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }


@in_loop
async def test_a_topic_is_created_once_the_new_controller_knows_its_brokers(
    tmp_path: Path, monkeypatch
) -> None:
    async with taking_over(tmp_path, monkeypatch) as (asked, may_read):
        creating = asyncio.create_task(
            asked.ask(
                ApiKey.CREATE_TOPICS, 7, topics=[_new_topic()], timeout=60_000, validate_only=True
            )
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(creating), 0.05)
        assert not creating.done()
        may_read.set()
        (created,) = (await creating).topics
        assert created.error_code == E.NONE


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (ApiKey.CREATE_TOPICS, 7, {"topics": [_new_topic()], "validate_only": False}),
        (
            ApiKey.CREATE_PARTITIONS,
            3,
            {"topics": [{"name": "t", "count": 2, "assignments": None}], "validate_only": False},
        ),
        (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["t"]}),
    ],
    ids=["CreateTopics", "CreatePartitions", "DeleteTopics"],
)
@in_loop
async def test_a_request_that_cannot_wait_for_the_new_controller_is_told_to_come_again(
    tmp_path: Path, monkeypatch, key: ApiKey, version: int, body: dict[str, Any]
) -> None:
    async with taking_over(tmp_path, monkeypatch) as (asked, _):
        response = await asked.ask(key, version, timeout=0, **body)
        (only,) = next(
            getattr(response, name)
            for name in ("topics", "results", "responses")
            if hasattr(response, name)
        )
        assert only.error_code == E.NOT_CONTROLLER
