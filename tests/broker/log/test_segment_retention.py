import os

import pytest

from klamm.broker.log.settings import LogConfig
from tests.broker.log.making import NOW, Home, batch_of, stored_records

BATCH = len(batch_of(10))


def segmented(home: Home, times, **config):
    """A log with one batch of ten records in each segment, all of it committed."""
    home.config = LogConfig(segment_bytes=BATCH, **config)
    log = home.open()
    for time in times:
        log.append_as_leader(batch_of(10, timestamp=time), leader_epoch=0, now_ms=NOW)
    log.advance_high_watermark(log.end_offset)
    return log


def bases(log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


@pytest.mark.rule("LOG-26")
def test_old_segments_go_after_their_time(home):
    log = segmented(home, [NOW - 300, NOW - 200, NOW - 100, NOW], retention_ms=150)
    assert log.delete_old_segments(NOW) == 2
    assert bases(log) == [20, 30]
    assert log.start_offset == 20
    assert [record.offset for record in stored_records(log)] == list(range(20, 40))


@pytest.mark.rule("LOG-26")
def test_a_segment_is_as_old_as_its_youngest_record(home):
    log = segmented(home, [NOW - 300, NOW, NOW - 300, NOW], retention_ms=150)
    assert log.delete_old_segments(NOW) == 1
    assert bases(log) == [10, 20, 30]


@pytest.mark.rule("LOG-26")
def test_without_timestamps_the_files_age_counts(home):
    log = segmented(home, [-1, -1], retention_ms=150)
    os.utime(log.segments[0].path, (NOW / 1000 - 1, NOW / 1000 - 1))
    os.utime(log.segments[1].path, (NOW / 1000, NOW / 1000))
    log.delete_old_segments(NOW)
    assert bases(log) == [10]


@pytest.mark.rule("LOG-26")
def test_the_oldest_segments_go_while_enough_stays(home):
    log = segmented(home, [NOW] * 5, retention_bytes=2 * BATCH + 1)
    assert log.delete_old_segments(NOW) == 2
    assert bases(log) == [20, 30, 40]


@pytest.mark.rule("LOG-26")
def test_retention_can_be_off(home):
    log = segmented(home, [0, 0, NOW], retention_ms=-1, retention_bytes=-1)
    assert log.delete_old_segments(NOW) == 0


@pytest.mark.rule("LOG-26", "LOG-29")
def test_segments_before_the_start_go_and_no_part_of_one(home):
    log = segmented(home, [NOW] * 3)
    log.raise_start_offset(19)
    assert log.delete_old_segments(NOW) == 1
    assert bases(log) == [10, 20]
    assert log.start_offset == 19


@pytest.mark.rule("LOG-26", "CMP-1")
def test_a_compacted_topic_loses_only_what_is_before_its_start(home):
    compacted = frozenset({"compact"})
    log = segmented(home, [0, 0, 0], cleanup_policy=compacted, retention_bytes=0)
    log.raise_start_offset(10)
    assert log.delete_old_segments(NOW) == 1
    assert bases(log) == [10, 20]
    both = segmented(
        Home(home.path.parent / "other"), [0, 0], cleanup_policy=frozenset({"compact", "delete"})
    )
    assert both.delete_old_segments(NOW) == 2


@pytest.mark.rule("LOG-27")
def test_what_is_not_committed_stays(home):
    log = segmented(home, [0, 0, 0])
    log.advance_high_watermark(19)
    assert log.delete_old_segments(NOW) == 1
    assert bases(log) == [10, 20]


@pytest.mark.rule("LOG-27")
def test_where_everything_goes_a_new_segment_comes_first(home):
    log = segmented(home, [0, 0])
    assert log.delete_old_segments(NOW) == 2
    assert bases(log) == [20]
    assert (log.start_offset, log.end_offset, log.size) == (20, 20, 0)
    assert log.delete_old_segments(NOW + 10**9) == 0


@pytest.mark.rule("LOG-28")
def test_files_are_renamed_first_and_removed_later(home):
    log = segmented(home, [0, NOW], file_delete_delay_ms=1000)
    log.delete_old_segments(NOW)
    assert home.names(".deleted") == [
        f"{0:020d}.index.deleted",
        f"{0:020d}.log.deleted",
        f"{0:020d}.timeindex.deleted",
    ]
    log.delete_expired_files(NOW + 999)
    assert len(home.names(".deleted")) == 3
    log.delete_expired_files(NOW + 1000)
    assert home.names(".deleted") == []


def test_the_snapshot_of_a_deleted_segment_goes_with_it(home):
    log = segmented(home, [0, 0, NOW])
    assert log.producers.snapshots() == [10, 20]
    log.delete_old_segments(NOW)
    assert log.producers.snapshots() == [20]
