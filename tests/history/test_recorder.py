"""The history: what is recorded of each event."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from klamm.core.effects import WriteOutcome
from klamm.core.events import (
    AlterPartition,
    ApiReassignment,
    AutoRebalance,
    BrokerChange,
    ControlledShutdown,
    IsrChangeNotification,
    PartitionModifications,
    PartitionProposal,
    StopReplicaResponseReceived,
    TopicChange,
    TopicDeletion,
)
from klamm.history.arrow import PART_DECISIONS_MAX, SCHEMA
from klamm.history.spool import read_spool
from klamm.zookeeper import znodes
from tests.support.candidate import running
from tests.support.procedure_store import TOPICS, state_path
from tests.support.recorded_controller import RecordedController


@pytest.fixture
def controller(tmp_path: Path):
    controller = RecordedController(tmp_path)
    yield controller
    controller.history.spool.close()


def active(controller: RecordedController, **topics: dict[int, list[int]]) -> RecordedController:
    """The same node, after it became controller and created topics."""
    controller.fail_over()
    for name, replicas in topics.items():
        controller.create_topic(name, replicas)
    controller.handle(TopicChange(), "watch on /brokers/topics")
    return controller


def lose(controller: RecordedController, *brokers: int) -> None:
    controller.lose(*brokers)
    controller.handle(BrokerChange(), "watch on /brokers/ids")


def decisions(controller: RecordedController, seq: int) -> list[dict[str, Any]]:
    return [d for row in controller.records() if row["seq"] == seq for d in row["decisions"]]


def decision(controller: RecordedController, seq: int) -> dict[str, Any]:
    (only,) = decisions(controller, seq)
    return only


def propose(
    controller: RecordedController, leader: int, isr: tuple[int, ...], leader_epoch: int = 0
) -> None:
    epoch = controller.registrations[leader].epoch
    partition_epoch = controller.version("orders")
    proposal = PartitionProposal("orders", None, 0, leader_epoch, isr, 0, partition_epoch)
    controller.handle(AlterPartition(leader, epoch, 3, [proposal]), f"request of broker {leader}")


def test_a_term_begins_with_sequence_one_and_ends_with_the_resignation(
    controller: RecordedController,
):
    active(controller)
    controller.resign()
    records = controller.records()
    assert [(r["controller_epoch"], r["seq"], r["term"]) for r in records] == [
        (1, 1, "began"),
        (1, 2, None),
        (1, 3, "ended"),
    ]
    assert [r["kind"] for r in records] == ["Elect", "TopicChange", "Resign"]
    assert {r["controller"] for r in records} == {1}


def test_each_term_counts_from_one_again(controller):
    controller.fail_over(epoch=4)
    controller.resign()
    controller.fail_over(epoch=6)
    assert [(r["controller_epoch"], r["seq"]) for r in controller.records()] == [
        (4, 1),
        (4, 2),
        (6, 1),
    ]


def test_nothing_is_recorded_outside_of_a_term(controller):
    controller.resign()
    assert controller.records() == []
    assert not controller.config.klamm_history_dir.exists()


def test_a_takeover_that_fails_halfway_is_recorded_with_its_epoch(controller):
    controller.fail_announcements()
    with pytest.raises(RuntimeError):
        controller.fail_over(epoch=9)
    controller.history.end("failed: no way to announce", None)
    (record,) = controller.records()
    assert (record["controller_epoch"], record["seq"]) == (9, 1)
    assert (record["term"], record["outcome"]) == ("ended", "failed: no way to announce")


def test_a_record_says_when_why_how_it_ended_and_how_long_each_phase_took(
    controller: RecordedController,
):
    active(controller, orders={0: [1, 2]})
    record = controller.records()[-1]
    assert record["cause"] == "watch on /brokers/topics"
    assert record["outcome"] == "done"
    assert record["at"].timestamp() == pytest.approx(
        controller.clock.now() - record["total_us"] / 1e6
    )
    # Two reads, one write and one announcement of a millisecond each, after five in the queue.
    assert record["queued_us"] == pytest.approx(5000, abs=2)
    assert (record["reading_us"], record["writing_us"]) == (2000, 1000)
    assert record["announcing_us"] == 1000
    assert record["total_us"] == pytest.approx(4000, abs=2)
    assert record["deciding_us"] == pytest.approx(0, abs=2)
    assert record["announced_after_us"] == pytest.approx(4000, abs=2)


def test_the_event_that_asked_for_another_is_named(controller):
    active(controller)
    ((rebalance, _),) = controller.scheduled
    controller.handle(rebalance, "timer")
    controller.handle(AutoRebalance(), "timer")
    assert [r["caused_by"] for r in controller.records()] == [None, None, 1, None]


def test_a_failed_event_is_recorded_with_what_was_decided_before_it_failed(
    controller: RecordedController,
):
    controller.fail_over()
    controller.create_topic("orders", {0: [1, 2]})
    controller.fail_announcements()
    controller.handle(TopicChange())
    record = controller.records()[-1]
    assert record["outcome"].startswith("failed: RuntimeError")
    assert [d["kind"] for d in record["decisions"]] == ["created"]


# Decisions


def test_a_created_partition_has_no_past(controller):
    active(controller, orders={0: [2, 1, 3]})
    assert decision(controller, 2) == {
        "topic": "orders",
        "partition": 0,
        "kind": "created",
        "outcome": "done",
        "old_leader": -1,
        "old_leader_epoch": -1,
        "old_isr": [],
        "old_state": "new",
        "leader": 2,
        "leader_epoch": 0,
        "isr": [2, 1, 3],
        "state": "online",
        "replicas": [2, 1, 3],
    }


def test_a_clean_election_shows_before_and_after(controller):
    active(controller, orders={0: [1, 2, 3]})
    lose(controller, 1)
    assert decision(controller, 3) == {
        "topic": "orders",
        "partition": 0,
        "kind": "clean",
        "outcome": "done",
        "old_leader": 1,
        "old_leader_epoch": 0,
        "old_isr": [1, 2, 3],
        "old_state": "offline",
        "leader": 2,
        "leader_epoch": 1,
        "isr": [2, 3],
        "state": "online",
        "replicas": [1, 2, 3],
    }


def test_a_follower_that_goes_offline_leaves_the_isr(controller):
    active(controller, orders={0: [1, 2, 3]})
    lose(controller, 3)
    left = decision(controller, 3)
    assert (left["kind"], left["leader"], left["isr"]) == ("replica_offline", 1, [1, 2])
    assert (left["old_state"], left["state"]) == ("online", "online")


def test_a_partition_without_a_candidate_is_recorded_as_left_without_a_leader(
    controller: RecordedController,
):
    active(controller, orders={0: [1]})
    lose(controller, 1)
    offline, nobody = decisions(controller, 3)
    assert (offline["kind"], offline["leader"], offline["isr"]) == ("replica_offline", -1, [1])
    assert nobody["kind"] == "none"
    assert (nobody["old_leader"], nobody["leader"]) == (1, -1)
    assert (nobody["old_leader_epoch"], nobody["leader_epoch"]) == (0, 1)
    assert (nobody["old_isr"], nobody["isr"]) == ([1], [1])
    assert (nobody["old_state"], nobody["state"]) == ("online", "offline")


def test_a_partition_stays_without_a_leader_only_once(controller):
    active(controller, orders={0: [1]})
    lose(controller, 1)
    lose(controller, 3)
    assert [d["kind"] for d in decisions(controller, 4)] == []


def test_a_successor_says_again_who_has_no_leader(controller):
    active(controller, orders={0: [1]})
    lose(controller, 1)
    controller.resign()
    controller.fail_over(epoch=2)
    record = controller.records()[-1]
    nobody = record["decisions"][-1]
    assert (nobody["kind"], nobody["old_leader"], nobody["leader"]) == ("none", -1, -1)


def test_a_partition_created_without_a_live_replica_has_no_leader_from_the_start(
    controller: RecordedController,
):
    active(controller, orders={0: [7]})
    nobody = decision(controller, 2)
    assert (nobody["kind"], nobody["old_state"], nobody["state"]) == ("none", "new", "new")


@pytest.mark.rule("LEAD-7")
def test_an_unclean_election_is_flagged(controller):
    active(controller, orders={0: [1, 2]})
    lose(controller, 2)
    lose(controller, 1)
    controller.allow_unclean_elections("orders")
    controller.register(2)
    controller.handle(BrokerChange())
    elected = decision(controller, 5)
    assert (elected["kind"], elected["leader"], elected["isr"]) == ("unclean", 2, [2])
    assert elected["old_isr"] == [1]


def test_clean_and_unclean_elections_of_one_event_are_told_apart(controller):
    active(controller, orders={0: [1, 2, 3], 1: [1, 2, 3]})
    epoch = controller.registrations[1].epoch
    proposal = PartitionProposal("orders", None, 1, 0, (1,), 0, 0)
    controller.handle(AlterPartition(1, epoch, 3, [proposal]))
    controller.allow_unclean_elections("orders")
    lose(controller, 1)
    assert [(d["partition"], d["kind"]) for d in decisions(controller, 4)] == [
        (0, "clean"),
        (1, "unclean"),
    ]


def test_a_leader_that_changes_its_isr_is_named_with_the_change(controller):
    active(controller, orders={0: [1, 2, 3]})
    propose(controller, 1, (1, 2))
    changed = decision(controller, 3)
    assert (changed["kind"], changed["old_isr"], changed["isr"]) == (
        "isr_changed",
        [1, 2, 3],
        [1, 2],
    )
    assert controller.records()[-1]["brokers"] == [1]


def test_an_isr_that_an_old_leader_wrote_itself_is_seen_when_it_is_read(
    controller: RecordedController,
):
    controller.settings.alter_partition = False
    active(controller, orders={0: [1, 2, 3], 1: [1, 2, 3]})
    controller.put_state("orders", 0, leader=1, isr=[1, 3], version=1)
    controller.notify_isr_change(("orders", 0), ("orders", 1))
    controller.handle(IsrChangeNotification())
    changed = decision(controller, 3)
    assert (changed["partition"], changed["kind"], changed["isr"]) == (0, "isr_changed", [1, 3])


def test_preferred_elections_and_handovers_have_their_own_kinds(controller):
    active(controller, orders={0: [1, 2]})
    controller.handle(ControlledShutdown(1, controller.registrations[1].epoch))
    assert decision(controller, 3)["kind"] == "controlled_shutdown"
    lose(controller, 1)
    controller.register(1)
    controller.handle(BrokerChange())
    propose(controller, 2, (2, 1), leader_epoch=decision(controller, 3)["leader_epoch"])
    controller.handle(AutoRebalance())
    kinds = [(d["kind"], d["leader"]) for d in decisions(controller, 7)]
    assert kinds == [("preferred", 1)]


def test_a_write_that_lost_is_recorded_beside_the_one_that_won(controller):
    active(controller, orders={0: [1, 2, 3]})
    controller.faults.refuse[state_path("orders", 0)] = [WriteOutcome.BAD_VERSION]
    lose(controller, 1)
    lost, won = decisions(controller, 3)
    assert (lost["outcome"], lost["state"]) == ("bad_version", "offline")
    assert (won["outcome"], won["state"]) == ("done", "online")


def test_many_decisions_are_divided_among_parts_of_one_event(controller):
    count = PART_DECISIONS_MAX + 10
    active(controller, orders={p: [1 + p % 3] for p in range(count)})
    parts = [r for r in controller.records() if r["seq"] == 2]
    assert [(r["part"], r["parts"]) for r in parts] == [(0, 2), (1, 2)]
    assert [len(r["decisions"]) for r in parts] == [PART_DECISIONS_MAX, 10]
    assert [d["partition"] for r in parts for d in r["decisions"]] == list(range(count))
    assert {r["kind"] for r in parts} == {"TopicChange"}
    assert [len(r["topic_changes"]) for r in parts] == [1, 0]


def test_replica_lists_of_different_lengths_share_a_batch(controller):
    active(controller, short={0: [3]}, long={0: [1, 2, 3]})
    lose(controller, 3)
    assert [(d["topic"], d["isr"]) for d in decisions(controller, 2)] == [
        ("long", [1, 2, 3]),
        ("short", [3]),
    ]


# Brokers, topics and moves


def changes(controller: RecordedController, column: str) -> list[tuple[Any, ...]]:
    return [
        (row["seq"], *change.values()) for row in controller.records() for change in row[column]
    ]


def test_broker_sessions_are_recorded_with_their_epochs(controller):
    controller.fail_over()
    lose(controller, 3)
    controller.register(3)
    controller.handle(BrokerChange())
    controller.register(2)
    controller.handle(BrokerChange())
    controller.handle(ControlledShutdown(1, controller.registrations[1].epoch))
    assert changes(controller, "broker_changes") == [
        (1, 1, "present", 101),
        (1, 2, "present", 102),
        (1, 3, "present", 103),
        (2, 3, "failed", 103),
        (3, 3, "started", 104),
        (4, 2, "bounced", 105),
        (5, 1, "shutting_down", 101),
    ]


def test_the_life_of_a_topic_is_recorded(controller):
    active(controller, orders={0: [1, 2]})
    controller.expand_topic("orders", {1: [2, 1]})
    controller.handle(PartitionModifications("orders"))
    lose(controller, 2)
    controller.request_deletion("orders")
    controller.handle(TopicDeletion())
    controller.register(2)
    controller.handle(BrokerChange())
    for broker in (1, 2):
        errors = dict.fromkeys([("orders", 0), ("orders", 1)], 0)
        controller.handle(StopReplicaResponseReceived(broker, 0, errors))
    assert changes(controller, "topic_changes") == [
        (2, "orders", "created", 1),
        (3, "orders", "expanded", 1),
        (5, "orders", "deletion_paused", 2),
        (6, "orders", "deletion_started", 2),
        (8, "orders", "deleted", 0),
    ]


def test_a_topic_that_somebody_else_removed_has_vanished(controller):
    active(controller, orders={0: [1, 2]})
    for path in [path for path in controller.nodes if path.startswith(f"{TOPICS}/orders")]:
        controller.delete(path)
    controller.handle(TopicChange())
    assert changes(controller, "topic_changes")[-1] == (3, "orders", "vanished", 0)


def test_a_reassignment_is_recorded_from_its_start_to_its_end(controller):
    controller.register(4)
    active(controller, orders={0: [1, 2, 3]})
    controller.handle(ApiReassignment({("orders", 0): [4, 2, 3]}))
    propose(controller, 1, (1, 2, 3, 4), leader_epoch=1)
    assert changes(controller, "moves") == [
        (3, "orders", 0, "started", [4, 2, 3, 1], [4], [1]),
        (4, "orders", 0, "completed", [4, 2, 3], [4], [1]),
    ]
    kinds = [d["kind"] for seq in (3, 4) for d in decisions(controller, seq)]
    assert kinds == ["epoch_raised", "isr_changed", "reassignment", "replica_offline"]


def test_a_reassignment_can_be_replaced_cancelled_and_found_by_a_successor(
    controller: RecordedController,
):
    controller.register(4)
    controller.register(5)
    active(controller, orders={0: [1, 2, 3]})
    controller.handle(ApiReassignment({("orders", 0): [4, 2, 3]}))
    controller.handle(ApiReassignment({("orders", 0): [5, 2, 3]}))
    controller.resign()
    controller.fail_over(epoch=2)
    controller.handle(ApiReassignment({("orders", 0): None}))
    phases = [(phase, adding) for _, _, _, phase, _, adding, _ in changes(controller, "moves")]
    assert phases == [("started", [4]), ("replaced", [5]), ("present", [5]), ("cancelled", [5])]


# Around it


def test_a_real_candidate_records_its_term(tmp_path: Path):
    async def scenario() -> None:
        async with running(tmp_path) as node:
            # Nobody listens there; the channel to it tries, and the controller does not wait.
            await node.register(2, port=1)
            topic = znodes.TopicAssignment(None, {0: [2]})
            await node.store.create(znodes.topic_path("orders"), znodes.encode_topic(topic))
            await node.controller.enter_election()
            await node.until(lambda: node.controller.context is not None)
            await node.until(lambda: len(node.controller.queue) == 0)
            await node.store.delete(znodes.broker_path(2))
            offline = "kafka_controller_KafkaController_OfflinePartitionsCount"
            await node.until(lambda: node[offline] == 1)

    asyncio.run(scenario())
    began, failure = (
        row
        for batch in read_spool(tmp_path / "history")
        for row in batch.to_pylist()
        if row["kind"] in ("Startup", "BrokerChange")
    )
    assert (began["term"], began["cause"]) == ("began", "broker registered")
    assert [d["kind"] for d in began["decisions"]] == ["created"]
    assert failure["cause"] == "watch on /brokers/ids"
    assert failure["broker_changes"][0]["change"] == "failed"
    assert [d["kind"] for d in failure["decisions"]] == ["replica_offline", "none"]


def test_a_node_that_is_never_controller_never_imports_pyarrow():
    code = (
        "import sys, klamm.history.recorder, klamm.history.spool\n"
        "sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_documented_schema_is_the_one_that_is_written():
    text = Path("docs/history.md").read_text()
    for field in SCHEMA:
        assert f"| `{field.name}` |" in text
        inner = field.type.value_type if hasattr(field.type, "value_type") else None
        for name in getattr(inner, "names", []):
            assert f"| `{field.name}.{name}` |" in text
