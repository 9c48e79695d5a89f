import re
from pathlib import Path

import pytest
from hypothesis import given

from klamm.core.reassignment import Assignment
from tests.support.strategies import broker_lists

SPECIFICATION = Path(__file__).parents[2] / "docs" / "spec" / "controller.md"

lists = broker_lists(min_size=1, max_size=5)


def table_lines():
    """The lines of the specification's table: current assignment, request, resulting assignment."""
    section = SPECIFICATION.read_text().split("\n### 11.1 The assignment value\n")[1]
    brokers = r"\[([\d,]*)\]"
    assignment = " / ".join([brokers] * 3)
    line = rf"^\| {assignment} \| (cancel|\[[\d,]+\]) \| {assignment}"
    return re.findall(line, section.split("\n### ")[0], re.MULTILINE)


def parse(*texts):
    return Assignment(*(tuple(int(broker) for broker in re.findall(r"\d+", t)) for t in texts))


TABLE = table_lines()


@pytest.mark.rule("REASG-V1", "REASG-V2", "REASG-V3")
@pytest.mark.parametrize("line", TABLE, ids=[f"{line[0]} to {line[3]}" for line in TABLE])
def test_a_request_changes_the_assignment_as_the_specification_says(line):
    current, request, result = parse(*line[:3]), line[3], parse(*line[4:])
    new = current.origin if request == "cancel" else parse(request).replicas
    assert current.reassign_to(new) == result


def test_the_table_is_read_to_its_end():
    assert len(TABLE) == 7


def test_replicas_are_unneeded_once_no_list_names_them():
    moving = Assignment((1, 2, 3)).reassign_to((4, 5, 6))
    assert moving.unneeded_by(moving.reassign_to((1, 2, 4))) == (5, 6)
    assert moving.unneeded_by(moving.reassign_to(moving.origin)) == (4, 5, 6)


@pytest.mark.rule("VER-38")
def test_what_a_move_removes_is_the_origin_without_the_target():
    moving = Assignment((1, 2, 3)).reassign_to((2, 3, 4))
    assert (moving.adding, moving.removing) == ((4,), (1,))


@pytest.mark.rule("REASG-V1")
@given(lists, lists)
def test_a_move_keeps_origin_and_target_apart(old, new):
    moving = Assignment(tuple(old)).reassign_to(new)
    assert moving.target == tuple(new)
    assert sorted(moving.origin) == sorted(old)
    assert moving.is_being_reassigned == (set(old) != set(new))
    assert moving.completed() == Assignment(tuple(new))


@pytest.mark.rule("REASG-V2")
@given(lists, lists, lists)
def test_a_replacement_starts_from_the_true_origin(old, abandoned, new):
    direct = Assignment(tuple(old)).reassign_to(new)
    replaced = Assignment(tuple(old)).reassign_to(abandoned).reassign_to(new)
    assert set(replaced.origin) == set(old)
    assert replaced.target == direct.target
    assert set(replaced.adding) == set(direct.adding)


@pytest.mark.rule("REASG-V3")
@given(lists, lists)
def test_cancelling_restores_the_members_and_ends_the_move(old, new):
    moving = Assignment(tuple(old)).reassign_to(new)
    cancelled = moving.reassign_to(moving.origin)
    assert not cancelled.is_being_reassigned
    assert set(cancelled.replicas) == set(old)


def test_a_broker_that_gives_up_its_replica_leaves_every_list():
    moving = Assignment((4, 2, 1), adding=(4,), removing=(1,))
    assert moving.without(1) == Assignment((4, 2), adding=(4,))
    assert moving.without(4) == Assignment((2, 1), removing=(1,))


@pytest.mark.rule("REASG-20", "VER-30")
@pytest.mark.parametrize(
    ("assignment", "isr", "is_complete"),
    [
        (Assignment((4, 5, 1, 2), (4, 5), (1, 2)), [1, 2, 4, 5], True),
        (Assignment((4, 5, 1, 2), (4, 5), (1, 2)), [5, 4], True),
        (Assignment((4, 5, 1, 2), (4, 5), (1, 2)), [1, 2, 4], False),
        # Also a replica that stays has to be in sync, and one that is to go need not be.
        (Assignment((1, 2, 3), (), (3,)), [1, 3], False),
        (Assignment((1, 2, 3), (), (3,)), [2, 1], True),
        (Assignment((1, 2, 3)), [], True),
    ],
)
def test_a_move_is_complete_once_the_whole_target_is_in_sync(assignment, isr, is_complete):
    assert assignment.is_complete(isr) is is_complete


def test_a_request_that_names_a_million_brokers_is_planned_at_once() -> None:
    many = range(1_000_000)
    begun = Assignment((1, 2, 3)).reassign_to(many)
    assert len(begun.adding) == len(many) - 3
    assert begun.removing == ()
