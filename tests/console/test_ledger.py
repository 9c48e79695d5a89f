from pathlib import Path

import pytest

from klamm.console.ledger import Ledger
from klamm.core.columns import unpad
from klamm.errors import KlammError
from klamm.history.spool import read_spool
from klamm.history.story import run as tell
from tests.pipeline.history.night import night


@pytest.fixture(scope="module")
def spools(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return night(tmp_path_factory.mktemp("night")).spools


@pytest.fixture
def ledger(spools: list[Path]) -> Ledger:
    made = Ledger()
    # Of the later controller first, and of the earlier one twice.
    for spool in [*reversed(spools), spools[0]]:
        made.add(list(read_spool(spool)))
    return made


def scalar_state(ledger: Ledger, position: int) -> dict[str, tuple[int, list[int], list[int]]]:
    """The cluster after an event, folded one decision after another."""
    states: dict[tuple[str, int], tuple[int, list[int], list[int]]] = {}
    for event in ledger.index().events[: position + 1]:
        for part in sorted(event.parts):
            for each in event.parts[part].to_pylist():
                if each["outcome"] == "done":
                    name = (each["topic"], each["partition"])
                    states[name] = (max(each["leader"], -1), each["replicas"], each["isr"])
        for move in event.row["moves"]:
            name = (move["topic"], move["partition"])
            if name in states and move["phase"] != "dropped":
                leader, _, isr = states[name]
                states[name] = (leader, move["replicas"], isr)
        for change in event.row["topic_changes"]:
            if change["change"] in ("deleted", "vanished"):
                states = {n: s for n, s in states.items() if n[0] != change["topic"]}
    return {f"{topic}-{number}": state for (topic, number), state in states.items()}


def test_events_are_in_order_and_each_is_there_once(ledger: Ledger):
    keys = ledger.index().keys
    assert keys == sorted(set(keys))
    assert {epoch for epoch, _ in keys} == {1, 2}
    assert [event.key for event in ledger.after(keys[4])] == keys[5:]
    assert [event.key for event in ledger.recent(3)] == keys[-3:]


def test_the_past_is_what_the_decisions_made_of_it(ledger: Ledger):
    index = ledger.index()
    for position in range(len(index.events)):
        columns = ledger.state_at(position)
        shown = {
            columns.name(row): (
                int(columns.leader[row]),
                unpad(columns.replicas[row]),
                unpad(columns.isr[row]),
            )
            for row in range(len(columns))
        }
        assert shown == scalar_state(ledger, position)


def test_brokers_and_controller_are_those_of_the_moment(ledger: Ledger):
    index = ledger.index()
    failed = next(n for n, event in enumerate(index.events) if event.failure == "broker 2 failed")
    assert {b.id: b.live for b in ledger.state_at(failed - 1).brokers}[2]
    assert not {b.id: b.live for b in ledger.state_at(failed).brokers}[2]
    assert ledger.state_at(failed).controller == 1
    assert ledger.state_at(len(index.events) - 1).controller == 3


def test_a_story_is_that_of_the_command_line(ledger: Ledger, spools: list[Path]):
    import orjson

    said: list[str] = []
    tell("orders-0", spools=spools, as_json=True, write=said.append)
    shown = orjson.loads(orjson.dumps(ledger.story("orders-0"), option=orjson.OPT_UTC_Z))
    assert shown == orjson.loads(said[0])


def test_listeners_hear_new_events_once(spools: list[Path]):
    ledger = Ledger()
    heard: list[str] = []
    end = ledger.listen(lambda events: heard.extend(event.id for event in events))
    batches = list(read_spool(spools[0]))
    ledger.add(batches)
    ledger.add(batches)
    assert len(heard) == len(set(heard)) == len(ledger)
    end()
    ledger.add(list(read_spool(spools[1])))
    assert len(heard) < len(ledger)


def test_an_event_is_told_in_a_sentence(ledger: Ledger):
    texts = [event.text for event in ledger.index().events]
    assert any(text.startswith("Broker 2 disappeared") for text in texts)
    assert any("orders-0 is to move to replicas 2,3,4" in text for text in texts)
    assert any("topic bulk was deleted" in text for text in texts)


def test_an_event_that_is_not_there_is_said(ledger: Ledger):
    with pytest.raises(KlammError, match="no event 9:9"):
        ledger.event((9, 9))


def test_the_backlog_leaves_out_what_tells_nothing(ledger: Ledger):
    backlog = ledger.backlog(20)
    assert [event.key for event in backlog] == sorted(event.key for event in backlog)
    assert all(event.tells for event in backlog[:-5])
    assert backlog[-1].key == ledger.index().keys[-1]
