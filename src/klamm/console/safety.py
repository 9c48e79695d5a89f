"""The checks of every request (token, Host, Origin), and the headers of every response.

The console listens on loopback, which every page of every browser on the machine can reach. So
each request needs the token of the link, a Host that names this machine (else another name could
be pointed at it), and no Origin but the console's own. A request that changes something needs a
header besides, which a page of another origin cannot send without asking first, and nobody answers
such a question here.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: A request that changes something carries this header, or the token as a bearer.
CHANGE_HEADER: Final = "x-klamm-console"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:]*)(?::\d+)?")
#: These ask a question with a body and change nothing.
QUESTIONS: Final = frozenset(
    {"/api/whatif", "/api/plans", "/api/elections/preview", "/api/groups/reset/preview"}
)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_A_WEEK_S: Final = 7 * 24 * 3600


def content_security_policy(inline_scripts: list[str]) -> str:
    """Nothing from elsewhere, and of inline scripts only these (the import map)."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in inline_scripts
    )
    return (
        f"default-src 'none'; script-src 'self' {hashes}; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


class ConsoleGuard:
    """Refuses requests without token or from another origin, and adds headers to every response."""

    def __init__(self, app: ASGIApp, token: str, port: int, policy: str) -> None:
        self._app = app
        self._token = token
        #: Cookies do not know ports, and there may be several consoles on a machine.
        self._cookie = f"klamm-console-{port}"
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"x-frame-options", b"DENY"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in scope["headers"]}
        in_link = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        refusal = self._refusal(scope, headers, in_link)
        app: ASGIApp = self._app if refusal is None else refusal
        brings_token = refusal is None and bool(in_link)

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [*self._headers]
                if not scope["path"].startswith("/static/"):
                    extra.append((b"cache-control", b"no-store"))
                if brings_token:
                    cookie = (
                        f"{self._cookie}={self._token}; Path=/; Max-Age={_A_WEEK_S}; HttpOnly; "
                        "SameSite=Lax"
                    )
                    extra.append((b"set-cookie", cookie.encode()))
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await app(scope, receive, marked)

    def _refusal(self, scope: Scope, headers: Mapping[str, str], in_link: str) -> Response | None:
        host = headers.get("host", "")
        match = _HOST.fullmatch(host)
        if match is None or match[1].lower() not in _LOOPBACK:
            return _refuse(scope, f"The console does not answer for the host {host!r}.")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _refuse(scope, f"The console does not answer pages of {origin!r}.")
        if not self._has_token(headers, in_link):
            return _refuse(
                scope,
                "A token is needed: open the link that `klamm console` printed, or send it as "
                "`Authorization: Bearer TOKEN`.",
            )
        if scope["method"] in _SAFE_METHODS or scope["path"] in QUESTIONS:
            return None
        if CHANGE_HEADER not in headers and "authorization" not in headers:
            return _refuse(
                scope, f"A request that changes something needs the header {CHANGE_HEADER}: 1."
            )
        return None

    def _has_token(self, headers: Mapping[str, str], in_link: str) -> bool:
        given = in_link
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = bearer.strip()
        elif not given:
            try:
                cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
            except CookieError:
                return False
            given = "" if cookie is None else cookie.value
        return hmac.compare_digest(given.encode(), self._token.encode())


def _refuse(scope: Scope, text: str) -> Response:
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": "FORBIDDEN", "message": text}, 403)
    return PlainTextResponse(text + "\n", 403)
