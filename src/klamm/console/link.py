"""The link that opens a console: its port on loopback, and its token. Light, for `klamm up`."""

import os
import secrets
import socket
from typing import Final

from klamm.errors import ConfigError

HOST: Final = "127.0.0.1"
PORT: Final = 8080
TOKEN_VARIABLE: Final = "KLAMM_CONSOLE_TOKEN"
_BACKLOG: Final = 128


def make_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def listen(port: int, *, or_any: bool = False) -> socket.socket:
    """Take a port of loopback, 0 for any; `or_any` takes another one where that is in use."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((HOST, port))
        # A client that connects before the server accepts waits for it.
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        if or_any and port:
            return listen(0)
        raise ConfigError(
            f"Port {port} of {HOST} cannot be used ({error.strerror}): choose another with --port."
        ) from None
    return taken


def given_token() -> str:
    """The token that the environment names, so that a link outlives a restart, or a new one."""
    return os.environ.get(TOKEN_VARIABLE) or make_token()


def link(listening: socket.socket, token: str) -> str:
    """The link that opens the console."""
    return f"http://{HOST}:{listening.getsockname()[1]}/?token={token}"
