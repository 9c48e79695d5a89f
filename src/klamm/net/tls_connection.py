"""Connections behind TLS, and the sockets that accept them.

OpenSSL reads and writes the socket itself, through the standard library's `SSLSocket`: there is no
buffer between it and the kernel, and nothing is copied twice (docs/adr/0016).
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, Final

from klamm.net.responses import BYTES, FileRange
from klamm.net.server import SENDING_S, Listener, Server, ServerConnection

log = logging.getLogger("klamm.net.server")

#: How long a client may take for its TLS handshake, and for its authentication.
_HANDSHAKE_TIMEOUT_S: Final = 30.0
#: Reads of one connection, and connections of one listener, before others get their turn.
_READS_AT_A_TIME: Final = 16
_ACCEPTS_AT_A_TIME: Final = 64
#: Of a file range that is encrypted: as many as make a few records of TLS.
_PIECE_BYTES: Final = 256 * 1024


class TlsConnection(ServerConnection):
    """A client behind TLS.

    The handshake comes first; bytes that are no TLS end it with an alert. A file range is read in
    pieces and encrypted, because the kernel cannot send it as it is.
    """

    def __init__(self, server: Server, listener: Listener, accepted: socket.socket) -> None:
        super().__init__(server, listener)
        assert listener.tls is not None
        self._loop = asyncio.get_running_loop()
        peer = accepted.getpeername()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tls: ssl.SSLSocket = listener.tls().wrap_socket(
            accepted, server_side=True, do_handshake_on_connect=False
        )
        self._socket = self._tls
        self._fd = self._tls.fileno()
        self._is_shaken = False
        self._is_lost = False
        self._piece: bytes | None = None  # of the file range at the head of the outbox
        self._admit(peer)
        self._timeout = self._loop.call_later(_HANDSHAKE_TIMEOUT_S, self._on_slow_handshake)
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def _is_closing(self) -> bool:
        return self._is_lost

    def _pause_reading(self) -> None:
        self._loop.remove_reader(self._fd)

    def _resume_reading(self) -> None:
        self._loop.add_reader(self._fd, self._on_readable)
        if self._tls.pending():
            # Already decrypted, so the socket will not become readable because of it.
            self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        if self._is_lost or self._is_paused:
            return
        try:
            if not self._is_shaken:
                self._shake_hands()
            else:
                self._read()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._fd, self._on_handshake_writable)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            log.info("connection of %s: TLS failed: %s", self.peer, reason)
            self._end(error)

    def _on_handshake_writable(self) -> None:
        self._loop.remove_writer(self._fd)
        self._on_readable()

    def _shake_hands(self) -> None:
        self._tls.do_handshake()
        self._timeout.cancel()
        self._is_shaken = True
        principal = self._means.principal_of(self._tls.getpeercert(binary_form=True))
        if principal is None:
            self.refuse("no rule of ssl.principal.mapping.rules matches its certificate")
            return
        self.principal = principal
        self._read()

    def _read(self) -> None:
        for _ in range(_READS_AT_A_TIME):
            buffer = self.get_buffer(-1)
            filled, is_open, has_more = self._fill(buffer)
            if filled:
                self.buffer_updated(filled)
            if not is_open:
                if self.eof_received():
                    self._pause()
                else:
                    self.close()
            if not has_more or self._is_paused or self._is_lost:
                return
        # Others want to be served as well.
        self._loop.call_soon(self._on_readable)

    def _fill(self, buffer: memoryview) -> tuple[int, bool, bool]:
        """Read records, of 16 KB at most, until the buffer is full or there are no more.

        The result is how many bytes there are, whether the peer is still there, and whether there
        may be more to read.
        """
        filled = 0
        try:
            while filled < len(buffer):
                count = self._tls.recv_into(buffer[filled:])
                if count == 0:
                    return filled, False, False
                filled += count
        except ssl.SSLWantReadError:
            return filled, True, False
        return filled, True, True

    def _on_slow_handshake(self) -> None:
        log.info("connection of %s: the TLS handshake took too long", self.peer)
        self.close()

    def _flush(self) -> bool:
        until = time.perf_counter() + SENDING_S
        while self._outbox and not self._is_lost:
            part = self._outbox[0]
            try:
                if isinstance(part, BYTES):
                    size = len(part)
                    self._sent += self._tls.send(memoryview(part)[self._sent :] if size else part)
                else:
                    size = part.size
                    self._send_piece(part)
            except ssl.SSLWantWriteError:
                self._loop.add_writer(self._fd, self._writable)
                return False
            except ssl.SSLWantReadError:
                self._loop.add_reader(self._fd, self._writable_after_reading)
                return False
            if self._sent >= size:
                self._outbox.popleft()
                self._sent = 0
            if self._outbox and time.perf_counter() > until:
                self._loop.add_writer(self._fd, self._writable)
                return False
        return True

    def _send_piece(self, part: FileRange) -> None:
        if self._piece is None:
            count = min(part.size - self._sent, _PIECE_BYTES)
            self._piece = os.pread(part.fileno(), count, part.position + self._sent)
            if len(self._piece) < count:
                raise OSError(errno.EIO, "the file is shorter than it was")
        if not self._piece:
            self._piece = None
            return
        # OpenSSL wants to be given the same bytes again until it has taken them.
        sent = self._tls.send(self._piece)
        self._sent += sent
        self._piece = self._piece[sent:] or None

    def _stop_waiting(self) -> None:
        self._loop.remove_writer(self._fd)

    def _let_socket_go(self) -> None:
        self._tls.close()

    def _writable_after_reading(self) -> None:
        self._loop.remove_reader(self._fd)
        if not self._is_paused:
            self._loop.add_reader(self._fd, self._on_readable)
        self._writable()

    def close(self) -> None:
        """Close now; a response that is being sent is lost."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._timeout.cancel()
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            if self._is_shaken:
                with contextlib.suppress(OSError, ValueError):
                    self._tls.unwrap()  # says goodbye; the peer's goodbye is not waited for
            self._loop.call_soon(self.connection_lost, error)


class TlsAcceptor:
    """Accepts connections of a TLS listener."""

    def __init__(
        self, server: Server, listener: Listener, host: str, port: int, backlog: int
    ) -> None:
        self._server = server
        self._listener = listener
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, *_, address in dict.fromkeys(found):
                self._open(family, address)
        except OSError:
            self.close()
            raise

    async def start_serving(self) -> None:
        """Begin to accept."""
        for each in self._sockets:
            each.listen(self._backlog)
            self._loop.add_reader(each.fileno(), self._accept, each)

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return self._sockets

    def _open(self, family: int, address: Any) -> None:
        listening = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_A_TIME):
            try:
                accepted, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.error("listener %s cannot accept: %s", self._listener.name, error)
                return
            try:
                TlsConnection(self._server, self._listener, accepted)
            except OSError as error:
                log.info("listener %s: a connection was lost: %s", self._listener.name, error)
                accepted.close()

    def close(self) -> None:
        """Stop accepting."""
        for each in self._sockets:
            self._loop.remove_reader(each.fileno())
            each.close()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""
