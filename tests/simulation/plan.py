"""What is done to a cluster in one history: plain data from its seed, so it can be cut down."""

import random
from dataclasses import dataclass, replace
from typing import Any

#: When load and faults begin, and when the last of them begins.
FIRST_S = 2.0
LAST_S = 9.0
#: How many of the kinds of faults a history knows, and how often the topic that goes is there.
_KINDS_SHARE = 0.4
_TEMPORARY_SHARE = 0.7
#: How many of the histories have transactions.
_TRANSACTIONS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Action:
    """One fault, or one request of the administrator."""

    at: float
    kind: str
    broker: int = 0
    other: int = 0
    seconds: float = 0.0
    number: int = 0

    def __str__(self) -> str:
        named = {"broker": self.broker, "other": self.other, "number": self.number}
        words = [f"{name}={value}" for name, value in named.items() if value]
        if self.seconds:
            words.append(f"seconds={self.seconds:.2f}")
        return " ".join([f"{self.at:6.2f}", self.kind, *words])


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a history that is not decided while it runs."""

    seed: str
    brokers: int
    #: Replicas of each partition of the topic that must not lose anything, and its minimum ISR.
    orders: tuple[tuple[int, ...], ...]
    min_isr: int
    actions: tuple[Action, ...]
    #: Whether some clients make transactions.
    transactions: bool = False

    def without(self, actions: Any) -> "Plan":
        """The same without some of its actions."""
        dropped = set(actions)
        return replace(self, actions=tuple(each for each in self.actions if each not in dropped))


#: How often each fault is chosen, and for how long it lasts at most.
FAULTS = {
    "crash": (6, 6.0),
    "stop": (2, 4.0),
    "crash at a write": (4, 4.0),
    "kill the candidate at a write": (2, 0.0),
    "pause the candidate at a write": (2, 4.0),
    "depose the controller at a write": (3, 0.6),
    "delay the controller's word": (3, 2.0),
    "lose an answer of zookeeper": (2, 0.5),
    "kill the candidate": (1, 0.0),
    "pause the broker": (2, 4.0),
    "pause the candidate": (2, 4.0),
    "pause both": (2, 4.0),
    "cut": (4, 4.0),
    "cut from zookeeper": (2, 4.0),
    "reset connections": (2, 0.0),
    "expire the broker": (1, 0.0),
    "expire the candidate": (2, 0.0),
    "torn write": (2, 2.0),
    "full disk": (1, 2.0),
    "power loss": (2, 1.0),
    "clock jump": (1, 0.0),
}
#: How often each request of the administrator is chosen.
REQUESTS = {
    "create": 4,
    "delete": 5,
    "expand": 1,
    "move": 4,
    "cancel": 1,
    "elect": 2,
    "move the controller": 1,
}


def draw(seed: str) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"{seed}/plan")
    brokers = chance.choice((3, 3, 3, 4))
    everybody = range(1, brokers + 1)
    factor = chance.choice((2, 3, 3))
    orders = tuple(tuple(chance.sample(everybody, factor)) for _ in range(2))
    # Some kinds of faults in each history, not a little of each: they meet more often so.
    kinds = [kind for kind in FAULTS if chance.random() < _KINDS_SHARE] or list(FAULTS)
    actions = [_fault(chance, kinds, brokers) for _ in range(chance.randint(3, 9))]
    actions += [_request(chance, brokers) for _ in range(chance.randint(3, 9))]
    if chance.random() < _TEMPORARY_SHARE:
        actions.append(Action(FIRST_S - 1, "create", number=chance.randint(0, 1_000_000)))
    actions.sort(key=lambda action: action.at)
    min_isr = chance.choice((1, 2, 2))
    transactions = random.Random(f"{seed}/transactions").random() < _TRANSACTIONS_SHARE
    return Plan(seed, brokers, orders, min_isr, tuple(actions), transactions)


def _fault(chance: random.Random, kinds: list[str], brokers: int) -> Action:
    kind = chance.choices(kinds, [FAULTS[each][0] for each in kinds])[0]
    longest_s = FAULTS[kind][1]
    broker, other = chance.sample(range(1, brokers + 1), 2)
    # Many short ones and some long ones: what lasts longer than a session is another matter.
    seconds = longest_s * chance.random() ** 1.5 if longest_s else 0.0
    return Action(
        round(chance.uniform(FIRST_S, LAST_S), 3),
        kind,
        broker,
        other,
        round(seconds, 3),
        chance.randint(1, 12),
    )


def _request(chance: random.Random, brokers: int) -> Action:
    kinds = list(REQUESTS)
    kind = chance.choices(kinds, [REQUESTS[each] for each in kinds])[0]
    at = round(chance.uniform(FIRST_S, LAST_S), 3)
    return Action(at, kind, chance.randint(1, brokers), number=chance.randint(0, 1_000_000))
