"""Records of the metadata cache, cut from the states of an UpdateMetadata."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.protocol.fast.metadata_records import cut_records

ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)
#: ISR, replicas, offline replicas.
lists = st.tuples(ids, ids, ids)


def array(brokers):
    return bytes([len(brokers) + 1]) + struct.pack(f">{len(brokers)}i", *brokers)


def state(index, isr, replicas, offline, tags=b"\0"):
    numbers = struct.pack(">iiii", index, 1, index % 7, 3)
    return numbers + array(isr) + struct.pack(">i", 9) + array(replicas) + array(offline) + tags


def one_by_one(states):
    return [record for each in states for record in cut_records(each, 0, 1)[0]]


@given(lists, st.integers(8, 40), st.binary(max_size=5))
def test_states_with_lists_of_the_same_lengths_are_cut_as_each_by_itself(alike, count, before):
    states = [state(index, *alike) for index in range(count)]
    data = before + b"".join(states)
    found, end = cut_records(data + b"more", len(before), count)
    assert found == one_by_one(states)
    assert end == len(data)


@given(st.lists(lists, min_size=8, max_size=20), st.integers(0, 20))
def test_states_with_other_lists_or_tags_are_cut_as_each_by_itself(some, tagged_at):
    states = [state(index, *each) for index, each in enumerate(some)]
    if tagged_at < len(states):
        states[tagged_at] = state(tagged_at, *some[tagged_at], tags=b"\1\x63\2hi")
    found, end = cut_records(b"".join(states), 0, len(states))
    assert found == one_by_one(states)
    assert end == sum(map(len, states))


@pytest.mark.parametrize("missing", [1, 20, 300])
def test_states_that_are_not_all_there_are_noticed(missing):
    data = b"".join(state(index, [1, 2], [1, 2, 3], []) for index in range(10))
    with pytest.raises(IndexError):
        cut_records(data[:-missing], 0, 10)


def test_a_list_that_is_null_is_refused():
    state_with_null = bytes(16) + b"\0" + bytes(30)
    with pytest.raises(RemoteProtocolError, match="null"):
        cut_records(state_with_null * 10, 0, 10)
