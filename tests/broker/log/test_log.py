import os

import pytest

from klamm.broker.log.epochs import EpochEntry
from klamm.broker.log.errors import AppendError, OffsetOutOfRangeError, StorageError
from klamm.broker.log.files import Files
from klamm.broker.log.settings import LogConfig
from klamm.broker.log.validation import AppendOrigin
from klamm.protocol.codes import ErrorCode
from klamm.protocol.compression import Codec
from klamm.protocol.records import decode_batch_header
from tests.broker.log.making import NOW, Home, batch_of, roll, stored_records


def append(log, batch=None, *, epoch=0, now_ms=NOW, **fields):
    return log.append_as_leader(
        batch if batch is not None else batch_of(**fields), leader_epoch=epoch, now_ms=now_ms
    )


# -- appending as leader


@pytest.mark.rule("LOG-8", "LOG-10")
def test_a_leader_gives_offsets_without_gaps(home):
    log = home.open()
    assert append(log, count=3)[:4] == (0, 2, -1, 0)
    assert append(log, count=2)[:4] == (3, 4, -1, 0)
    assert (log.start_offset, log.end_offset) == (0, 5)
    assert [record.offset for record in stored_records(log)] == [0, 1, 2, 3, 4]


@pytest.mark.rule("LOG-2", "LOG-8")
@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_stored_as_it_came_apart_from_offset_and_epoch(home, codec):
    log = home.open()
    append(log)
    batch = batch_of(4, codec=codec)
    append(log, batch, epoch=7)
    stored = log.read(1, 1 << 20, log.end_offset).bytes()
    assert stored[16:] == batch[16:]
    header = decode_batch_header(stored)
    assert (header.base_offset, header.leader_epoch) == (1, 7)


@pytest.mark.rule("LOG-13", "EPC-2")
def test_each_append_offers_its_epoch(home):
    log = home.open()
    append(log, epoch=1)
    append(log, epoch=1)
    append(log, epoch=4)
    assert log.epochs.entries == (EpochEntry(1, 0), EpochEntry(4, 2))


@pytest.mark.rule("IDEM-5")
def test_a_retry_gets_the_offsets_of_the_original(home):
    log = home.open()
    append(log)
    batch = batch_of(3, producer_id=9, producer_epoch=0, base_sequence=0)
    first = append(log, batch)
    again = append(log, batch)
    assert (first.first_offset, first.last_offset, first.is_duplicate) == (1, 3, False)
    assert (again.first_offset, again.last_offset, again.is_duplicate) == (1, 3, True)
    assert log.end_offset == 4


@pytest.mark.rule("IDEM-12")
def test_a_batch_out_of_sequence_is_not_appended(home):
    log = home.open()
    append(log, producer_id=9, producer_epoch=0, base_sequence=0)
    with pytest.raises(AppendError) as caught:
        append(log, producer_id=9, producer_epoch=0, base_sequence=5)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == 1
    append(log, producer_id=9, producer_epoch=0, base_sequence=1)


def test_a_coordinator_numbers_nothing(home):
    log = home.open()
    for _ in range(2):
        log.append_as_leader(
            batch_of(producer_id=9, producer_epoch=0, transactional=True),
            leader_epoch=0,
            now_ms=NOW,
            origin=AppendOrigin.COORDINATOR,
        )
    assert log.end_offset == 2


# -- appending as follower


@pytest.mark.rule("LOG-2", "LOG-12", "LOG-13")
def test_a_follower_stores_the_leaders_bytes(home):
    log = home.open()
    records = batch_of(3, epoch=2) + batch_of(2, offset=3, epoch=5) + batch_of(offset=9, epoch=5)
    assert log.append_as_follower(records, now_ms=NOW) == len(records)
    assert log.read(0, 1 << 20, log.end_offset).bytes() == records
    assert log.end_offset == 10
    assert log.epochs.entries == (EpochEntry(2, 0), EpochEntry(5, 3))


