"""The API's changes: topics, settings, groups, elections, plans. Each says who asked for it.

The controller writes the client's name (`klamm-console/USER`) into the history as the cause.
"""

from dataclasses import asdict
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from klamm.client import configs, elections, groups, offset_reset, topics
from klamm.client.configs import ConfigResource
from klamm.client.elections import ElectionType
from klamm.client.offset_reset import OffsetTarget
from klamm.client.topics import NewTopic
from klamm.console.lessons import Lessons
from klamm.console.moves import Mover
from klamm.console.plans import prepare
from klamm.console.reading import read_sizes
from klamm.console.requests import number_in, route, settings_in, text_in
from klamm.console.session import Session
from klamm.core.columns import NO_BROKER
from klamm.errors import ConfigError

_EFFECTS_SHOWN: Final = 500


# Topics


def create_topic(session: Session, request: Request, body: Any) -> Any:
    """Create a topic, and wait until the brokers know it."""
    admin, watch = session.online()
    name = text_in(body, "topic")
    topic = NewTopic(
        name,
        number_in(body, "partitions", -1),
        number_in(body, "replication_factor", -1),
        (),
        settings_in(body.get("configs") or {}),
    )
    made = topics.create(admin, topic)
    topics.wait_until_known(admin, name, made)
    watch.fresh()
    return {"topic": name, "partitions": made}


def delete_topic(session: Session, request: Request, body: Any) -> Any:
    """Delete a topic, and wait until the brokers have forgotten it."""
    admin, watch = session.online()
    name = text_in(body, "topic")
    topics.delete(admin, name)
    topics.wait_until_known(admin, name, None)
    watch.fresh()
    return {"topic": name}


def add_partitions(session: Session, request: Request, body: Any) -> Any:
    """Give a topic more partitions, and wait until the brokers know them."""
    admin, _ = session.online()
    name, total = text_in(body, "topic"), number_in(body, "partitions")
    topics.add_partitions(admin, name, total)
    topics.wait_until_known(admin, name, total)
    return {"topic": name, "partitions": total}


def alter_settings(session: Session, request: Request, body: Any) -> Any:
    """Change settings of a topic or a broker."""
    admin, watch = session.online()
    if "topic" in body:
        resource = ConfigResource.topic(text_in(body, "topic"))
    else:
        resource = ConfigResource.broker(number_in(body, "broker"))
    changes = settings_in(body.get("set") or {})
    removals = [str(name) for name in body.get("remove") or ()]
    if not changes and not removals:
        raise ConfigError('Say what to change: {"set": {"retention.ms": "1000"}, "remove": []}.')
    configs.alter(admin, resource, changes, removals)
    watch.forget_settings()
    return {"resource": str(resource), "set": changes, "remove": removals}


# Groups


def preview_reset(session: Session, request: Request, body: Any) -> Any:
    """The changes that a reset of a group's offsets would make."""
    admin, _ = session.online()
    name, chosen, goal = _reset(body)
    return [asdict(each) for each in offset_reset.plan_reset(admin, name, chosen, goal)]


def reset_group(session: Session, request: Request, body: Any) -> Any:
    """Reset the offsets of a group."""
    admin, _ = session.online()
    name, chosen, goal = _reset(body)
    resets = offset_reset.plan_reset(admin, name, chosen, goal)
    offset_reset.apply_reset(admin, name, resets)
    return [asdict(each) for each in resets]


def delete_group(session: Session, request: Request, body: Any) -> Any:
    """Delete a group."""
    admin, _ = session.online()
    groups.delete(admin, text_in(body, "group"))
    return {"group": body["group"]}


def _reset(body: Any) -> tuple[str, list[str], OffsetTarget | int]:
    goals: dict[str, OffsetTarget] = {
        "earliest": offset_reset.to_earliest,
        "latest": offset_reset.to_latest,
        "current": offset_reset.to_current,
    }
    to = body.get("to")
    if isinstance(to, str) and to in goals:
        goal: OffsetTarget | int = goals[to]
    elif isinstance(to, dict) and set(to) == {"offset"}:
        goal = offset_reset.to_offset(number_in(to, "offset"))
    elif isinstance(to, dict) and set(to) == {"shift"} and isinstance(to["shift"], int):
        goal = offset_reset.shift_by(to["shift"])
    elif isinstance(to, dict) and set(to) == {"time_ms"}:
        goal = number_in(to, "time_ms")
    else:
        raise ConfigError(
            'Say where to: {"to": "earliest"}, "latest", "current", {"offset": 5}, {"shift": -5} '
            'or {"time_ms": 1700000000000}.'
        )
    return text_in(body, "group"), [str(each) for each in body.get("topics") or ()], goal


# Elections


