"""Sums and casualties against a loop over all scenarios, partitions and the election's own twin."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.columns import padded, unpad
from klamm.errors import ConfigError
from klamm.pipeline.arrow import PartitionColumns
from klamm.pipeline.whatif.whatif import (
    OUTCOMES,
    SUMS,
    Failures,
    broker_failures,
    find_casualties,
    merge_terms,
    named_failure,
    rack_failures,
    scenario_sums,
    sum_terms,
)

ALIVE = range(1, 6)
RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: None}


@st.composite
def partition(draw):
    """Brokers 1 to 5 are alive, 6 is down."""
    replicas = draw(st.permutations(range(1, 7)))[: draw(st.integers(1, 4))]
    isr = draw(st.lists(st.sampled_from(replicas), unique=True, min_size=1))
    leader = draw(st.sampled_from([*isr, -1]))
    return replicas, isr, leader, draw(st.integers(1, 3)), draw(st.booleans())


def columns_of(rows) -> PartitionColumns:
    replicas, isr, leader, min_isr, unclean = zip(*rows, strict=True)
    return PartitionColumns(
        padded(replicas),
        padded(isr),
        np.array(leader, np.int32),
        np.array(min_isr, np.int32),
        np.array(unclean, np.bool_),
    )


def outcome_of(row, failed):
    """How one partition ends: outcome, leader, ISR."""
    replicas, isr, leader, min_isr, unclean = row
    alive = [broker for broker in replicas if broker in ALIVE and broker not in failed]
    left = [broker for broker in isr if broker in alive]
    if leader not in alive:
        clean = [broker for broker in alive if broker in isr]
        if not clean and unclean and alive:
            return "unclean", alive[0], [alive[0]]
        if not clean:
            last = [broker for broker in isr if broker == max(isr)]
            return "leaderless", -1, last
        leader = clean[0]
    return ("below_min_isr" if len(left) < min_isr else "fine"), leader, left


def expected(rows, failures: Failures):
    """Sums and casualties of every scenario, one by one."""
    sums, casualties = {}, []
    for units in combinations(range(len(failures.units)), failures.together):
        name, failed = failures.name(units), failures.failed(units)
        total: Counter = Counter()
        for number, row in enumerate(rows):
            outcome, leader, isr = outcome_of(row, failed)
            synced = [b for b in row[0] if b in ALIVE] or row[0]
            ideal, ideal_leader, _ = outcome_of((row[0], synced, *row[2:]), failed)
            total[outcome] += 1
            total[f"{ideal}_in_sync"] += 1
            total["leaders_moved"] += leader not in (row[2], -1)
            total["leaders_moved_in_sync"] += ideal_leader not in (row[2], -1)
            total[leader] += 1
            if outcome != "fine":
                changed = outcome != outcome_of(row, [])[0]
                casualties.append((name, number, outcome, leader, tuple(isr), changed))
        sums[name] = [total[each] for each in (*SUMS, *failures.brokers)]
    return sums, casualties


@pytest.mark.parametrize(
    "failures",
    [
        broker_failures(RACKS, 1),
        broker_failures(RACKS, 2),
        broker_failures(RACKS, 4),
        rack_failures(RACKS, 1),
        rack_failures(RACKS, 2),
        named_failure(RACKS, "brokers", ["5", "1", "2"]),
        named_failure(RACKS, "racks", ["b"]),
    ],
    ids=lambda failures: f"{failures.kind}:{failures.together} of {len(failures.units)}",
)
@settings(max_examples=25)
@given(st.lists(partition(), min_size=1, max_size=8))
def test_every_scenario_is_as_if_it_had_been_tried_alone(failures, rows):
    sums, casualties = expected(rows, failures)
    columns, sets = columns_of(rows), failures.sets()
    names = [failures.name(units) for units in sets.tolist()]
    halves = [sum_terms(failures, columns_of([row])) for row in rows]
    for terms in (sum_terms(failures, columns), merge_terms(halves)):
        found = scenario_sums(failures, sets, terms)
        assert dict(zip(names, found.tolist(), strict=True)) == sums
    listed = [
        (names[scenario], row, OUTCOMES[outcome], leader, tuple(unpad(isr)), changed)
        for each in find_casualties(failures, sets, columns, cells_max=7)
        for scenario, row, outcome, leader, isr, changed in zip(
            each.scenario.tolist(),
            each.row.tolist(),
            each.outcome.tolist(),
            each.leader.tolist(),
            each.isr,
            each.changed.tolist(),
            strict=True,
        )
    ]
    # Which failed member of an ISR is left when all of them are gone depends on who went before.
    assert sorted(each[:4] for each in listed) == sorted(each[:4] for each in casualties)
    assert {(*each[:2], each[4], each[5]) for each in listed if each[2] != "leaderless"} == {
        (*each[:2], each[4], each[5]) for each in casualties if each[2] != "leaderless"
    }


def test_scenarios_are_named_by_ascending_ids():
    failures = broker_failures({10: None, 9: None, 2: None}, 2)
    names = [failures.name(units) for units in failures.sets().tolist()]
    assert names == ["brokers:2,9", "brokers:2,10", "brokers:9,10"]
    named = named_failure({10: None, 9: None, 2: None}, "brokers", ["10", "9", "10"])
    assert named.name([0]) == "brokers:9,10"
    assert named.failed([0]) == [9, 10]


def test_a_broker_without_a_rack_fails_with_no_rack():
    failures = rack_failures(RACKS, 2)
    assert failures.failed([0, 1]) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: broker_failures(RACKS, 6), "6 of 5 brokers cannot fail together"),
        (lambda: rack_failures(RACKS, 3), "3 of 2 racks cannot fail together"),
        (lambda: rack_failures({1: None}, 1), "No broker of the snapshot has a rack"),
        (lambda: named_failure(RACKS, "brokers", ["7"]), "no broker 7; it has 1, 2, 3, 4, 5"),
        (lambda: named_failure(RACKS, "racks", ["z"]), "no rack z; it has a, b"),
        (lambda: broker_failures(dict.fromkeys(range(100)), 5), "75,287,520 sets of 5 out of 100"),
    ],
)
def test_failures_that_cannot_be_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
