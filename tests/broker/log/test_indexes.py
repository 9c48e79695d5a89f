import os
import struct
import tracemalloc
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.log.files import REAL_FILES, size_of
from klamm.broker.log.indexes import IndexEntry, OffsetIndex, TimeIndex

BASE = 1000


def opened(kind, path):
    """An index in a file that may exist."""
    return kind(str(path), BASE, REAL_FILES, size_of(path))


def offset_index(tmp_path, entries=()) -> OffsetIndex:
    index = opened(OffsetIndex, tmp_path / f"{BASE:020d}.index")
    index.open_for_append()
    for last_offset, position in entries:
        index.append(last_offset, position)
    return index


@pytest.mark.rule("LOG-16")
def test_offset_entries_are_relative_to_the_segment(tmp_path):
    index = offset_index(tmp_path, [(1005, 4097), (1030, 9000)])
    index.write()
    content = index.path.read_bytes()
    assert list(struct.iter_unpack(">ii", content)) == [(5, 4097), (30, 9000)]


@pytest.mark.rule("LOG-17")
def test_time_entries_are_a_timestamp_and_a_relative_offset(tmp_path):
    index = opened(TimeIndex, tmp_path / "i.timeindex")
    index.open_for_append()
    for timestamp, offset in [(-1, 1000), (50, 1003), (50, 1010), (49, 1012), (60, 1020)]:
        index.append_if_larger(timestamp, offset)
    index.write()
    assert list(struct.iter_unpack(">qi", index.path.read_bytes())) == [(50, 3), (60, 20)]


@given(st.lists(st.integers(1, 20), max_size=700), st.data())
@pytest.mark.rule("LOG-16")
def test_the_floor_is_found_in_memory_and_on_disk(tmp_path_factory, steps, data):
    tmp_path = tmp_path_factory.mktemp("index")
    keys = [BASE + sum(steps[: i + 1]) for i in range(len(steps))]
    index = offset_index(tmp_path, [(key, key * 2) for key in keys])
    probe = data.draw(st.integers(BASE - 5, BASE + sum(steps) + 5))
    after = bisect_right(keys, probe)
    expected = IndexEntry(keys[after - 1], keys[after - 1] * 2) if after else None
    assert index.floor(probe) == expected
    index.seal()
    assert index.floor(probe) == expected
    assert opened(OffsetIndex, index.path).floor(probe) == expected
    assert [entry.key for entry in index] == keys


def test_entries_are_written_by_the_dozen_and_when_the_index_is_sealed(tmp_path):
    index = offset_index(tmp_path, [(BASE + i, i) for i in range(1, 32)])
    sizes = [index.path.stat().st_size]
    index.append(BASE + 32, 32)
    sizes.append(index.path.stat().st_size)
    index.append(BASE + 33, 33)
    sizes.append(index.path.stat().st_size)
    index.seal()
    assert [*sizes, index.path.stat().st_size] == [0, 32 * 8, 32 * 8, 33 * 8]


def test_a_deleted_index_is_not_written_again(tmp_path):
    index = offset_index(tmp_path, [(1005, 4097)])
    index.delete()
    assert not index.path.exists()


@given(st.integers(0, 130), st.integers(0, 14_000))
def test_the_first_entry_with_a_value_is_found_in_memory_and_on_disk(
    tmp_path_factory, count, value
):
    entries = [IndexEntry(BASE + i, 100 * i) for i in range(1, count + 1)]
    index = offset_index(tmp_path_factory.mktemp("index"), entries)
    expected = next((entry for entry in entries if entry.value >= value), None)
    assert index.first_with_value(value) == expected
    assert list(index) == entries
    index.seal()
    assert index.first_with_value(value) == expected


