"""The API: questions about the cluster and its history, answered as the command line answers."""

from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.client.configs import ConfigResource
from klamm.console import views
from klamm.console.columns import encode_columns
from klamm.console.failures import find_worst, play_failure
from klamm.console.requests import parse_key, route
from klamm.console.samples import time_left
from klamm.console.session import Session
from klamm.errors import ConfigError

_ACTIONS_SHOWN: Final = 100


# The cluster


def topics(session: Session, request: Request, _: Any) -> Any:
    """The topics, as `klamm topics list --json`."""
    return views.topic_rows(session.columns(fresh=True))


def topic(session: Session, request: Request, _: Any) -> Any:
    """One topic, as `klamm topics describe --json`."""
    return views.topic_details(session.online()[0], request.path_params["name"])


def topic_settings(session: Session, request: Request, _: Any) -> Any:
    """The settings of a topic."""
    return views.setting_rows(
        session.online()[0], ConfigResource.topic(request.path_params["name"])
    )


def partitions(session: Session, request: Request, _: Any) -> Any:
    """All partitions with their replicas and leaders."""
    return views.partition_rows(session.columns(fresh=True))


def groups(session: Session, request: Request, _: Any) -> Any:
    """The groups, as `klamm groups list --json`."""
    return views.group_rows(session.online()[0])


def group(session: Session, request: Request, _: Any) -> Any:
    """One group, as `klamm groups describe --json`."""
    return views.group_details(session.online()[0], request.path_params["name"])


def lags(session: Session, request: Request, _: Any) -> Any:
    """The lag of every group that is sampled, and how long it lasts."""
    session.online()
    assert session.background.lags is not None
    sampled = {
        group: {"lag": series["lag"][-1], "seconds_left": time_left(series)}
        for group, series in session.background.lags.all().items()
    }
    return {"groups": sampled, "left_out": session.background.lags.left_out}


def lag(session: Session, request: Request, _: Any) -> Any:
    """The lag of a group over time, and how long it lasts."""
    session.online()
    assert session.background.lags is not None
    series = session.background.lags.series(request.path_params["name"])
    return series | {"seconds_left": time_left(series)}


def rates(session: Session, request: Request, _: Any) -> Any:
    """The numbers of a broker over time: its own metrics, or what can be seen from outside."""
    session.online()
    assert session.background.rates is not None
    return session.background.rates.series(request.path_params["id"])


def denials(session: Session, request: Request, _: Any) -> Any:
    """The requests that brokers refused for lack of permission, from their metrics."""
    _, watch = session.online()
    assert session.background.metrics is not None
    return session.background.metrics.denials(watch.moment().columns.live.tolist())


def brokers(session: Session, request: Request, _: Any) -> Any:
    """The brokers, as `klamm brokers list --json`."""
    return views.broker_rows(session.columns(fresh=True))


def broker(session: Session, request: Request, _: Any) -> Any:
    """One broker, as `klamm brokers describe --json`."""
    admin, watch = session.online()
    return views.broker_details(admin, watch.fresh().columns, request.path_params["id"])


def broker_settings(session: Session, request: Request, _: Any) -> Any:
    """The settings of a broker."""
    return views.setting_rows(session.online()[0], ConfigResource.broker(request.path_params["id"]))


def actions(session: Session, request: Request, _: Any) -> Any:
    """What was changed from consoles, the newest first."""
    return (
        []
        if session.background.journal is None
        else session.background.journal.newest(_ACTIONS_SHOWN)
    )


# The history


def story(session: Session, request: Request, _: Any) -> Any:
    """The story of a partition, as `klamm story --json`."""
    return session.background.story(request.path_params["name"])


def history(session: Session, request: Request, _: Any) -> Any:
    """All events as columns, in order: what the slider moves over."""
    events = session.read_ledger().index().events
    return {
        "epoch": [event.key[0] for event in events],
        "seq": [event.key[1] for event in events],
        "at": [int(event.row["at"].timestamp() * 1000) for event in events],
        "decisions": [event.total for event in events],
        "failures": {
            str(at): event.failure for at, event in enumerate(events) if event.failure is not None
        },
    }


def event(session: Session, request: Request, _: Any) -> Any:
    """One event of the history."""
    return session.read_ledger().event(parse_key(request.path_params["id"])).describe()


def map_then(session: Session, request: Request, _: Any) -> Response:
    """The map after an event, with the event itself."""
    key = parse_key(request.path_params["id"])
    ledger = session.read_ledger()
    position = ledger.position_of(key)
    columns = session.past(position)
    told = ledger.index().events[position].describe()
    extra = {"position": position, "event": told, "version": 0, "layout": 0}
    return Response(encode_columns(columns, extra), media_type="application/octet-stream")


# What if


def whatif(session: Session, request: Request, body: Any) -> Any:
    """What a failure of these brokers or racks would do, as `klamm whatif --set`."""
    kinds = [kind for kind in ("brokers", "racks") if kind in body]
    if len(kinds) != 1 or not isinstance(body[kinds[0]], list):
        raise ConfigError('Say which fail: {"brokers": [1, 2]} or {"racks": ["a"]}.')
    names = [str(each) for each in body[kinds[0]]]
    columns, settings = _judged(session)
    return play_failure(columns, settings, kinds[0], names)


def worst(session: Session, request: Request, _: Any) -> Any:
    """The worst failure of one broker, of two, and of a rack."""
    return find_worst(*_judged(session))


def _judged(session: Session) -> tuple[Any, Any]:
    if session.watch is None:
        return session.columns(), {}
    return session.columns(fresh=True), session.watch.election_settings()


_get = partial(route, method="GET")
_ask = partial(route, method="POST")

ROUTES: Final = [
    _get("/api/topics", topics),
    _get("/api/topics/{name}", topic),
    _get("/api/topics/{name}/settings", topic_settings),
    _get("/api/partitions", partitions),
    _get("/api/groups", groups),
    _get("/api/groups/{name:path}", group),
    _get("/api/lag", lags),
    _get("/api/lag/{name:path}", lag),
    _get("/api/denials", denials),
    _get("/api/brokers", brokers),
    _get("/api/rates/{id:int}", rates),
    _get("/api/brokers/{id:int}", broker),
    _get("/api/brokers/{id:int}/settings", broker_settings),
    _get("/api/actions", actions),
    _get("/api/story/{name}", story),
    _get("/api/history", history),
    _get("/api/history/{id}", event),
    _get("/api/history/{id}/map", map_then),
    _ask("/api/whatif", whatif),
    _get("/api/whatif/worst", worst),
]
