"""How much is read, and by how many tasks."""

from hypothesis import given
from hypothesis import strategies as st

from klamm.names import TopicPartition
from klamm.pipeline.source.ranges import OffsetRange, RangeBundle, behind, bundle, limit, split

ranges = st.lists(
    st.builds(
        lambda number, start, size: OffsetRange("t", number, start, start + size),
        st.integers(0, 10**6),
        st.integers(0, 10**9),
        st.integers(0, 10**6),
    ),
    max_size=8,
    unique_by=lambda each: each.partition,
)


@given(
    ranges,
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1000, 10**6),
)
def test_tasks_cover_every_offset_once(whole, min_partitions, max_records):
    tasks = split(whole, min_partitions=min_partitions, max_records=max_records)
    assert all(task.size > 0 for task in tasks)
    for each in whole:
        parts = [task for task in tasks if task.partition == each.partition]
        bounds = [each.start, *(part.until for part in parts)]
        assert [part.start for part in parts] == bounds[:-1]
        assert bounds[-1] == each.until if each.size else not parts
    if max_records is not None:
        assert all(task.size <= max_records for task in tasks)


def test_a_minimum_of_tasks_is_reached_in_proportion_to_size():
    whole = [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 90), OffsetRange("t", 2, 0, 10)]
    tasks = split(whole, min_partitions=10, max_records=None)
    counts = [sum(task.partition == number for task in tasks) for number in range(3)]
    assert counts == [8, 1, 1]


def test_enough_tasks_are_left_as_they_are():
    whole = [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 90)]
    assert split(whole, min_partitions=2, max_records=None) == whole


P, Q, R = (TopicPartition("t", number) for number in range(3))


def test_a_limit_is_shared_in_proportion_and_starves_nobody():
    start, end = {P: 0, Q: 100, R: 7}, {P: 900, Q: 200, R: 8}
    limited = limit(start, end, 100)
    assert limited == {P: 89, Q: 109, R: 8}


@given(
    st.dictionaries(st.sampled_from((P, Q, R)), st.tuples(st.integers(0, 99), st.integers(0, 99))),
    st.integers(1, 200),
)
def test_a_limit_moves_forward_and_never_too_far(sizes, most):
    start = {each: begin for each, (begin, _) in sizes.items()}
    end = {each: begin + size for each, (begin, size) in sizes.items()}
    limited = limit(start, end, most)
    assert all(start[each] <= limited[each] <= end[each] for each in end)
    total = sum(limited[each] - start[each] for each in end)
    assert total <= most + len(end)
    assert total > 0 or start == end


def test_how_far_behind_counts_what_is_read():
    assert behind({P: 5, Q: 9}, {P: 7, Q: 9, R: 100}) == [2, 0]


def sizes(tasks) -> list[list[int]]:
    return [
        [part.size for part in each.ranges] if isinstance(each, RangeBundle) else [each.size]
        for each in tasks
    ]


def small(count: int, size: int = 10) -> list[OffsetRange]:
    return [OffsetRange("t", number, 0, size) for number in range(count)]


def shared(ranges, min_partitions=None, max_records=None):
    return bundle(ranges, min_partitions=min_partitions, max_records=max_records)


def test_a_few_small_ranges_have_tasks_of_their_own():
    assert shared(small(16)) == small(16)
    assert len(shared(small(100))) == 16
    assert len(shared(small(100), min_partitions=60)) == 60


def test_many_small_ranges_share_tasks_and_none_is_left_out():
    tasks = shared(small(10_000))
    assert len(tasks) == 20
    assert {len(each) for each in sizes(tasks)} == {500}
    assert [part for each in tasks for part in each.ranges] == small(10_000)


def test_large_ranges_stay_alone():
    large = [OffsetRange("u", number, 0, 5_000) for number in range(20)]
    tasks = shared([*large, *small(100)])
    assert tasks[:20] == large
    assert sizes(tasks[20:]) == [[10] * 100]


def test_what_shares_a_task_is_not_more_than_a_task_may_have():
    for tasks, most in ((shared(small(1000, 900)), 10_000), (shared(small(1000), None, 50), 50)):
        assert max(sum(each) for each in sizes(tasks)) <= most


def test_parts_of_one_partition_do_not_share_a_task():
    parts = [OffsetRange("u", 0, at, at + 10) for at in range(0, 500, 10)]
    tasks = shared([*parts, *small(100)])
    assert tasks[:50] == parts
    assert sizes(tasks[50:]) == [[10] * 100]
