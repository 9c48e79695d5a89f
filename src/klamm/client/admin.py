"""The admin client: it sends a request to any broker, the controller, a coordinator, or one broker.

Error codes in responses are raised and found here. The modules beside this one know the requests
and what their responses mean.
"""

import difflib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.net.blocking import BlockingConnection, ResponseDecoder
from klamm.net.secure import SecureClient
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.encoding import Values
from klamm.protocol.codec.frames import decode_response
from klamm.protocol.codes import ErrorCode, KafkaError

if TYPE_CHECKING:
    from klamm.protocol.fast.metadata import MetadataColumns

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
NO_LEADER: Final = -1

#: The wrong broker got the request, or the right one is not ready: look it up again and retry.
_ASK_AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
_GROUP: Final = 0  # as a FindCoordinator key type
_TRANSACTION: Final = 1
_PAUSE_S: Final = 0.1
#: How long one broker of several may take to respond before the next is asked.
_FIRST_PATIENCE_S: Final = 1.0
_SECOND_PATIENCE_S: Final = 0.5


@dataclass(frozen=True, slots=True, order=True)
class LiveBroker:
    """A live broker, at the address for clients."""

    id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Admin:
    """A client of one cluster; safe to share between threads.

    `timeout_s` bounds an operation, including all attempts to find the right broker.
    """

    def __init__(
        self,
        bootstrap_servers: str = DEFAULT_BOOTSTRAP,
        *,
        client_id: str = "klamm-admin",
        timeout_s: float = 30.0,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._secure = SecureClient(security)
        self.bootstrap_servers = bootstrap_servers
        self.timeout_s = timeout_s
        self._client_id = client_id
        self._bootstrap = [split_address(each) for each in bootstrap_servers.split(",")]
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self._brokers: dict[int, LiveBroker] = {}
        #: The address of the broker that responded last.
        self._responsive: tuple[str, int] | None = None
        #: Brokers that others do not count among the live ones; they are asked last.
        self._outcasts: frozenset[tuple[str, int]] = frozenset()
        self._second: BlockingConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            connections, self._connections = list(self._connections.values()), {}
            if self._second is not None:
                connections.append(self._second)
        for connection in connections:
            connection.close()

    @property
    def timeout_ms(self) -> int:
        """The timeout that requests carry."""
        return int(self.timeout_s * 1000)

    # Asking

    def ask_any(
        self, api: ApiKey, values: Values, decode: ResponseDecoder = decode_response
    ) -> Any:
        """The response of any broker: the last that responded, then those that the user named.

        A broker that hangs is left after a second and asked again, with more patience, when no
        other responds either.
        """
        deadline = time.monotonic() + self.timeout_s
        patience_s = _FIRST_PATIENCE_S
        while True:
            last = [] if self._responsive is None else [self._responsive]
            found = [(broker.host, broker.port) for broker in list(self._brokers.values())]
            addresses = list(dict.fromkeys([*last, *self._bootstrap, *found]))
            addresses.sort(key=self._outcasts.__contains__)
            refused: list[str] = []
            has_hung = has_closed = False
            for address in addresses:
                left_s = max(deadline - time.monotonic(), _FIRST_PATIENCE_S)
                wait_s = left_s if len(addresses) == 1 else min(patience_s, left_s)
                try:
                    response = self._connection(address).send(api, values, wait_s, decode)
                except UnavailableError as error:
                    refused.append(str(error))
                    has_hung = has_hung or isinstance(error.__cause__, TimeoutError)
                    has_closed = has_closed or isinstance(
                        error.__cause__, ConnectionResetError | ConnectionAbortedError
                    )
                else:
                    self._responsive = address
                    return response
            if not has_hung or time.monotonic() > deadline:
                hint = " A listener with TLS or SASL needs --command-config." if has_closed else ""
                raise UnavailableError(
                    f"No broker answers at {', '.join(refused)}; is the cluster up, and is this "
                    f"its --bootstrap-server?{hint}"
                )
            patience_s *= 2

    def ask_second(self) -> bool:
        """Ask a second broker who is alive; whether the one that responded last is not.

        A broker that has lost ZooKeeper still answers clients, with what it knew before. It is
        asked last from then on, until it is alive again. For one thread at a time.
        """
        first = self._responsive
        others = [(broker.host, broker.port) for broker in list(self._brokers.values())]
        others = [address for address in others if address != first]
        if first is None or not others:
            return False
        if self._second is None or (self._second.host, self._second.port) not in others:
            self._second = self._other_second(others)
        try:
            response = self._second.send(ApiKey.METADATA, _metadata_request([]), _SECOND_PATIENCE_S)
        except KlammError:  # it does not respond, or not to this request: ignore it
            self._second = self._other_second(others)
            return False
        live = frozenset((each.host, each.port) for each in response.brokers)
        self._outcasts -= live
        if first in live:
            return False
        self._outcasts |= {first}
        self._responsive = self._second.host, self._second.port
        return True

    def _other_second(self, others: Sequence[tuple[str, int]]) -> BlockingConnection:
        """A connection to the next of some brokers; the last one is closed."""
        at = 0
        if self._second is not None:
            self._second.close()
            last = self._second.host, self._second.port
            at = (others.index(last) + 1) % len(others) if last in others else 0
        return BlockingConnection(*others[at], self._client_id, self._secure)

    def ask_patiently(
        self, api: ApiKey, values: Values, decode: ResponseDecoder = decode_response
    ) -> Any:
        """The response of a broker that is known to respond, however long it takes to make it.

        A broker that was given up after a second would make a large response in vain.
        """

        def attempt() -> Any:
            self.metadata([])
            assert self._responsive is not None
            connection = self._connection(self._responsive)
            return connection.send(api, values, self.timeout_s, decode)

        return self.retry(attempt, "No broker")

    def ask_controller(
        self, api: ApiKey, values: Values, *, done_before: ErrorCode | None = None
    ) -> Any:
        """Send a request to the controller; follow the role when it moves.

        A controller may die after it did what was asked and before it said so. `done_before` is
        the error that the next one answers with then; in that case the result is None.
        """

        def controller() -> LiveBroker:
            response = self.metadata([])
            return self._broker(response.controller_id, "controller")

        return self._ask_until_right(controller, api, values, done_before)

    def ask_coordinator(self, group: str, api: ApiKey, values: Values) -> Any:
        """Send a request to the coordinator of a group; follow the role when it moves."""
        return self._ask_coordinator(group, _GROUP, api, values)

    def ask_transaction_coordinator(
        self, transactional_id: str, api: ApiKey, values: Values
    ) -> Any:
        """The coordinator of a transactional id, also while it changes."""
        return self._ask_coordinator(transactional_id, _TRANSACTION, api, values)

    def _ask_coordinator(self, key: str, key_type: int, api: ApiKey, values: Values) -> Any:
        return self._ask_until_right(lambda: self._find_coordinator(key, key_type), api, values)

    def _find_coordinator(self, key: str, key_type: int) -> LiveBroker:
        response = self.ask_any(ApiKey.FIND_COORDINATOR, {"key": key, "key_type": key_type})
        check(response.error_code, response.error_message)
        return LiveBroker(response.node_id, response.host, response.port, None)

    def ask_broker(
        self, broker: int, api: ApiKey, values: Values, *, timeout_s: float | None = None
    ) -> Any:
        """Send a request to this broker and no other."""
        self.metadata([])
        found = self._broker(broker, f"broker {broker}")
        patience_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            return self._connection((found.host, found.port)).send(api, values, patience_s)
        except UnavailableError as error:
            raise UnavailableError(f"Broker {broker} does not answer at {error}") from error

    def metadata(self, topics: Iterable[str] | None) -> Any:
        """Request Metadata of some topics, of none, or (None) of all; creates no topic."""
        return self._with_brokers(self.ask_any(ApiKey.METADATA, _metadata_request(topics)))

    def metadata_columns(self, *, is_patient: bool = False) -> "MetadataColumns":
        """Request Metadata of all topics, as columns; `is_patient`: as `ask_patiently` asks."""
        from klamm.protocol.fast.metadata import decode_metadata_columns

        asked = _metadata_request(None)
        ask = self.ask_patiently if is_patient else self.ask_any
        columns: MetadataColumns = self._with_brokers(
            ask(ApiKey.METADATA, asked, decode_metadata_columns)
        )
        return columns

    def large_metadata(self, topics: Iterable[str]) -> Any:
        """Request Metadata of many topics."""
        return self.ask_patiently(ApiKey.METADATA, _metadata_request(topics))

    def _with_brokers(self, response: Any) -> Any:
        """A Metadata response, whose brokers are remembered."""
        self._brokers = {
            each.node_id: LiveBroker(each.node_id, each.host, each.port, each.rack)
            for each in response.brokers
        }
        return response

    def metadata_of(
        self, broker: int, topics: Iterable[str] | None, *, timeout_s: float | None = None
    ) -> Any:
        """Request Metadata from one broker, since brokers learn of a change at different times."""
        asked = _metadata_request(topics)
        return self.ask_broker(broker, ApiKey.METADATA, asked, timeout_s=timeout_s)

    def retry(self, attempt: Callable[[], Any], what: str) -> Any:
        """Call `attempt` until it returns or raises an error that a retry cannot solve."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return attempt()
            except KafkaError as error:
                if error.code not in _ASK_AGAIN or time.monotonic() > deadline:
                    raise
            except UnavailableError as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"{what} did not answer: {error}") from error
                self.metadata([])  # raises if no broker answers at all
            time.sleep(_PAUSE_S)

    def _ask_until_right(
        self,
        find: Callable[[], LiveBroker],
        api: ApiKey,
        values: Values,
        done_before: ErrorCode | None = None,
    ) -> Any:
        deadline = time.monotonic() + self.timeout_s
        is_response_lost = False

        def attempt() -> Any:
            nonlocal is_response_lost
            broker = find()
            try:
                response = self._send_while_right(broker, find, api, values)
            except UnavailableError:
                is_response_lost = True
                raise
            if is_response_lost and done_before in set(error_codes(response)):
                return None
            if time.monotonic() < deadline:
                for code in error_codes(response):
                    if code in _ASK_AGAIN:
                        check(code)
            return response

        return self.retry(attempt, "The broker in charge")

    def _send_while_right(
        self, broker: LiveBroker, find: Callable[[], LiveBroker], api: ApiKey, values: Values
    ) -> Any:
        """The response of `broker`; UnavailableError once `find` names another in its place.

        A broker that hangs loses its role long before the timeout of a request.
        """
        address = broker.host, broker.port
        connection = self._connection(address)
        outcome: Future[Any] = Future()

        def send() -> None:
            try:
                outcome.set_result(connection.send(api, values, self.timeout_s))
            except BaseException as error:
                outcome.set_exception(error)
            if self._connections.get(address) is not connection:
                connection.close()

        threading.Thread(target=send, daemon=True).start()
        while True:
            try:
                return outcome.result(_FIRST_PATIENCE_S)
            except TimeoutError:
                if outcome.done():
                    raise
            if self._is_replaced(broker, find):
                with self._lock:  # the thread closes its connection in the end
                    self._connections.pop(address, None)
                raise UnavailableError(f"{broker.address} is no longer in charge")

    @staticmethod
    def _is_replaced(broker: LiveBroker, find: Callable[[], LiveBroker]) -> bool:
        try:
            return find() != broker
        except (KafkaError, UnavailableError):
            return False  # no broker knows at the moment

    def _broker(self, broker: int, role: str) -> LiveBroker:
        found = self._brokers.get(broker)
        if found is not None:
            return found
        if role == "controller":
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "no broker is controller at the moment.")
        known = ", ".join(map(str, sorted(self._brokers)))
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"there is no {role}; alive are {known or 'none'}."
        )

    def _connection(self, address: tuple[str, int]) -> BlockingConnection:
        with self._lock:
            if address not in self._connections:
                self._connections[address] = BlockingConnection(
                    *address, self._client_id, self._secure
                )
            return self._connections[address]


def _metadata_request(topics: Iterable[str] | None) -> Values:
    return {
        "topics": None if topics is None else [{"name": name} for name in topics],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def split_address(text: str) -> tuple[str, int]:
    """Host and port; ConfigError if the text is no address."""
    host, colon, port = text.strip().rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(
            f"{text!r} is not an address; expected is HOST:PORT, as in 127.0.0.1:9092"
        )
    return host.strip("[]"), int(port)


def partitions_by_topic(partitions: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    """Group partition numbers by topic, as requests have them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError unless the code is NONE."""
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(code), message)


def error_codes(message: Any) -> Iterator[int]:
    """Every error code in a response, at any depth."""
    for each in fields(message):
        value = getattr(message, each.name)
        if each.name == "error_code":
            yield int(value)
        elif isinstance(value, tuple):
            for item in value:
                if not is_dataclass(item):
                    break
                yield from error_codes(item)


def suggestion(given: str, known: Iterable[str]) -> str:
    """`; did you mean orders?` if a similar name is known, else an empty string."""
    nearest = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
