"""Each kind of violation, put into a history by hand, is found, and nothing but that."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.checker import Promises, check
from tests.chaos.recording import (
    Asked,
    Ending,
    Fault,
    GroupOffset,
    History,
    Kept,
    Read,
    Recorder,
    Stall,
    Write,
    read_history,
)
from tests.chaos.silence import Span, silences, uncovered_s

PROMISES = Promises(writes_resume_s=20, groups_resume_s=30, grace_s=5)


def sound(records: int = 10) -> History:
    """A producer writes, a group reads and commits, all within a moment of each other."""
    history = History()
    for at in range(records):
        history.writes.append(Write("p", at, "t", 0, at, at + 0.1, offset=at))
        history.kept.append(Kept("t", 0, at, 0, "p", at))
        history.reads.append(Read("g", "m", 1, "t", 0, at, "p", at, at + 0.2))
        history.offsets.append(GroupOffset("g", "m", "t", 0, at + 1, at + 0.3, at + 0.4))
    history.endings.append(Ending(1.0, {"t": 1}))
    return history


def found(history: History) -> list[str]:
    return [violation.kind for violation in check(history, PROMISES)]


def test_a_sound_history_is_accepted():
    assert found(sound()) == []


def test_a_history_without_any_rows_is_accepted():
    assert found(History()) == []


def test_an_acknowledged_record_that_is_gone_is_lost():
    history = sound()
    del history.kept[9], history.reads[9]
    assert found(history) == ["lost"]


def test_a_record_that_was_not_acknowledged_may_be_gone_or_kept():
    history = sound()
    history.writes[8] = replace(history.writes[8], error="timed out", offset=None)
    history.writes[9] = replace(history.writes[9], error="timed out", offset=None)
    del history.kept[9], history.reads[9]
    assert found(history) == []


def test_a_record_at_another_offset_than_acknowledged_is_misplaced():
    history = sound()
    history.writes[4] = replace(history.writes[4], offset=7)
    assert found(history) == ["misplaced"]


def test_a_record_in_another_partition_is_misplaced_even_if_its_offset_was_not_told():
    history = sound()
    history.writes[4] = replace(history.writes[4], offset=None, partition=1)
    assert found(history) == ["misplaced"]


def doubled() -> History:
    history = sound()
    history.kept.append(Kept("t", 0, 10, 0, "p", 9))
    history.reads.append(Read("g", "m", 1, "t", 0, 10, "p", 9, 10))
    return history


def test_a_second_copy_is_a_duplicate_of_an_idempotent_producer():
    assert found(doubled()) == ["duplicated"]


def test_a_second_copy_is_allowed_to_a_producer_that_is_not_idempotent():
    history = doubled()
    history.writes = [replace(write, is_idempotent=False) for write in history.writes]
    assert found(history) == []


def sent_again(first: int = 9, *, acknowledged: int | None = 10) -> History:
    """The client began a new epoch while it had no acknowledgement of the last records."""
    history = sound()
    history.kept = [replace(row, written_as=(7, 0)) for row in history.kept]
    for number in range(first, 10):
        offset = len(history.kept)
        history.kept.append(Kept("t", 0, offset, 0, "p", number, (7, 1)))
        history.reads.append(Read("g", "m", 1, "t", 0, offset, "p", number, 10))
        history.writes[number] = replace(history.writes[number], offset=offset)
    history.writes[9] = replace(history.writes[9], offset=acknowledged)
    return history


def test_what_a_client_sends_again_under_a_new_epoch_of_its_own_may_be_there_twice():
    assert found(sent_again()) == []
    assert found(sent_again(8, acknowledged=11)) == []
    assert found(sent_again(acknowledged=None)) == []


def test_what_was_acknowledged_under_the_old_epoch_is_a_duplicate():
    assert found(sent_again(acknowledged=9)) == ["duplicated"]


def test_what_other_records_of_the_old_epoch_come_after_is_a_duplicate():
    history = sent_again(8, acknowledged=None)
    del history.kept[11], history.reads[11]
    assert found(history) == ["duplicated"]


@pytest.mark.parametrize("written_as", [(7, 0), (8, 1), None])
def test_a_copy_under_the_same_epoch_or_another_id_is_a_duplicate(written_as):
    history = sent_again()
    history.kept[10] = replace(history.kept[10], written_as=written_as)
    assert found(history) == ["duplicated"]


def test_a_copy_in_another_partition_is_a_duplicate():
    history = sent_again(acknowledged=None)
    history.kept[10] = replace(history.kept[10], partition=1, offset=0)
    assert "duplicated" in found(history)


def test_records_in_another_order_than_sent_are_reordered():
    history = sound()
    history.kept[3], history.kept[4] = (
        replace(history.kept[3], number=4),
        replace(history.kept[4], number=3),
    )
    history.reads[3], history.reads[4] = (
        replace(history.reads[3], number=4),
        replace(history.reads[4], number=3),
    )
    history.writes = [replace(write, offset=None) for write in history.writes]
    assert found(history) == ["reordered"]


def test_an_epoch_below_that_of_an_earlier_offset_has_gone_back():
    history = sound()
    history.kept[5] = replace(history.kept[5], epoch=3)
    assert found(history) == ["epoch gone back"]


def test_a_record_that_was_read_and_is_not_kept_was_not_committed():
    history = sound()
    history.reads.append(Read("g", "m", 1, "t", 0, 10, "p", 10, 10))
    history.writes.append(Write("p", 10, "t", 0, 9.5, 10, error="timed out"))
    kinds = found(history)
    assert "uncommitted read" in kinds
    assert "lost" not in kinds


def test_another_record_than_was_read_at_an_offset_was_not_committed():
    history = sound()
    history.reads[6] = replace(history.reads[6], number=99)
    assert found(history) == ["uncommitted read"]


def test_a_record_twice_in_one_stretch_of_owning_is_out_of_step():
    history = sound()
    history.reads.insert(6, history.reads[5])
    assert found(history) == ["out of step"]


def test_reading_again_what_was_not_committed_is_allowed_after_a_rebalance():
    history = sound()
    history.reads.append(replace(history.reads[9], member="other", assignment=1))
    history.reads.append(replace(history.reads[9], assignment=2))
    assert found(history) == []


def test_a_record_that_a_group_passes_over_is_skipped():
    history = sound()
    # Nobody is out of step, if the next record belongs to the next owner.
    history.reads[6:] = [replace(read, member="other") for read in history.reads[6:]]
    del history.reads[6]
    assert found(history) == ["skipped"]


def test_a_commit_below_one_that_was_done_before_has_gone_back():
    history = sound()
    history.offsets.append(GroupOffset("g", "m", "t", 0, 3, 20, 21))
    assert found(history) == ["offset gone back"]


def test_an_offset_that_is_seen_below_an_earlier_commit_has_gone_back():
    history = sound()
    history.offsets.append(GroupOffset("g", None, "t", 0, 9, 20, 21))
    assert found(history) == ["offset gone back"]


def test_an_offset_that_was_asked_for_while_it_was_committed_may_be_the_old_one():
    history = sound()
    history.offsets.append(GroupOffset("g", None, "t", 0, 9, 9.35, 21))
    assert found(history) == []


@pytest.mark.parametrize("kind", ["part brokers", "isolate", "pause"])
def test_what_a_deposed_coordinator_remembers_may_be_seen_but_not_committed(kind: str):
    history = sound()
    history.faults.append(Fault(kind, "broker 1 from broker 2", 15, 20))
    history.offsets.append(GroupOffset("g", None, "t", 0, 3, 20, 21))
    assert found(history) == []
    history.offsets.append(GroupOffset("g", "m", "t", 0, 3, 20, 21))
    assert found(history) == ["offset gone back"]


def test_a_deposed_coordinator_has_heard_of_it_some_time_after_it_is_reached_again():
    history = sound()
    history.faults.append(Fault("isolate", "broker 1", 5, 8))
    history.offsets.append(GroupOffset("g", None, "t", 0, 3, 20, 21))
    assert found(history) == ["offset gone back"]


@pytest.mark.parametrize(
    ("calls", "partitions"),
    [
        ([("create", 2, None)], 0),
        ([("create", 2, None), ("delete", 0, None)], 2),
        ([("create", 2, None), ("expand", 5, None)], 2),
        ([("create", 2, "timed out"), ("expand", 5, "timed out")], 3),
    ],
)
def test_a_topic_that_is_not_what_was_answered_is_astray(
    calls: list[tuple[str, int, str | None]], partitions: int
):
    history = sound()
    for call, count, error in calls:
        history.asked.append(Asked(call, "u", count, 1, 2, error))
    history.endings[0].topics["u"] = partitions
    assert found(history) == ["topic astray"]


@pytest.mark.parametrize("partitions", [0, 2, 5])
def test_a_call_that_failed_may_have_been_carried_out(partitions: int):
    history = sound()
    history.asked = [
        Asked("create", "u", 2, 1, 2),
        Asked("expand", "u", 5, 3, 4, "timed out"),
        Asked("delete", "u", 0, 5, 6, "timed out"),
    ]
    history.endings[0].topics["u"] = partitions
    assert found(history) == []


def test_a_cluster_that_does_not_become_whole_is_unsettled():
    history = sound()
    history.endings[0] = replace(history.endings[0], wrong=("broker 2 is not registered",))
    assert found(history) == ["unsettled"]


def silent(seconds: float) -> History:
    """Two records, the second of which takes its time."""
    history = sound(2)
    history.writes[1] = replace(history.writes[1], done_at=1 + seconds)
    history.reads[1] = replace(history.reads[1], at=1 + seconds)
    return history


def test_a_long_silence_without_a_fault_is_unavailability():
    assert found(silent(4)) == []
    assert found(silent(6)) == ["unavailable"]


def test_a_fault_excuses_silence_up_to_the_bound():
    history, longer = silent(19), silent(22)
    history.faults = longer.faults = [Fault("kill", "", 1, 2)]
    assert found(history) == []
    assert found(longer) == ["unavailable"]


def test_a_fault_long_before_excuses_nothing():
    history = silent(10)
    history.faults = [Fault("kill", "", -60, -30)]
    assert found(history) == ["unavailable"]


def test_a_lasting_fault_does_not_count():
    history = silent(60)
    history.faults = [Fault("part", "", 1, 50, lasting=True)]
    assert found(history) == []


def test_a_machine_that_stands_still_is_no_unavailability():
    history = silent(60)
    history.stalls = [Stall(2, 60)]
    assert found(history) == []


def test_a_group_that_does_not_read_on_is_stuck():
    history = sound(2)
    history.reads[1] = replace(history.reads[1], at=10)
    assert found(history) == ["stuck group"]


def test_a_group_that_leaves_records_unread_is_stuck():
    history = sound()
    del history.reads[8:]
    assert found(history) == ["stuck group"]


def test_silence_begins_when_something_is_asked_for():
    waits = [Span(0, 1), Span(10, 11), Span(10.5, 13), Span(2, 2.5)]
    assert silences(waits) == [Span(0, 1), Span(2, 2.5), Span(10, 11), Span(11, 13)]


def test_windows_that_overlap_are_counted_once():
    assert uncovered_s(Span(0, 10), [Span(1, 4), Span(3, 5), Span(9, 20), Span(3, 4)]) == 5


def test_rows_are_read_as_they_were_written(tmp_path: Path):
    history = sound()
    history.faults = [Fault("kill", "kill broker 2", 1, 2, broker=2, led=(("t", 0),))]
    history.stalls = [Stall(2, 60)]
    history.asked = [Asked("create", "u", 2, 1, 2)]
    recorder = Recorder(tmp_path / "history.jsonl")
    for rows in (history.writes, history.kept, history.reads, history.offsets, history.endings):
        for row in rows:
            recorder.add(row)
    for row in (*history.faults, *history.stalls, *history.asked):
        recorder.add(row)
    recorder.close()
    assert read_history(tmp_path / "history.jsonl") == history
