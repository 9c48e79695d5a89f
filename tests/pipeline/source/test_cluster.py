"""Requests about topics and offsets are retried in a way that fits what went wrong."""

from confluent_kafka import KafkaError, KafkaException

from klamm.names import TopicPartition
from klamm.pipeline.source import cluster as module
from klamm.pipeline.source.cluster import SourceCluster
from klamm.pipeline.source.options import read_options

ORDERS = TopicPartition("orders", 0)


def test_a_request_gets_more_time_after_each_timeout_and_little_again_once_one_is_answered(
    monkeypatch,
):
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
    cluster = SourceCluster(read_options(options, streaming=True))
    patience: list[float] = []

    def list_offsets(wanted):
        patience.append(cluster._timeout_s)
        if len(patience) < 8:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return dict.fromkeys(wanted, 7)

    monkeypatch.setattr(cluster, "_list_offsets", list_offsets)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    monkeypatch.setattr(module, "wait_reachable", lambda _: None)
    monkeypatch.setattr(module, "is_mute", lambda _: False)
    assert cluster.latest([ORDERS]) == {ORDERS: 7}
    assert patience == [2, 3, 4.5, 6.75, 10, 10, 10, 10]
    assert cluster.latest([ORDERS]) == {ORDERS: 7}
    assert patience[-1] == 2
