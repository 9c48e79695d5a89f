"""Requests and responses of the API: JSON in and out, errors in the words of the command line."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from klamm.console.session import Session
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.protocol.codes import ErrorCode, KafkaError

_BODY_BYTES_MAX: Final = 4 << 20
_NOT_FOUND: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)

Answer = Callable[[Session, Request, Any], Any]


class Json(Response):
    """A value as JSON; times are UTC."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)


class ForbiddenError(KlammError):
    """The console was not started with what this needs."""


def route(path: str, answer: Answer, *, method: str = "GET", changes: bool = False) -> Route:
    """A question (or a change) whose answer is made in a thread, since it may have to wait."""

    async def endpoint(request: Request) -> Response:
        session: Session = request.app.state.session
        try:
            if changes and not session.settings.allow_changes:
                raise ForbiddenError(
                    "This console only looks: start it with --allow-changes to change the cluster."
                )
            body = await _body(request) if method == "POST" else None
        except KlammError as error:
            return failure(error)
        refusal: KlammError | None = None
        try:
            found = await run_in_threadpool(answer, session, request, body)
        except KlammError as error:
            found, refusal = failure(error), error
        if changes:
            action = request.url.path.removeprefix("/api/")
            said = None if refusal is None else str(refusal)
            await run_in_threadpool(_note, session, action, body or {}, said)
        return found if isinstance(found, Response) else Json(found)

    return Route(path, endpoint, methods=[method])


def _note(session: Session, action: str, body: dict[str, Any], refusal: str | None) -> None:
    """Keep who changed what; a console without a cluster has nothing that was changed."""
    try:
        journal = session.background.journal
    except UnavailableError:
        return  # no broker has ever answered, so nothing was changed
    if journal is not None:
        journal.note(action, body, refusal)


async def _body(request: Request) -> Any:
    if int(request.headers.get("content-length") or 0) > _BODY_BYTES_MAX:
        raise ConfigError(f"A request has at most {_BODY_BYTES_MAX:,} bytes.")
    try:
        value = orjson.loads(await request.body() or b"{}")
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"The request is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ConfigError("The request has to be a JSON object.")
    return value


def failure(error: KlammError) -> Json:
    """An error in the words of the command line, with the status that fits it."""
    match error:
        case KafkaError():
            status = 404 if error.code in _NOT_FOUND else 409
            return Json({"error": error.code.name, "message": str(error)}, status)
        case ForbiddenError():
            return Json({"error": "FORBIDDEN", "message": str(error)}, 403)
        case ConfigError():
            return Json({"error": "BAD_REQUEST", "message": str(error)}, 400)
        case UnavailableError():
            return Json({"error": "UNAVAILABLE", "message": str(error)}, 503)
        case _:
            return Json({"error": "NOT_FOUND", "message": str(error)}, 404)


# What bodies hold


def check_fields(body: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    """Refuse a body with other fields: a misspelt one would silently become its default."""
    if unknown := sorted(set(body) - set(known)):
        raise ConfigError(f"{what} has no {unknown[0]!r}; it has {', '.join(sorted(known))}.")


def text_in(body: Any, name: str) -> str:
    """A text that has to be there."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} is missing.")
    return value


def number_in(body: Any, name: str, default: int | None = None) -> int:
    """A whole number, not a text with one."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is not a number: {value!r}.")
    return value


def settings_in(given: Any) -> dict[str, str]:
    """Settings by name, as text."""
    if not isinstance(given, dict):
        raise ConfigError('Settings are like {"retention.ms": "3600000"}.')
    return {str(key): str(value) for key, value in given.items()}


def parse_number(text: str, name: str) -> int:
    """A whole number in a query."""
    if not text.isdecimal():
        raise ConfigError(f"{name} is not a number: {text!r}.")
    return int(text)


def parse_key(text: str) -> tuple[int, int]:
    """`EPOCH:SEQUENCE`."""
    epoch, colon, sequence = text.partition(":")
    if not (colon and epoch.isdecimal() and sequence.isdecimal()):
        raise ConfigError(f"{text!r} is not the id of an event; expected is EPOCH:SEQUENCE")
    return int(epoch), int(sequence)
