"""Each kind of disagreement between clients and the controllers' history is found."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.chaos.agreement import TABLES, Margins, TableRow, compare
from tests.chaos.recording import Fault, History, Kept, Leader, Write

MARGINS = Margins(session_s=6, hearing_s=10, under_way_s=5, silence_s=3)
Tables = dict[str, list[TableRow]]


def moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def led(leader: int, epoch: int, at: float, **more: Any) -> dict[str, Any]:
    """A row of the timeline."""
    return {
        "topic": "t",
        "partition": 0,
        "leader": leader,
        "leader_epoch": epoch,
        "old_leader": leader,
        "old_leader_epoch": epoch - 1,
        "from": moment(at),
        "controller_epoch": 1,
        "seq": int(at),
        **more,
    }


def elected(at: float, kind: str = "clean") -> dict[str, Any]:
    return {"topic": "t", "partition": 0, "kind": kind, "new_leader": 2, "at": moment(at)}


def unled(since: float, until: float) -> dict[str, Any]:
    return {"topic": "t", "partition": 0, "from": moment(since), "until": moment(until)}


def term(until: float, end: str = "replaced") -> dict[str, Any]:
    return {"end": end, "until": moment(until)}


def run() -> tuple[History, Tables]:
    """Broker 1 led from 0 on, was killed at 100, and at 106 broker 2 took its place."""
    history = History()
    for number, (sent_at, done_at, epoch) in enumerate(
        [(99, 99.1, 0), (100, 107, 1), (108, 109, 1)]
    ):
        history.writes.append(Write("p", number, "t", 0, sent_at, done_at, offset=number))
        history.kept.append(Kept("t", 0, number, epoch, "p", number))
    history.faults.append(Fault("kill", "kill broker 1", 100, 120, broker=1, led=(("t", 0),)))
    history.leaders.append(Leader("t", 0, 2, 1, 200))
    tables: Tables = {
        "timeline": [led(1, 0, 1), led(2, 1, 106, old_leader=1)],
        "elections": [elected(106)],
        "unavailability": [unled(106, 106.5)],
        "controller_terms": [],
    }
    return history, tables


def texts(history: History, tables: Tables) -> list[str]:
    return [violation.text for violation in compare(history, tables, MARGINS)]


def test_a_run_and_its_history_agree():
    assert texts(*run()) == []


def test_all_tables_are_looked_at():
    assert run()[1].keys() == set(TABLES)


def test_two_leaders_of_an_epoch_are_found():
    history, tables = run()
    tables["timeline"].append(led(3, 0, 50))
    assert texts(history, tables) == ["epoch 0 had the leaders [1, 3]"]


def test_an_unclean_election_is_found():
    history, tables = run()
    tables["elections"].append(elected(50, "unclean"))
    assert texts(history, tables) == ["unclean election of 2"]


def with_a_lost_event() -> tuple[History, Tables]:
    history, tables = run()
    history.kept[2] = Kept("t", 0, 2, 5, "p", 2)
    return history, tables


def test_an_epoch_that_the_history_does_not_have_is_found():
    (text,) = texts(*with_a_lost_event())
    assert "epoch 5" in text


def test_an_epoch_that_an_event_raised_and_raised_again_is_known():
    history, tables = with_a_lost_event()
    tables["timeline"].append(led(2, 6, 109, old_leader_epoch=4))
    history.leaders[:] = [Leader("t", 0, 2, 6, 200)]
    assert texts(history, tables) == []


def test_the_last_words_of_a_controller_that_was_killed_may_be_missing():
    history, tables = with_a_lost_event()
    tables["controller_terms"] = [term(until=108)]
    assert texts(history, tables) == []


def test_a_leader_that_acknowledges_after_it_was_replaced_is_found():
    history, tables = run()
    history.writes[0] = Write("p", 0, "t", 0, 99, 115, offset=0)
    (text,) = texts(history, tables)
    assert "9.0 s after its epoch 0 ended" in text


def test_a_record_from_before_its_epoch_is_found():
    history, tables = run()
    history.writes[1] = Write("p", 1, "t", 0, 100, 104, offset=1)
    (text,) = texts(history, tables)
    assert "2.0 s before its epoch 1 began" in text


@pytest.mark.parametrize(("kind", "seconds", "found"), [("kill", 1, 1), ("pause", 3, 0)])
def test_a_lost_leader_without_an_election_is_found(kind: str, seconds: float, found: int):
    history, tables = run()
    fault = Fault(kind, "again", 300, 300 + seconds, broker=2, led=(("t", 0),))
    history.faults.append(fault)
    assert len(texts(history, tables)) == found


def test_silence_that_nothing_in_the_history_explains_is_found():
    history, tables = run()
    history.writes.append(Write("p", 3, "t", 0, 200, 209, offset=3))
    history.kept.append(Kept("t", 0, 3, 1, "p", 3))
    (text,) = texts(history, tables)
    assert "9.0 s of which are not in the history" in text


def test_brokers_that_are_parted_explain_silence_of_which_no_controller_knows():
    history, tables = run()
    history.writes.append(Write("p", 3, "t", 0, 200, 209, offset=3))
    history.kept.append(Kept("t", 0, 3, 1, "p", 3))
    history.faults.append(Fault("part brokers", "", 199, 205, lasting=True))
    assert texts(history, tables) == []


@pytest.mark.parametrize("leader", [Leader("t", 0, 3, 1, 200), Leader("t", 0, 2, 2, 200)])
def test_another_leader_in_the_end_is_found(leader: Leader):
    history, tables = run()
    history.leaders = [leader]
    (text,) = texts(history, tables)
    assert "in the end" in text


def test_the_history_may_go_on_after_zookeeper_was_asked_in_the_end():
    history, tables = run()
    tables["timeline"].append(led(1, 2, 199.5, old_leader=2))  # not written yet
    tables["timeline"].append(led(2, 3, 201, old_leader=1))
    assert texts(history, tables) == []
    history.leaders = [Leader("t", 0, 2, 3, 200)]
    (text,) = texts(history, tables)
    assert text.endswith("the history has leader 2 of epoch 1 or leader 1 of epoch 2")


def test_topics_that_come_and_go_are_not_compared():
    history, tables = run()
    tables["timeline"] += [
        led(1, 0, 50) | {"topic": "scratch"},
        led(2, 0, 60) | {"topic": "scratch"},
    ]
    assert texts(history, tables) == []
