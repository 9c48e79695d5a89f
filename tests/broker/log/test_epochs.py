from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.log.directory import LogDirectory
from klamm.broker.log.epochs import UNDEFINED_END, EpochEnd, EpochEntry, LeaderEpochCache
from klamm.broker.log.errors import StorageError
from klamm.broker.log.files import REAL_FILES


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochCache:
    return LeaderEpochCache(tmp_path, REAL_FILES, directory_of(tmp_path))


def directory_of(path: Path) -> LogDirectory:
    return LogDirectory(path, lambda _: None)


def loaded(path: Path) -> tuple[LeaderEpochCache, bool]:
    """The epochs that were written last, and whether they could be read."""
    epochs = LeaderEpochCache(path, REAL_FILES, directory_of(path))
    return epochs, epochs.load()


def assigned(epochs: LeaderEpochCache, *entries: tuple[int, int]) -> LeaderEpochCache:
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


@pytest.mark.rule("EPC-1", "EPC-2")
def test_a_new_epoch_is_noted_with_its_start(epochs):
    assigned(epochs, (0, 0), (2, 10))
    assert epochs.entries == (EpochEntry(0, 0), EpochEntry(2, 10))
    assert epochs.latest == 2


@pytest.mark.rule("EPC-2")
def test_a_later_offset_of_the_latest_epoch_changes_nothing(epochs):
    assigned(epochs, (1, 5), (1, 9))
    assert epochs.entries == (EpochEntry(1, 5),)


@pytest.mark.rule("EPC-2")
def test_an_assignment_drops_what_it_contradicts(epochs):
    assigned(epochs, (1, 0), (2, 10), (3, 20), (4, 30))
    epochs.assign(3, 15)
    assert epochs.entries == (EpochEntry(1, 0), EpochEntry(2, 10), EpochEntry(3, 15))
    epochs.assign(5, 10)
    assert epochs.entries == (EpochEntry(1, 0), EpochEntry(5, 10))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=20))
@pytest.mark.rule("EPC-1", "EPC-2")
def test_epochs_and_starts_always_increase(tmp_path_factory, entries):
    path = tmp_path_factory.getbasetemp()
    epochs = LeaderEpochCache(path, REAL_FILES, directory_of(path))
    expected: list[tuple[int, int]] = []
    for epoch, start in entries:
        epochs.assign(epoch, start)
        if not (expected and epoch == expected[-1][0] and start >= expected[-1][1]):
            expected = [entry for entry in expected if entry[0] < epoch and entry[1] < start]
            expected.append((epoch, start))
        assert list(epochs.entries) == expected
        assert list(loaded(path)[0].entries) == expected


@pytest.mark.rule("EPC-3")
@pytest.mark.parametrize(
    ("asked", "end"),
    [
        (-1, UNDEFINED_END),
        (7, UNDEFINED_END),
        (6, EpochEnd(6, 100)),
        (5, EpochEnd(4, 40)),
        (4, EpochEnd(4, 40)),
        (3, EpochEnd(2, 20)),
        (2, EpochEnd(2, 20)),
        (1, EpochEnd(1, 10)),
        (0, EpochEnd(0, 10)),
    ],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(epochs, asked, end):
    assigned(epochs, (2, 10), (4, 20), (6, 40))
    assert epochs.end_offset_for(asked, 100) == end


@pytest.mark.rule("EPC-3")
def test_without_epochs_no_end_is_known(epochs):
    assert epochs.end_offset_for(0, 100) == UNDEFINED_END


@pytest.mark.rule("EPC-4")
def test_truncation_drops_epochs_that_began_at_or_after_it(epochs):
    assigned(epochs, (1, 0), (2, 10), (3, 20))
    epochs.truncate_from(20)
    assert epochs.entries == (EpochEntry(1, 0), EpochEntry(2, 10))
    epochs.truncate_from(5)
    assert epochs.entries == (EpochEntry(1, 0),)
    epochs.truncate_from(0)
    assert epochs.entries == ()
    assert epochs.latest == -1


@pytest.mark.rule("EPC-4")
def test_raising_the_start_moves_the_epoch_in_force_there(epochs):
    assigned(epochs, (1, 0), (2, 10), (3, 20))
    epochs.truncate_before(10)
    assert epochs.entries == (EpochEntry(2, 10), EpochEntry(3, 20))
    epochs.truncate_before(15)
    assert epochs.entries == (EpochEntry(2, 15), EpochEntry(3, 20))
    epochs.truncate_before(40)
    assert epochs.entries == (EpochEntry(3, 40),)


@pytest.mark.rule("LOG-21")
def test_the_checkpoint_is_in_kafkas_format(epochs, tmp_path):
    assigned(epochs, (0, 0), (3, 42))
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n3 42\n"


@pytest.mark.rule("LOG-21")
@pytest.mark.parametrize(
    "content", [b"", b"0\n", b"0\n2\n0 0\n", b"1\n0\n", b"0\n1\nx y\n", b"\xff"]
)
def test_a_damaged_checkpoint_is_reported_and_reads_as_none(tmp_path, content):
    (tmp_path / "leader-epoch-checkpoint").write_bytes(content)
    epochs, was_readable = loaded(tmp_path)
    assert (epochs.entries, was_readable) == ((), False)


@pytest.mark.rule("REC-7")
def test_an_epoch_that_cannot_be_written_takes_the_directory_offline(tmp_path):
    directory = directory_of(tmp_path)
    epochs = LeaderEpochCache(tmp_path / "missing", REAL_FILES, directory)
    with pytest.raises(StorageError):
        epochs.assign(1, 0)
    assert not directory.is_online
