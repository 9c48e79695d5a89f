"""The invariants notice what is wrong."""

from collections.abc import Callable

import numpy as np
import pytest

from klamm.core import events
from klamm.core.cluster import ClusterState, LeaderAndIsrs
from klamm.core.columns import padded
from klamm.core.invariants import regressions, violations
from klamm.core.transitions import PartitionState, ReplicaState
from tests.support.procedure_world import steady


def healthy() -> ClusterState:
    world = steady([1, 2, 3], {"t": {0: [1, 2], 1: [2, 1]}, "u": {0: [3, 1]}})
    world.ask(events.ApiReassignment({("t", 0): [2, 3]}))
    assert violations(world.cluster) == []
    return world.cluster


def _set(column: str, row: int, value: object) -> Callable[[ClusterState], None]:
    def act(cluster: ClusterState) -> None:
        getattr(cluster, column)[row] = value

    return act


WRONG: dict[str, Callable[[ClusterState], object]] = {
    "an unknown broker is shutting down": lambda c: c.shutting_down.add(9),
    "an unknown broker has lost a directory": lambda c: c.offline_dirs.update({9: set()}),
    "a directory was lost with a partition": lambda c: c.offline_dirs.update({1: {50}}),
    "paused that is not queued": lambda c: c.ineligible_for_deletion.add("t"),
    "started that is not queued": lambda c: c.deletion_started.add("t"),
    "unknown topic is still queued": lambda c: c.queued_for_deletion.add("x"),
    "unknown partition is being reassigned": lambda c: c.being_reassigned.add(50),
    "without a reassignment": lambda c: c.being_reassigned.clear(),
    "left behind on their way out": lambda c: c.leaving.update({(1, 9): ReplicaState.OFFLINE}),
    "ids and names do not match": lambda c: c.topic_names.pop("id-of-t"),
    "is not where it says it is": lambda c: setattr(c.topics["t"], "name", "x"),
    "lists rows of others": _set("topic_of", 0, 1),
    "partitions mixed up": _set("partition", 1, 7),
    "rows without a topic": _set("topic_of", 40, 0),
    "partitions out of order": lambda c: c.topics["t"].numbers.__setitem__(1, -1),
    "replicas are not a list": _set("replicas", 1, [2, 2, -1]),
    "does not exist has a state": _set("replica_state", 1, [2, 2, 2]),
    "comes and goes at once": lambda c: c.removing.update({0: (3,)}),
    "that is not in the list": lambda c: c.adding.update({0: (9,)}),
    "online without ever having had a leader": _set("has_leadership", 1, False),
    "the ISR are not a list": _set("isr", 1, [2, -1, 1]),
    "an empty ISR": _set("isr", 1, [-1, -1, -1]),
    "a leader that is not in sync": _set("leader", 1, 3),
    "decided by a later controller": _set("decided_in", 1, 99),
    "imbalanced partitions is off": _set("imbalanced", 1, True),
    "offline partitions is off": lambda c: setattr(c, "offline_count", 5),
    "partitions with leadership is off": lambda c: setattr(c, "led_count", 0),
}


@pytest.mark.parametrize("words", WRONG)
def test_each_violation_is_noticed(words: str) -> None:
    cluster = healthy()
    WRONG[words](cluster)
    assert any(words in text for text in violations(cluster)), violations(cluster)


def test_an_offline_partition_may_have_no_leader() -> None:
    cluster = healthy()
    cluster.set_state(np.array([1], np.int32), PartitionState.OFFLINE)
    cluster.leader[1] = -1
    assert violations(cluster) == []


def _states(leader: int, epoch: int, version: int) -> LeaderAndIsrs:
    one = np.ones(1, np.int32)
    return LeaderAndIsrs(
        np.zeros(1, np.int32),
        one * leader,
        one * epoch,
        padded([[1, 2]]),
        np.zeros(1, np.int8),
        one,
        one * version,
    )


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (_states(1, 5, 5), None),
        (_states(1, 5, 6), None),
        (_states(2, 6, 6), None),
        (_states(2, 5, 6), "two leaders"),
        (_states(1, 4, 6), "went back"),
        (_states(1, 5, 4), "went back"),
    ],
)
def test_what_was_true_before_is_not_taken_back(after: LeaderAndIsrs, words: str | None) -> None:
    found = regressions(_states(1, 5, 5), after)
    assert found == [] if words is None else words in found[0]
