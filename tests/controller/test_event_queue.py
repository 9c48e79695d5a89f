"""The queue of events, by itself and with the loop that empties it (section 4)."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.controller.event_queue import EventQueue
from klamm.controller.loop import Expire, Reelect
from klamm.core.events import (
    AlterPartition,
    ApiReassignment,
    AutoRebalance,
    BrokerChange,
    ControlledShutdown,
    ElectLeaders,
    LeaderAndIsrResponseReceived,
    ListReassignments,
    QueuedEvent,
    RequestedElection,
    StopReplicaResponseReceived,
    TopicChange,
    TopicDeletion,
    UpdateFeatures,
)
from klamm.zookeeper import znodes
from tests.support.candidate import Node, running


def queue_of(preempted: list[Any]) -> EventQueue:
    return EventQueue(lambda: 0.0, lambda queued: preempted.append(queued.event))


@pytest.mark.rule("EVT-2", "EVT-3")
def test_events_come_out_in_the_order_they_went_in_and_each_once():
    async def scenario() -> list[Any]:
        preempted: list[Any] = []
        queue = queue_of(preempted)
        for number in range(5):
            queue.put(number, cause="test")
        taken = [(await queue.take()).event for _ in range(5)]
        assert len(queue) == 0
        assert preempted == []
        return taken

    assert asyncio.run(scenario()) == [0, 1, 2, 3, 4]


def test_what_is_stale_is_dropped_and_nothing_else():
    async def scenario() -> None:
        preempted: list[Any] = []
        queue = queue_of(preempted)
        for number in range(6):
            queue.put(number, cause="test")
        queue.drop(lambda event: event in (1, 4))
        assert [(await queue.take()).event for _ in range(len(queue))] == [0, 2, 3, 5]
        assert preempted == []

    asyncio.run(scenario())


@pytest.mark.rule("EVT-3", "EVT-4", "EVT-5")
def test_clearing_preempts_what_waits_in_order_and_then_comes_the_reason():
    async def scenario() -> None:
        preempted: list[Any] = []
        queue = queue_of(preempted)
        for number in range(3):
            queue.put(number, cause="test")
        first = await queue.take()
        queue.clear_and_put("expire", cause="the session is lost")
        assert first.event == 0
        assert preempted == [1, 2]
        assert (await queue.take()).event == "expire"
        assert len(queue) == 0

    asyncio.run(scenario())


class Diary:
    """Writes down when events begin and end."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def begin(self, queued: QueuedEvent, epoch: int, at: float) -> None:
        self.lines.append(("begin", type(queued.event).__name__))

    def end(self, outcome: str, context: Any) -> None:
        self.lines.append(("end", outcome))

    @property
    def begun(self) -> list[str]:
        return [what for kind, what in self.lines if kind == "begin"]

    @property
    def is_between(self) -> bool:
        """Whether each event that has begun has ended."""
        return not self.lines or self.lines[-1][0] == "end"


