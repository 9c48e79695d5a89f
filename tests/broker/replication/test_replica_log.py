"""The log in memory behaves as the log on disk does, as far as replication can tell."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.broker.log.errors import AppendError, OffsetOutOfRangeError
from klamm.broker.log.log import Log
from klamm.broker.replication.replica_log import ReplicaLog
from tests.broker.log.making import NOW, Home, batch_of
from tests.support.memory_log import MemoryLog

offsets = st.integers(0, 15)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 2)),
        st.tuples(st.just("append below"), st.just(1), st.just(0)),
        st.tuples(st.just("watermark"), offsets, st.just(0)),
        st.tuples(st.just("start"), offsets, st.just(0)),
        st.tuples(st.just("truncate"), offsets, st.just(0)),
        st.tuples(st.just("truncate fully"), offsets, st.just(0)),
        st.tuples(st.just("lead"), st.just(0), st.integers(1, 2)),
    ),
    max_size=12,
)


def apply(log: ReplicaLog, step: str, number: int, epoch: int) -> object:
    """One step, and what it says."""
    try:
        match step:
            case "append":
                batch = batch_of(number, offset=log.end_offset, epoch=epoch)
                return log.append_as_follower(batch, now_ms=NOW)
            case "append below":
                if log.start_offset == log.end_offset:
                    return None
                batch = batch_of(1, offset=log.end_offset - 1, epoch=epoch)
                return log.append_as_follower(batch, now_ms=NOW)
            case "watermark":
                return log.advance_high_watermark(number)
            case "start":
                return log.raise_start_offset(number)
            case "truncate":
                return log.truncate_to(number, now_ms=NOW)
            case "truncate fully":
                return log.truncate_fully_and_start_at(number, now_ms=NOW)
            case _:
                return log.epochs.assign(epoch, log.end_offset)
    except (AppendError, OffsetOutOfRangeError) as error:
        return type(error)


def seen(log: ReplicaLog) -> tuple[object, ...]:
    """All that replication can ask."""
    ends = [log.epochs.end_offset_for(epoch, log.end_offset) for epoch in range(-1, 8)]
    return (
        log.start_offset,
        log.end_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.epochs.latest,
        ends,
    )


@pytest.mark.rule("REPL-5", "TRUNC-3", "EPC-3", "EPC-4", "LOG-12")
@settings(max_examples=60)
@given(steps)
def test_both_logs_answer_alike(history):
    with tempfile.TemporaryDirectory() as folder:
        disk: Log = Home(Path(folder) / "orders-0").open()
        memory = MemoryLog()
        epoch = 0
        try:
            for step, number, epoch_step in history:
                epoch += epoch_step
                assert apply(memory, step, number, epoch) == apply(disk, step, number, epoch)
                assert seen(memory) == seen(disk)
        finally:
            disk.close()
