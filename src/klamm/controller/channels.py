"""One channel to each broker: an ordered queue, one request in flight, retried until answered.

A channel fixes nothing about what it carries: the bytes of a request are made when a batch is
announced (CHAN-8) and may be shared among channels. It lives from the broker's registration to its
disappearance; what is queued then is lost, since the broker hears everything again on its return.
"""

import asyncio
import contextlib
import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.controller.event_queue import EventQueue
from klamm.core.cluster import AdvertisedEndpoint, RegisteredBroker
from klamm.core.events import Event
from klamm.errors import KlammError
from klamm.metrics.meters import Timer
from klamm.net.connection import SetupTimeout
from klamm.net.secure import INSECURE, SecureClient
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader

log = logging.getLogger("klamm.controller.channels")

RETRY_PAUSE_S: Final = 0.1
_SIZE: Final = struct.Struct(">i")
_RESPONSE_MAX_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """A request ready to be sent, but for its correlation id."""

    name: str
    #: The parts of the frame for a given correlation id, size included.
    frame: Callable[[int], Sequence[bytes | memoryview]]
    #: What an answer (without size and correlation id) means, if it means anything.
    on_response: Callable[[bytes], Event | None]
    #: Called once the broker has answered, whatever it answered.
    done: Callable[[], None] | None = None
    queued_at: float = field(default_factory=time.monotonic)


class ControllerChannel:
    """The requests for one broker, in order."""

    def __init__(
        self,
        controller_id: int,
        broker: RegisteredBroker,
        endpoint: AdvertisedEndpoint,
        connect_timeout_s: float,
        request_timeout_s: float,
        on_event: Callable[[Event, str], None],
        setup: SetupTimeout,
        secure: SecureClient = INSECURE,
    ) -> None:
        self.broker = broker
        self._secure = secure
        self._login_at: float | None = None
        #: How long requests wait before they are sent.
        self.queue_time = Timer(time.monotonic)
        self._controller_id = controller_id
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._on_event = on_event
        self._setup = setup
        self._queue: deque[QueuedRequest] = deque()
        self._arrived = asyncio.Event()
        self._correlation_id = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._task = asyncio.create_task(self._send_all(), name=f"channel to {broker.id}")

    @property
    def queue_size(self) -> int:
        """Requests that wait, the one in flight not counted."""
        return len(self._queue)

    def send(self, request: QueuedRequest) -> None:
        """Queue a request behind those that wait."""
        self._queue.append(request)
        self._arrived.set()

    def close(self) -> None:
        """Stop at once; what is queued is lost (CHAN-5)."""
        self._task.cancel()
        self._queue.clear()
        self._disconnect()

    async def _send_all(self) -> None:
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            request = self._queue.popleft()
            self.queue_time.observe(time.monotonic() - request.queued_at)
            response = await self._send_until_response(request)
            event = request.on_response(response)
            if event is not None:
                self._on_event(event, f"answer of broker {self.broker.id} to {request.name}")
            if request.done is not None:
                request.done()

    async def _send_until_response(self, request: QueuedRequest) -> bytes:
        while True:
            try:
                return await self._exchange(request)
            except (OSError, EOFError, TimeoutError, struct.error, KlammError) as error:
                log.warning(
                    "[RequestSendThread controllerId=%s] %s to broker %s at %s:%s failed, "
                    "trying again: %r",
                    self._controller_id,
                    request.name,
                    self.broker.id,
                    self._endpoint.host,
                    self._endpoint.port,
                    error,
                )
                if self._streams is None:
                    self._setup.on_failure()
                self._disconnect()
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _exchange(self, request: QueuedRequest) -> bytes:
        if self._streams is None:
            async with asyncio.timeout(min(self._setup.next_s(), self._connect_timeout_s)):
                context, host = self._secure.context, self._endpoint.host
                self._streams = await asyncio.open_connection(
                    host,
                    self._endpoint.port,
                    ssl=context,
                    server_hostname=None if context is None else host,
                )
            self._setup.on_success()
            if self._secure.logs_in:
                await self._log_in()
        elif self._login_at is not None and time.monotonic() >= self._login_at:
            await self._log_in()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return await self._transfer(request.frame(self._correlation_id))

    async def _log_in(self) -> None:
        """Authenticate, for the first time or again before the session ends (SEC-5)."""
        steps = self._secure.login()
        try:
            key, version, values = next(steps)
            while True:
                self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
                header = RequestHeader(key, version, self._correlation_id, str(self._controller_id))
                body = await self._transfer([encode_request(header, values)])
                answer = decode_response(header, _SIZE.pack(self._correlation_id) + body)
                key, version, values = steps.send(answer)
        except StopIteration as done:
            self._login_at = done.value

    async def _transfer(self, parts: Iterable[bytes | memoryview]) -> bytes:
        """Send one request and read its answer, without the correlation id."""
        assert self._streams is not None
        reader, writer = self._streams
        async with asyncio.timeout(self._request_timeout_s):
            writer.writelines(parts)
            await writer.drain()
            (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
            if not _SIZE.size <= size <= _RESPONSE_MAX_BYTES:
                raise EOFError(f"a response of {size} bytes")
            frame = await reader.readexactly(size)
        (correlation_id,) = _SIZE.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise EOFError(f"a response to {correlation_id} instead of {self._correlation_id}")
        return frame[_SIZE.size :]

    def _disconnect(self) -> None:
        if self._streams is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                self._streams[1].close()
            self._streams = None


class ControllerChannels:
    """The channels of a term of office, by broker."""

    def __init__(
        self,
        controller_id: int,
        listener: str,
        connect_timeout_s: float = 30.0,
        request_timeout_s: float = 30.0,
        setup_timeout_s: tuple[float, float] = (10.0, 30.0),
        secure: SecureClient = INSECURE,
    ) -> None:
        self._controller_id = controller_id
        self._secure = secure
        self._listener = listener
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._setup_timeout_s = setup_timeout_s
        self._channels: dict[int, ControllerChannel] = {}
        self._queue: EventQueue | None = None

    def attach(self, queue: EventQueue) -> None:
        """Say where answers go."""
        self._queue = queue

    def __iter__(self) -> Iterator[ControllerChannel]:
        return iter(self._channels.values())

    def open(self, broker: RegisteredBroker) -> None:
        """Open a channel to the listener that the controller uses, if the broker has it."""
        endpoint = next((e for e in broker.endpoints if e.listener == self._listener), None)
        if endpoint is None:
            log.error(
                "[Controller id=%s] broker %s has no listener %s: it cannot be told",
                self._controller_id,
                broker.id,
                self._listener,
            )
            return
        assert self._queue is not None, "attached before the first channel opens"
        queue = self._queue
        self._channels[broker.id] = ControllerChannel(
            self._controller_id,
            broker,
            endpoint,
            self._connect_timeout_s,
            self._request_timeout_s,
            lambda event, cause: queue.put(event, cause=cause),
            SetupTimeout(*self._setup_timeout_s),
            self._secure,
        )

    def close(self, broker: int) -> None:
        """Close a broker's channel, if there is one."""
        channel = self._channels.pop(broker, None)
        if channel is not None:
            channel.close()

    def close_all(self) -> None:
        """Close every channel."""
        for broker in list(self._channels):
            self.close(broker)

    def send(self, broker: int, request: QueuedRequest) -> None:
        """Queue a request; without a channel it is dropped (CHAN-6)."""
        channel = self._channels.get(broker)
        if channel is None:
            log.warning(
                "[Controller id=%s] no channel to broker %s: %s is dropped",
                self._controller_id,
                broker,
                request.name,
            )
        else:
            channel.send(request)
