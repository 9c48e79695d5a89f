"""The link over which a local cluster tells its brokers of injected faults.

It is a socket that the parent process made and of which the broker inherited one end, so nobody
else can reach it; a broker that was started without it has no faults. Each message is a line of
JSON: the parent sends all faults that hold (`{"version": 2, "faults": [...]}`) and gets the version
back once they do; the broker asks whether a fault may take effect once more
(`{"claim": 7, "fault": 1, "client": "..."}`) and gets `{"claim": 7, "granted": true}`.
"""

import asyncio
import json
import socket
from typing import Any, Final

from klamm.broker.fault_injection import Fault, FaultInjection

#: A line may hold many faults.
_LINE_BYTES_MAX: Final = 1 << 24


class FaultLink:
    """The broker's end of the link."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._claims: dict[int, asyncio.Future[bool]] = {}
        self._count = 0
        self._reading: asyncio.Task[None] | None = None
        self._injection: FaultInjection
        self._writer: asyncio.StreamWriter

    async def open(self, injection: FaultInjection) -> None:
        """Take the faults that hold already, then follow the changes."""
        self._injection = injection
        reader, self._writer = await asyncio.open_connection(
            sock=self._socket, limit=_LINE_BYTES_MAX
        )
        self._take(await reader.readline())
        self._reading = asyncio.create_task(self._read(reader))

    async def claim(self, fault: int, client_id: str) -> bool:
        """Ask the parent whether a fault may take effect once more."""
        self._count += 1
        number = self._count
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._claims[number] = granted
        self._send({"claim": number, "fault": fault, "client": client_id})
        try:
            return await granted
        finally:
            del self._claims[number]

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._take(line)
        # The parent is gone, and with it the count.
        self._injection.use(())
        for claim in self._claims.values():
            if not claim.done():
                claim.set_result(False)

    def _take(self, line: bytes) -> None:
        if not line:
            return
        message = json.loads(line)
        if "claim" in message:
            claim = self._claims.get(message["claim"])
            if claim is not None and not claim.done():
                claim.set_result(message["granted"])
            return
        self._injection.use(Fault.from_json(each) for each in message["faults"])
        self._send({"version": message["version"]})

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._writer.close()
        else:
            self._socket.close()
