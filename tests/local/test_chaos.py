"""Failovers on demand: what a seed decides, and when the next broker may fail."""

import pytest

from klamm.client.topics import PartitionDescription
from klamm.errors import ConfigError
from klamm.local.broker_process import ProcessState
from klamm.local.chaos import Chaos, ChaosAction
from klamm.names import TopicPartition


class Model:
    """A cluster of three that reacts at once; the real one is in tests/test_pytest_plugin.py."""

    def __init__(self) -> None:
        self.broker_ids = [1, 2, 3]
        self.away: dict[int, ProcessState] = {}
        self.done: list[tuple[str, int]] = []
        self.healed = 0

    def broker(self, broker: int):
        class Process:
            state = self.away.get(broker, ProcessState.RUNNING)
            is_alive = state is not ProcessState.STOPPED

        return Process

    def controller_id(self):
        return 1

    def registered(self):
        return set(self.broker_ids) - self.away.keys()

    def partitions(self):
        isr = tuple(sorted(self.registered()))
        described = PartitionDescription("orders", 0, isr[0], 0, (1, 2, 3), isr, ())
        return {TopicPartition("orders", 0): described}

    def _fail(self, verb: str, broker: int, state: ProcessState) -> None:
        assert not self.away, "one at a time"
        self.done.append((verb, broker))
        self.away[broker] = state

    def kill(self, broker: int) -> None:
        self._fail("kill", broker, ProcessState.STOPPED)

    def stop(self, broker: int) -> None:
        self._fail("stop", broker, ProcessState.STOPPED)

    def pause(self, broker: int) -> None:
        self._fail("pause", broker, ProcessState.PAUSED)

    def start(self, broker: int) -> None:
        assert self.away.pop(broker) is ProcessState.STOPPED

    def resume(self, broker: int) -> None:
        assert self.away.pop(broker) is ProcessState.PAUSED

    def heal(self) -> None:
        self.healed += 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("klamm.local.chaos._AWAY_MAX_S", 0)
    monkeypatch.setattr("klamm.local.chaos._REST_MAX_S", 0)


def history(seed: int, **options: object) -> list[tuple[str, int]]:
    model = Model()
    with Chaos(model, seed, **options) as chaos:
        chaos.wait_failovers(20)
    assert model.healed == 1
    assert model.away == {}
    return [(each.action.value, each.broker) for each in chaos.failovers[:20]]


def test_a_seed_is_one_history():
    first = history(7)
    assert history(7) == first
    assert history(8) != first
    assert {action for action, _ in first} == set(ChaosAction)
    assert {broker for _, broker in first} == {1, 2, 3}


def test_only_the_chosen_actions_happen():
    assert {action for action, _ in history(7, actions=["pause"])} == {"pause"}


def test_a_failure_of_the_machinery_is_not_hidden():
    model = Model()
    model.kill = model.stop = model.pause = None
    chaos = Chaos(model, 7).start()
    with pytest.raises(TypeError):
        chaos.wait_failovers(1)
    with pytest.raises(TypeError):
        chaos.stop()


def test_actions_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="there are kill, stop, pause"):
        Chaos(Model(), actions=["explode"])
    with pytest.raises(ConfigError, match="is empty"):
        Chaos(Model(), actions=[])


def test_it_reads_as_a_sentence():
    model = Model()
    with Chaos(model, 7, actions=["stop"]) as chaos:
        chaos.wait_failovers(1)
    assert str(chaos).startswith("seed 7, ")
    assert str(chaos.failovers[0]).startswith(f"stop broker {chaos.failovers[0].broker}")
