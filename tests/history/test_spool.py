"""The spool: files that a crash cannot spoil, and that do not grow without bound."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.columns import padded
from klamm.errors import KlammError
from klamm.history import spool as spool_module
from klamm.history.arrow import BATCH_EVENTS_MAX, PART_DECISIONS_MAX, encode_batches, encode_stream
from klamm.history.records import Decisions, EventRecord
from klamm.history.spool import Spool, read_file, read_spool, spool_files


def record(seq: int, *blocks: Decisions, cause: str = "a test") -> EventRecord:
    return EventRecord(seq, 1, 1, seq, "BrokerChange", cause, None, decisions=list(blocks))


def block(isrs: list[list[int]], topic: str = "orders") -> Decisions:
    count = len(isrs)
    zeros, bytes_ = np.zeros(count, np.int32), np.zeros(count, np.int8)
    partition = np.arange(count, dtype=np.int32)
    isr = padded(isrs)
    return Decisions(
        topics=[topic],
        kinds=["clean"],
        row=partition,
        topic=zeros,
        partition=partition,
        kind=bytes_,
        outcome=bytes_,
        old_leader=zeros,
        old_leader_epoch=zeros,
        old_isr=isr,
        old_state=bytes_,
        leader=zeros,
        leader_epoch=zeros,
        isr=isr,
        state=bytes_,
        replicas=isr,
    )


def sequences(directory: Path) -> list[int]:
    return [seq for batch in read_spool(directory) for seq in batch.column("seq").to_pylist()]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "history")
    yield spool
    spool.close()


def test_what_is_put_is_read_back_in_order(spool: Spool):
    for seq in range(1, 6):
        spool.put(record(seq))
    spool.flush()
    assert sequences(spool.directory) == [1, 2, 3, 4, 5]


def test_each_process_begins_a_file_of_its_own(spool: Spool):
    spool.put(record(1))
    spool.close()
    spool.put(record(2))
    spool.close()
    assert len(spool_files(spool.directory)) == 2
    assert sequences(spool.directory) == [1, 2]


def test_files_are_named_in_order_even_if_the_clock_was_set_back(spool: Spool):
    spool.directory.mkdir()
    future = spool.directory / f"{10**14:015d}.arrows"
    future.touch()
    spool.put(record(1))
    spool.flush()
    assert [path.name for path in spool_files(spool.directory)] == [
        future.name,
        f"{10**14 + 1:015d}.arrows",
    ]


def test_a_file_torn_at_any_byte_keeps_every_batch_before_the_tear(spool: Spool, tmp_path: Path):
    spool.put(record(1))
    spool.flush()
    spool.put(record(2, block([[1, 2], [3]])))
    spool.close()
    (path,) = spool_files(spool.directory)
    ends = [read.end for read in read_file(path)]
    assert len(ends) == 2
    data = path.read_bytes()
    torn = tmp_path / "torn"
    torn.write_bytes(data)
    for size in reversed(range(len(data))):
        os.truncate(torn, size)
        assert [read.end for read in read_file(torn)] == [end for end in ends if end <= size]


@pytest.mark.parametrize(
    ("metadata", "found"), [(None, "none"), ({"klamm.history": "9"}, "version 9")]
)
def test_a_file_that_is_no_history_of_this_version_is_refused(
    tmp_path: Path, metadata: dict[str, str] | None, found: str
):
    path = tmp_path / "000000000000001.arrows"
    schema = pa.schema([("seq", pa.int64())], metadata=metadata)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema):
        pass
    with pytest.raises(KlammError, match=f"{path.name} holds no history of version 1, but {found}"):
        sequences(tmp_path)


def test_a_torn_file_does_not_hide_the_files_after_it(spool: Spool):
    spool.put(record(1))
    spool.flush()
    spool.put(record(2))
    spool.close()
    (path,) = spool_files(spool.directory)
    first_end = next(read_file(path)).end
    path.write_bytes(path.read_bytes()[: first_end + 50])
    spool.put(record(3))
    spool.flush()
    assert sequences(spool.directory) == [1, 3]


def test_what_was_written_survives_the_death_of_the_writer(tmp_path: Path):
    code = f"""
