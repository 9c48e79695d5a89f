import os
import shutil
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.broker.log.epochs import EpochEntry
from klamm.broker.log.settings import LogConfig
from klamm.protocol.records import iterate_batches
from tests.broker.log.making import NOW, Home, UnsyncedFiles, batch_of, stored_records

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=0)
BATCHES = 12
COUNT = 3


def written(home: Home, *, close: bool = True):
    """A log of some segments: 12 batches of 3 records each, an epoch for each two of them."""
    home.config = SMALL
    log = home.open()
    for i in range(BATCHES):
        log.append_as_leader(
            batch_of(
                COUNT,
                timestamp=NOW + i,
                producer_id=9,
                producer_epoch=0,
                base_sequence=i * COUNT,
            ),
            leader_epoch=i // 2,
            now_ms=NOW,
        )
    if close:
        log.close()
    return log


def offsets(log) -> list[int]:
    return [record.offset for record in stored_records(log)]


def last_log_file(home: Home):
    return home.path / home.names(".log")[-1]


# -- a clean stop


@pytest.mark.rule("REC-2", "REC-3", "REC-5")
def test_after_a_clean_stop_all_is_there(home):
    before = written(home)
    log = home.open(clean=True, recovery_point=0, high_watermark=20)
    assert offsets(log) == list(range(36))
    assert log.epochs.entries == before.epochs.entries
    assert (log.recovery_point, log.high_watermark) == (36, 20)
    assert log.producers.get(9).last_sequence == 35


@pytest.mark.rule("REC-2")
def test_after_a_clean_stop_nothing_is_verified(home):
    written(home)
    first = home.path / home.names(".log")[0]
    content = bytearray(first.read_bytes())
    content[100] ^= 0xFF
    first.write_bytes(content)
    assert home.open(clean=True).end_offset == 36


@pytest.mark.rule("REC-5")
def test_without_a_checkpoint_the_high_watermark_is_the_start(home):
    written(home)
    assert home.open(clean=True).high_watermark == 0
    assert home.open(clean=True, start_offset=5).high_watermark == 5
    assert home.open(clean=True, high_watermark=99).high_watermark == 36


@pytest.mark.rule("LOG-18", "LOG-19")
def test_a_clean_stop_leaves_trimmed_indexes_and_a_snapshot(home):
    log = written(home)
    assert f"{36:020d}.snapshot" in home.names(".snapshot")
    for segment in log.segments:
        assert segment.offset_index.path.stat().st_size == 8 * segment.offset_index.entries
        assert segment.time_index.last().key == segment.max_timestamp


# -- a crash


@pytest.mark.rule("REC-2", "REC-3")
def test_after_a_crash_what_is_whole_is_there(home):
    before = written(home, close=False)
    log = home.open()
    assert offsets(log) == list(range(36))
    assert log.epochs.entries == before.epochs.entries
    assert log.producers.get(9).last_sequence == 35
    assert log.recovery_point == 0


@pytest.mark.rule("REC-2", "REC-6")
def test_a_torn_tail_is_cut_off(home):
    written(home, close=False)
    path = last_log_file(home)
    os.truncate(path, path.stat().st_size - 1)
    log = home.open()
    assert offsets(log) == list(range(33))
    log.append_as_leader(batch_of(COUNT), leader_epoch=9, now_ms=NOW)
    assert offsets(home.open()) == list(range(36))


@pytest.mark.rule("REC-2")
def test_all_after_the_first_damage_goes(home):
    written(home, close=False)
    second = home.path / home.names(".log")[1]
    content = bytearray(second.read_bytes())
    content[-1] ^= 0xFF
    second.write_bytes(content)
    log = home.open()
    assert len(home.names(".log")) == 2
    assert offsets(log) == list(range(len(offsets(log))))
    assert 0 < log.end_offset < 36
    assert log.segments[-1].base_offset == int(second.stem)
    assert all(entry.start_offset < log.end_offset for entry in log.epochs.entries)
    assert log.producers.get(9).last_sequence == log.end_offset - 1


