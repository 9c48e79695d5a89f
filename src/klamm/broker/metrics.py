"""The metrics of a broker and its candidate, over HTTP (section 13)."""

import asyncio


class MetricsEndpoint:
    """A very small web server with one page."""

    def __init__(self, broker: object, candidate: object) -> None:
        self._server: asyncio.Server | None = None

    async def listen(self, port: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
