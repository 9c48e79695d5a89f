"""`klamm observe` beside Apache Kafka: its controller's decisions become a history."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import create
from tests.support.command_line import run_here
from tests.support.mixed_cluster import Kind, MixedCluster
from tests.support.observing import Observing

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture
def kafka(
    zookeeper_server: ZooKeeperServer, kafka_libs: Path, tmp_path: Path
) -> Iterator[MixedCluster]:
    with MixedCluster(zookeeper_server.address, tmp_path, kafka_libs) as cluster:
        cluster.add(Kind.KAFKA, 1, 2, 3)
        yield cluster


def test_the_history_of_apache_kafka_is_written_from_its_zookeeper(
    kafka: MixedCluster, tmp_path: Path
):
    spool = tmp_path / "spool"
    observing = Observing(kafka.address, spool)
    assert "became controller" in observing.said()
    controller = kafka.controller_id()
    assert controller is not None
    leader, follower = sorted({1, 2, 3} - {controller})
    create(kafka.bootstrap, "orders", [[leader, follower]])
    kafka.wait_in_sync("orders")
    kafka.kill(leader)
    kafka.wait_isr("orders", 0, [follower])
    while f"leader {follower} (was {leader})" not in (said := observing.said()):
        assert said, "the observer has ended"
    kafka.start_brokers(leader)
    kafka.wait_isr("orders", 0, [follower, leader])
    while f"({leader} joined)" not in (said := observing.said()):
        assert said, "the observer has ended"
    observing.stop()
    told = run_here("story", "orders-0", "--spool", str(spool)).ok().out
    assert f"orders-0 was created with leader {leader}" in told
    assert f"broker {leader} had disappeared; orders-0 got leader {follower}" in told
