"""The first contact with a cluster: whether a broker responds, found out within seconds."""

import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import KafkaError

from klamm.errors import ConfigError, UnavailableError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import encode_request
from klamm.protocol.codec.headers import RequestHeader

#: A topic that no broker has known for this long is not one that is still being announced. Read as
#: `reaching.GONE_AFTER_S`, in planning and in tasks.
GONE_AFTER_S: Final = 10.0

_CONNECT_TIMEOUT_S: Final = 3.0
#: A cluster of one broker may be starting again.
_PATIENCE_S: Final = 2.0
_PAUSE_S: Final = 0.2
#: How long a broker may take for its first byte once it has not answered librdkafka in time.
_MUTE_S: Final = 3.0
_QUESTION: Final = encode_request(RequestHeader(ApiKey.API_VERSIONS, 0, 1, "klamm"), {})
_DEFAULT_PORT: Final = 9092

#: Where librdkafka's own log goes: its lines tell of attempts, and what comes of them is an error.
SILENT: Final = logging.getLogger(f"{__name__}.librdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


class LastError:
    """What librdkafka complained of last, instead of a line on stderr for each attempt."""

    def __init__(self) -> None:
        self.text: str | None = None

    def settings(self) -> dict[str, Any]:
        """For a client's configuration."""
        return {"error_cb": self._note, "logger": SILENT}

    def _note(self, error: KafkaError) -> None:
        # The error of the last broker says more than that all brokers are down.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.text is None:
            self.text = error.str()


def wait_reachable(bootstrap_servers: str) -> None:
    """Return as soon as one of the addresses takes a connection; otherwise say what each did."""
    addresses = _addresses(bootstrap_servers)
    deadline = time.monotonic() + _PATIENCE_S
    with ThreadPoolExecutor(len(addresses)) as pool:
        while True:
            refusals = list(pool.map(_refusal, addresses))
            if None in refusals:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE_S)
    tried = ", ".join(
        f"{host}:{port} ({why})" for (host, port), why in zip(addresses, refusals, strict=True)
    )
    raise UnavailableError(
        f"No broker answers at {tried}; is the cluster up, and are these its "
        "'kafka.bootstrap.servers'?"
    )


def is_mute(bootstrap_servers: str) -> bool:
    """Whether none of the addresses says anything, not even that it does not understand."""
    addresses = _addresses(bootstrap_servers)
    with ThreadPoolExecutor(len(addresses)) as pool:
        return all(pool.map(_says_nothing, addresses))


def _says_nothing(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, _MUTE_S) as connection:
            connection.sendall(_QUESTION)
            connection.recv(1)
    except ConnectionResetError:
        return False
    except OSError:
        return True
    return False


def _refusal(address: tuple[str, int]) -> str | None:
    try:
        socket.create_connection(address, _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None


def _addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    return [_address(each) for each in bootstrap_servers.split(",") if each.strip()]


def _address(text: str) -> tuple[str, int]:
    """As librdkafka reads it: `[PROTOCOL://]HOST[:PORT]`."""
    place = text.strip().rpartition("://")[2]
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(_DEFAULT_PORT)
    if not port.isdecimal() or int(port) >= 1 << 16:
        raise ConfigError(
            f"'kafka.bootstrap.servers' has {text.strip()!r}; expected is HOST:PORT, as in "
            "127.0.0.1:9092"
        )
    return host.strip("[]"), int(port)
