"""Which files of logs are open."""

import os
from pathlib import Path

from klamm.broker.log.files import LogFile
from tests.broker.log.making import NOW, Home, UnsyncedFiles, batch_of, stored_records


def open_below(directory: Path) -> list[str]:
    """The files in a directory that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(f"{directory}/"):
            found.append(target)
    return sorted(found)


def test_a_new_log_and_a_loaded_one_keep_no_file_open(tmp_path):
    home = Home(tmp_path / "orders-0")
    log = home.open()
    assert open_below(tmp_path) == []
    log.append_as_leader(batch_of(), leader_epoch=0, now_ms=NOW)
    log.close()
    del log
    again = home.open(clean=True)
    assert again.end_offset == 1
    assert len(open_below(tmp_path)) <= 1, "the end of the log was read from its file"


def test_more_logs_can_be_written_and_read_than_files_may_be_open(tmp_path):
    files = UnsyncedFiles(open_max=5)
    logs = [Home(tmp_path / f"orders-{n}", files=files).open() for n in range(20)]
    for _ in range(3):
        for log in logs:
            log.append_as_leader(batch_of(2), leader_epoch=0, now_ms=NOW)
            assert len(open_below(tmp_path)) <= 5
    for log in logs:
        assert [record.offset for record in stored_records(log)] == list(range(6))
        assert len(open_below(tmp_path)) <= 5


def test_what_a_reader_has_is_readable_after_the_file_was_closed_and_deleted(tmp_path):
    files = UnsyncedFiles(open_max=1)
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "b").write_bytes(b"second")
    first, second = LogFile(str(tmp_path / "a"), files), LogFile(str(tmp_path / "b"), files)
    kept = first.opened()
    second.opened()
    first.delete()
    assert os.pread(kept.fd, 10, 0) == b"first"
    del kept
    assert open_below(tmp_path) == [f"{tmp_path}/b"]


def test_the_file_of_a_log_that_is_no_longer_used_is_closed(tmp_path):
    log = Home(tmp_path / "orders-0").open()
    log.append_as_leader(batch_of(), leader_epoch=0, now_ms=NOW)
    assert open_below(tmp_path) == [f"{tmp_path}/orders-0/00000000000000000000.log"]
    del log
    assert open_below(tmp_path) == []
