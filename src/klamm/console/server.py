"""The console as a web server: pages, static files and the API behind one guard."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from klamm.console import actions, api, records
from klamm.console.safety import Guard, content_security_policy, make_token
from klamm.console.session import Session, Settings
from klamm.errors import ConfigError

HOST: Final = "127.0.0.1"
TOKEN_VARIABLE: Final = "KLAMM_CONSOLE_TOKEN"
STATIC: Final = Path(__file__).parent / "static"
PAGES: Final = ("/", "/time", "/whatif", "/moves", "/topics", "/groups", "/brokers", "/lessons")
_IMPORT_MAP_BEGIN: Final = '<script type="importmap">'
_BACKLOG: Final = 128
_CLOSE_WITHIN_S: Final = 2


def listen(port: int, *, or_any: bool = False) -> socket.socket:
    """Take a port of loopback, 0 for any; `or_any` takes another one where that is in use."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((HOST, port))
        # Whoever connects before the server accepts waits for it.
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        if or_any and port:
            return listen(0)
        raise ConfigError(
            f"Port {port} of {HOST} cannot be used ({error.strerror}): choose another with --port."
        ) from None
    return taken


def given_token() -> str:
    """The token that the environment names, so that a link outlives a restart, or a new one."""
    return os.environ.get(TOKEN_VARIABLE) or make_token()


def link(listening: socket.socket, token: str) -> str:
    """The link that opens the console."""
    return f"http://{HOST}:{listening.getsockname()[1]}/?token={token}"


def make_app(session: Session, token: str, port: int) -> Any:
    """The whole application, guard included."""
    shell = (STATIC / "index.html").read_text(encoding="utf-8")
    import_map = shell.partition(_IMPORT_MAP_BEGIN)[2].partition("</script>")[0]

    async def page(request: Request) -> Response:
        return HTMLResponse(shell)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        yield
        session.stopping.set()

    app = Starlette(
        routes=[
            *actions.ROUTES,
            *records.ROUTES,
            *api.ROUTES,
            *(Route(path, page) for path in PAGES),
            Route("/topics/{name}", page),
            Route("/groups/{name:path}", page),
            Route("/brokers/{id:int}", page),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        lifespan=lifespan,
    )
    app.state.session = session
    compressed = GZipMiddleware(app, minimum_size=2048, compresslevel=1)
    return Guard(compressed, token, port, content_security_policy([import_map]))


def run(
    settings: Settings,
    listening: socket.socket,
    token: str,
    *,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until a signal comes; `on_ready` gets the link once it can be opened."""
    session = Session(settings)
    session.start()
    try:
        asyncio.run(_serve(session, listening, token, on_ready))
    finally:
        session.close()


async def _serve(
    session: Session, listening: socket.socket, token: str, on_ready: Callable[[str], None]
) -> None:
    config = uvicorn.Config(
        make_app(session, token, listening.getsockname()[1]),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_WITHIN_S,
        ws="none",
    )
    server = _Server(config, lambda: on_ready(link(listening, token)))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # Streams end by themselves, so that nobody has to be cut off.
        session.stopping.set()
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    await server.serve([listening])


class _Server(uvicorn.Server):
    """Leaves signals to the console, and says when it serves."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()
