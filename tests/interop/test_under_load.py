"""Changes to a cluster at work, with clients that notice nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import Traffic, create, progress, traffic
from tests.support.mixed_cluster import Kind, MixedCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

BROKERS = (1, 2, 3)
CONTROLLER_ONLY = 100


@pytest.fixture(params=["3.9", "2.8"])
def cluster(
    request: pytest.FixtureRequest,
    zookeeper_server: ZooKeeperServer,
    kafka_libs: Path,
    tmp_path: Path,
) -> Iterator[MixedCluster]:
    """Three brokers of Apache Kafka."""
    with MixedCluster(
        zookeeper_server.address,
        tmp_path,
        kafka_libs,
        inter_broker_protocol_version=request.param,
        min_insync_replicas=2,
    ) as cluster:
        cluster.add(Kind.KAFKA, *BROKERS)
        create(cluster.bootstrap, "orders", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        yield cluster


def replace(cluster: MixedCluster, broker_id: int, kind: Kind, seen: Traffic) -> None:
    """Exchange one broker's program, as a rolling upgrade does."""
    cluster.restart(broker_id, kind)
    cluster.wait_in_sync("orders")
    cluster.wait_in_sync("__consumer_offsets")
    progress(seen)


def test_a_cluster_moves_to_klamm_and_back_broker_by_broker(cluster: MixedCluster):
    with traffic(cluster.bootstrap, "orders") as seen:
        progress(seen)
        for kind in (Kind.KLAMM, Kind.KAFKA):
            for broker_id in BROKERS:
                replace(cluster, broker_id, kind, seen)
    seen.check()


def test_a_node_that_only_leads_comes_rules_and_goes(cluster: MixedCluster):
    with traffic(cluster.bootstrap, "orders") as seen:
        progress(seen)
        cluster.add_controller_only(CONTROLLER_ONLY)
        cluster.move_controller(CONTROLLER_ONLY)
        progress(seen)
        cluster.kill(3)
        cluster.wait_isr("orders", 2, [1, 2])
        progress(seen)
        cluster.start_brokers(3)
        cluster.wait_in_sync("orders")
        cluster.move_controller(1)
        progress(seen)
        cluster.move_controller(CONTROLLER_ONLY)
        # Its end is that of any controller: one of the brokers has the role afterwards.
        cluster.remove(CONTROLLER_ONLY)
        assert cluster.wait_controller() in BROKERS
        create(cluster.bootstrap, "afterwards", [[1, 2, 3]])
        progress(seen)
    seen.check()


def test_the_role_wanders_between_both_kinds(cluster: MixedCluster):
    cluster.restart(2, Kind.KLAMM)
    cluster.wait_in_sync("orders")
    with traffic(cluster.bootstrap, "orders") as seen:
        for holder in (1, 2, 3, 2, 1):
            cluster.move_controller(holder)
            create(cluster.bootstrap, f"led-by-{holder}-{len(seen.read)}", [[3, 2], [2, 1]])
            progress(seen)
    seen.check()
