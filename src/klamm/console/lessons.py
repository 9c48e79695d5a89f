"""Lessons on a cluster of `klamm up`: things done to brokers, and exercises that check themselves.

An exercise is a row of steps. Each says what to do and holds once the cluster is so, compared with
how it was when the exercise began; what the controller decided meanwhile is told from the history.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from klamm.client import elections, topics
from klamm.client.elections import ElectionType
from klamm.client.topics import NewTopic
from klamm.console.columns import ClusterColumns
from klamm.console.ledger import HistoryEvent, Key
from klamm.core.columns import unpad
from klamm.errors import ConfigError, KlammError, UnavailableError

if TYPE_CHECKING:
    from klamm.console.session import Session

TOPIC: Final = "lesson"
VERBS: Final = {
    "kill": "Crash broker {} (SIGKILL).",
    "stop": "Shut broker {} down in order (SIGTERM).",
    "start": "Start broker {} again.",
    "pause": "Let broker {} stand still (SIGSTOP), as in a long pause of its machine.",
    "resume": "Let broker {} go on (SIGCONT).",
    "cut": "Part broker {} from ZooKeeper; clients still reach it. The first time, it is "
    "restarted in order, to put a switch between the two.",
    "rejoin": "Let broker {} reach ZooKeeper again.",
}
_EXPLAINED_MAX: Final = 40
#: How long a broker that was restarted may take until it is in sync.
_IN_SYNC_S: Final = 20.0
_LOOK_INTERVAL_S: Final = 0.1


class Control:
    """Asks `klamm up`, one request at a time."""

    def __init__(self, descriptor: int) -> None:
        self._stream = socket.socket(fileno=descriptor).makefile("rwb")
        self._lock = threading.Lock()

    def ask(self, **asked: Any) -> dict[str, Any]:
        with self._lock:
            self._stream.write(json.dumps(asked).encode() + b"\n")
            self._stream.flush()
            line = self._stream.readline()
        if not line:
            raise UnavailableError("`klamm up` does not answer.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise KlammError(answer["error"])
        return answer


@dataclass(frozen=True, slots=True)
class Situation:
    """What a step is judged by: the cluster now and at the beginning, and what came between."""

    before: ClusterColumns
    now: ClusterColumns
    brokers: Mapping[int, str]  # what each process is doing
    cut: frozenset[int]
    events: list[HistoryEvent]
    chosen: int  # the broker that the exercise is about

    def leader(self, columns: ClusterColumns, partition: int = 0) -> int:
        row = columns.row_of.get((TOPIC, partition))
        return -1 if row is None else int(columns.leader[row])

    def isr(self, partition: int = 0) -> list[int]:
        row = self.now.row_of.get((TOPIC, partition))
        return [] if row is None else unpad(self.now.isr[row])

    def replicas(self, partition: int = 0) -> list[int]:
        row = self.now.row_of.get((TOPIC, partition))
        return [] if row is None else unpad(self.now.replicas[row])

    def is_live(self, broker: int) -> bool:
        return broker in self.now.live.tolist()

    def is_back(self, broker: int) -> bool:
        """Whether a broker runs and is registered.

        Its registration alone does not tell: leaders and live brokers are read one after the
        other, so that a broker that has just died may still be among the live ones.
        """
        return self.brokers.get(broker) == "running" and self.is_live(broker)


@dataclass(frozen=True, slots=True)
class LessonStep:
    """What to do or to wait for; `verb` is offered as a button."""

    text: str
    holds: Callable[[Situation], bool]
    verb: str | None = None


@dataclass(frozen=True, slots=True)
class Lesson:
    """An exercise about one broker, which `choose` finds in the cluster."""

    id: str
    title: str
    about: str
    choose: Callable[[Situation], int]
    steps: tuple[LessonStep, ...]
    lesson_learned: str


def _is_whole(s: Situation) -> bool:
    return bool(s.isr()) and set(s.isr()) == set(s.replicas())


def _other_than_controller(s: Situation) -> int:
    """A broker that leads a partition of the topic and is not controller, if there is one."""
    led = [s.leader(s.before, each) for each in range(3)]
    fitting = [each for each in led if each not in (-1, s.before.controller)]
    return fitting[0] if fitting else led[0]


LESSONS: Final = (
    Lesson(
        "leader",
        "A leader dies",
        "Every partition has a leader, which takes all writes, and followers that copy it. What "
        "happens to partition 0 when its leader crashes?",
        lambda s: s.leader(s.before),
        (
            LessonStep(
                "Crash broker {broker}, the leader of lesson-0.",
                lambda s: s.brokers.get(s.chosen) in ("dead", "stopped"),
                "kill",
            ),
            LessonStep(
                "The controller notices (its session in ZooKeeper ends) and elects another leader "
                "from the ISR.",
                lambda s: s.leader(s.now) not in (-1, s.chosen),
            ),
            LessonStep("The dead broker leaves the ISR.", lambda s: s.chosen not in s.isr()),
            LessonStep("Start broker {broker} again.", lambda s: s.is_back(s.chosen), "start"),
            LessonStep("It catches up, and is in the ISR again.", lambda s: _is_whole(s)),
        ),
        "The new leader was in sync, so nothing that was acknowledged by all is lost. The broker "
        "that came back follows: it leads again only after a preferred election, which runs every "
        "five minutes or when you ask for it on page Moves.",
    ),
    Lesson(
        "controller",
        "The controller dies",
        "One broker is controller as well: it decides who leads. Who decides about the decider?",
        lambda s: s.before.controller,
        (
            LessonStep(
                "Crash broker {broker}, the controller.",
                lambda s: s.brokers.get(s.chosen) in ("dead", "stopped"),
                "kill",
            ),
            LessonStep(
                "Another broker becomes controller: the first to create /controller in ZooKeeper.",
                lambda s: s.now.controller not in (-1, s.chosen),
            ),
            LessonStep(
                "The new controller reads everything and elects leaders for what the old one led.",
                lambda s: all(s.leader(s.now, each) not in (-1, s.chosen) for each in range(3)),
            ),
            LessonStep("Start broker {broker} again.", lambda s: s.is_back(s.chosen), "start"),
            LessonStep("All replicas are in sync again.", lambda s: _is_whole(s)),
        ),
        "Each term of office has an epoch. Whatever an old controller still sends carries an older "
        "epoch, and brokers refuse it.",
    ),
    Lesson(
        "sleep",
        "A broker that only sleeps",
        "A machine that stands still for a while looks dead from outside. Let one sleep longer "
        "than its session in ZooKeeper lasts.",
        _other_than_controller,
        (
            LessonStep(
                "Pause broker {broker}.", lambda s: s.brokers.get(s.chosen) == "paused", "pause"
            ),
            LessonStep(
                "Its session ends after some seconds, and it counts as dead.",
                lambda s: not s.is_live(s.chosen),
            ),
            LessonStep(
                "Others lead what it led.",
                lambda s: s.chosen not in s.now.leader.tolist(),
            ),
            LessonStep("Let broker {broker} go on.", lambda s: s.is_back(s.chosen), "resume"),
            LessonStep("It learns what it missed, and catches up.", lambda s: _is_whole(s)),
        ),
        "A sleeper wakes up believing that it still leads. Its writes are refused, because the "
        "leader epoch has moved on without it.",
    ),
    Lesson(
        "cut",
        "Cut off from ZooKeeper",
        "A broker can be well and yet be out of reach of ZooKeeper. Clients still reach it. (The "
        "broker is restarted once when the exercise begins, to put a switch between the two.)",
        _other_than_controller,
        (
            LessonStep(
                "Cut broker {broker} off from ZooKeeper.", lambda s: s.chosen in s.cut, "cut"
            ),
            LessonStep(
                "Its registration ends with its session, and others take over.",
                lambda s: not s.is_live(s.chosen) and s.chosen not in s.now.leader.tolist(),
            ),
            LessonStep(
                "Let broker {broker} reach ZooKeeper again.",
                lambda s: s.is_live(s.chosen) and s.chosen not in s.cut,
                "rejoin",
            ),
            LessonStep("All replicas are in sync again.", lambda s: _is_whole(s)),
        ),
        "Whoever cannot reach ZooKeeper cannot know whether it still leads, so the others do not "
        "wait for it.",
    ),
    Lesson(
        "order",
        "Leaving in order",
        "A crash costs the time until it is noticed. A broker that is shut down says so before.",
        _other_than_controller,
        (
            LessonStep(
                "Shut broker {broker} down in order.",
                lambda s: s.brokers.get(s.chosen) == "stopped" and not s.is_live(s.chosen),
                "stop",
            ),
            LessonStep(
                "What it led was handed over before it went: the history has controlled shutdowns.",
                lambda s: any(event.row["kind"] == "ControlledShutdown" for event in s.events),
            ),
            LessonStep("Start broker {broker} again.", lambda s: s.is_back(s.chosen), "start"),
            LessonStep("All replicas are in sync again.", lambda s: _is_whole(s)),
        ),
        "Compare the time without a leader with that of a crash: on page Time, failure by failure.",
    ),
)


def _lacks(columns: ClusterColumns, broker: int) -> bool:
    """Whether a broker is missing from the ISR of a partition of the topic that it has to hold."""
    rows = [columns.row_of[TOPIC, number] for number in range(3)]
    return any(broker in columns.replicas[row] and broker not in columns.isr[row] for row in rows)


@dataclass(slots=True)
class _Running:
    lesson: Lesson
    before: ClusterColumns
    since: Key
    chosen: int = -1
    done: list[bool] = field(default_factory=list)


class Lessons:
    """The exercise that is being done, and how far it is."""

    def __init__(self, control: Control, session: "Session") -> None:
        self._control = control
        self._session = session
        self._running: _Running | None = None

    def act(self, verb: str, broker: int) -> dict[str, Any]:
        """Do something to a broker."""
        if verb not in VERBS:
            raise ConfigError(f"{verb!r} cannot be done; there are {', '.join(VERBS)}.")
        return self._control.ask(do=verb, broker=broker)

    def start(self, lesson_id: str) -> None:
        """Begin an exercise, on a topic of its own."""
        lesson = next((each for each in LESSONS if each.id == lesson_id), None)
        if lesson is None:
            known = ", ".join(each.id for each in LESSONS)
            raise ConfigError(f"There is no lesson {lesson_id!r}; there are {known}.")
        admin, watch = self._session.online()
        columns = watch.fresh().columns
        if TOPIC not in columns.topics:
            made = topics.create(admin, NewTopic(TOPIC, 3, min(3, len(columns.live))))
            topics.wait_until_known(admin, TOPIC, made)
            columns = watch.fresh().columns
        running = self._begin(lesson, columns)
        if any(step.verb == "cut" for step in lesson.steps):
            self._prepare_cut(running.chosen)
            running = replace(self._begin(lesson, watch.fresh().columns), chosen=running.chosen)
        self._running = running

    def _begin(self, lesson: Lesson, columns: ClusterColumns) -> _Running:
        recent = self._session.ledger.recent(1)
        running = _Running(lesson, columns, recent[-1].key if recent else (0, 0))
        running.done = [False] * len(lesson.steps)
        running.chosen = lesson.choose(self._situation(running))
        return running

    def _prepare_cut(self, broker: int) -> None:
        """Put the switch between a broker and ZooKeeper; it leads again what it led before."""
        self._control.ask(do="prepare_cut", broker=broker)
        admin, watch = self._session.online()
        deadline = time.monotonic() + _IN_SYNC_S
        while _lacks(watch.fresh().columns, broker) and time.monotonic() < deadline:
            time.sleep(_LOOK_INTERVAL_S)
        elections.elect(admin, ElectionType.PREFERRED, [(TOPIC, n) for n in range(3)])

    def describe(self) -> dict[str, Any]:
        """All exercises, the brokers' processes, and the steps of the one that is being done."""
        status = self._control.ask(do="status")
        shown: dict[str, Any] = {
            **status,
            "verbs": VERBS,
            "lessons": [
                {"id": each.id, "title": each.title, "about": each.about} for each in LESSONS
            ],
            "beginnings": {each.id: self._beginning(each) for each in LESSONS},
            "running": None,
        }
        if self._running is not None:
            shown["running"] = self._judge(self._running)
        return shown

    def _beginning(self, lesson: Lesson) -> str:
        """What beginning an exercise will do."""
        _, watch = self._session.online()
        is_there = TOPIC in watch.moment().columns.topics
        said = [
            f"Topic {TOPIC} is used." if is_there else f"Topic {TOPIC} is created, 3 partitions."
        ]
        if any(step.verb == "cut" for step in lesson.steps):
            said.append(
                "A broker is restarted in order, unless it was before, to put a switch between it "
                "and ZooKeeper; then preferred leaders of the topic are elected."
            )
        said.append("Each step asks before it does anything to a broker.")
        return " ".join(said)

    def _judge(self, running: _Running) -> dict[str, Any]:
        situation = self._situation(running)
        # Steps are done one after another, and what was done once stays done.
        for number, step in enumerate(running.lesson.steps):
            if not running.done[number]:
                running.done[number] = step.holds(situation)
            if not running.done[number]:
                break
        lesson = running.lesson
        told = [event for event in situation.events if event.total or event.failure]
        return {
            "id": lesson.id,
            "title": lesson.title,
            "broker": running.chosen,
            "steps": [
                {
                    "text": step.text.format(broker=running.chosen),
                    "verb": step.verb,
                    "done": is_done,
                }
                for step, is_done in zip(lesson.steps, running.done, strict=True)
            ],
            "done": all(running.done),
            "learned": lesson.lesson_learned if all(running.done) else None,
            "events": [event.describe() for event in told[-_EXPLAINED_MAX:]],
        }

    def _situation(self, running: _Running) -> Situation:
        _, watch = self._session.online()
        status = self._control.ask(do="status")
        return Situation(
            running.before,
            watch.moment().columns,
            {each["id"]: each["state"] for each in status["brokers"]},
            frozenset(each["id"] for each in status["brokers"] if each["cut"]),
            self._session.ledger.after(running.since),
            running.chosen,
        )
