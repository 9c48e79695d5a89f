"""A disk that fails in the middle of any write: what was acknowledged is there afterwards."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.broker.log.errors import StorageError
from klamm.broker.log.settings import LogConfig
from tests.broker.log.making import NOW, Home, UnsyncedFiles, batch_of, roll, stored_records


class TornFiles(UnsyncedFiles):
    """Works until a given write, of which only a part arrives; nothing works from then on."""

    def __init__(self, writes_left: int, part: float) -> None:
        super().__init__()
        self._left = writes_left
        self._part = part

    def _use(self) -> None:
        if self._left <= 0:
            raise OSError(5, "Input/output error")

    def pwritev(self, fd, buffers, position):
        self._use()
        self._left -= 1
        if self._left:
            return os.pwritev(fd, buffers, position)
        content = b"".join(buffers)
        os.pwrite(fd, content[: int(len(content) * self._part)], position)
        raise OSError(28, "No space left on device")

    def ftruncate(self, fd, size):
        self._use()
        os.ftruncate(fd, size)

    def replace(self, source, target):
        self._use()
        os.replace(source, target)

    def unlink(self, path):
        self._use()
        os.unlink(path)


steps = st.lists(
    st.one_of(
        st.integers(1, 4),
        st.sampled_from(["roll", "flush", "new epoch", "truncate", "retention", "close"]),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(steps=steps, writes_left=st.integers(1, 40), part=st.floats(0, 1))
@pytest.mark.rule("REC-2", "REC-7", "LOG-11")
def test_what_was_acknowledged_before_the_disk_failed_is_there(
    tmp_path_factory, steps, writes_left, part
):
    config = LogConfig(segment_bytes=300, index_interval_bytes=50, retention_ms=10)
    home = Home(tmp_path_factory.mktemp("disk") / "orders-0", config)
    home.open().close()
    home.files = TornFiles(writes_left, part)
    acknowledged = attempted = start = epoch = recovery_point = 0
    log = home.open()
    try:
        for step in steps:
            if isinstance(step, int):
                attempted = acknowledged + step
                log.append_as_leader(batch_of(step), leader_epoch=epoch, now_ms=NOW)
                acknowledged = attempted
            elif step == "roll":
                roll(log)
            elif step == "flush":
                log.flush()
            elif step == "new epoch":
                epoch += 1
                log.epochs.assign(epoch, log.end_offset)
            elif step == "truncate":
                target = max(log.start_offset, log.end_offset - 3)
                # The batch that holds the target goes as a whole, and has up to four records.
                whole = max(log.start_offset, target - 3)
                acknowledged = min(acknowledged, log.segments[-1].base_offset, whole)
                log.truncate_to(target, now_ms=NOW)
                acknowledged = attempted = log.end_offset
            elif step == "retention":
                log.advance_high_watermark(log.end_offset)
                start = log.end_offset
                log.delete_old_segments(NOW + 100)
            else:
                log.close()
                log = home.open(clean=True)
            recovery_point = log.recovery_point
    except StorageError:
        pass
    home.files = UnsyncedFiles()
    again = home.open(recovery_point=min(recovery_point, acknowledged))
    offsets = [record.offset for record in stored_records(again)]
    assert offsets == list(range(again.start_offset, again.end_offset))
    assert again.end_offset >= acknowledged
    assert again.start_offset <= max(start, attempted)
    again.append_as_leader(batch_of(), leader_epoch=epoch + 1, now_ms=NOW)
    assert again.epochs.latest == epoch + 1
