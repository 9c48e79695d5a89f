"""What is to happen in a run, decided by its seed alone.

Steps name their victims by role where that is what matters ("controller", "leader"), so that a
plan can be made before there is a cluster. Two lists run side by side: what is done to processes
and connections, one thing at a time; and what administrators and groups do meanwhile.
"""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

#: Longer than the brokers' session with ZooKeeper, so that its loss is noticed, or shorter.
SESSION_S: Final = 6
_WARM_UP_S: Final = 5.0
_PAUSES_S: Final = (3.0, 8.0)
_ACTIONS_PAUSES_S: Final = (1.0, 6.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, `after_s` the one before it; `seconds` is how long it lasts."""

    what: str
    target: str = ""
    seconds: float = 0.0
    after_s: float = 0.0
    other: str = ""
    is_silent: bool = False
    one_way: bool = False

    def __str__(self) -> str:
        parts = [
            self.what,
            self.target,
            f"and {self.other}" if self.other else "",
            "silently" if self.is_silent else "",
            "one way" if self.one_way else "",
            f"for {self.seconds:.1f} s" if self.seconds else "",
        ]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Plan:
    """A seed's steps: the faults, and the actions of those who use the cluster."""

    seed: int
    faults: tuple[Step, ...]
    actions: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}", "faults, each when the cluster has got over the last one:"]
        lines += [f"  {step.after_s:5.1f} s later: {step}" for step in self.faults]
        lines += ["actions:", *(f"  {step.after_s:5.1f} s later: {step}" for step in self.actions)]
        return "\n".join(lines)


def make_plan(seed: int, seconds: float, brokers: int = 3, zookeepers: int = 1) -> Plan:
    """The plan of a run of about this duration, without the time that recoveries take."""
    chance = random.Random(f"faults {seed} {brokers} {zookeepers}")
    faults = _fill(chance, seconds, _PAUSES_S, lambda: _fault(chance, brokers, zookeepers))
    other = random.Random(f"actions {seed}")
    actions = _fill(other, seconds, _ACTIONS_PAUSES_S, lambda: _action(other))
    return Plan(seed, tuple(faults), tuple(actions))


def _fill(
    chance: random.Random,
    seconds: float,
    pauses_s: tuple[float, float],
    choose: Callable[[], Step],
) -> Iterator[Step]:
    passed_s, after_s = 0.0, _WARM_UP_S
    while True:
        step = replace(choose(), after_s=round(after_s, 1))
        passed_s += step.after_s + step.seconds
        if passed_s > seconds:
            return
        yield step
        after_s = chance.uniform(*pauses_s)


#: What can be done to processes and connections, and how often in comparison.
_FAULTS: Final = {
    "kill": 4,
    "bounce": 2,
    "pause": 3,
    "cut from ZooKeeper": 3,
    "part brokers": 3,
    "isolate": 2,
    "kill candidate": 2,
    "kill ZooKeeper": 2,
    "pause ZooKeeper": 1,
    "fill disk": 2,
    "rolling restart": 1,
    "kill several": 2,
}
#: Linux alone can limit what another process writes, and name its children.
_LINUX_ONLY: Final = ("fill disk", "kill candidate")
_FOR_SEVERAL: Final = ("part brokers", "kill several")
_ACTIONS: Final = {
    "create": 4,
    "expand": 2,
    "delete": 3,
    "recreate": 1,
    "reassign": 5,
    "cancel reassignments": 1,
    "elect preferred": 2,
    "restart member": 3,
    "alter config": 2,
    "describe": 2,
}
KINDS: Final = tuple(_FAULTS)


def _fault(chance: random.Random, brokers: int, zookeepers: int) -> Step:
    possible = [
        kind
        for kind in _FAULTS
        if (sys.platform == "linux" or kind not in _LINUX_ONLY)
        and (brokers > 1 or kind not in _FOR_SEVERAL)
    ]
    (what,) = chance.choices(possible, [_FAULTS[kind] for kind in possible])
    roles = ["controller", "leader", *(f"broker {n}" for n in range(1, brokers + 1))]
    (target,) = chance.choices(roles, [brokers, brokers, *[1] * brokers])
    seconds = round(chance.uniform(2, 2 * SESSION_S), 1)
    is_silent, one_way = chance.random() < 0.5, chance.random() < 0.3
    numbers = chance.sample(range(1, brokers + 1), brokers)
    match what:
        case "rolling restart":
            return Step(what)
        case "bounce" | "kill candidate" | "fill disk":
            return Step(what, target)
        case "kill" | "pause":
            return Step(what, target, seconds)
        case "kill several":
            chosen = sorted(numbers[: chance.randint(2, brokers)])
            return Step(what, ",".join(map(str, chosen)), seconds)
        case "part brokers":
            first, second, *_ = numbers
            return Step(
                what,
                f"broker {first}",
                seconds,
                other=f"broker {second}",
                is_silent=is_silent,
                one_way=one_way,
            )
        case "kill ZooKeeper" | "pause ZooKeeper":
            # A single one takes everybody's session along if it stays away for longer.
            lasts_s = seconds if zookeepers > 1 else round(seconds / 2, 1)
            return Step(what, f"number {chance.randint(1, zookeepers)}", lasts_s)
        case _:
            return Step(what, target, seconds, is_silent=is_silent)


def _action(chance: random.Random) -> Step:
    (what,) = chance.choices(list(_ACTIONS), list(_ACTIONS.values()))
    # Chooses the topic, partition or member: it is taken modulo their number.
    return Step(what, str(chance.randrange(10_000)))
