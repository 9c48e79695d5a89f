"""Real ZooKeeper servers, run from the jars that the pyspark package carries.

A server is a child process that ends with this one, however this one ends. Nothing here speaks
ZooKeeper's protocol, apart from the question whether a server is ready.
"""

import atexit
import contextlib
import importlib.util
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Self

from klamm.errors import ConfigError, UnavailableError
from klamm.processes import Child, last_words, tied_command
from klamm.temporary import TemporaryFolder
from klamm.zookeeper.java import find_java

#: The jars that a server loads classes from. Each one more would lengthen the start.
_JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "commons-io-*.jar",
)
#: The jars of the server's log, which takes more than half of the start and 25 MB.
_LOGGING_JARS: Final = ("log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j2-impl-*.jar")

_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.disableJmx=true",
)

_SETTINGS: Final = {
    # The shortest session timeout is two ticks by default.
    "tickTime": "500",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "120000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "ruok,srvr,stat,mntr",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",
}

_LOGGING_CONFIGURATION: Final = """\
<Configuration status="error">
  <Appenders>
    <RollingFile name="file" fileName="{log}" filePattern="{log}.%i">
      <PatternLayout pattern="%d %-5p [%t] %c{{1}}: %m%n"/>
      <Policies><SizeBasedTriggeringPolicy size="20 MB"/></Policies>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
  </Appenders>
  <Loggers><Root level="info"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""

_SASL_PROVIDER: Final = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
_DIGEST_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_POLL_SECONDS: Final = 0.01
#: How often a command in the foreground looks whether its servers still run.
_WATCH_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """The stores of a server behind TLS, in PEM; the key store also opens it for `klamm` itself."""

    keystore: Path
    truststore: Path

    def settings(self) -> dict[str, str]:
        return {
            "ssl.keyStore.location": str(self.keystore),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(self.truststore),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
            "ssl.enabledProtocols": "TLSv1.2,TLSv1.3",
            "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        }

    def quorum_settings(self) -> dict[str, str]:
        """For the connections between the members of an ensemble."""
        return {
            "sslQuorum": "true",
            "ssl.quorum.keyStore.location": str(self.keystore),
            "ssl.quorum.keyStore.type": "PEM",
            "ssl.quorum.trustStore.location": str(self.truststore),
            "ssl.quorum.trustStore.type": "PEM",
            "ssl.quorum.clientAuth": "need",
            "ssl.quorum.hostnameVerification": "false",
        }

    def broker_settings(self) -> list[str]:
        """What a broker's `server.properties` needs to connect, line by line."""
        return [
            "zookeeper.ssl.client.enable=true",
            "zookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
            f"zookeeper.ssl.keystore.location={self.keystore}",
            f"zookeeper.ssl.truststore.location={self.truststore}",
        ]

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.truststore))
        context.check_hostname = False
        context.load_cert_chain(self.keystore)
        return context


