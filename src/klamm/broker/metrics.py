"""The metrics of a broker and of its candidate, over HTTP."""

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Final

from klamm.broker.broker import Broker
from klamm.broker.candidate import Candidate
from klamm.broker.rendering import render_broker, render_data
from klamm.controller.prometheus import Page
from klamm.errors import ConfigError, UnavailableError

log = logging.getLogger("klamm.broker.metrics")

_REQUEST_TIMEOUT_S: Final = 10


class MetricsEndpoint:
    """A web server with one page, which is made when it is asked for."""

    def __init__(self, broker: Broker, candidate: Candidate) -> None:
        self._broker = broker
        self._candidate = candidate
        self._server: asyncio.Server | None = None

    async def listen(self, port: int) -> None:
        """Serve on all addresses of the machine."""
        try:
            self._server = await asyncio.start_server(self._serve, port=port)
        except OSError as error:
            raise ConfigError(f"klamm.metrics.port={port} cannot be opened: {error}") from error

    async def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                method, path = request.split(b" ", 2)[:2]
                if method == b"GET" and path.split(b"?")[0] in (b"/", b"/metrics"):
                    status, body = b"200 OK", (await self._page()).encode()
                else:
                    status, body = b"404 Not Found", b"there is only /metrics\n"
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
                )
                await writer.drain()
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
            log.debug("a reader of metrics went away: %r", error)
        finally:
            writer.close()

    async def _page(self) -> str:
        """The broker's metrics, and below them the candidate's, if that is there to ask."""
        candidates = ""
        errors = self._broker.meters.requests.errors()
        with contextlib.suppress(UnavailableError):
            # Requests that were relayed are answered over there.
            answered = await self._candidate.ask({"errors": True}) or []
            errors += Counter({(name, code): count for name, code, count in answered})
            candidates = str(await self._candidate.ask({"metrics": True}) or "")
        page = Page()
        render_broker(page, self._broker, errors)
        if self._broker.data is not None:
            await render_data(page, self._broker.data)
        return page.text() + candidates
