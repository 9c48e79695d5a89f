"""A secured cluster is read by klamm's own reader, over TLS and SASL."""

import pytest
from confluent_kafka import Producer

from klamm import Cluster
from klamm.pipeline.source.kafka_options import can_fetch
from klamm.pipeline.source.options import read_options
from klamm.pipeline.source.reader import TopicReader
from klamm.pipeline.source.tables.reader import TableReader, table_options

pytestmark = pytest.mark.real


@pytest.mark.parametrize("kind", ["sasl_ssl", "ssl"])
def test_a_secured_topic_takes_the_fast_path(kind):
    with Cluster(brokers=1, security=kind) as cluster:
        cluster.create_topic("orders", partitions=2)
        producer = Producer(cluster.client_config("confluent-kafka"))
        for number in range(500):
            producer.produce("orders", str(number))
        assert producer.flush(30) == 0
        given = {**cluster.client_config("spark"), "subscribe": "orders"}
        options = read_options(given, streaming=False)
        assert can_fetch(options.kafka)
        reader = TopicReader(options)
        rows = [
            row
            for task in reader.partitions()
            for batch in reader.read(task)
            for row in batch.to_pylist()
        ]
        brokers = TableReader(table_options({**cluster.client_config("spark"), "table": "brokers"}))
        (table,) = (batch for task in brokers.partitions() for batch in brokers.read(task))
    assert sorted(int(row["value"]) for row in rows) == list(range(500))
    assert table.num_rows == 1


@pytest.mark.parametrize(
    "given",
    [
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
        {"security.protocol": "SSL", "ssl.crl.location": "crl.pem"},
    ],
)
def test_what_the_fast_path_does_not_know_goes_through_librdkafka(given):
    assert not can_fetch({"bootstrap.servers": "h:1", "client.id": "c", **given})