class ZooKeeperServer:
    """One ZooKeeper server process. It serves requests when `start` returns.

    Without a data directory it uses a temporary one, which is removed in the end, and does not sync
    to the disk. With port 0 it takes any free port and keeps it when it is restarted.
    """

    def __init__(
        self,
        port: int = 0,
        data_dir: Path | str | None = None,
        *,
        heap: str = "512m",
        host: str = "127.0.0.1",
        log: bool = False,
        settings: Mapping[str, str] | None = None,
        tls: "ZooKeeperTls | None" = None,
        users: Mapping[str, str] | None = None,
        starts_quickly: bool = False,
    ) -> None:
        """With `tls`, clients have to show a certificate that the trust store believes.

        `users` with their passwords can log in with DIGEST-MD5. A server that `starts_quickly`
        compiles less, and is slower than others when it has very much to do.
        """
        self._tls = tls
        self._users = users or {}
        self._starts_quickly = starts_quickly
        if not re.fullmatch(r"[1-9][0-9]*[kmgKMG]", heap):
            raise ConfigError(f"A heap is given as 512m or 2g, not {heap!r}.")
        self.host = host
        self.port = port
        self.data_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._heap = heap
        self._log = log
        self._settings = {**_SETTINGS, **(settings or {})}
        self._is_temporary = data_dir is None
        self._folder: TemporaryFolder | None = None
        self._process: Child | None = None

    @property
    def address(self) -> str:
        """`host:port`, for clients."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise UnavailableError("The ZooKeeper server is not running.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and not self._process.ended.is_set()

    def start(self, timeout_s: float = 30.0) -> Self:
        """Start the server and wait until it serves."""
        chooses_port = self.port == 0
        for last_attempt in (False, False, True):
            try:
                self.launch()
                self.wait_until_serving(timeout_s)
                break
            except UnavailableError:
                if last_attempt or not chooses_port:
                    raise
                # Another process may have taken the port before the server started.
                self.port = 0
        return self

    def launch(self) -> None:
        """Start the process without waiting for it to serve."""
        if self.is_running:
            return
        java = find_java()
        patterns = (*_JARS, *(_LOGGING_JARS if self._log else ()))
        jars = _find_jars(patterns) + (
            _find_netty() if self._tls is not None or self._users else []
        )
        if self.port == 0:
            self.port = free_port(self.host)
        else:
            _check_port_is_free(self.host, self.port)
        if self.data_dir is None:
            self._folder = TemporaryFolder("zookeeper")
            self.data_dir = self._folder.path
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._write_configuration(self.data_dir)
        except OSError as error:
            raise ConfigError(
                f"The data directory {self.data_dir} cannot be used: {error}."
            ) from None
        self._process = Child(
            tied_command(*self._command(java, jars, self.data_dir)), self._output_path, "zookeeper"
        )
        atexit.register(self.stop)

    def wait_until_serving(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves requests; if it does not, stop it and raise with its last
        output.
        """
        deadline = time.monotonic() + timeout_s
        while self._process is not None and time.monotonic() < deadline:
            if self._process.ended.wait(_POLL_SECONDS):
                break
            if _serves(self.host, self.port, self._tls):
                return
        said = self.last_words()
        self.stop()
        raise UnavailableError(f"ZooKeeper did not start at {self.address}: {said}")

    def stop(self) -> None:
        """Stop the server; a temporary data directory is removed."""
        atexit.unregister(self.stop)
        # Nothing that a clean shutdown would save outlives a temporary directory.
        self._end(signal.SIGKILL if self._is_temporary else signal.SIGTERM)
        if self._folder is not None:
            self._folder.remove()
            self._folder = self.data_dir = None

    def kill(self) -> None:
        """Let the server crash; its data stays, and `start` brings it back."""
        self._end(signal.SIGKILL)

    def _end(self, sig: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(sig)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what the process is given ---

    _main_class = "org.apache.zookeeper.server.ZooKeeperServerMain"

    def _write_configuration(self, data_dir: Path) -> None:
        settings = {"dataDir": str(data_dir), **self._client_port(), **self._settings}
        if self._users:
            settings["authProvider.sasl"] = _SASL_PROVIDER
            known = " ".join(f'user_{user}="{password}"' for user, password in self._users.items())
            jaas = data_dir / "jaas.conf"
            jaas.touch(mode=0o600)
            jaas.write_text(f"Server {{ {_DIGEST_MODULE} required {known}; }};\n", encoding="utf-8")
        lines = (f"{key}={value}\n" for key, value in settings.items())
        (data_dir / "zoo.cfg").write_text("".join(lines), encoding="utf-8")
        if self._log:
            log4j = _LOGGING_CONFIGURATION.format(log=data_dir / "zookeeper.log")
            (data_dir / "log4j2.xml").write_text(log4j, encoding="utf-8")

    def _client_port(self) -> dict[str, str]:
        if self._tls is None:
            return {"clientPortAddress": self.host, "clientPort": str(self.port)}
        return {
            "secureClientPortAddress": self.host,
            "secureClientPort": str(self.port),
            **self._tls.settings(),
        }

    def _command(self, java: Path, jars: Sequence[Path], data_dir: Path) -> list[str]:
        options = [f"-Xmx{self._heap}", *_JVM_OPTIONS]
        if self._starts_quickly:
            options.append("-XX:TieredStopAtLevel=1")
        if self._is_temporary:
            options += ["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=4096"]
        if self._users:
            options.append(f"-Djava.security.auth.login.config={data_dir / 'jaas.conf'}")
        if self._tls is not None:
            factory = "org.apache.zookeeper.server.NettyServerCnxnFactory"
            options.append(f"-Dzookeeper.serverCnxnFactory={factory}")
        if self._log:
            options.append(f"-Dlog4j2.configurationFile={data_dir / 'log4j2.xml'}")
        class_path = os.pathsep.join(map(str, jars))
        return [str(java), *options, "-cp", class_path, self._main_class, str(data_dir / "zoo.cfg")]

    @property
    def _output_path(self) -> Path:
        assert self.data_dir is not None
        return self.data_dir / "zookeeper.out"

    def last_words(self) -> str:
        """The end of the process's output, which has the reason of its end."""
        return last_words(self._output_path)


class ZooKeeperEnsemble:
    """Several servers that form a quorum: the cluster survives the loss of a minority of them.

    Clients connect at `port` and the ports after it, or at any free ports if it is 0. Member N
    keeps its data in the folder N of `data_dir`; without one, each has a temporary directory.
    """

    def __init__(
        self,
        n: int = 3,
        port: int = 0,
        data_dir: Path | str | None = None,
        *,
        heap: str = "256m",
        host: str = "127.0.0.1",
        log: bool = False,
        tls: ZooKeeperTls | None = None,
    ) -> None:
        """With `tls`, clients and the members among each other have to show a certificate."""
        if n < 1:
            raise ConfigError(f"An ensemble has at least one server, not {n}.")
        internal = free_ports(host, 2 * n)
        clients = [port + i for i in range(n)] if port else free_ports(host, n)
        quorum = {
            f"server.{i + 1}": f"{host}:{internal[2 * i]}:{internal[2 * i + 1]}"
            # A secure client port is each member's own setting.
            + ("" if tls is not None else f";{host}:{client}")
            for i, client in enumerate(clients)
        }
        settings = {**quorum, "initLimit": "20", "syncLimit": "10"}
        self.members = [
            _Member(
                i,
                client,
                None if data_dir is None else Path(data_dir) / str(i),
                heap=heap,
                host=host,
                log=log,
                settings=settings if tls is None else settings | tls.quorum_settings(),
                tls=tls,
            )
            for i, client in enumerate(clients, start=1)
        ]

    @property
    def address(self) -> str:
        """The addresses of all members, as in a connect string."""
        return ",".join(member.address for member in self.members)

    def start(self, timeout_s: float = 60.0) -> Self:
        """Start all members and wait until each of them serves."""
        try:
            # No member serves requests before a majority runs.
            for member in self.members:
                member.launch()
            for member in self.members:
                member.wait_until_serving(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def has_majority(self) -> bool:
        """Whether enough members run to serve requests."""
        return 2 * sum(member.is_running for member in self.members) > len(self.members)

    def stop(self) -> None:
        """Stop all members."""
        for member in self.members:
            member.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Member(ZooKeeperServer):
    """A server of an ensemble; its client port is in the settings that all of them share."""

    _main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

    def __init__(
        self,
        my_id: int,
        port: int,
        data_dir: Path | None,
        *,
        heap: str,
        host: str,
        log: bool,
        settings: Mapping[str, str],
        tls: ZooKeeperTls | None,
    ) -> None:
        super().__init__(port, data_dir, heap=heap, host=host, log=log, settings=settings, tls=tls)
        self.my_id = my_id

    def _write_configuration(self, data_dir: Path) -> None:
        super()._write_configuration(data_dir)
        (data_dir / "myid").write_text(f"{self.my_id}\n", encoding="utf-8")

    def _client_port(self) -> dict[str, str]:
        return {} if self._tls is None else super()._client_port()


def run_foreground(
    port: int,
    data_dir: Path | str | None,
    heap: str,
    ensemble: int | None = None,
    tls: ZooKeeperTls | None = None,
) -> None:
    """Run a server, or an ensemble of servers, until SIGTERM or SIGINT: `klamm zookeeper`.

    Each server's log is in its data directory. A member of an ensemble that ends is reported and
    not started again; the command fails when there is no majority left.
    """
    stopping = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        stopping.set()

    previous = {sig: signal.signal(sig, stop) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        if ensemble is None:
            _run_server(ZooKeeperServer(port, data_dir, heap=heap, log=True, tls=tls), stopping)
        else:
            _run_ensemble(
                ZooKeeperEnsemble(ensemble, port, data_dir, heap=heap, log=True, tls=tls), stopping
            )
    finally:
        for sig, handler in previous.items():
            signal.signal(sig, handler)


def _run_server(server: ZooKeeperServer, stopping: threading.Event) -> None:
    with server:
        print(f"ZooKeeper is ready at {server.address} ({server.data_dir})", file=sys.stderr)
        while server.is_running and not stopping.wait(_WATCH_SECONDS):
            pass
        if not stopping.is_set():
            raise UnavailableError(f"ZooKeeper ended unasked: {server.last_words()}")


def _run_ensemble(ensemble: ZooKeeperEnsemble, stopping: threading.Event) -> None:
    with ensemble:
        print(f"ZooKeeper is ready at {ensemble.address}", file=sys.stderr)
        running = list(ensemble.members)
        while ensemble.has_majority and not stopping.wait(_WATCH_SECONDS):
            for member in [member for member in running if not member.is_running]:
                running.remove(member)
                text = f"ZooKeeper {member.my_id} at {member.address} ended: {member.last_words()}"
                print(text, file=sys.stderr)
        if not stopping.is_set():
            raise UnavailableError("The ZooKeeper ensemble has lost its majority.")


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free at the moment."""
    return free_ports(host, 1)[0]


def free_ports(host: str, count: int) -> list[int]:
    """Distinct ports that are free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((host, 0))
        return [sock.getsockname()[1] for sock in sockets]


def _check_port_is_free(host: str, port: int) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"ZooKeeper cannot listen at {host}:{port} ({error.strerror}): stop what is "
                "listening there, or choose another port with --port."
            ) from None


def _serves(host: str, port: int, tls: ZooKeeperTls | None = None) -> bool:
    """Whether a server serves requests; a response to `ruok` would only mean that the process
    runs.
    """
    try:
        connected = socket.create_connection((host, port), timeout=1)
        if tls is not None:
            connected = tls.context().wrap_socket(connected)
        with connected as sock, sock.makefile("rb") as response:
            sock.sendall(b"srvr")
            return b"Mode:" in response.read()
    except OSError:
        return False


def _find_netty() -> list[Path]:
    """The jars of netty, which ZooKeeper needs for TLS, and to look whether there is a login."""
    return [*_find_jars(("netty-all-*.jar",)), *_all_jars("netty-*.jar")]


def _all_jars(pattern: str) -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    folders = [Path(where, "jars") for where in (spec and spec.submodule_search_locations) or ()]
    return [jar for folder in folders for jar in sorted(folder.glob(pattern))]


def _find_jars(patterns: Sequence[str]) -> list[Path]:
    spec = importlib.util.find_spec("pyspark")  # does not import it, which would take a second
    folders = [Path(where, "jars") for where in (spec and spec.submodule_search_locations) or ()]
    jars = []
    for pattern in patterns:
        found = [jar for folder in folders for jar in sorted(folder.glob(pattern))]
        if not found:
            raise ConfigError(
                f"The pyspark package has no {pattern}, which ZooKeeper needs: "
                "pip install 'pyspark>=4.3'."
            )
        jars.append(found[-1])
    return jars
