"""Ports for brokers on this machine."""

import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
#: Below the ports that the system gives to outgoing connections, so that a broker which is away
#: for a moment finds its own port free when it returns.
_CANDIDATES: Final = range(20_000, 31_000)


def is_free(port: int) -> bool:
    """Whether nobody listens there at the moment."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on at the moment."""
    found: list[int] = []
    for port in random.sample(_CANDIDATES, len(_CANDIDATES)):
        if len(found) == count:
            break
        if is_free(port):
            found.append(port)
    return found
