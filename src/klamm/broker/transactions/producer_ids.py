"""Ids for idempotent producers, handed out from blocks that the controller gives (IDEM-2)."""

import asyncio
import logging
from typing import Any, Final

from klamm.broker.controller_channel import BrokerToControllerChannel
from klamm.broker.identity import BrokerIdentity
from klamm.protocol.apis import ApiKey

log = logging.getLogger("klamm.broker.transactions.producer_ids")

_VERSION: Final = 0
#: The next block is asked for when this much of a block is used.
_PREFETCH_PERCENT: Final = 90


class ProducerIds:
    """The block in use and, towards its end, the next one."""

    def __init__(
        self, identity: BrokerIdentity, controller_channel: BrokerToControllerChannel
    ) -> None:
        self._identity = identity
        self._controller_channel = controller_channel
        self._current = range(0)
        self._used = 0
        self._next: range | None = None
        self._request: asyncio.Task[None] | None = None

    def take(self) -> int | None:
        """A fresh id; None while the controller has yet to give a block."""
        if self._used == len(self._current) and self._next is not None:
            self._current, self._used, self._next = self._next, 0, None
        self._prefetch()
        if self._used == len(self._current):
            return None
        taken = self._current[self._used]
        self._used += 1
        return taken

    def close(self) -> None:
        """Ask no more."""
        if self._request is not None:
            self._request.cancel()

    def _prefetch(self) -> None:
        is_low = self._used * 100 >= len(self._current) * _PREFETCH_PERCENT
        if is_low and self._next is None and self._request is None:
            self._request = asyncio.create_task(self._request_block(), name="producer ids")

    async def _request_block(self) -> None:
        try:
            response: Any = await self._controller_channel.send(
                ApiKey.ALLOCATE_PRODUCER_IDS,
                _VERSION,
                lambda: {
                    "broker_id": self._identity.broker_id,
                    "broker_epoch": self._identity.broker_epoch,
                },
                lambda response: bool(response.error_code),
            )
            start = int(response.producer_id_start)
            self._next = range(start, start + int(response.producer_id_len))
        finally:
            self._request = None
