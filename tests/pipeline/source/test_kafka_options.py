"""`kafka.*` options on their way to librdkafka."""

import sys
from pathlib import Path

import pytest

from klamm.errors import ConfigError
from klamm.pipeline.source.kafka_options import can_fetch, consumer_config, producer_config

BASE = {"bootstrap.servers": "127.0.0.1:9092"}


def consumer(**given):
    return consumer_config(_keys(given), group_id_prefix=None)


def producer(**given):
    return producer_config(_keys(given))


def _keys(given):
    return BASE | {key.replace("_", "."): value for key, value in given.items()}


def test_names_that_both_know_are_passed_on():
    config = consumer(fetch_min_bytes="10", client_id="me", isolation_level="read_committed")
    assert config["fetch.min.bytes"] == "10"
    assert config["client.id"] == "me"
    assert config["isolation.level"] == "read_committed"


def test_names_that_differ_are_translated():
    config = consumer(
        fetch_max_wait_ms="7", receive_buffer_bytes="65536", request_timeout_ms="9000"
    )
    assert config["fetch.wait.max.ms"] == "7"
    assert config["socket.receive.buffer.bytes"] == "65536"
    assert config["socket.timeout.ms"] == "9000"
    config = producer(max_request_size="2000000", buffer_memory="33554432", compression_type="lz4")
    assert config["message.max.bytes"] == "2000000"
    assert config["queue.buffering.max.kbytes"] == "32768"
    assert config["compression.type"] == "lz4"


def test_a_login_of_java_is_translated():
    entry = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="me" password="it\'s = secret";'
    )
    config = consumer(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=entry
    )
    assert config["sasl.username"] == "me"
    assert config["sasl.password"] == "it's = secret"
    with pytest.raises(ConfigError, match=r"'sasl\.jaas\.config' is understood for"):
        consumer(sasl_jaas_config="com.example.OwnModule required;")


def test_certificates_are_read_as_pem_and_a_java_key_store_is_refused():
    with pytest.raises(ConfigError, match=r"'ssl\.truststore\.location' of type JKS .* PEM"):
        consumer(ssl_truststore_location="trust.jks")


def test_an_empty_algorithm_is_none():
    config = consumer(ssl_endpoint_identification_algorithm="")
    assert config["ssl.endpoint.identification.algorithm"] == "none"


@pytest.mark.parametrize(
    ("make", "key", "reason"),
    [
        (consumer, "auto_offset_reset", "set the source option 'startingOffsets'"),
        (consumer, "enable_auto_commit", "managed by Spark"),
        (consumer, "key_deserializer", "explicitly deserialize the keys"),
        (consumer, "value_deserializer", "explicitly deserialize the values"),
        (consumer, "interceptor_classes", "no Java classes"),
        (consumer, "max_poll_records", "ranges of offsets"),
        (producer, "key_serializer", "explicitly serialize the keys"),
        (producer, "value_serializer", "explicitly serialize the values"),
        (producer, "metric_reporters", "no Java classes"),
        (producer, "max_block_ms", r"delivery\.timeout\.ms"),
        (producer, "partitioner_class", "Add a column 'partition'"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(make, key, reason):
    with pytest.raises(ConfigError, match=f"'{key.replace('_', '.')}' is not supported.*{reason}"):
        make(**{key: "x"})


def test_what_nobody_knows_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'linger\.m' is not supported: .*'kafka\.linger\.ms'"):
        producer(linger_m="5")
    with pytest.raises(ConfigError, match=r"'linger\.ms' is not accepted: Invalid value"):
        producer(linger_ms="soon")


def test_a_group_has_the_name_or_the_prefix_that_was_given():
    assert consumer(group_id="mine")["group.id"] == "mine"
    named = consumer_config(BASE, group_id_prefix="team")
    assert named["group.id"].startswith("team-")
    both = consumer_config(BASE | {"group.id": "mine"}, group_id_prefix="team")
    assert both["group.id"] == "mine"


def test_a_producer_is_idempotent_unless_that_is_ruled_out():
    assert producer()["enable.idempotence"] == "true"
    assert producer(acks="1")["enable.idempotence"] == "false"
    assert producer(retries="0")["enable.idempotence"] == "false"
    assert producer(max_in_flight_requests_per_connection="9")["enable.idempotence"] == "false"
    with pytest.raises(ConfigError, match="acks"):
        producer(acks="1", enable_idempotence="true")


def test_keys_go_where_java_puts_them_unless_something_else_is_asked_for():
    assert producer()["partitioner"] == "murmur2_random"
    assert producer(partitioner_ignore_keys="true")["partitioner"] == "random"
    assert producer(partitioner="consistent")["partitioner"] == "consistent"


def test_what_klamms_own_reading_does_not_do_is_left_to_librdkafka():
    assert can_fetch(consumer())
    assert can_fetch(consumer(isolation_level="read_committed", fetch_max_bytes="1000000"))
    assert can_fetch(consumer(security_protocol="SSL"))
    assert not can_fetch(consumer(security_protocol="SSL", ssl_crl_location="crl.pem"))
    assert not can_fetch(consumer(client_rack="a"))


def test_a_producers_buffer_is_bounded_as_javas_is():
    assert producer()["queue.buffering.max.kbytes"] == str(32 << 10)
    assert producer(buffer_memory="1048576")["queue.buffering.max.kbytes"] == "1024"
    large = producer(max_request_size="67108864")
    assert large["queue.buffering.max.kbytes"] == str(64 << 10)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_settings_are_checked_without_a_client():
    before = librdkafka_threads()
    consumer(fetch_min_bytes="10")
    producer(linger_ms="3")
    assert librdkafka_threads() <= before


def librdkafka_threads() -> set[str]:
    """Those that clients of this process run, by their ids."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name for task in tasks if (task / "comm").read_text().startswith("rdk:")}
