import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.assignment import (
    AssignmentError,
    AssignmentRefusal,
    alternate_racks,
    assign_more_replicas,
    assign_replicas,
)
from tests.support.strategies import broker_lists

SPECIFICATION = Path(__file__).parents[2] / "docs" / "spec" / "controller.md"


def worked_examples():
    """The results of the specification's examples: number -> partition -> replicas.

    An example with several results has them under `E11`, `E11'` and so on.
    """
    section = SPECIFICATION.read_text().split("\n## 17. Replica assignment\n")[1]
    block = section.split("```")[1]
    examples = {}
    for number, text in re.findall(r"^(E\d+)(.*?)(?=^E|\Z)", block, re.MULTILINE | re.DOTALL):
        name = number
        for partition, replicas in re.findall(r"(\d+):\[([\d,]+)\]", text):
            if int(partition) in examples.get(name, {}):
                name += "'"
            row = [int(replica) for replica in replicas.split(",")]
            examples.setdefault(name, {})[int(partition)] = row
    return examples


EXAMPLES = worked_examples()

SIX_IN_THREE_RACKS = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}
UNEVEN_RACKS = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "c"}
FOUR_IN_TWO_RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}


def no_racks(*brokers):
    return dict.fromkeys(brokers)


# The scalar twins: one partition, and one candidate, after the other.


def assign_twin(brokers, partitions, factor, start, shift, first_partition):
    n, rows = len(brokers), []
    for p in range(first_partition, first_partition + partitions):
        shift += p > 0 and p % n == 0
        first = (p + start) % n
        followers = [(first + 1 + (shift + j) % (n - 1)) % n for j in range(factor - 1)]
        rows.append([brokers[place] for place in (first, *followers)])
    return rows


def assign_over_racks_twin(rack_of, partitions, factor, start, shift, first_partition):
    brokers, racks, rows = alternate_racks(rack_of), set(rack_of.values()), []
    n = len(brokers)
    for p in range(first_partition, first_partition + partitions):
        shift += p > 0 and p % n == 0
        first, k = (p + start) % n, 0
        row = [brokers[first]]
        while len(row) < factor:
            broker = brokers[(first + 1 + (shift * len(racks) + k) % (n - 1)) % n]
            used = {rack_of[other] for other in row}
            if broker not in row and (rack_of[broker] not in used or used == racks):
                row.append(broker)
            k += 1
        rows.append(row)
    return rows


offsets = st.integers(0, 20)


@st.composite
def requests(draw, racks):
    """Racks of brokers, and what to ask of them: partitions, factor, start, shift, first one."""
    brokers = draw(broker_lists(min_size=1))
    return (
        {broker: draw(racks) for broker in brokers},
        draw(st.integers(1, 30)),
        draw(st.integers(1, len(brokers))),
        draw(offsets),
        draw(offsets),
        draw(offsets),
    )


def assign(racks, partitions, factor, start, shift, first_partition):
    rows = assign_replicas(
        racks, partitions, factor, start=start, shift=shift, first_partition=first_partition
    )
    assert rows.dtype == np.int32
    return rows.tolist()


@given(requests(racks=st.none()))
def test_placement_without_racks_agrees_with_its_twin(request):
    racks, *rest = request
    assert assign(racks, *rest) == assign_twin(list(racks), *rest)


@given(requests(racks=st.sampled_from("abc")))
def test_placement_over_racks_agrees_with_its_twin(request):
    assert assign(*request) == assign_over_racks_twin(*request)


@pytest.mark.rule("ASSIGN-5", "ASSIGN-6", "ASSIGN-7", "ASSIGN-8")
@pytest.mark.parametrize(
    ("example", "brokers", "partitions", "factor", "start", "shift"),
    [
        ("E1", (0, 1, 2, 3, 4), 10, 3, 0, 0),
        ("E2", (0, 1, 2, 3, 4), 10, 3, 3, 2),
        ("E3", (1, 2, 3, 4), 6, 2, 1, 2),
        ("E4", (10, 20, 30), 7, 3, 0, 0),
        ("E5", (1, 2), 5, 2, 1, 0),
    ],
)
def test_placement_without_racks_is_the_specifications(
    example, brokers, partitions, factor, start, shift
):
    rows = assign_replicas(no_racks(*brokers), partitions, factor, start=start, shift=shift)
    assert dict(enumerate(rows.tolist())) == EXAMPLES[example]


