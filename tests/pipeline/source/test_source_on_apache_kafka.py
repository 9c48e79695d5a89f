"""The same tests on Apache Kafka, and what klamm's brokers do not have: `make interop`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.pipeline.source import (
    test_reader,
    test_source_spark,
    test_source_spark_heavy,
    test_writer,
)
from tests.pipeline.source.tables.test_rows import (
    test_lag_is_what_kafka_consumer_groups_prints as test_lag_is_what_kafka_consumer_groups_prints,
)
from tests.pipeline.source.test_reader import numbers, read_all
from tests.support import cluster as brokers
from tests.support.cluster import BrokerProcess, RealCluster
from tests.support.kafka_process import kafka_command
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

globals().update(
    {
        name: test
        for module in (test_reader, test_writer, test_source_spark, test_source_spark_heavy)
        for name, test in vars(module).items()
        if name.startswith("test_")
    }
)


@pytest.fixture(scope="module", autouse=True)
def _run_apache_kafka(kafka_libs: Path) -> Iterator[None]:
    """Whatever cluster is started in this module consists of Apache Kafka's brokers."""

    class KafkaProcess(BrokerProcess):
        patience_s = 120.0

        def command(self, file: Path) -> list[str]:
            return kafka_command(kafka_libs, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brokers, "BrokerProcess", KafkaProcess)
        patch.setattr(brokers, "PATIENCE_S", 120.0)
        yield


@pytest.fixture(scope="module")
def cluster(
    _run_apache_kafka: None,
    zookeeper_server: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealCluster]:
    settings = {
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "log.cleaner.dedupe.buffer.size": "4000000",
    }
    directory = tmp_path_factory.mktemp("kafka")
    with RealCluster(zookeeper_server, directory, brokers=1, settings=settings) as started:
        yield started


def test_only_what_was_committed_is_read_if_so_asked(cluster, topic):
    cluster.create(topic, factor=1)
    producer = cluster.producer(transactional_id=topic)
    producer.init_transactions(PATIENCE_S)
    for first, commits in ((0, True), (10, False), (20, True), (30, False)):
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce(topic, b"%d" % number)
        producer.flush(PATIENCE_S)
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    committed = [*range(10), *range(20, 30)]
    for more in ({}, {"kafka.client.rack": "a"}):
        asked = {"subscribe": topic, "kafka.isolation.level": "read_committed", **more}
        assert numbers(read_all(cluster, **asked)) == committed
        assert numbers(read_all(cluster, **asked, maxRecordsPerPartition="3")) == committed
        assert numbers(read_all(cluster, subscribe=topic, **more)) == [*range(40)]
