"""The API of page Now: the cluster in numbers, the map, and the two streams.

The first page waits for these modules, so they import no more than it needs.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from klamm.console.columns import ClusterColumns, encode_columns
from klamm.console.requests import failure, route
from klamm.console.session import Session
from klamm.console.streams import stream_changes, stream_events
from klamm.errors import ConfigError


def cluster(session: Session, request: Request, _: Any) -> dict[str, Any]:
    """The summary of the cluster: brokers, controller, health and history."""
    session.columns(fresh=True)
    columns, health, _version, _layout = session.moment()
    ledger = session.ledger_if_read()
    hint = session.how_to_get_history() if ledger is not None and not len(ledger) else None
    return cluster_summary(columns, health, session.controller_since(columns)) | {
        "history": 0 if ledger is None else len(ledger),
        "history_hint": hint,
        "offline": session.is_offline,
        "allow_changes": session.settings.allow_changes,
        "lessons": session.settings.control_fd is not None,
        "bootstrap_servers": session.bootstrap_servers,
        "command_config": _text_or_none(session.settings.command_config),
        "spools": [str(each) for each in session.settings.spools if each.is_dir()],
        "user": session.user,
    }


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def cluster_summary(
    columns: ClusterColumns, health: Mapping[str, Any], since: str | None
) -> dict[str, Any]:
    """The cluster in numbers, with the sentence of health."""
    return {
        "cluster_id": columns.cluster_id,
        "controller": columns.controller,
        "controller_since": since,
        "brokers": [
            {
                "id": each.id,
                "host": each.host,
                "port": each.port,
                "rack": each.rack,
                "state": "live" if each.live else "down",
                "controller": each.id == columns.controller,
            }
            for each in columns.brokers
        ],
        "topics": len(columns.topics),
        "partitions": len(columns),
        "leaderless": health["leaderless"],
        "under_replicated": health["under_replicated"],
        "health": health["text"],
        "level": health["level"],
    }


def map_now(session: Session, request: Request, _: Any) -> Response:
    """The map of all partitions as binary columns."""
    columns, health, version, layout = session.moment()
    extra = {"version": version, "layout": layout, "health": health}
    content = session.encoded(version, lambda: encode_columns(columns, extra))
    session.first_served.set()
    return Response(content, media_type="application/octet-stream")


async def events(request: Request) -> Response:
    """The decisions of the history as server-sent events."""
    session: Session = request.app.state.session
    last = request.headers.get("last-event-id") or request.query_params.get("after")
    ledger = await run_in_threadpool(lambda: session.ledger)
    try:
        return stream_events(ledger, last, session.stopping)
    except ConfigError as error:
        return failure(error)


async def changes(request: Request) -> Response:
    """The changes of the cluster as server-sent events."""
    session: Session = request.app.state.session
    return stream_changes(session.watch, session.stopping)


_get = partial(route, method="GET")

ROUTES: Final = [
    _get("/api/cluster", cluster),
    _get("/api/map", map_now),
    Route("/api/events", events),
    Route("/api/changes", changes),
]