def preview_election(session: Session, request: Request, body: Any) -> Any:
    """Who would lead after an election, row by row, as far as it is needed."""
    _, watch = session.online()
    columns = watch.fresh().columns
    kind = _election(body)
    names = _names(body)
    live = set(columns.live.tolist())
    rows = []
    for row in range(len(columns)):
        name = (columns.topics[columns.topic_of[row]], int(columns.partition[row]))
        if names is not None and name not in names:
            continue
        leader = int(columns.leader[row])
        replicas = [each for each in columns.replicas[row].tolist() if each != NO_BROKER]
        isr = set(columns.isr[row].tolist())
        if kind is ElectionType.PREFERRED:
            wanted = replicas[0]
            if leader == wanted or wanted not in live or wanted not in isr:
                continue
            loses = False
        else:
            alive = [each for each in replicas if each in live]
            if leader != NO_BROKER or not alive:
                continue
            clean = [each for each in alive if each in isr]
            wanted, loses = (clean or alive)[0], not clean
        rows.append(
            {
                "topic": name[0],
                "partition": name[1],
                "leader": leader,
                "new_leader": wanted,
                "loses_records": loses,
            }
        )
    losing = sum(bool(row["loses_records"]) for row in rows)
    return {"count": len(rows), "losing": losing, "partitions": rows[:_EFFECTS_SHOWN]}


def elect(session: Session, request: Request, body: Any) -> Any:
    """Elect preferred or unclean leaders."""
    admin, _ = session.online()
    names = _names(body)
    outcomes = elections.elect(admin, _election(body), None if names is None else sorted(names))
    return [asdict(each) for each in outcomes]


def _election(body: Any) -> ElectionType:
    kinds = {"preferred": ElectionType.PREFERRED, "unclean": ElectionType.UNCLEAN}
    if body.get("kind") not in kinds:
        raise ConfigError('An election is {"kind": "preferred"} or {"kind": "unclean"}.')
    return kinds[body["kind"]]


def _names(body: Any) -> set[tuple[str, int]] | None:
    if body.get("partitions") is None:
        return None
    try:
        return {(str(each["topic"]), int(each["partition"])) for each in body["partitions"]}
    except (TypeError, KeyError, ValueError):
        raise ConfigError('partitions are like [{"topic": "orders", "partition": 0}].') from None


# Plans


def preview_plan(session: Session, request: Request, body: Any) -> Any:
    """Make a plan for the cluster as it is, and keep it until it is run."""
    admin, watch = session.online()
    columns = watch.fresh().columns
    sizes = read_sizes(admin, columns.live.tolist())
    prepared = prepare(columns, watch.election_settings(), sizes, body)
    mover = session.background.mover
    if mover is not None:
        mover.keep(prepared)
    return prepared.describe()


def moves(session: Session, request: Request, _: Any) -> Any:
    """The running plan, and all reassignments in progress."""
    session.online()
    mover = session.background.mover
    job = None if mover is None else mover.job()
    return {"job": job, "under_way": session.background.reassignments()}


def run_plan(session: Session, request: Request, body: Any) -> Any:
    """Run a plan that was previewed."""
    throttle = body.get("throttle")
    limit = None if throttle is None else number_in(body, "throttle")
    return _mover(session).run(text_in(body, "plan"), limit)


def steer(session: Session, request: Request, body: Any) -> Any:
    """Pause, resume or cancel the running plan."""
    mover = _mover(session)
    match request.path_params["what"]:
        case "pause":
            return mover.pause()
        case "resume":
            return mover.resume()
        case "cancel":
            return mover.cancel()
        case other:
            raise ConfigError(f"A plan can be paused, resumed or cancelled, not {other!r}.")


def _mover(session: Session) -> Mover:
    session.online()
    mover = session.background.mover
    assert mover is not None  # there is one wherever a cluster may be changed
    return mover


# Lessons


def lessons(session: Session, request: Request, _: Any) -> Any:
    """The lessons and their progress."""
    return _lessons(session).describe()


def start_lesson(session: Session, request: Request, body: Any) -> Any:
    """Begin a lesson."""
    found = _lessons(session)
    found.start(text_in(body, "lesson"))
    return found.describe()


def do_to_broker(session: Session, request: Request, body: Any) -> Any:
    """Kill, stop, pause, cut off or bring back a broker."""
    return _lessons(session).act(text_in(body, "do"), number_in(body, "broker"))


def _lessons(session: Session) -> Lessons:
    found = session.background.lessons
    if found is None:
        raise ConfigError("Lessons need a cluster of their own: `klamm up` starts one.")
    return found


_ask = partial(route, method="POST")
_change = partial(route, method="POST", changes=True)

ROUTES: Final = [
    _change("/api/topics/create", create_topic),
    _change("/api/topics/delete", delete_topic),
    _change("/api/topics/partitions", add_partitions),
    _change("/api/settings", alter_settings),
    _ask("/api/groups/reset/preview", preview_reset),
    _change("/api/groups/reset", reset_group),
    _change("/api/groups/delete", delete_group),
    _ask("/api/elections/preview", preview_election),
    _change("/api/elections", elect),
    _ask("/api/plans", preview_plan),
    route("/api/moves", moves),
    _change("/api/moves", run_plan),
    _change("/api/moves/{what}", steer),
    route("/api/lessons", lessons),
    _change("/api/lessons", start_lesson),
    _change("/api/lessons/act", do_to_broker),
]
