"""The states of an UpdateMetadata in one piece."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.protocol.fast.metadata_states import PackedStates, response_record, take_states

ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)
#: ISR, replicas, offline replicas.
lists = st.tuples(ids, ids, ids)
TAGS = b"\1\x63\2hi"


def array(brokers):
    return bytes([len(brokers) + 1]) + struct.pack(f">{len(brokers)}i", *brokers)


def state(index, isr, replicas, offline, tags=b"\0"):
    numbers = struct.pack(">iiii", index, 1, index % 7, 3)
    return numbers + array(isr) + struct.pack(">i", 9) + array(replicas) + array(offline) + tags


def numbered(some):
    return [state(index, *each) for index, each in enumerate(some)]


alike = st.builds(lambda each, count: numbered([each] * count), lists, st.integers(8, 300))
different = st.lists(lists, max_size=20).map(numbered)


@given(alike | different, st.binary(max_size=5))
def test_states_are_taken_from_the_middle_of_a_request(states, before):
    data = before + b"".join(states)
    found, end = take_states(data + b"more", len(before), len(states))
    assert [*found] == states
    assert len(found) == len(states)
    assert end == len(data)


@given(different, st.integers(0, 20))
def test_tags_are_left_out(states, tagged_at):
    sent = states.copy()
    if tagged_at < len(sent):
        sent[tagged_at] = sent[tagged_at][:-1] + TAGS
    found, end = take_states(b"".join(sent), 0, len(sent))
    assert [*found] == states
    assert end == sum(map(len, sent))


@given(alike | different, st.data())
def test_gaps_and_the_highest_number_are_those_of_the_states(states, data):
    kept = data.draw(st.lists(st.sampled_from(states), unique=True)) if states else []
    found = PackedStates.of(kept)
    numbers = [int.from_bytes(each[:4], "big") for each in kept]
    assert found.highest == max(numbers, default=0)
    assert found.are_gapless() == (numbers == [*range(len(numbers))] != [])


@pytest.mark.parametrize("index", [255, 256, 65536, 2**24, 2**31 - 1])
def test_a_number_above_all_others_is_the_highest(index):
    states = [state(each, [1], [1, 2], []) for each in [*range(8), index, 9]]
    assert PackedStates.of(states).highest == index


def test_a_negative_number_counts_as_a_very_high_one():
    states = [state(each, [1], [1, 2], []) for each in (*range(8), -1)]
    assert PackedStates.of(states).highest > 2**31


@given(alike | different)
def test_records_of_a_response_are_those_of_each_state(states):
    assert PackedStates.of(states).response_records() == [*map(response_record, states)]


def test_a_leader_that_no_state_has_is_not_found():
    states = PackedStates.of(numbered([([1], [1, 2], [])] * 10))
    assert states.may_have_leader(6)
    assert not states.may_have_leader(-2)


@pytest.mark.parametrize("missing", [1, 20, 300])
def test_states_that_are_not_all_there_are_noticed(missing):
    data = b"".join(state(index, [1, 2], [1, 2, 3], []) for index in range(10))
    with pytest.raises(IndexError):
        take_states(data[:-missing], 0, 10)


def test_a_list_that_is_null_is_refused():
    state_with_null = bytes(16) + b"\0" + bytes(30)
    with pytest.raises(RemoteProtocolError, match="null"):
        take_states(state_with_null * 10, 0, 10)
