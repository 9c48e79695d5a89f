import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.columns import (
    NO_BROKER,
    alone,
    any_slot,
    as_run,
    contains,
    count,
    is_one_of,
    keep,
    members,
    padded,
    tally,
    unpad,
    widen,
)
from tests.support.strategies import broker_lists

rows_of_brokers = st.lists(broker_lists(), max_size=8)


@given(rows_of_brokers)
def test_lists_survive_being_padded(lists):
    rows = padded(lists)
    assert rows.dtype == np.int32
    assert rows.shape == (len(lists), max(map(len, lists), default=0) or 1)
    assert [unpad(row) for row in rows] == lists


def test_rows_can_be_made_wider_than_their_longest_list():
    assert padded([[7], [8, 9]], width=3).tolist() == [[7, -1, -1], [8, 9, -1]]


def test_a_list_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="3 brokers does not fit into 2 slots"):
        padded([[1, 2, 3]], width=2)


def test_a_matrix_without_brokers_still_has_a_first_slot():
    assert padded([[], []]).tolist() == [[NO_BROKER], [NO_BROKER]]
    assert padded([]).shape == (0, 1)


def test_widening_adds_empty_slots_and_never_narrows():
    rows = padded([[1, 2]])
    assert widen(rows, 4).tolist() == [[1, 2, -1, -1]]
    assert widen(rows, 1) is rows


def test_a_broker_alone_has_a_row_to_itself():
    assert alone(np.array([4, NO_BROKER]), 2).tolist() == [[4, -1], [-1, -1]]


def keep_twin(brokers, marked):
    return [broker for broker, is_marked in zip(brokers, marked, strict=False) if is_marked]


@given(rows_of_brokers, st.data())
def test_keeping_packs_the_marked_brokers_in_their_order(lists, data):
    rows = padded(lists)
    mask = np.array(
        data.draw(
            st.lists(
                st.lists(st.booleans(), min_size=rows.shape[1], max_size=rows.shape[1]),
                min_size=len(lists),
                max_size=len(lists),
            )
        ),
        np.bool_,
    ).reshape(rows.shape)
    kept = keep(rows, mask)
    assert kept.shape == rows.shape
    assert kept.dtype == np.int32
    expected = [keep_twin(*pair) for pair in zip(lists, mask.tolist(), strict=True)]
    assert kept.tolist() == padded(expected, rows.shape[1]).tolist()


@given(st.lists(st.tuples(broker_lists(), broker_lists()), max_size=8))
def test_membership_is_asked_row_by_row_and_never_of_padding(pairs):
    rows, ids = (padded(list(lists)) for lists in ([a for a, _ in pairs], [b for _, b in pairs]))
    mask = contains(rows, ids)
    assert mask.shape == ids.shape
    for found, (row, asked) in zip(mask.tolist(), pairs, strict=True):
        assert found[: len(asked)] == [broker in row for broker in asked]
        assert not any(found[len(asked) :])


@given(rows_of_brokers, broker_lists())
def test_membership_in_a_set_of_brokers_is_never_true_of_padding(lists, brokers):
    mask = is_one_of(padded(lists), [*brokers, NO_BROKER])
    for found, row in zip(mask.tolist(), lists, strict=True):
        assert found[: len(row)] == [broker in brokers for broker in row]
        assert not any(found[len(row) :])


def test_a_leader_column_can_be_asked_too():
    assert is_one_of(np.array([3, -1, 4], np.int32), 4).tolist() == [False, False, True]


@given(rows_of_brokers)
def test_brokers_are_counted_per_row(lists):
    rows = padded(lists)
    assert count(rows).tolist() == [len(brokers) for brokers in lists]
    assert tally(rows != NO_BROKER).dtype == np.int32
    assert any_slot(rows != NO_BROKER).tolist() == [bool(brokers) for brokers in lists]


@given(st.lists(st.integers(0, 30), unique=True), st.booleans())
def test_rows_as_a_run_are_the_same_rows(chosen, is_sorted):
    column = np.arange(31)
    rows = np.array(sorted(chosen) if is_sorted else chosen, np.int32)
    assert column[as_run(rows)].tolist() == rows.tolist()


def test_only_rows_that_follow_each_other_are_a_run():
    assert as_run(np.arange(3, 9, dtype=np.int32)) == slice(3, 9)
    for rows in ([], [1, 3], [3, 2, 1], [1, 3, 2, 4]):
        assert not isinstance(as_run(np.array(rows, np.int32)), slice)


@pytest.mark.parametrize("repeat", [1, 500])
@given(st.lists(broker_lists()))
def test_members_are_all_brokers_in_their_order(repeat, lists):
    rows = np.tile(padded(lists), (repeat, 1))
    assert members(rows) == sorted({broker for brokers in lists for broker in brokers})
