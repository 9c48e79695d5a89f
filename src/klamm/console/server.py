"""The console as a web server: pages, static files and the API behind one guard."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from klamm.console import now
from klamm.console.link import link
from klamm.console.safety import ConsoleGuard, content_security_policy
from klamm.console.session import Session
from klamm.pipeline.render.page import design

STATIC: Final = Path(__file__).parent / "static"
PAGES: Final = (
    *("/", "/time", "/whatif", "/moves", "/topics", "/groups", "/brokers"),
    *("/transactions", "/users", "/acls", "/quotas", "/lessons"),
)
_IMPORT_MAP_BEGIN: Final = '<script type="importmap">'
_CLOSE_WITHIN_S: Final = 2


class OtherRoutes:
    """The routes that the first page does not need, imported when one of them is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._router: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        router = self._router
        if router is None:
            router = await run_in_threadpool(self.load)
        await router(scope, receive, send)

    def load(self) -> Router:
        with self._lock:
            if self._router is None:
                from klamm.console import access, actions, api, records, transactions

                modules = (actions, records, transactions, access, api)
                self._router = Router([each for module in modules for each in module.ROUTES])
            return self._router


def make_app(session: Session, others: OtherRoutes, token: str, port: int) -> Any:
    """The whole application, guard included."""
    shell = (STATIC / "index.html").read_text(encoding="utf-8")
    import_map = shell.partition(_IMPORT_MAP_BEGIN)[2].partition("</script>")[0]

    async def page(request: Request) -> Response:
        return HTMLResponse(shell)

    shared_style = design()

    async def style(request: Request) -> Response:
        return Response(shared_style, media_type="text/css")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        yield
        session.stopping.set()

    app = Starlette(
        routes=[
            *now.ROUTES,
            *(Route(path, page) for path in PAGES),
            Route("/topics/{name}", page),
            Route("/groups/{name:path}", page),
            Route("/transactions/{id:path}", page),
            Route("/brokers/{id:int}", page),
            Route("/static/design.css", style),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        lifespan=lifespan,
    )
    app.state.session = session
    app.router.default = others
    compressed = GZipMiddleware(app, minimum_size=2048, compresslevel=1)
    return ConsoleGuard(compressed, token, port, content_security_policy([import_map]))


def run(
    session: Session,
    listening: socket.socket,
    token: str,
    *,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a session that was started, and close it when a signal comes.

    `on_ready` gets the link once it can be opened.
    """
    others = OtherRoutes()
    session.start_rest(then=others.load)
    try:
        asyncio.run(_serve(session, others, listening, token, on_ready))
    finally:
        session.close()


async def _serve(
    session: Session,
    others: OtherRoutes,
    listening: socket.socket,
    token: str,
    on_ready: Callable[[str], None],
) -> None:
    config = uvicorn.Config(
        make_app(session, others, token, listening.getsockname()[1]),
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
