"""The recorded situations once more, on controllers of Apache Kafka itself.

`tests/traces` holds klamm's controller to the recordings, on the same laboratory of scripted
brokers and with the same comparison of znodes, answers and requests. That Apache Kafka passes it as
well shows that the comparison asks for Kafka's behaviour and for nothing else.
"""

from pathlib import Path
from typing import Any

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.support.lab import Lab, Node
from tests.support.mixed_cluster import PATIENCE_S, Kind, MixedBroker
from tests.support.waiting import wait_until
from tests.traces.test_recorded import RECORDINGS
from tests.traces.test_recorded_live import replay

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

#: Which of two nodes of Kafka wins the role is chance, and all else follows from that.
WON_BY_CHANCE = {"20-controller_moves", "21-controller_moves_with_work_left"}


class KafkaLab(Lab):
    """A laboratory whose nodes are brokers of Apache Kafka; they are given no replicas."""

    def __init__(self, address: str, directory: Path, libs: Path) -> None:
        super().__init__(address, directory)
        self._libs = libs

    def add_node(self, node_id: int = 100, **config: Any) -> Node:
        settings = {"auto.create.topics.enable": "false"}
        node = MixedBroker(Kind.KAFKA, self._libs, self.directory, self.address, node_id, settings)
        self.nodes[node_id] = node.start()
        wait_until(lambda: self.zk.exists(f"/brokers/ids/{node_id}"), f"node {node_id}", PATIENCE_S)
        return node


@pytest.mark.parametrize(
    "path",
    [path for path in RECORDINGS if path.stem not in WON_BY_CHANCE],
    ids=lambda path: path.stem,
)
def test_apache_kafka_does_again_what_was_recorded(
    path: Path, zookeeper_server: ZooKeeperServer, kafka_libs: Path, tmp_path: Path
):
    with KafkaLab(zookeeper_server.address, tmp_path, kafka_libs) as lab:
        replay(lab, path)
