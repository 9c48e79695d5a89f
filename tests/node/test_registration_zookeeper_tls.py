"""A broker whose ZooKeeper is behind TLS, and whose znodes only it may change (SEC-12)."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from klamm.config.broker import BrokerConfig
from klamm.errors import ConfigError
from klamm.local.security import zookeeper_stores
from klamm.zookeeper.server import ZooKeeperServer, ZooKeeperTls
from tests.support.node_process import NodeProcess
from tests.support.raw import Raw
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.rule("SEC-12")]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> ZooKeeperTls:
    return zookeeper_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def server(stores: ZooKeeperTls) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tls=stores) as running:
        yield running


def settings(stores: ZooKeeperTls, server: ZooKeeperServer) -> dict[str, str]:
    given = dict(line.split("=", 1) for line in stores.broker_settings())
    return {"zookeeper.connect": server.address, "zookeeper.set.acl": "true", **given}


def test_a_broker_registers_over_tls_and_keeps_its_znodes_to_itself(
    stores: ZooKeeperTls, server: ZooKeeperServer, tmp_path: Path
):
    node = NodeProcess(1, tmp_path / "1", settings(stores, server)).start()
    kazoo = KazooClient(
        server.address,
        use_ssl=True,
        ca=str(stores.truststore),
        certfile=str(stores.keystore),
        keyfile=str(stores.keystore),
    )
    try:
        kazoo.start(30)
        wait_until(lambda: kazoo.exists("/brokers/ids/1"), "the broker registers")
        wait_until(lambda: kazoo.exists("/controller"), "it becomes controller")

        def permissions(path: str) -> set[tuple[str, int]]:
            acls, _ = kazoo.get_acls(path)
            return {(each.id.scheme, each.perms) for each in acls}

        assert permissions("/brokers/ids/1") == {("x509", 31), ("world", 1)}
        assert permissions("/controller") == {("x509", 31), ("world", 1)}
        assert permissions("/config/users") == {("x509", 31)}
        assert permissions("/consumers") == {("world", 31)}

        def serves() -> bool:
            try:
                with Raw(node.port) as raw:
                    return bool(raw.metadata().controller_id == 1)
            except OSError:
                return False

        wait_until(serves, "the broker serves")
    finally:
        node.kill()
        kazoo.stop()
        kazoo.close()


def test_a_client_without_a_certificate_is_refused(server: ZooKeeperServer):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def told() -> bytes:
        with Raw(server.port) as raw, context.wrap_socket(raw.socket) as connected:
            connected.sendall(b"srvr")
            return connected.recv(100)

    with contextlib.suppress(OSError):
        assert told() == b""


def test_acls_without_an_identity_refuse_the_start():
    least = {"broker.id": "1", "zookeeper.connect": "h:1", "log.dirs": "d"}
    with pytest.raises(ConfigError, match="authenticate to ZooKeeper"):
        BrokerConfig.from_properties({**least, "zookeeper.set.acl": "true"})


def test_a_broker_logs_in_with_digest_and_keeps_its_znodes_to_itself(tmp_path: Path):
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    with ZooKeeperServer(users={"kafka": "planted-zk-pw"}) as server:
        jaas = f'{module} required username="kafka" password="planted-zk-pw";'
        given = {
            "zookeeper.connect": server.address,
            "zookeeper.set.acl": "true",
            "klamm.zookeeper.sasl.jaas.config": jaas,
        }
        node = NodeProcess(1, tmp_path / "1", given).start()
        stranger = KazooClient(server.address)
        try:
            stranger.start(30)
            wait_until(lambda: stranger.exists("/brokers/ids/1"), "the broker registers")
            wait_until(lambda: stranger.exists("/controller"), "it becomes controller")
            acls, _ = stranger.get_acls("/brokers/ids/1")
            assert {(each.id.scheme, each.id.id) for each in acls} == {
                ("sasl", "kafka"),
                ("world", "anyone"),
            }
            with pytest.raises(NoAuthError):
                stranger.set("/controller", b"mine")
            with pytest.raises(NoAuthError):
                stranger.get_children("/config/users")
            assert "planted-zk-pw" not in node.log
        finally:
            node.kill()
            stranger.stop()
            stranger.close()
