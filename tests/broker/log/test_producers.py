import os
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.log.errors import AppendError
from klamm.broker.log.files import REAL_FILES
from klamm.broker.log.producers import EndTransactionMarker, ProducerStateManager, last_sequence_of
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import BatchHeader

DAY = 86_400_000
LAST = 2**31 - 1
ABORT, COMMIT = EndTransactionMarker(True, 0), EndTransactionMarker(False, 0)


def header(
    pid=7, epoch=0, sequence=0, count=1, timestamp=1000, transactional=False, control=False
) -> BatchHeader:
    attributes = transactional << 4 | control << 5
    return BatchHeader(
        0, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, pid, epoch, sequence, count
    )


@pytest.fixture
def producers(tmp_path) -> ProducerStateManager:
    return ProducerStateManager(tmp_path, REAL_FILES, DAY, os.listdir(tmp_path))


def refusal(producers, batch) -> ErrorCode | None:
    try:
        producers.check(batch)
    except AppendError as error:
        return error.code
    return None


@pytest.mark.rule("IDEM-5")
def test_a_repeated_batch_is_recognized_among_the_last_five(producers):
    for sequence in range(7):
        producers.update(header(sequence=sequence), 100 + sequence)
    found = [producers.find_duplicate(header(sequence=sequence)) for sequence in range(8)]
    assert [batch and batch.first_offset for batch in found] == [
        None,
        None,
        102,
        103,
        104,
        105,
        106,
        None,
    ]


@pytest.mark.rule("IDEM-5")
def test_only_the_same_epoch_and_the_same_range_are_a_repetition(producers):
    producers.update(header(sequence=0, count=3), 100)
    assert producers.find_duplicate(header(sequence=0, count=3))
    assert not producers.find_duplicate(header(sequence=0, count=2))
    assert not producers.find_duplicate(header(sequence=0, count=3, epoch=1))
    assert not producers.find_duplicate(header(pid=8, sequence=0, count=3))


