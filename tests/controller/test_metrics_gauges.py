"""The gauges that follow from the controller's state."""

import pytest

from klamm.controller.metrics import Gauges, gauges
from klamm.core import events
from tests.support.procedure_world import steady


@pytest.mark.rule("MET-1", "EVT-9")
def test_without_the_role_every_gauge_is_zero() -> None:
    assert gauges(None) == Gauges()
    assert set(vars_of(gauges(None)).values()) == {0}


def vars_of(counted: Gauges) -> dict[str, int]:
    return {name: getattr(counted, name) for name in Gauges.__slots__}


@pytest.mark.rule("EVT-9")
def test_topics_partitions_and_brokers_are_counted() -> None:
    world = steady([1, 2], {"t": {0: [1, 2], 1: [9]}, "u": {0: [2, 1]}})
    counted = gauges(world.cluster)
    assert counted.active_controller_count == 1
    assert counted.global_topic_count == 2
    assert counted.global_partition_count == 2  # one has never had a leader
    assert counted.active_broker_count == 2
    world.ask(events.ControlledShutdown(1, world.registrations[1].epoch))
    assert gauges(world.cluster).active_broker_count == 2


def test_offline_partitions_are_counted_unless_their_deletion_has_started() -> None:
    world = steady([1, 2], {"t": {0: [1]}, "u": {0: [1]}})
    world.lose(1)
    world.settle()
    assert gauges(world.cluster).offline_partitions_count == 2
    world.request_deletion("u")
    world.settle()
    assert gauges(world.cluster).offline_partitions_count == 1


def test_deletions_are_counted_by_how_far_they_are() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.lose(3)
    world.settle()
    world.silent.add(1)
    world.request_deletion("t")
    world.settle()
    counted = gauges(world.cluster)
    assert counted.topics_to_delete_count == 1
    assert counted.topics_ineligible_to_delete_count == 1
    assert counted.replicas_to_delete_count == 2
    assert counted.replicas_ineligible_to_delete_count == 1


@pytest.mark.rule("MET-3")
def test_a_partition_led_by_another_than_its_preferred_replica_is_imbalanced() -> None:
    world = steady([1, 2], {"t": {0: [1, 2], 1: [2, 1]}})
    assert gauges(world.cluster).preferred_replica_imbalance_count == 0
    world.lose(1)
    world.settle()
    assert gauges(world.cluster).preferred_replica_imbalance_count == 1
    world.lose(2)
    world.settle()
    assert gauges(world.cluster).preferred_replica_imbalance_count == 2


@pytest.mark.rule("MET-3")
def test_a_preferred_replica_that_is_being_added_counts_once_it_is_in_sync() -> None:
    world = steady([1, 2, 3, 4], {"t": {0: [1, 2]}})
    world.ask(events.ApiReassignment({("t", 0): [3, 4]}))
    assert gauges(world.cluster).preferred_replica_imbalance_count == 0
    world.report_isr("t", [1, 2, 3])
    assert gauges(world.cluster).preferred_replica_imbalance_count == 1
    world.report_isr("t", [1, 2, 3, 4])
    assert gauges(world.cluster).preferred_replica_imbalance_count == 0


@pytest.mark.rule("MET-4")
def test_a_topic_that_vanishes_takes_its_imbalance_along() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.lose(1)
    world.settle()
    world.cluster.remove_topic("t")
    assert gauges(world.cluster).preferred_replica_imbalance_count == 0