@pytest.mark.rule("REC-2")
@pytest.mark.parametrize("is_rolled_empty", [True, False])
def test_what_was_rolled_after_lost_batches_goes(home, is_rolled_empty):
    written(home, close=False)
    first, second, *_ = sorted(home.path.glob("*.log"))
    batches = list(iterate_batches(first.read_bytes()))
    os.truncate(first, first.stat().st_size - batches[-1].header.size)
    if is_rolled_empty:
        os.truncate(second, 0)
    log = home.open(clean=False)
    assert log.end_offset == batches[-1].header.base_offset
    assert offsets(log) == list(range(log.end_offset))
    assert len(home.names(".log")) == 1


def test_a_compacted_log_may_have_holes_between_segments(home):
    written(home, close=False)
    home.config = replace(SMALL, cleanup_policy=frozenset({"compact"}))
    first, *_ = sorted(home.path.glob("*.log"))
    batches = list(iterate_batches(first.read_bytes()))
    os.truncate(first, first.stat().st_size - batches[-1].header.size)
    assert home.open(clean=False).end_offset == 36


@pytest.mark.rule("REC-2")
def test_only_what_lies_past_the_recovery_point_is_scanned(home):
    written(home, close=False)
    first = home.path / home.names(".log")[0]
    content = bytearray(first.read_bytes())
    content[-1] ^= 0xFF
    first.write_bytes(content)
    log = home.open(recovery_point=30)
    assert log.end_offset == 36
    assert log.recovery_point == 30
    assert home.open(recovery_point=0).end_offset < 36


@pytest.mark.rule("REC-1")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "garbage", "odd size", "zeros"])
def test_indexes_are_rebuilt_from_the_segment(home, clean, suffix, damage):
    written(home)
    intact = {name: (home.path / name).read_bytes() for name in home.names(suffix)}
    for name in intact:
        path = home.path / name
        match damage:
            case "missing":
                path.unlink()
            case "garbage":
                path.write_bytes(b"\xff" * 48)
            case "odd size":
                path.write_bytes(b"\0" * 11)
            case "zeros":
                with path.open("ab") as file:
                    file.write(bytes(240))
    log = home.open(clean=clean, recovery_point=36)
    log.close()
    assert offsets(log) == list(range(36))
    assert {name: (home.path / name).read_bytes() for name in home.names(suffix)} == intact


class CountedFiles(UnsyncedFiles):
    """Counts what changes the content of files."""

    changes = 0

    def pwritev(self, fd, buffers, position):
        self.changes += 1
        return os.pwritev(fd, buffers, position)

    def ftruncate(self, fd, size):
        self.changes += 1
        os.ftruncate(fd, size)


@pytest.mark.rule("REC-1")
def test_indexes_that_a_crash_has_left_whole_are_not_written_again(home):
    written(home)  # closed, so that the last time index has its last entry
    home.files = CountedFiles()
    assert home.open(recovery_point=0).end_offset == 36
    assert home.files.changes == 0


@pytest.mark.rule("REC-1")
def test_leftovers_are_removed(home):
    written(home)
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.index.cleaned",
        "00000000000000000777.index",
        "00000000000000000777.timeindex",
        "leader-epoch-checkpoint.tmp",
    ):
        (home.path / name).write_bytes(b"x")
    wanted = (".log", ".index", ".timeindex", ".snapshot", "-checkpoint")
    before = {name for name in home.names() if name.endswith(wanted)}
    home.open(clean=True)
    assert set(home.names()) == before - {f"{777:020d}.index", f"{777:020d}.timeindex"}


@pytest.mark.rule("REC-1", "CMP-4")
def test_an_interrupted_replacement_is_completed(home):
    log = written(home)
    for suffix in (".log", ".index", ".timeindex"):
        source = home.path / f"{0:020d}{suffix}"
        shutil.copy(source, f"{source}.swap")
    base = log.segments[1].base_offset
    (home.path / f"{0:020d}.log").write_bytes(b"superseded")
    reopened = home.open(clean=True)
    assert home.names(".swap") == []
    assert reopened.segments[1].base_offset == base
    assert offsets(reopened) == list(range(36))


