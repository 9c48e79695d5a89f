"""A log under any sequence of operations, against a list of batches."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from klamm.broker.log.errors import OffsetOutOfRangeError
from klamm.broker.log.settings import LogConfig
from klamm.protocol.records import iterate_batches
from tests.broker.log.making import NOW, Home, batch_of, roll


class Model(NamedTuple):
    base: int
    last: int
    epoch: int
    timestamp: int


class LogMachine(RuleBasedStateMachine):
    """Append, truncate, roll, delete, flush, stop, crash: the log and the list agree."""

    @initialize(
        segment_bytes=st.sampled_from([150, 400, 5000]),
        index_interval_bytes=st.sampled_from([0, 100, 4096]),
        compacts=st.booleans(),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, compacts: bool) -> None:
        self.compacts = compacts
        self.root = Path(tempfile.mkdtemp(prefix="klamm-log"))
        self.home = Home(
            self.root / "orders-0",
            LogConfig(
                segment_bytes=segment_bytes,
                index_interval_bytes=index_interval_bytes,
                file_delete_delay_ms=0,
                cleanup_policy=frozenset({"compact", "delete"} if compacts else {"delete"}),
            ),
        )
        self.log = self.home.open()
        self.batches: list[Model] = []
        self.first = self.start = self.end = 0
        self.epoch = 0
        self.clock = NOW

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(count=st.integers(1, 4), jump=st.integers(-5, 20), is_new_epoch=st.booleans())
    def append_as_leader(self, count: int, jump: int, is_new_epoch: bool) -> None:
        self.epoch += is_new_epoch
        self.clock += jump
        batch = batch_of(count, timestamp=self.clock)
        result = self.log.append_as_leader(batch, leader_epoch=self.epoch, now_ms=NOW)
        assert result.first_offset == self.end
        self.batches.append(Model(self.end, result.last_offset, self.epoch, self.clock))
        self.end = result.last_offset + 1

    @rule(
        sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=6),
        is_new_epoch=st.booleans(),
    )
    def append_as_follower(self, sizes: list[tuple[int, int]], is_new_epoch: bool) -> None:
        self.epoch += is_new_epoch
        records = b""
        for gap, count in sizes:
            base = self.end + gap * self.compacts
            records += batch_of(count, offset=base, epoch=self.epoch, timestamp=self.clock)
            self.batches.append(Model(base, base + count - 1, self.epoch, self.clock))
            self.end = base + count
        assert self.log.append_as_follower(records, now_ms=NOW) == len(records)

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        target = max(0, self.end - back)
        self.log.truncate_to(target, now_ms=NOW)
        kept = [batch for batch in self.batches if batch.last < target]
        straddling = [batch.base for batch in self.batches if batch.base < target <= batch.last]
        if target < self.first:
            self.batches = []
            self.first = self.start = self.end = target
        elif target < self.end:
            self.end = min([target, *straddling])
            self.start = min(self.start, self.end)
            self.batches = kept

    @rule(ahead=st.integers(0, 5))
    def start_anew(self, ahead: int) -> None:
        self.first = self.start = self.end = self.end + ahead
        self.batches = []
        self.log.truncate_fully_and_start_at(self.end, now_ms=NOW)

    @rule()
    def roll(self) -> None:
        roll(self.log)

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        self.log.advance_high_watermark(self.end)
        self.start += int((self.end - self.start) * part)
        self.log.raise_start_offset(self.start)
        self.log.delete_old_segments(NOW)
        self.log.delete_expired_files(NOW)
        self.first = self.log.segments[0].base_offset
        self.batches = [batch for batch in self.batches if batch.base >= self.first]

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.end

    @rule(how=st.sampled_from(["clean", "crash", "crash and no checkpoint"]))
    def restart(self, how: str) -> None:
        recovery_point = self.log.recovery_point
        high_watermark = self.log.high_watermark
        if how == "clean":
            self.log.close()
        self.log = self.home.open(
            clean=how == "clean",
            recovery_point=0 if how == "crash and no checkpoint" else recovery_point,
            start_offset=self.start,
            high_watermark=high_watermark,
        )
        # A start deletes segments that end before the log's start.
        self.first = self.log.segments[0].base_offset
        self.batches = [batch for batch in self.batches if batch.base >= self.first]
        # Nothing but batches and the names of segments tells where the log ended.
        last = self.batches[-1].last + 1 if self.batches else 0
        self.end = max(last, self.log.segments[-1].base_offset)
        assert self.log.high_watermark == max(self.start, min(high_watermark, self.end))

    @invariant()
    @precondition(lambda self: hasattr(self, "log"))
    def offsets_agree(self) -> None:
        assert self.log.start_offset == self.start
        assert self.log.end_offset == self.end
        assert self.log.size == sum(path.stat().st_size for path in self.home.path.glob("*.log"))

    @invariant()
    @precondition(lambda self: hasattr(self, "log"))
    def every_offset_reads_its_batch(self) -> None:
        visible = [batch for batch in self.batches if batch.last >= self.start]
        for offset in range(self.start, self.end):
            expected = next((batch for batch in visible if batch.last >= offset), None)
            content = self.log.read(offset, 1, self.end, at_least_one=True).bytes()
            found = next(iterate_batches(content), None)
            assert (found and found.header.base_offset) == (expected and expected.base)
            if found and expected:
                assert found.header.last_offset == expected.last
                assert found.header.leader_epoch == expected.epoch

    @invariant()
    @precondition(lambda self: hasattr(self, "log"))
    def outside_there_is_nothing(self) -> None:
        for offset in (self.start - 1, self.end + 1):
            try:
                self.log.read(offset, 1, self.end)
            except OffsetOutOfRangeError:
                continue
            raise AssertionError(f"{offset} can be read")

    @invariant()
    @precondition(lambda self: hasattr(self, "log"))
    def times_find_the_first_record(self) -> None:
        visible = [batch for batch in self.batches if batch.last >= self.start]
        for time in {batch.timestamp + d for batch in visible[-6:] for d in (0, 1)}:
            first = next((batch for batch in visible if batch.timestamp >= time), None)
            found = self.log.offset_for_timestamp(time, self.end)
            assert (found and found.offset) == (first and max(first.base, self.start))


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
