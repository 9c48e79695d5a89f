"""A metadata log of Apache Kafka 3.9.1, and what it tells; `tests/data/kraft` has it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from klamm.history.kraft.directory import MetadataDirectory
from klamm.history.kraft.replay import MetadataReplay, MetadataSnapshot
from klamm.history.records import EventRecord
from klamm.protocol.fast.fetch import SnapshotId
from klamm.protocol.records import iterate_batches
from tests.support.metadata_log import SEGMENT

RECORDED = Path(__file__).parents[2] / "data" / "kraft"
CHECKPOINT = SnapshotId(64, 1)


@pytest.fixture
def replay() -> MetadataReplay:
    return MetadataReplay("cluster")


@pytest.fixture
def events(replay: MetadataReplay, tmp_path: Path) -> list[EventRecord]:
    """What the log tells, under the name that Kafka gave it."""
    shutil.copy(RECORDED / "segment.bin", tmp_path / SEGMENT)
    source = MetadataDirectory(tmp_path)
    source.check()
    found = []
    for each in source.read():
        assert not isinstance(each, MetadataSnapshot)
        found += replay.apply(each)
    return found


def decided(events: list[EventRecord], *kinds: str) -> list[tuple[Any, ...]]:
    return [
        (
            each.kinds[each.kind[at]],
            f"{each.topics[each.topic[at]]}-{each.partition[at]}",
            int(each.old_leader[at]),
            int(each.leader[at]),
            [broker for broker in each.isr[at].tolist() if broker >= 0],
        )
        for event in events
        for each in event.decisions
        for at in range(len(each))
        if each.kinds[each.kind[at]] in kinds
    ]


def test_elections(events: list[EventRecord]):
    kinds = ("clean", "unclean", "preferred", "controlled_shutdown", "reassignment", "none")
    assert decided(events, *kinds) == [
        ("none", "audit-0", 1, -1, [1]),
        ("clean", "orders-0", 1, 2, [2]),
        ("clean", "audit-0", -1, 1, [1]),
        ("preferred", "orders-0", 2, 1, [2, 1]),
        ("controlled_shutdown", "orders-1", 2, 3, [3]),
        ("none", "audit-0", 1, -1, [1]),
        ("clean", "orders-0", 1, 2, [2]),
        ("clean", "orders-1", 3, 2, [2]),
        ("clean", "orders-2", 3, 2, [2]),
        ("none", "risky-0", 3, -1, [3]),
        ("clean", "audit-0", -1, 1, [1]),
        ("unclean", "risky-0", -1, 1, [1]),
    ]


def test_changes_of_isrs(events: list[EventRecord]):
    assert decided(events, "replica_offline") == [
        # Broker 1 fails, broker 2 is stopped, broker 1 fails again.
        ("replica_offline", "orders-2", 3, 3, [3]),
        ("replica_offline", "risky-0", 3, 3, [3]),
        ("replica_offline", "orders-0", 1, 1, [1]),
        ("replica_offline", "orders-2", 3, 3, [3]),
        ("replica_offline", "risky-0", 3, 3, [3]),
    ]
    # Replicas come back, and orders-2 is moved from 1 to 2.
    assert sorted(decided(events, "isr_changed")) == [
        ("isr_changed", "orders-0", 1, 1, [1, 2]),
        ("isr_changed", "orders-0", 2, 2, [2, 1]),
        ("isr_changed", "orders-0", 2, 2, [2, 1]),
        ("isr_changed", "orders-1", 2, 2, [2, 3]),
        ("isr_changed", "orders-1", 3, 3, [3, 2]),
        ("isr_changed", "orders-2", 2, 2, [2, 3]),
        ("isr_changed", "orders-2", 3, 3, [3, 1]),
        ("isr_changed", "orders-2", 3, 3, [3, 2]),
        ("isr_changed", "orders-2", 3, 3, [3, 2]),
        ("isr_changed", "risky-0", 1, 1, [1, 3]),
        ("isr_changed", "risky-0", 3, 3, [3, 1]),
    ]


def test_brokers(events: list[EventRecord]):
    changes = [(each.broker, each.change) for event in events for each in event.broker_changes]
    assert sorted(changes[:3]) == [(1, "started"), (2, "started"), (3, "started")]
    assert changes[3:] == [
        (1, "failed"),
        (1, "started"),
        (2, "shutting_down"),
        (2, "failed"),
        (2, "started"),
        (1, "failed"),
        (3, "failed"),
        (1, "started"),
        (3, "started"),
        *((broker, "present") for broker in (1, 2, 3)),
    ]
    lost = [each.broker for event in events for each in event.lost if event.broker_changes]
    assert lost == [1, 1, 3]


def test_topics_and_moves(events: list[EventRecord]):
    changes = [
        (each.topic, each.change, each.partitions)
        for event in events
        for each in event.topic_changes
    ]
    assert changes == [
        ("orders", "created", 3),
        ("audit", "created", 1),
        ("risky", "created", 1),
        ("orders", "expanded", 1),
        ("audit", "deleted", 0),
    ]
    moves = [
        (each.topic, each.partition, each.phase, each.replicas)
        for event in events
        for each in event.moves
    ]
    assert [move[:3] for move in moves] == [("orders", 2, "started"), ("orders", 2, "completed")]
    assert moves[-1][3] == (3, 2)


def test_terms_and_numbers(events: list[EventRecord], replay: MetadataReplay):
    began = [(each.controller_epoch, each.controller) for each in events if each.term == "began"]
    assert began == [(1, 101), (2, 101)]
    for epoch in (1, 2):
        numbers = [each.seq for each in events if each.controller_epoch == epoch]
        assert numbers == [*range(1, len(numbers) + 1)]
    assert [each.at for each in events] == sorted(each.at for each in events)
    assert replay.unknown == {}
    assert replay.skipped["RegisterControllerRecord"] == 2


def test_a_checkpoint_holds_what_the_log_before_it_tells(
    events: list[EventRecord],
):
    later = MetadataReplay("cluster")
    content = (RECORDED / "checkpoint.bin").read_bytes()
    (began,) = later.load(MetadataSnapshot(CHECKPOINT, iterate_batches(content)))
    told = []
    for batch in iterate_batches((RECORDED / "segment.bin").read_bytes()):
        told += later.apply(batch)
    assert began.term == "began"
    assert told
    assert [(each.at, each.kind) for each in told] == [
        (each.at, each.kind) for each in events[-len(told) :]
    ]
    kinds = ("clean", "unclean", "none", "isr_changed", "replica_offline", "created")
    assert decided(told, *kinds) == decided(events[-len(told) :], *kinds)
    assert began.at < told[0].at
