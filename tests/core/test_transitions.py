import re
from pathlib import Path

import numpy as np
import pytest

from klamm.core.transitions import (
    PARTITION_ENTERED_FROM,
    PARTITION_LEGAL,
    REPLICA_ENTERED_FROM,
    REPLICA_LEGAL,
    PartitionState,
    ReplicaState,
    is_valid_partition_change,
    is_valid_replica_change,
)

SPECIFICATION = Path(__file__).parents[2] / "docs" / "spec" / "controller.md"


def table_lines(heading):
    """The lines of the specification's table under `heading`: name, code, previous states."""
    section = SPECIFICATION.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (\w+) \((\d)\) \| ([\w, ]+?) \|", section, re.MULTILINE)
    return [(name, int(code), previous.split(", ")) for name, code, previous in lines]


PARTITION_LINES = table_lines("6. Partition state machine")
REPLICA_LINES = table_lines("7. Replica state machine")


def state(states, name):
    """The state that the specification calls, say, `ReplicaDeletionStarted` or `New`."""
    words = re.findall("[A-Z][a-z]+", re.sub("^Replica|(Partition|Replica)$", "", name))
    return states["_".join(words).upper()]


@pytest.mark.parametrize("line", PARTITION_LINES, ids=[name for name, *_ in PARTITION_LINES])
def test_a_partition_state_is_entered_as_the_specification_says(line):
    name, code, previous = line
    target = state(PartitionState, name)
    assert target == code
    assert PARTITION_ENTERED_FROM[target] == {state(PartitionState, each) for each in previous}


@pytest.mark.parametrize("line", REPLICA_LINES, ids=[name for name, *_ in REPLICA_LINES])
def test_a_replica_state_is_entered_as_the_specification_says(line):
    name, code, previous = line
    target = state(ReplicaState, name)
    assert target == code
    assert REPLICA_ENTERED_FROM[target] == {state(ReplicaState, each) for each in previous}


def test_the_specification_has_a_line_for_every_state():
    assert [code for _, code, _ in PARTITION_LINES] == list(PartitionState) == list(range(4))
    assert [code for _, code, _ in REPLICA_LINES] == list(ReplicaState) == list(range(1, 8))


def test_one_lookup_separates_the_partitions_that_may_move():
    every = np.array(PartitionState, np.int8)
    for target in PartitionState:
        expected = [current in PARTITION_ENTERED_FROM[target] for current in PartitionState]
        assert is_valid_partition_change(every, target).tolist() == expected


def test_one_lookup_separates_the_replicas_that_may_move():
    every = np.array(ReplicaState, np.int8)
    for target in ReplicaState:
        expected = [current in REPLICA_ENTERED_FROM[target] for current in ReplicaState]
        assert is_valid_replica_change(every, target).tolist() == expected


def test_a_slot_without_a_replica_moves_nowhere():
    assert not REPLICA_LEGAL[0].any()


@pytest.mark.rule("VER-33")
def test_a_paused_deletion_can_come_back_and_need_not_have_started():
    paused = np.array([ReplicaState.DELETION_INELIGIBLE], np.int8)
    assert is_valid_replica_change(paused, ReplicaState.ONLINE).all()
    assert is_valid_replica_change(paused, ReplicaState.OFFLINE).all()
    offline = np.array([ReplicaState.OFFLINE], np.int8)
    assert is_valid_replica_change(offline, ReplicaState.DELETION_INELIGIBLE).all()


@pytest.mark.parametrize("table", [PARTITION_LEGAL, REPLICA_LEGAL])
def test_the_tables_cannot_be_changed(table):
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = True