@pytest.mark.rule("REC-1", "CMP-4")
def test_a_replacement_that_was_not_complete_is_dropped(home):
    written(home)
    (home.path / f"{0:020d}.log.swap").write_bytes(b"half")
    (home.path / f"{0:020d}.index.cleaned").write_bytes(b"half")
    log = home.open(clean=True)
    assert offsets(log) == list(range(36))
    assert not [name for name in home.names() if "swap" in name or "cleaned" in name]


@pytest.mark.rule("REC-3")
def test_a_log_that_ends_before_its_start_is_emptied(home):
    written(home)
    log = home.open(clean=True, start_offset=50)
    assert (log.start_offset, log.end_offset) == (50, 50)
    assert home.names(".log") == [f"{50:020d}.log"]
    assert log.epochs.entries == ()


@pytest.mark.rule("REC-3", "EPC-4")
def test_the_start_offset_comes_from_the_checkpoint_or_the_first_segment(home):
    written(home)
    assert home.open(clean=True, start_offset=7).start_offset == 7
    first = home.names(".log")[0]
    for suffix in (".log", ".index", ".timeindex"):
        (home.path / first.replace(".log", suffix)).unlink()
    log = home.open(clean=True)
    assert log.start_offset == log.segments[0].base_offset > 0
    assert log.epochs.entries[0].start_offset == log.start_offset


@pytest.mark.rule("REC-3")
def test_epochs_at_or_beyond_the_end_are_dropped(home):
    log = written(home, close=False)
    log.epochs.assign(99, 36)
    assert home.open(clean=True).epochs.latest == 5


def test_lost_epochs_are_found_in_the_batches(home):
    before = written(home)
    (home.path / "leader-epoch-checkpoint").write_bytes(b"")
    assert home.open(clean=True).epochs.entries == before.epochs.entries
    assert before.epochs.entries == tuple(EpochEntry(i, i * 6) for i in range(6))


@pytest.mark.rule("REC-4", "IDEM-4")
def test_producers_are_replayed_where_there_is_no_snapshot(home):
    written(home)
    for name in home.names(".snapshot"):
        (home.path / name).unlink()
    log = home.open(clean=True)
    assert log.producers.get(9).last_sequence == 35
    assert len(log.producers.get(9).batches) == 5


@pytest.mark.rule("IDEM-4", "IDEM-13")
def test_a_duplicate_is_recognized_after_a_restart(home):
    written(home)
    log = home.open(clean=True)
    retry = batch_of(COUNT, timestamp=NOW + 11, producer_id=9, producer_epoch=0, base_sequence=33)
    result = log.append_as_leader(retry, leader_epoch=9, now_ms=NOW)
    assert (result.first_offset, result.is_duplicate) == (33, True)


# -- any damage at all


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.rule("REC-2", "REC-6")
def test_a_log_cut_or_garbled_anywhere_comes_back_as_a_prefix(tmp_path, data):
    """Kill at any byte: the tail torn off or overwritten; the indexes may be damaged as well."""
    home = Home(tmp_path / "orders-0")
    shutil.rmtree(home.path)
    home.path.mkdir()
    written(home, close=data.draw(st.booleans(), "closed"))
    logs = home.names(".log")
    row = data.draw(st.integers(0, len(logs) - 1), "segment")
    path = home.path / logs[row]
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), "byte")
    # Whole batches that are missing from an older segment look like those that compaction removed.
    is_newest = row == len(logs) - 1
    garbage = data.draw(st.binary(min_size=not is_newest, max_size=len(content)), "garbage")
    path.write_bytes(content[:at] + garbage)
    for name in home.names("index"):
        if data.draw(st.booleans(), f"damage {name}"):
            (home.path / name).write_bytes(data.draw(st.binary(max_size=40), "index"))
    log = home.open()
    found = offsets(log)
    assert found == list(range(log.end_offset))
    assert log.end_offset % COUNT == 0
    assert log.end_offset >= int(logs[row].removesuffix(".log"))
    log.append_as_leader(batch_of(COUNT), leader_epoch=50, now_ms=NOW)
    log.close()
    again = home.open(clean=True)
    assert offsets(again) == list(range(log.end_offset))
    assert again.epochs.latest == 50
    for offset in range(log.end_offset):
        content = again.read(offset, 1, log.end_offset, at_least_one=True).bytes()
        assert int.from_bytes(content[:8], "big") == offset // COUNT * COUNT