@pytest.mark.rule("FETCH-2")
def test_a_last_batch_that_is_cut_short_is_left_out(home):
    log = home.open()
    first, second = batch_of(3), batch_of(2, offset=3)
    for cut in (1, 30, 61, len(second) - 1):
        assert log.append_as_follower(second[:cut], now_ms=NOW) == 0
    assert log.append_as_follower(first + second[:-1], now_ms=NOW) == len(first)
    assert log.end_offset == 3


@pytest.mark.rule("LOG-12")
@pytest.mark.parametrize(
    ("records", "code"),
    [
        (batch_of()[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (bytes(100), ErrorCode.CORRUPT_MESSAGE),
        (batch_of(3) + batch_of(offset=2), ErrorCode.INVALID_RECORD),
    ],
    ids=["crc", "no batch", "not increasing"],
)
def test_a_follower_refuses_what_cannot_be_a_log(home, records, code):
    log = home.open()
    with pytest.raises(AppendError) as caught:
        log.append_as_follower(records, now_ms=NOW)
    assert caught.value.code is code
    assert log.end_offset == 0


@pytest.mark.rule("LOG-12")
def test_a_follower_refuses_a_batch_that_begins_before_its_end(home):
    log = home.open()
    log.append_as_follower(batch_of(3), now_ms=NOW)
    with pytest.raises(AppendError):
        log.append_as_follower(batch_of(4, offset=2), now_ms=NOW)
    assert log.end_offset == 3


@pytest.mark.rule("LOG-12")
def test_an_empty_follower_starts_where_the_first_batch_begins(home):
    log = home.open()
    log.truncate_fully_and_start_at(5, now_ms=NOW)
    log.append_as_follower(batch_of(4, offset=3), now_ms=NOW)
    assert (log.start_offset, log.end_offset) == (3, 7)


def test_a_follower_takes_no_notice_of_sequences(home):
    log = home.open()
    fields = {"producer_id": 9, "producer_epoch": 0}
    log.append_as_follower(
        batch_of(base_sequence=7, **fields) + batch_of(offset=1, base_sequence=3, **fields),
        now_ms=NOW,
    )
    assert log.producers.get(9).last_sequence == 3


# -- reading


@pytest.mark.rule("FETCH-3")
def test_a_read_starts_with_the_batch_that_holds_the_offset(home):
    log = home.open()
    first, second = append(log, count=5), append(log, count=5)
    for offset in range(10):
        content = log.read(offset, 1 << 20, log.end_offset).bytes()
        expected = first if offset < 5 else second
        assert decode_batch_header(content).base_offset == expected.first_offset


def test_a_read_finds_the_batch_that_took_the_place_of_a_truncated_one(home):
    log = home.open()
    append(log, count=5)
    append(log, count=1)
    assert log.truncate_to(3, now_ms=NOW)  # the first batch goes, too
    replaced = batch_of(9)
    log.append_as_follower(replaced, now_ms=NOW)
    log.append_as_follower(batch_of(2, offset=9), now_ms=NOW)
    assert log.read(0, len(replaced), log.end_offset).bytes() == bytes(replaced)
    content = log.read(5, 1 << 20, log.end_offset).bytes()
    assert decode_batch_header(content).base_offset == 0
    log.truncate_fully_and_start_at(5, now_ms=NOW)
    append(log, count=2)
    content = log.read(5, 1 << 20, log.end_offset).bytes()
    assert decode_batch_header(content).last_offset == 6


@pytest.mark.rule("FETCH-2")
def test_a_first_batch_that_does_not_fit_comes_whole_or_not_at_all(home):
    log = home.open()
    batch = batch_of(10)
    append(log, batch)
    append(log, batch)
    assert log.read(0, 10, log.end_offset).size == 0
    assert log.read(0, 10, log.end_offset, at_least_one=True).size == len(batch)
    assert log.read(0, len(batch) + 5, log.end_offset).size == len(batch) + 5


@pytest.mark.rule("FETCH-4", "REPL-14")
def test_a_read_ends_before_the_upper_offset(home):
    log = home.open()
    batch = batch_of(10)
    for _ in range(3):
        append(log, batch)
    assert log.read(0, 1 << 20, 30).size == 3 * len(batch)
    assert log.read(0, 1 << 20, 20).size == 2 * len(batch)
    assert log.read(0, 1 << 20, 19).size == len(batch)
    assert log.read(20, 1 << 20, 20).size == 0
    assert log.read(25, 1 << 20, 20).size == 0
    assert log.read(30, 1 << 20, 30).bytes() == b""


@pytest.mark.rule("FETCH-4")
def test_a_read_outside_of_the_log_is_refused(home):
    log = home.open()
    append(log, count=10)
    log.advance_high_watermark(10)
    log.raise_start_offset(4)
    for offset in (-1, 3, 11):
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset, 1 << 20, 10)
    assert log.read(4, 1 << 20, 10).size > 0


def test_a_read_goes_on_in_the_next_segment_where_one_ends_in_a_gap(home):
    log = home.open()
    log.append_as_follower(batch_of(), now_ms=NOW)
    roll(log)
    log.append_as_follower(batch_of(offset=8), now_ms=NOW)
    content = log.read(3, 1 << 20, log.end_offset).bytes()
    assert decode_batch_header(content).base_offset == 8


@pytest.mark.rule("LOG-28")
def test_a_slice_outlives_its_segment(home):
    log = home.open()
    batch = batch_of(5)
    append(log, batch)
    part = log.read(0, 1 << 20, 5)
    log.truncate_fully_and_start_at(0, now_ms=NOW)
    log.delete_expired_files(NOW + 10**9)
    assert home.names(".deleted") == []
    assert part.bytes()[16:] == batch[16:]
    assert os.fstat(part.fileno()).st_nlink == 0


@pytest.mark.rule("FETCH-6")
def test_bytes_between_offsets_are_counted_within_a_segment(home):
    log = home.open()
    batch = batch_of(10)
    for _ in range(3):
        append(log, batch)
    assert log.bytes_between(0, 30) == 3 * len(batch)
    assert log.bytes_between(10, 20) == len(batch)
    assert log.bytes_between(30, 30) == 0
    roll(log)
    append(log, batch)
    assert log.bytes_between(10, 30) == 2 * len(batch)
    assert log.bytes_between(10, 31) is None
    assert log.bytes_between(30, 40) == len(batch)


# -- finding by time


def with_times(home, *times: int):
    log = home.open()
    for index, time in enumerate(times):
        append(log, count=2, timestamp=time)
        if index % 3 == 2:
            roll(log)
    return log


@pytest.mark.rule("LIST-2", "LIST-3")
def test_the_first_record_that_is_not_older_is_found(home):
    log = with_times(home, 10, 30, 20, 50, 40)
    found = [log.offset_for_timestamp(time, 10) for time in (0, 10, 11, 30, 31, 50, 51)]
    assert [hit and hit[:2] for hit in found] == [
        (10, 0),
        (10, 0),
        (30, 2),
        (30, 2),
        (50, 6),
        (50, 6),
        None,
    ]
    assert found[0].leader_epoch == 0


@pytest.mark.rule("LIST-2")
def test_nothing_is_found_beyond_the_readable_end_or_before_the_start(home):
    log = with_times(home, 10, 30, 20, 50)
    assert log.offset_for_timestamp(50, 6) is None
    assert log.offset_for_timestamp(50, 7).offset == 6
    log.advance_high_watermark(8)
    log.raise_start_offset(3)
    assert log.offset_for_timestamp(0, 8).offset == 3


@pytest.mark.rule("LIST-1")
def test_the_record_with_the_largest_timestamp_is_found(home):
    assert home.open().offset_of_max_timestamp() is None
    log = with_times(home, 10, 50, 20, 30, 50, 40)
    assert log.offset_of_max_timestamp()[:2] == (50, 2)


# -- high watermark and stable offset


@pytest.mark.rule("REPL-5", "REC-5")
def test_the_high_watermark_stays_within_the_log(home):
    log = home.open()
    append(log, count=10)
    assert log.advance_high_watermark(7) == 7
    assert log.advance_high_watermark(99) == 10
    log.raise_start_offset(4)
    assert log.advance_high_watermark(0) == 4


@pytest.mark.rule("TXN-8", "TXN-9")
def test_replicated_transactions_hold_back_the_stable_offset_and_are_listed(home):
    log = home.open()
    producer = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    data = batch_of(3, base_sequence=0, **producer)
    other = batch_of(offset=3)
    log.append_as_follower(data + other, now_ms=NOW)
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 0
    marker = batch_of(keys=[b"\0\0\0\0"], value=b"\0\0\0\0\0\1", offset=4, control=True, **producer)
    log.append_as_follower(marker, now_ms=NOW)
    assert log.last_stable_offset == 0
    log.advance_high_watermark(5)
    assert log.last_stable_offset == 5
    assert log.aborted_transactions(0, 5) == [(9, 0, 4, 5)]
    assert log.aborted_transactions(5, 6) == []
    reopened = home.open(high_watermark=5)
    assert reopened.aborted_transactions(0, 5) == [(9, 0, 4, 5)]
    assert reopened.last_stable_offset == 5


# -- rolling


@pytest.mark.rule("LOG-24", "LOG-25")
def test_a_segment_rolls_when_the_next_batch_would_exceed_its_size(home):
    batch = batch_of(10)
    home.config = LogConfig(segment_bytes=2 * len(batch))
    log = home.open()
    for _ in range(5):
        append(log, batch)
    assert [segment.base_offset for segment in log.segments] == [0, 20, 40]
    assert home.rolled == [20, 40]
    assert home.names(".snapshot") == [f"{20:020d}.snapshot", f"{40:020d}.snapshot"]


def test_a_preallocated_segment_has_its_full_size_until_it_is_sealed(home):
    batch = batch_of(10)
    home.config = LogConfig(segment_bytes=2 * len(batch), preallocate=True)
    log = home.open()
    append(log, batch)
    (file,) = home.path.glob("*.log")
    assert file.stat().st_size == 2 * len(batch)
    assert log.size == len(batch)
    assert len(stored_records(log)) == 10
    for _ in range(2):
        append(log, batch)
    sealed, active = sorted(home.path.glob("*.log"))
    assert (sealed.stat().st_size, active.stat().st_size) == (2 * len(batch), 2 * len(batch))
    log.close()
    assert active.stat().st_size == len(batch)
    reopened = home.open(clean=True)
    assert (reopened.end_offset, len(stored_records(reopened))) == (30, 30)


def test_recovery_cuts_off_what_a_crash_left_of_a_preallocated_segment(home):
    batch = batch_of(10)
    home.config = LogConfig(segment_bytes=10 * len(batch), preallocate=True)
    append(home.open(), batch)
    recovered = home.open(clean=False)
    (file,) = home.path.glob("*.log")
    assert file.stat().st_size == len(batch)
    assert (recovered.end_offset, len(stored_records(recovered))) == (10, 10)
    append(recovered, batch)
    assert len(stored_records(recovered)) == 20


@pytest.mark.rule("LOG-24")
def test_a_follower_rolls_within_what_it_received(home):
    batches = [batch_of(10, offset=10 * i) for i in range(5)]
    home.config = LogConfig(segment_bytes=2 * len(batches[0]))
    log = home.open()
    log.append_as_follower(b"".join(batches), now_ms=NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 20, 40]
    assert [record.offset for record in stored_records(log)] == list(range(50))


@pytest.mark.rule("LOG-24")
def test_a_segment_rolls_by_the_clock_of_its_records(home):
    home.config = LogConfig(segment_ms=1000)
    log = home.open()
    append(log, timestamp=5000)
    append(log, timestamp=6000, now_ms=NOW + 10_000)
    append(log, timestamp=6001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


@pytest.mark.rule("LOG-24")
def test_a_segment_without_timestamps_rolls_by_our_clock(home):
    home.config = LogConfig(segment_ms=1000)
    log = home.open()
    append(log, timestamp=-1, now_ms=NOW)
    append(log, timestamp=-1, now_ms=NOW + 1000)
    append(log, timestamp=-1, now_ms=NOW + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


@pytest.mark.rule("LOG-24")
def test_a_segment_rolls_when_an_index_is_full_or_an_offset_does_not_fit(home):
    home.config = LogConfig(index_interval_bytes=0, segment_index_bytes=4 * 12)
    log = home.open()
    for i in range(12):
        append(log, timestamp=NOW + i)
    assert len(log.segments) > 1
    log.append_as_follower(batch_of(offset=2**31 + 50), now_ms=NOW)
    assert log.segments[-1].base_offset == 2**31 + 50


@pytest.mark.rule("LOG-16", "LOG-17")
def test_one_index_entry_comes_with_more_than_the_interval_since_the_last(home):
    batch = batch_of(1, value=b"x" * 1000)
    log = home.open()
    for i in range(20):
        append(log, batch_of(1, value=b"x" * 1000, timestamp=NOW + i))
    entries = list(log.segments[0].offset_index)
    positions = [entry.value for entry in entries]
    assert positions == [len(batch) * 4 * (i + 1) for i in range(4)]
    assert [entry.key * len(batch) for entry in entries] == positions
    roll(log)
    assert [entry.key for entry in log.segments[0].time_index] == [
        NOW + 4,
        NOW + 8,
        NOW + 12,
        NOW + 16,
        NOW + 19,
    ]


# -- truncation


@pytest.mark.rule("TRUNC-3", "EPC-4")
def test_truncation_removes_all_from_an_offset_on(home):
    home.config = LogConfig(segment_bytes=250, index_interval_bytes=0)
    log = home.open()
    for epoch in range(6):
        append(log, count=3, epoch=epoch)
    log.advance_high_watermark(18)
    log.flush()
    assert len(log.segments) > 2
    assert log.truncate_to(6, now_ms=NOW)
    assert [record.offset for record in stored_records(log)] == list(range(6))
    assert (log.end_offset, log.high_watermark, log.recovery_point) == (6, 6, 6)
    assert log.epochs.entries == (EpochEntry(0, 0), EpochEntry(1, 3))
    append(log, count=3, epoch=9)
    assert [record.offset for record in stored_records(log)] == list(range(9))
    assert not log.truncate_to(9, now_ms=NOW)


@pytest.mark.rule("TRUNC-3")
def test_a_batch_that_straddles_the_offset_goes_as_a_whole(home):
    log = home.open()
    append(log, count=5)
    append(log, count=5)
    log.truncate_to(7, now_ms=NOW)
    assert log.end_offset == 5


@pytest.mark.rule("EPC-4")
def test_an_epoch_without_records_goes_even_where_the_log_is_not_shortened(home):
    log = home.open()
    append(log, epoch=1)
    log.epochs.assign(5, 1)
    assert not log.truncate_to(1, now_ms=NOW)
    assert log.epochs.entries == (EpochEntry(1, 0),)


@pytest.mark.rule("TRUNC-3", "IDEM-4")
def test_truncation_takes_producers_back(home):
    log = home.open()
    for sequence in range(4):
        append(log, producer_id=9, producer_epoch=0, base_sequence=sequence)
    roll(log)
    append(log, producer_id=9, producer_epoch=0, base_sequence=4)
    log.truncate_to(2, now_ms=NOW)
    assert log.producers.get(9).last_sequence == 1
    assert append(log, producer_id=9, producer_epoch=0, base_sequence=2).first_offset == 2


def test_a_log_can_start_anew_at_any_offset(home):
    log = home.open()
    append(log, count=10, producer_id=9, producer_epoch=0, base_sequence=0)
    log.truncate_fully_and_start_at(500, now_ms=NOW)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (500, 500, 500)
    assert log.epochs.entries == ()
    assert len(log.producers) == 0
    assert append(log).first_offset == 500
    log.truncate_to(100, now_ms=NOW)
    assert (log.start_offset, log.end_offset) == (100, 100)


# -- the old end


@pytest.mark.rule("LOG-29")
def test_the_start_rises_up_to_the_high_watermark(home):
    log = home.open()
    append(log, count=10, epoch=3)
    log.advance_high_watermark(6)
    assert log.raise_start_offset(5)
    assert not log.raise_start_offset(5)
    with pytest.raises(OffsetOutOfRangeError):
        log.raise_start_offset(7)
    assert log.start_offset == 5
    assert log.epochs.entries == (EpochEntry(3, 5),)
    assert len(log.segments) == 1


# -- the disk


@pytest.mark.rule("REC-5", "LOG-25")
def test_only_flushing_moves_the_recovery_point(home):
    log = home.open()
    append(log, count=10)
    assert log.recovery_point == 0
    log.flush(up_to=4)
    assert log.recovery_point == 4
    log.flush()
    assert log.recovery_point == 10


@pytest.mark.rule("LOG-16")
def test_a_flush_makes_the_indexes_durable_up_to_the_last_batch(home):
    home.config = LogConfig(index_interval_bytes=0)
    log = home.open()
    for _ in range(5):
        log.append_as_leader(batch_of(1), leader_epoch=0, now_ms=NOW)
    (segment,) = log.segments
    assert segment.offset_index.entries == 4
    assert segment.offset_index.path.stat().st_size == 0
    log.flush()
    assert segment.offset_index.path.stat().st_size == 4 * 8
    assert segment.time_index.path.stat().st_size == 12 * segment.time_index.entries


def test_a_flush_that_a_truncation_overtook_does_not_count(home):
    log = home.open()
    append(log, count=10)

    class Overtaken(Files):
        def fsync(self, fd):
            if log.end_offset == 10:
                log.truncate_to(0, now_ms=NOW)

    for segment in log.segments:
        segment._files = Overtaken()
    log.flush()
    assert log.recovery_point == 0


def test_a_topic_may_ask_for_more_flushes(home):
    home.config = LogConfig(flush_messages=5)
    log = home.open()
    append(log, count=4)
    log.flush_if_due(NOW)
    assert log.recovery_point == 0
    append(log)
    log.flush_if_due(NOW)
    assert log.recovery_point == 5


class FailingFiles(Files):
    is_broken = False

    def pwritev(self, fd, buffers, position):
        if self.is_broken:
            raise OSError(28, "No space left on device")
        return os.pwritev(fd, buffers, position)


@pytest.mark.rule("REC-7")
def test_a_failing_disk_takes_its_directory_offline(tmp_path):
    files = FailingFiles()
    home = Home(tmp_path / "orders-0", files=files)
    log = home.open()
    append(log)
    files.is_broken = True
    with pytest.raises(StorageError):
        append(log)
    assert home.failures == [tmp_path]
    assert log.end_offset == 1
    files.is_broken = False
    for attempt in (
        lambda: append(log),
        lambda: log.read(0, 100, 1),
        lambda: log.truncate_to(0, now_ms=NOW),
        lambda: log.append_as_follower(batch_of(offset=1), now_ms=NOW),
    ):
        with pytest.raises(StorageError):
            attempt()


def test_a_write_in_pieces_is_a_write(tmp_path):
    class Slow(Files):
        def pwritev(self, fd, buffers, position):
            content = b"".join(buffers)
            return os.pwrite(fd, content[:7], position)

    log = Home(tmp_path / "orders-0", files=Slow()).open()
    batch = batch_of(20)
    append(log, batch)
    assert log.read(0, 1 << 20, 20).bytes()[16:] == batch[16:]