from itertools import count
from pathlib import Path
from klamm.history.spool import Spool
from tests.history.test_spool import block, record
spool = Spool(Path({str(tmp_path)!r}))
for seq in count(1):
    spool.put(record(seq, block([[1, 2, 3]] * 500)))
    spool.flush()
    print(seq, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        written = [int(writer.stdout.readline()) for _ in range(20)][-1]
        writer.kill()
        writer.stdout.close()
    found = sequences(tmp_path)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= written


def test_reading_goes_on_from_a_position_in_the_file_being_written(spool: Spool):
    spool.put(record(1))
    spool.flush()
    (path,) = spool_files(spool.directory)
    (first,) = read_file(path)
    assert list(read_file(path, first.end)) == []
    spool.put(record(2))
    spool.flush()
    (second,) = read_file(path, first.end)
    assert second.batch.column("seq").to_pylist() == [2]


def test_the_oldest_files_go_when_the_retention_is_exceeded(tmp_path: Path):
    spool = Spool(tmp_path, retention_bytes=100_000)
    rng = np.random.default_rng(0)
    for seq in range(1, 41):
        # Random ids, so that there is something left to keep after compression.
        spool.put(record(seq, block(rng.integers(0, 10**9, (200, 3)).tolist())))
        spool.flush()
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100_000
    kept = sequences(tmp_path)
    assert kept == list(range(kept[0], 41))
    assert len(kept) >= 2
    spool.close()


def test_without_limit_nothing_goes_and_with_none_nothing_is_kept(tmp_path: Path):
    unlimited, nothing = Spool(tmp_path / "all", -1), Spool(tmp_path / "none", 0)
    for spool in (unlimited, nothing):
        spool.put(record(1))
        spool.close()
    assert sequences(tmp_path / "all") == [1]
    assert not (tmp_path / "none").exists()


def test_a_disk_that_refuses_loses_what_it_refused_and_nothing_else(
    spool: Spool, caplog: pytest.LogCaptureFixture
):
    spool.put(record(1))
    spool.close()
    shutil.move(spool.directory, spool.directory.with_name("aside"))
    spool.directory.write_text("in the way")
    spool.put(record(2))
    spool.flush()
    assert "a part of the history is lost" in caplog.text
    spool.directory.unlink()
    shutil.move(spool.directory.with_name("aside"), spool.directory)
    spool.put(record(3))
    spool.flush()
    assert sequences(spool.directory) == [1, 3]


def test_more_waiting_events_than_bearable_are_dropped_and_said_once(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(spool_module, "_WAITING_EVENTS_MAX", 0)
    for seq in range(1, 4):
        spool.put(record(seq))
    spool.flush()
    assert sequences(spool.directory) == []
    assert caplog.text.count("cannot be written fast enough") == 1


def test_batches_hold_neither_too_many_events_nor_too_many_decisions():
    few = [record(seq) for seq in range(BATCH_EVENTS_MAX + 1)]
    assert [batch.num_rows for batch in encode_batches(few)] == [BATCH_EVENTS_MAX, 1]
    half = block([[1]] * (PART_DECISIONS_MAX // 2 + 1))
    large = [record(1, half), record(2, half), record(3)]
    assert [batch.num_rows for batch in encode_batches(large)] == [1, 2]


def test_a_batch_by_itself_can_be_read_without_the_file():
    (batch,) = encode_batches([record(7, block([[1, 2]]))])
    table = pa.ipc.open_stream(encode_stream(batch)).read_all()
    assert table.to_pylist() == batch.to_pylist()


@given(st.lists(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5), max_size=4))
def test_lists_of_brokers_come_back_as_they_were(isrs: list[list[list[int]]]):
    records = [record(seq, block(some)) for seq, some in enumerate(isrs)]
    rows = [row for batch in encode_batches(records) for row in batch.to_pylist()]
    assert [[d["isr"] for d in row["decisions"]] for row in rows] == isrs
