"""The folders that `bench.history_refresh` measures are those that klamm would have left."""

from pathlib import Path

import orjson
import pytest
from pyarrow import parquet

from bench.filled_history import FilledHistory, open_folder
from bench.repeated_history import record
from klamm.pipeline.history import folder as folders
from klamm.pipeline.history.fold import cluster
from klamm.pipeline.history.fold.task import STATE
from tests.pipeline.history.refreshes import differences, folding_here, put_in

REFRESHES = 21


def content(path: Path) -> object:
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    return orjson.loads(path.read_bytes()) if path.suffix == ".json" else path.read_bytes()


def files_in(out: Path) -> set[str]:
    """Sealed files, and files of the state."""
    found = [*out.glob("*/part-*"), *(out / STATE).iterdir()]
    return {str(path.relative_to(out)) for path in found}


def test_a_filled_folder_is_the_one_that_refreshes_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(folders, "tail_rows", lambda partitions: 60)
    monkeypatch.setattr(cluster, "_SESSIONS_SHOWN", 20)
    monkeypatch.setattr(cluster, "FLAPPING_WINDOW_S", 300)
    start, repetition = record(tmp_path / "nodes", partitions=2, rotations=3)
    history = FilledHistory(tmp_path / "first", start, repetition, folded=10)
    history.fill(tmp_path / "filled", REFRESHES)
    history.fill(tmp_path / "copied", REFRESHES, computed=5)
    with folding_here():
        folded = open_folder(None, tmp_path / "folded")
        put_in(folded, start)
        for number in range(REFRESHES):
            put_in(folded, repetition.shifted(number))
        assert folded.manifest.generation == REFRESHES
        expected = files_in(tmp_path / "folded")
        assert files_in(tmp_path / "filled") == files_in(tmp_path / "copied") == expected
        for name in expected:
            made = content(tmp_path / "folded" / name)
            assert content(tmp_path / "filled" / name) == made, name
            if name.startswith(STATE):
                assert content(tmp_path / "copied" / name) == made, name
        filled = open_folder(None, tmp_path / "filled")
        for folder in (filled, folded):
            put_in(folder, repetition.shifted(REFRESHES))
    assert [*differences(tmp_path / "filled", tmp_path / "folded")] == []
