"""One channel to each broker: a queue in order, one request in flight, retried until it succeeds.

A channel does not look into its requests: their bytes are made when a batch is announced (CHAN-8)
and may be shared among channels. A channel lives as long as the broker's registration. Requests
that are queued at its end are lost, because a broker that returns is sent its whole state again.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from klamm.controller.event_queue import EventQueue
from klamm.core.cluster import AdvertisedEndpoint, RegisteredBroker
from klamm.core.events import Event, ResponseReceived
from klamm.errors import UnavailableError
from klamm.metrics.meters import Timer
from klamm.net.connection import ClientConnection, EncodeRequest
from klamm.net.secure import INSECURE, SecureClient
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.headers import RequestHeader

log = logging.getLogger("klamm.controller.channels")

RETRY_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """A request that is encoded but for its header."""

    api_key: ApiKey
    api_version: int
    encode: EncodeRequest
    #: Decodes a response, and makes the controller's event of it if there is one.
    on_response: Callable[[RequestHeader, memoryview], Event | None]
    #: Called once the broker has responded, whatever the response says.
    done: Callable[[], None] | None = None
    queued_at: float = field(default_factory=time.monotonic)


class ControllerChannel:
    """Sends the requests for one broker in order."""

    def __init__(
        self,
        controller_id: int,
        broker: RegisteredBroker,
        endpoint: AdvertisedEndpoint,
        connection: ClientConnection,
        on_event: Callable[[Event, str], None],
    ) -> None:
        self.broker = broker
        #: How long requests wait before they are sent.
        self.queue_time = Timer(time.monotonic)
        self._controller_id = controller_id
        self._endpoint = endpoint
        self._on_event = on_event
        self._connection = connection
        #: When a request failed for the first time since the last response.
        self._lost_at: float | None = None
        self._queue: deque[QueuedRequest] = deque()
        self._arrived = asyncio.Event()
        self._task = asyncio.create_task(self._send_all(), name=f"channel to {broker.id}")

    @property
    def queue_size(self) -> int:
        """Requests that wait, the one in flight not counted."""
        return len(self._queue)

    @property
    def lost_at(self) -> float | None:
        """When the broker's end of the connection was lost, in seconds since 1970."""
        return self._lost_at or self._connection.lost_at

    def send(self, request: QueuedRequest) -> None:
        """Queue a request behind those that wait."""
        self._queue.append(request)
        self._arrived.set()

    def close(self) -> None:
        """Stop at once; queued requests are dropped (CHAN-5)."""
        self._task.cancel()
        self._queue.clear()
        with contextlib.suppress(RuntimeError):  # the loop may be closed already
            self._connection.close()

    async def _send_all(self) -> None:
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            request = self._queue.popleft()
            self.queue_time.observe(time.monotonic() - request.queued_at)
            event = await self._send_until_response(request)
            if event is not None:
                name = request.api_key.name
                self._on_event(event, f"answer of broker {self.broker.id} to {name}")
            if request.done is not None:
                request.done()

    async def _send_until_response(self, request: QueuedRequest) -> Event | None:
        host, port = self._endpoint.host, self._endpoint.port
        while True:
            lost_at, sent_at = self._connection.lost_at, time.time()
            try:
                event = await self._connection.exchange(
                    host,
                    port,
                    request.api_key,
                    request.api_version,
                    request.encode,
                    request.on_response,
                )
                self._lost_at = None
                return event
            except UnavailableError as error:
                # A broker that does not respond was not seen alive after the request was sent.
                is_silent = isinstance(error.__cause__, TimeoutError)
                self._lost_at = self._lost_at or lost_at or (sent_at if is_silent else time.time())
                log.warning(
                    "[RequestSendThread controllerId=%s] %s to broker %s at %s:%s failed, "
                    "trying again: %r",
                    self._controller_id,
                    request.api_key.name,
                    self.broker.id,
                    host,
                    port,
                    error.__cause__,
                )
                await asyncio.sleep(RETRY_PAUSE_S)


class ControllerChannels:
    """The channels of one controller term, by broker."""

    def __init__(
        self,
        controller_id: int,
        listener: str,
        connect_timeout_s: float = 30.0,
        request_timeout_s: float = 30.0,
        setup_timeout_s: tuple[float, float] = (10.0, 30.0),
        secure: SecureClient = INSECURE,
    ) -> None:
        self._secure = secure
        self._controller_id = controller_id
        self._listener = listener
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._setup_timeout_s = setup_timeout_s
        self._channels: dict[int, ControllerChannel] = {}
        #: Of closed channels whose connection had been lost before.
        self._lost_at: dict[int, float] = {}
        self._queue: EventQueue | None = None

    def attach(self, queue: EventQueue) -> None:
        """Set the queue that gets the events of responses."""
        self._queue = queue

    def __iter__(self) -> Iterator[ControllerChannel]:
        return iter(self._channels.values())

    def open(self, broker: RegisteredBroker) -> None:
        """Open a channel to the listener that the controller uses, if the broker has it."""
        endpoint = next((e for e in broker.endpoints if e.listener == self._listener), None)
        if endpoint is None:
            log.error(
                "[Controller id=%s] broker %s has no listener %s: it gets no requests",
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
            ClientConnection(
                str(self._controller_id),
                self._request_timeout_s,
                min(self._setup_timeout_s[0], self._connect_timeout_s),
                min(self._setup_timeout_s[1], self._connect_timeout_s),
                self._secure,
            ),
            lambda event, cause: queue.put(event, cause=cause),
        )

    def close(self, brokers: Iterable[int]) -> None:
        """Close the channels of brokers that have one, and drop their queued responses (CHAN-5).

        These answer requests of a term or of a registration that is over. A later request may have
        changed what they say: a replica that was deleted may have been created again.
        """
        closed = [broker for broker in brokers if broker in self._channels]
        for broker in closed:
            channel = self._channels.pop(broker)
            self._lost_at.pop(broker, None)
            if channel.lost_at is not None:
                self._lost_at[broker] = channel.lost_at
            channel.close()
        if closed:
            assert self._queue is not None, "attached before the first channel opens"
            gone = frozenset(closed)
            self._queue.drop(
                lambda event: isinstance(event, ResponseReceived) and event.broker in gone
            )

    def close_all(self) -> None:
        """Close every channel."""
        self.close(list(self._channels))

    def lost_at(self, broker: int) -> float | None:
        """When the broker's last connection was lost, in seconds since 1970; None: it was not."""
        channel = self._channels.get(broker)
        lost_at = None if channel is None else channel.lost_at
        return self._lost_at.get(broker) if lost_at is None else lost_at

    def send(self, broker: int, request: QueuedRequest) -> None:
        """Queue a request; without a channel it is dropped (CHAN-6)."""
        channel = self._channels.get(broker)
        if channel is None:
            log.warning(
                "[Controller id=%s] no channel to broker %s: %s is dropped",
                self._controller_id,
                broker,
                request.api_key.name,
            )
        else:
            channel.send(request)