@pytest.mark.rule("EVT-1", "EVT-2", "ELEC-8", "FAILOVER-2", "FAILOVER-3", "FAILOVER-10")
def test_one_event_is_handled_to_its_end_before_the_next_begins(tmp_path: Path):
    """A failover reads much; changes that happen meanwhile wait in the queue, and none is lost."""

    async def scenario(node: Node) -> None:
        diary = Diary()
        node.controller.observe(diary)
        await node.register(7, port=1)
        children = node.store.children
        changed = []

        async def children_while_things_change(path: str, *, watch: bool = False) -> list[str]:
            found = await children(path, watch=watch)
            if path == znodes.TOPICS and not changed:
                changed.append(path)
                topic = znodes.TopicAssignment(None, {0: [7]})
                await node.store.create(znodes.topic_path("late"), znodes.encode_topic(topic))
                await node.register(8, port=1)
            return found

        node.store.children = children_while_things_change  # type: ignore[method-assign]
        await node.controller.enter_election()
        await node.until(lambda: "BrokerChange" in diary.begun and "TopicChange" in diary.begun)
        await node.until(lambda: node.controller.context.cluster.topics.keys() == {"late"})
        await node.until(lambda: node.controller.context.cluster.brokers.keys() == {7, 8})
        kinds = [kind for kind, _ in diary.lines]
        assert kinds[: 2 * (len(kinds) // 2)] == ["begin", "end"] * (len(kinds) // 2)
        assert diary.begun[0] == "Startup"

    _run(tmp_path, scenario)


@pytest.mark.rule("ZK-24", "ZK-25", "FAILOVER-2", "FAILOVER-3", "FAILOVER-10", "FAILOVER-12")
def test_while_controller_every_change_becomes_its_event_again_and_again(tmp_path: Path):
    async def scenario(node: Node) -> None:
        diary = Diary()
        await node.register(7, port=1)
        topic = znodes.encode_topic(znodes.TopicAssignment(None, {0: [7]}))
        await node.controller.enter_election()
        await node.until(lambda: node.controller.context is not None)
        await node.until(lambda: [channel.broker.id for channel in node.channels] == [7])
        node.controller.observe(diary)
        store = node.store
        for number in range(2):
            path = znodes.topic_path(f"t{number}")
            registration = (await store.get(znodes.broker_path(7))).data
            changes = {
                "TopicChange": partial(store.create, path, topic),
                "PartitionModifications": partial(store.set, path, topic),
                "BrokerModifications": partial(store.set, znodes.broker_path(7), registration),
                "TopicDeletion": partial(store.create, znodes.delete_topic_path("nobody")),
                "IsrChangeNotification": partial(
                    store.create, f"{znodes.ISR_CHANGES}/isr_change_", b"{}", sequential=True
                ),
                "LogDirEventNotification": partial(
                    store.create, znodes.LOG_DIR_EVENT_PREFIX, b"{}", sequential=True
                ),
                "ZkReassignment": partial(
                    store.create,
                    znodes.REASSIGN_PARTITIONS,
                    znodes.encode_reassignment({("nobody", 0): [1]}),
                ),
                "ZkPreferredElection": partial(
                    store.create,
                    znodes.PREFERRED_ELECTION,
                    b'{"version":1,"partitions":[{"topic":"nobody","partition":0}]}',
                ),
                "BrokerChange": partial(node.register, 8 + number, port=1),
            }
            for event, change in changes.items():
                before = diary.begun.count(event)
                await change()
                await node.until(lambda e=event, n=before: diary.begun.count(e) > n)
                # Its watch is set again while it is handled.
                await node.until(lambda: len(node.controller.queue) == 0 and diary.is_between)

    _run(tmp_path, scenario)


@pytest.mark.rule("EVT-4", "EVT-6", "ELEC-15", "ELEC-16")
def test_a_lost_session_preempts_what_waits_and_ends_the_term(tmp_path: Path):
    async def scenario(node: Node) -> None:
        diary = Diary()
        await node.controller.enter_election()
        await node.until(lambda: node.controller.context is not None)
        node.controller.observe(diary)
        responses: dict[str, Any] = {}
        orders = ("orders", 0)
        for event in (
            TopicChange(),
            ControlledShutdown(1, 1),
            ApiReassignment({orders: [1]}),
            ListReassignments(None),
            ElectLeaders(RequestedElection.PREFERRED, [orders]),
            BrokerChange(),
            # Kafka sends no response to these two; klamm does (`not_controller_response`).
            AlterPartition(1, 1, 3, []),
            UpdateFeatures([]),
        ):
            name = type(event).__name__
            node.controller.submit(event, "test", partial(responses.__setitem__, name))
        # All of them are still queued, since nothing was awaited in between.
        await node.controller.expire("the session is lost")
        assert responses == {
            "ControlledShutdown": (11, []),
            "ApiReassignment": (41, {}),
            "ListReassignments": (41, {}),
            "ElectLeaders": {orders: (41, None, -1)},
            "AlterPartition": (41, []),
            "UpdateFeatures": (41, {}),
        }
        assert diary.begun == ["Expire"]
        assert node.controller.context is None
        assert not node.controller.is_active

    _run(tmp_path, scenario)


@pytest.mark.rule("CHAN-5", "RESIGN-1")
def test_the_end_of_a_term_takes_its_responses_and_its_timer_along(tmp_path: Path):
    async def scenario(node: Node) -> None:
        diary = Diary()
        await node.register(7, port=1)
        await node.controller.enter_election()
        await node.until(lambda: node.controller.context is not None)
        node.controller.observe(diary)
        for event in (
            Expire(),
            StopReplicaResponseReceived(7, 0, {}),
            AutoRebalance(),
            LeaderAndIsrResponseReceived(7, 0, {}, ()),
            TopicChange(),
        ):
            node.controller.queue.put(event, cause="test")
        await node.until(lambda: "TopicChange" in diary.begun)
        # Before it, the watch on its own election.
        assert diary.begun[-2:] == ["Expire", "TopicChange"]

    _run(tmp_path, scenario)


@pytest.mark.rule("EVT-7")
def test_without_the_role_only_the_role_matters(tmp_path: Path):
    async def scenario(node: Node) -> None:
        answers: list[Any] = []
        node.controller.submit(TopicDeletion(), "test", answers.append)
        node.controller.submit(ListReassignments(None), "test", answers.append)
        await node.until(lambda: len(answers) == 1)
        assert answers == [(41, {})]
        node.controller.queue.put(Reelect(), cause="test")
        await node.until(lambda: node.controller.is_active)
        node.controller.queue.put(Expire(), cause="test")
        await node.until(lambda: not node.controller.is_active)

    _run(tmp_path, scenario)


def _run(directory: Path, scenario: Any) -> None:
    async def main() -> None:
        async with running(directory) as node:
            await scenario(node)

    asyncio.run(main())