@pytest.mark.parametrize(
    "look_up",
    [OffsetIndex.last, lambda index: index.floor(2000), lambda index: index.first_with_value(1)],
    ids=["last", "floor", "first with value"],
)
def test_a_first_entry_that_comes_during_a_lookup_is_not_looked_for_in_the_file(tmp_path, look_up):
    index = offset_index(tmp_path)

    class Overtaken(type(index._recent)):
        """Empty when it is looked at, and no longer just after that."""

        def __len__(self):
            count = super().__len__()
            if not count:
                index.append(1005, 4097)
            return count

    index._recent = Overtaken()
    assert look_up(index) in (None, IndexEntry(1005, 4097))
    assert index.entries == 1


def test_an_entry_in_memory_takes_little_more_than_its_two_numbers(tmp_path):
    index = offset_index(tmp_path)
    tracemalloc.start()
    try:
        for number in range(60):
            index.append(BASE + 1000 * number, 4096 * number)
        assert tracemalloc.get_traced_memory()[0] < 60 * 30
    finally:
        tracemalloc.stop()


@pytest.mark.rule("LOG-18")
def test_a_sealed_index_is_exactly_as_long_as_its_entries(tmp_path):
    index = offset_index(tmp_path, [(1005, 4097), (1030, 9000)])
    index.seal()
    assert index.path.stat().st_size == 16


@pytest.mark.rule("LOG-18")
def test_an_index_is_full_before_its_limit(tmp_path):
    index = offset_index(tmp_path, [(1001, 1), (1002, 2)])
    assert not index.is_full(32)
    index.append(1003, 3)
    assert index.is_full(32)


@pytest.mark.rule("LOG-18")
def test_zeros_that_kafka_left_behind_are_cut_off(tmp_path):
    index = offset_index(tmp_path, [(1005, 4097), (1030, 9000)])
    index.seal()
    os.truncate(index.path, 10_000)
    again = opened(OffsetIndex, index.path)
    assert again.is_sane(10_000)
    assert again.path.stat().st_size == 16
    assert again.last() == IndexEntry(1030, 9000)


@pytest.mark.rule("LOG-18")
def test_a_time_index_of_zeros_only_is_empty(tmp_path):
    path = tmp_path / "i.timeindex"
    path.write_bytes(bytes(1200))
    index = opened(TimeIndex, path)
    assert index.is_sane()
    assert index.last() is None


@pytest.mark.rule("REC-1")
@pytest.mark.parametrize(
    "content", [b"x" * 7, struct.pack(">ii", 5, 5000), struct.pack(">ii", -1, 40)]
)
def test_an_index_that_cannot_belong_to_the_log_is_told(tmp_path, content):
    path = tmp_path / "i.index"
    path.write_bytes(content)
    assert not opened(OffsetIndex, path).is_sane(log_size=5000)


def test_cutting_keeps_what_comes_before(tmp_path):
    index = offset_index(tmp_path, [(BASE + i, i) for i in range(1, 200)])
    index.cut_where(lambda entry: entry.value >= 100)
    assert index.last() == IndexEntry(BASE + 99, 99)
    assert index.path.stat().st_size == 99 * 8
    index.append(BASE + 150, 150)
    assert [entry.value for entry in index][-2:] == [99, 150]


@given(st.binary(max_size=40) | st.integers(0, 40), st.integers(0, 4))
def test_an_index_that_is_built_anew_has_the_new_entries_only(tmp_path_factory, before, count):
    """Whether the file was damaged, or is a part of what is built, or longer."""
    entries = [(BASE + row, row * 100) for row in range(1, count + 1)]
    packed = b"".join(struct.pack(">ii", key - BASE, value) for key, value in entries)
    path = tmp_path_factory.mktemp("index") / f"{BASE:020d}.index"
    path.write_bytes(before if isinstance(before, bytes) else (packed + b"\1" * 8)[:before])
    index = opened(OffsetIndex, path)
    index.build_anew()
    for last_offset, position in entries:
        index.append(last_offset, position)
    index.seal()
    assert path.read_bytes() == packed
    assert list(index) == entries
    assert not index.is_missing
    assert index.is_aligned