@pytest.mark.rule("ASSIGN-10", "ASSIGN-11")
@pytest.mark.parametrize(
    ("example", "rack_of", "partitions", "factor", "start", "shift"),
    [
        ("E9", SIX_IN_THREE_RACKS, 7, 3, 0, 0),
        ("E10", SIX_IN_THREE_RACKS, 7, 3, 2, 1),
        ("E11", UNEVEN_RACKS, 7, 3, 0, 0),
        ("E11'", UNEVEN_RACKS, 6, 2, 0, 0),
        ("E11''", UNEVEN_RACKS, 3, 4, 0, 0),
        ("E12", FOUR_IN_TWO_RACKS, 5, 3, 0, 0),
    ],
)
def test_placement_over_racks_is_the_specifications(
    example, rack_of, partitions, factor, start, shift
):
    rows = assign_replicas(rack_of, partitions, factor, start=start, shift=shift)
    assert dict(enumerate(rows.tolist())) == EXAMPLES[example]


@pytest.mark.rule("ASSIGN-13", "ASSIGN-14")
@pytest.mark.parametrize(
    ("example", "racks", "existing", "first_assignment"),
    [
        ("E6", no_racks(0, 1, 2, 3, 4), 3, [2, 3, 4]),
        ("E7", no_racks(1, 3, 5, 7), 4, [4, 1]),
        ("E8", no_racks(0, 1, 2), 2, [9, 0]),
        ("E13", FOUR_IN_TWO_RACKS, 4, [2, 3]),
    ],
)
def test_added_partitions_go_where_the_specification_says(
    example, racks, existing, first_assignment
):
    expected = EXAMPLES[example]
    rows = assign_more_replicas(racks, first_assignment, existing, added=len(expected))
    assert dict(enumerate(rows.tolist(), start=existing)) == expected


def test_every_example_is_shown():
    shown = {f"E{number}" for number in range(1, 14)} | {"E11'", "E11''"}
    assert set(EXAMPLES) == shown


@pytest.mark.rule("ASSIGN-13")
def test_added_partitions_ignore_the_order_in_which_brokers_are_given():
    forwards = assign_more_replicas(no_racks(0, 1, 2), [1, 2], 1, 4)
    backwards = assign_more_replicas(no_racks(2, 1, 0), [1, 2], 1, 4)
    assert forwards.tolist() == backwards.tolist()


@pytest.mark.rule("ASSIGN-9")
@pytest.mark.parametrize(
    ("rack_of", "alternated"),
    [
        (SIX_IN_THREE_RACKS, [0, 3, 1, 5, 4, 2]),
        (UNEVEN_RACKS, [1, 4, 6, 2, 5, 3]),
        (FOUR_IN_TWO_RACKS, [1, 3, 2, 4]),
    ],
)
def test_racks_take_turns_by_name_and_their_brokers_by_id(rack_of, alternated):
    assert alternate_racks(rack_of) == alternated
    assert alternate_racks(dict(reversed(rack_of.items()))) == alternated


@pytest.mark.rule("ASSIGN-1")
@given(st.integers(2, 6), st.integers(1, 5), offsets, offsets)
def test_leaders_and_first_followers_are_spread_evenly(n, rounds, start, shift):
    whole_rounds = n * (n - 1) * rounds
    rows = assign_replicas(no_racks(*range(n)), whole_rounds, 2, start=start, shift=shift)
    assert set(Counter(rows[:, 0].tolist()).values()) == {whole_rounds // n}
    assert set(Counter(map(tuple, rows.tolist())).values()) == {rounds}


@pytest.mark.rule("ASSIGN-12", "BG-2")
@given(requests(racks=st.sampled_from("abc")))
def test_replicas_share_a_rack_only_when_every_rack_has_one(request):
    rack_of, _, factor, *_ = request
    for row in assign(*request):
        assert len(set(row)) == factor
        assert len({rack_of[broker] for broker in row}) == min(factor, len(set(rack_of.values())))


@pytest.mark.rule("ASSIGN-6")
def test_a_negative_first_partition_counts_as_zero():
    request = (no_racks(0, 1, 2), 4, 2, 0, 0)
    assert assign(*request, first_partition=-1) == assign(*request, first_partition=0)


@pytest.mark.rule("ASSIGN-2", "ASSIGN-3")
@pytest.mark.parametrize(
    ("racks", "partitions", "factor", "kind", "message"),
    [
        (
            no_racks(1),
            0,
            1,
            AssignmentRefusal.INVALID_PARTITIONS,
            "Number of partitions must be larger",
        ),
        (
            no_racks(1),
            1,
            0,
            AssignmentRefusal.INVALID_REPLICATION_FACTOR,
            "factor must be larger than 0",
        ),
        (
            no_racks(1, 2),
            1,
            3,
            AssignmentRefusal.INVALID_REPLICATION_FACTOR,
            r"Replication factor: 3 larger than available brokers: 2\.",
        ),
        ({1: "a", 2: None}, 1, 1, AssignmentRefusal.INCOMPLETE_RACKS, "Not all brokers have rack"),
    ],
)
def test_an_impossible_assignment_is_refused(racks, partitions, factor, kind, message):
    with pytest.raises(AssignmentError, match=message) as refused:
        assign_replicas(racks, partitions, factor, start=0, shift=0)
    assert refused.value.kind is kind
