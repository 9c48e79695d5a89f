"""Forwards requests that only the controller serves to the controller's process, unchanged."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from klamm.broker.handlers.dispatch import Call, EncodedResponse, Handler, Result
from klamm.errors import UnavailableError
from klamm.net.server import ANONYMOUS, CloseConnection
from klamm.node.controller_link import ControllerLink
from klamm.protocol.apis import APIS, ApiKey

CONTROLLER_APIS: Final = (
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.ALTER_PARTITION,
    ApiKey.UPDATE_FEATURES,
    ApiKey.ALLOCATE_PRODUCER_IDS,
)
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.5


class ForwardingManager:
    """Forwards request frames and returns the response frames."""

    def __init__(self, candidate: ControllerLink) -> None:
        self._candidate = candidate
        #: Requests that wait for their response, by API.
        self.under_way: Counter[ApiKey] = Counter()

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handler of each API."""
        return dict.fromkeys(CONTROLLER_APIS, self._forward)

    async def _forward(self, call: Call) -> Result:
        key = ApiKey(call.header.api_key)
        self.under_way[key] += 1
        try:
            return await self._ask(call)
        finally:
            self.under_way[key] -= 1

    async def _ask(self, call: Call) -> Result:
        for _ in range(_ATTEMPTS):
            try:
                return EncodedResponse(
                    [await self._candidate.forward(call.frame, _requester(call))]
                )
            except UnavailableError:
                # The process has died and is being replaced.
                await asyncio.sleep(_PAUSE_S)
        raise CloseConnection(
            f"{APIS[call.header.api_key].name}: the controller's process is not there"
        )


def _requester(call: Call) -> str:
    """Principal and address of a client that has said who it is."""
    connection = call.connection
    if connection.principal == ANONYMOUS:
        return ""
    return f"{connection.principal} at {connection.client_host}"
