"""A second client that asks a broker, or its controller, again and again, and notes the waits."""

import socket
import struct
import threading
import time

from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import encode_request
from klamm.protocol.codec.headers import RequestHeader

_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
#: A question that the controller's event loop has to answer: no partition's reassignment.
ASK_CONTROLLER = encode_request(
    RequestHeader(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 1, "ping"),
    {"timeout": 60_000, "topics": []},
)
_PAUSE_S = 0.002


class Pings:
    """Asks while it is entered; each response is waited for before the next question."""

    def __init__(self, port: int, question: bytes = _API_VERSIONS) -> None:
        self._port = port
        self._question = question
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_on)
        self.waits_ms: list[float] = []

    def __enter__(self) -> "Pings":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask_on(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            stream = connection.makefile("rb")
            while not self._stop.is_set() or not self.waits_ms:
                begun = time.perf_counter()
                connection.sendall(self._question)
                stream.read(struct.unpack(">i", stream.read(4))[0])
                self.waits_ms.append((time.perf_counter() - begun) * 1000)
                self._stop.wait(_PAUSE_S)
