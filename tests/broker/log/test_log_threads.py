"""What the event loop does and what executors do, at the same time."""

import threading
from collections.abc import Callable

import pytest

from klamm.broker.log.cleaner import clean, find_dirt
from klamm.broker.log.settings import LogConfig
from klamm.protocol.records import decode_batch_header
from tests.broker.log.making import NOW, Home, UnsyncedFiles, batch_of, roll, stored_records

ROUNDS = 1500


class Background:
    """Something that is repeated in a thread until the end; its exception is raised there."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.rounds = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._work()
                self.rounds += 1
        except BaseException as error:
            self._error = error

    def __enter__(self) -> "Background":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error:
            raise self._error


@pytest.mark.rule("LOG-11", "LOG-28")
def test_appends_and_reads_go_on_beside_flushes_deletions_and_lookups(home: Home):
    home.config = LogConfig(
        segment_bytes=2000, index_interval_bytes=100, retention_bytes=10_000, file_delete_delay_ms=0
    )
    log = home.open()

    def upkeep() -> None:
        log.flush()
        log.delete_old_segments(NOW)
        log.delete_expired_files(NOW)
        log.offset_for_timestamp(NOW, log.end_offset)
        roll(log)

    with Background(upkeep) as background:
        for _ in range(ROUNDS):
            result = log.append_as_leader(batch_of(3), leader_epoch=0, now_ms=NOW)
            log.advance_high_watermark(log.end_offset)
            for offset in (result.first_offset, max(log.start_offset, log.end_offset - 30)):
                content = log.read(offset, 1 << 20, log.end_offset, at_least_one=True).bytes()
                assert decode_batch_header(content).base_offset == offset // 3 * 3
    assert background.rounds > 0
    assert log.start_offset > 0
    assert log.end_offset == 3 * ROUNDS


def test_files_that_other_threads_close_are_opened_again(home: Home):
    """Only one file may be open: each use of a file closes the one before, in whatever thread."""
    home.files = UnsyncedFiles(open_max=1)
    home.config = LogConfig(segment_bytes=2000, index_interval_bytes=100)
    log = home.open()

    def upkeep() -> None:
        log.flush()
        log.offset_for_timestamp(NOW, log.end_offset)

    with Background(upkeep) as background:
        for _ in range(ROUNDS):
            result = log.append_as_leader(batch_of(3), leader_epoch=0, now_ms=NOW)
            log.advance_high_watermark(log.end_offset)
            for offset in (result.first_offset, 0):
                content = log.read(offset, 1 << 20, log.end_offset, at_least_one=True).bytes()
                assert decode_batch_header(content).base_offset == offset
    assert background.rounds > 0
    assert [record.offset for record in stored_records(log)] == list(range(3 * ROUNDS))


@pytest.mark.rule("CMP-4")
def test_reads_go_on_beside_compaction(home: Home):
    home.config = LogConfig(
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=500,
        index_interval_bytes=100,
        min_cleanable_dirty_ratio=0.0,
        file_delete_delay_ms=0,
    )
    log = home.open()
    files = UnsyncedFiles()

    def compact() -> None:
        dirty = find_dirt(log, None, NOW)
        if dirty:
            clean(dirty, files, NOW)
        log.delete_expired_files(NOW)

    with Background(compact) as background:
        for n in range(ROUNDS):
            log.append_as_leader(batch_of(keys=[b"%d" % (n % 50)]), leader_epoch=0, now_ms=NOW)
            log.advance_high_watermark(log.end_offset)
            for offset in (0, n // 2, n):
                content = log.read(offset, 1, log.end_offset, at_least_one=True).bytes()
                assert decode_batch_header(content).base_offset >= offset
    assert background.rounds > 0
