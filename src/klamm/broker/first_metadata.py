"""Clients that come before the controller has told this broker anything.

A broker is registered and listens before its first UpdateMetadata can arrive. What it would say
about the cluster until then is that there is none, and some clients take their time to ask again.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable
from typing import Final

from klamm.broker.dispatch import Call, Handler, Result
from klamm.broker.metadata import SnapshotChange

#: A cluster without a controller has to be told about too, after a while.
_PATIENCE_S: Final = 25.0


class FirstMetadata:
    """Holds requests back until there is something to say."""

    def __init__(self) -> None:
        self._has_arrived = asyncio.Event()

    def on_metadata(self, change: SnapshotChange) -> None:
        """A controller has told something."""
        self._has_arrived.set()

    def hold(self, handler: Handler) -> Handler:
        """The same handler, which waits for the first metadata."""

        def handle(call: Call) -> Result | Awaitable[Result]:
            return handler(call) if self._has_arrived.is_set() else self._later(handler, call)

        return handle

    async def _later(self, handler: Handler, call: Call) -> Result:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._has_arrived.wait()
        answer = handler(call)
        return await answer if inspect.isawaitable(answer) else answer