@pytest.mark.rule("IDEM-6")
def test_an_older_epoch_is_refused(producers):
    producers.update(header(epoch=3), 100)
    assert refusal(producers, header(epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.rule("IDEM-7")
def test_a_new_epoch_starts_at_zero_and_forgets_the_batches_before(producers):
    producers.update(header(epoch=0, sequence=4), 100)
    assert refusal(producers, header(epoch=1, sequence=5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, header(epoch=1, sequence=0)) is None
    producers.update(header(epoch=1, sequence=0), 101)
    assert len(producers.get(7).batches) == 1


@pytest.mark.rule("IDEM-8")
def test_sequences_follow_each_other_without_a_gap(producers):
    producers.update(header(sequence=0, count=10), 100)
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, header(sequence=10)) is None
    assert refusal(producers, header(sequence=11)) is out_of_order
    assert refusal(producers, header(sequence=9)) is out_of_order
    assert refusal(producers, header(sequence=0)) is out_of_order


@pytest.mark.rule("IDEM-8")
def test_after_the_last_sequence_comes_zero(producers):
    producers.update(header(sequence=LAST), 100)
    assert refusal(producers, header(sequence=0)) is None


@pytest.mark.rule("IDEM-8")
def test_an_epoch_known_from_a_marker_starts_at_zero(producers):
    producers.complete(header(epoch=4, control=True, sequence=-1), 100, COMMIT)
    assert refusal(producers, header(epoch=4, sequence=0)) is None
    assert refusal(producers, header(epoch=4, sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.rule("IDEM-9")
def test_an_unknown_producer_may_start_anywhere(producers):
    assert refusal(producers, header(sequence=42)) is None


@pytest.mark.rule("IDEM-10")
@given(st.integers(0, LAST), st.integers(0, 1000))
def test_sequences_wrap_within_a_batch(first, delta):
    assert last_sequence_of(first, delta) == (first + delta) % 2**31


@pytest.mark.rule("IDEM-11")
def test_an_idle_producer_is_forgotten_unless_it_has_a_transaction_open(producers):
    producers.update(header(pid=1, timestamp=1000), 100)
    producers.update(header(pid=2, timestamp=1000, transactional=True), 101)
    producers.update(header(pid=3, timestamp=2000), 102)
    producers.expire(1000 + DAY)
    assert [producers.get(pid) is not None for pid in (1, 2, 3)] == [False, True, True]


@pytest.mark.rule("IDEM-12")
def test_a_refused_batch_leaves_no_trace(producers):
    producers.update(header(epoch=1, sequence=0), 100)
    producers.take_snapshot(101)
    before = (producers._replica / f"{101:020d}.snapshot").read_bytes()
    for batch in (header(epoch=0), header(epoch=1, sequence=9), header(epoch=2, sequence=1)):
        assert refusal(producers, batch)
    producers.take_snapshot(101)
    assert (producers._replica / f"{101:020d}.snapshot").read_bytes() == before


@pytest.mark.rule("TXN-13")
def test_data_outside_of_an_open_transaction_is_refused(producers):
    producers.update(header(sequence=0, transactional=True), 100)
    assert refusal(producers, header(sequence=1)) is ErrorCode.INVALID_TXN_STATE
    assert refusal(producers, header(sequence=1, transactional=True)) is None


@pytest.mark.rule("TXN-8")
def test_the_stable_end_stops_at_the_earliest_transaction_until_its_marker_is_committed(producers):
    assert producers.first_unstable_offset is None
    producers.update(header(pid=1, transactional=True), 100)
    producers.update(header(pid=2, transactional=True), 101)
    assert producers.first_unstable_offset == 100
    done = producers.complete(header(pid=1, control=True), 102, ABORT)
    assert done == (1, 100, 102, True)
    assert producers.stable_end_after(done) == 101
    assert producers.first_unstable_offset == 100
    producers.settle(102)
    assert producers.first_unstable_offset == 100
    producers.settle(103)
    assert producers.first_unstable_offset == 101
    producers.complete(header(pid=2, control=True), 103, COMMIT)
    producers.settle(104)
    assert producers.first_unstable_offset is None


def test_a_marker_without_data_completes_nothing(producers):
    assert producers.complete(header(control=True), 100, COMMIT) is None


@pytest.mark.rule("LOG-19", "IDEM-13")
def test_a_snapshot_keeps_the_last_batch_of_each_producer(producers, tmp_path):
    producers.update(header(pid=1, sequence=0, count=2), 100)
    producers.update(header(pid=1, sequence=2, count=3, timestamp=1500), 102)
    producers.update(header(pid=2, epoch=5, sequence=9, transactional=True), 105)
    producers.complete(
        header(pid=3, control=True, sequence=-1), 106, EndTransactionMarker(False, 4)
    )
    producers.take_snapshot(107)

    loaded = ProducerStateManager(tmp_path, REAL_FILES, DAY, os.listdir(tmp_path))
    assert loaded.load_snapshot(200, now_ms=2000) == 107
    assert len(loaded) == 3
    assert list(loaded.get(1).batches) == [(2, 4, 102, 104, 1500)]
    assert loaded.get(2).epoch == 5
    assert loaded.get(3).coordinator_epoch == 4
    assert not loaded.get(3).batches
    assert loaded.first_unstable_offset == 105


@pytest.mark.rule("LOG-19")
def test_a_snapshot_is_in_kafkas_format(producers, tmp_path):
    producers.update(header(pid=1, epoch=2, sequence=5, count=3, timestamp=1500), 102)
    producers.take_snapshot(105)
    content = (tmp_path / "00000000000000000105.snapshot").read_bytes()
    version, crc, count, *entry = struct.unpack(">hIiqhiqiqiq", content)
    assert (version, crc, count) == (1, crc32c(content[6:]), 1)
    assert entry == [1, 2, 7, 104, 2, 1500, -1, -1]


@pytest.mark.rule("REC-4")
def test_damaged_snapshots_are_deleted_and_an_older_one_is_used(producers, tmp_path):
    producers.update(header(pid=1), 100)
    producers.take_snapshot(101)
    producers.update(header(pid=1, sequence=1), 101)
    producers.take_snapshot(102)
    producers.take_snapshot(300)
    newer = tmp_path / "00000000000000000102.snapshot"
    newer.write_bytes(newer.read_bytes()[:-1] + b"\0")
    assert producers.load_snapshot(200, now_ms=2000) == 101
    assert producers.get(1).last_sequence == 0
    assert producers.snapshots() == [101, 300]


@pytest.mark.rule("REC-4")
@pytest.mark.parametrize("content", [b"", b"\0\1", bytes(40)])
def test_without_a_usable_snapshot_nothing_is_known(producers, tmp_path, content):
    (tmp_path / "00000000000000000102.snapshot").write_bytes(content)
    producers.update(header(), 0)
    assert producers.load_snapshot(200, now_ms=2000) is None
    assert len(producers) == 0
    assert producers.snapshots() == []


@pytest.mark.rule("IDEM-11")
def test_an_expired_producer_does_not_come_back_from_a_snapshot(producers):
    producers.update(header(pid=1, timestamp=1000), 100)
    producers.take_snapshot(101)
    producers.load_snapshot(101, now_ms=1000 + DAY)
    assert len(producers) == 0


@pytest.mark.rule("TXN-20")
def test_a_transaction_that_is_open_for_too_long_is_late(producers):
    limit_ms, buffer_ms = 900_000, 300_000
    assert not producers.has_late_transaction(10**12, limit_ms)
    producers.update(header(pid=1, transactional=True, timestamp=1000), 100)
    producers.update(header(pid=2, transactional=True, timestamp=9000), 101)
    due_ms = 1000 + limit_ms + buffer_ms
    assert not producers.has_late_transaction(due_ms, limit_ms)
    assert producers.has_late_transaction(due_ms + 1, limit_ms)
    producers.complete(header(pid=1, control=True), 102, ABORT)
    assert not producers.has_late_transaction(due_ms + 1, limit_ms)


@pytest.mark.rule("TXN-7")
def test_markers_of_fenced_producers_and_coordinators_are_refused(producers):
    def marker_refusal(epoch, coordinator_epoch):
        try:
            producers.check_marker(header(pid=1, epoch=epoch, control=True), coordinator_epoch)
        except AppendError as error:
            return error.code
        return None

    assert marker_refusal(0, 0) is None
    producers.update(header(pid=1, epoch=3, transactional=True), 100)
    producers.complete(header(pid=1, epoch=3, control=True), 101, EndTransactionMarker(True, 7))
    assert marker_refusal(2, 9) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert marker_refusal(3, 6) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert marker_refusal(3, 7) is None
    assert marker_refusal(4, 8) is None


@pytest.mark.rule("TXN-12")
def test_a_verification_has_to_be_the_same_at_the_append(producers):
    def refused(entry, sequence=0):
        try:
            producers.check_verified(header(sequence=sequence, transactional=True), entry)
            producers.check(header(sequence=sequence, transactional=True))
        except AppendError as error:
            return error.code
        return None

    assert refused(None) is ErrorCode.INVALID_TXN_STATE
    entry = producers.begin_verification(7, 0, 0, now_ms=1)
    assert producers.begin_verification(7, 0, 3, now_ms=1) is entry
    assert refused(entry, sequence=3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(entry) is None
    producers.update(header(sequence=0, transactional=True), 100)
    assert producers.begin_verification(7, 0, 1, now_ms=1) is None, "the transaction is open"
    assert refused(None, sequence=1) is None
    producers.complete(header(control=True), 101, COMMIT)
    assert refused(entry, sequence=1) is ErrorCode.INVALID_TXN_STATE
    later = producers.begin_verification(7, 0, 1, now_ms=1)
    producers.complete(header(control=True), 102, COMMIT)
    assert refused(later, sequence=1) is ErrorCode.INVALID_TXN_STATE, "a marker ends it"


def test_the_first_unstable_offset_is_that_of_a_walk_over_all_transactions(producers):
    opened, unsettled = {}, {}
    for number in range(300):
        pid = number * 7919 % 23
        if pid in opened:
            producers.complete(header(pid=pid, control=True), number, COMMIT)
            unsettled[opened.pop(pid)] = number
        else:
            producers.update(header(pid=pid, transactional=True, sequence=number), number)
            opened[pid] = number
        if number % 5 == 0:
            producers.settle(number - 8)
            unsettled = {start: at for start, at in unsettled.items() if at >= number - 8}
        assert producers.first_unstable_offset == min([*opened.values(), *unsettled], default=None)
