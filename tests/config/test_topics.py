"""A topic's settings over its broker's."""

from dataclasses import fields

import pytest

from klamm.config.broker import KEYS_WITH_EFFECT, BrokerConfig
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.config.topics import TopicConfig, validate_topic_config
from klamm.errors import ConfigError

_LEAST = {"zookeeper.connect": "localhost:2181", "broker.id": "1"}
_FOR_EVER = 9223372036854775807


def broker(**properties: str) -> BrokerConfig:
    named = {name.replace("_", "."): text for name, text in properties.items()}
    return BrokerConfig.from_properties({**_LEAST, **named})


@pytest.mark.rule("CFG-8")
def test_a_topic_without_settings_on_a_broker_without_settings_has_kafkas_defaults():
    assert TopicConfig.effective({}, broker()) == TopicConfig(
        cleanup_policy=("delete",),
        compression_gzip_level=-1,
        compression_lz4_level=9,
        compression_type="producer",
        compression_zstd_level=3,
        delete_retention_ms=86400000,
        file_delete_delay_ms=60000,
        flush_messages=_FOR_EVER,
        flush_ms=_FOR_EVER,
        index_interval_bytes=4096,
        max_compaction_lag_ms=_FOR_EVER,
        max_message_bytes=1048588,
        message_timestamp_after_max_ms=_FOR_EVER,
        message_timestamp_before_max_ms=_FOR_EVER,
        message_timestamp_type="CreateTime",
        min_cleanable_dirty_ratio=0.5,
        min_compaction_lag_ms=0,
        min_insync_replicas=1,
        preallocate=False,
        retention_bytes=-1,
        retention_ms=604800000,
        segment_bytes=1073741824,
        segment_index_bytes=10485760,
        segment_jitter_ms=0,
        segment_ms=604800000,
        unclean_leader_election_enable=False,
    )
    assert TOPIC_KEYS["leader.replication.throttled.replicas"].default_value == ()
    assert TOPIC_KEYS["follower.replication.throttled.replicas"].default_value == ()


@pytest.mark.rule("CFG-8")
def test_each_key_falls_back_to_its_broker_setting():
    given = broker(
        message_max_bytes="5000",
        log_retention_hours="2",
        log_roll_jitter_hours="1",
        log_segment_bytes="9999",
        min_insync_replicas="2",
        log_flush_scheduler_interval_ms="77",
        unclean_leader_election_enable="true",
    )
    effective = TopicConfig.effective({}, given)
    assert effective.max_message_bytes == 5000
    assert effective.retention_ms == 7_200_000
    assert effective.segment_jitter_ms == 3_600_000
    assert effective.segment_bytes == 9999
    assert effective.min_insync_replicas == 2
    assert effective.flush_ms == 77
    assert effective.unclean_leader_election_enable


def test_the_more_specific_layer_decides():
    static = broker(log_segment_bytes="1000")
    default = static.with_dynamic(default={"log.segment.bytes": "2000"}, broker={})
    own = static.with_dynamic(
        default={"log.segment.bytes": "2000"}, broker={"log.segment.bytes": "3000"}
    )
    assert TopicConfig.effective({}, static).segment_bytes == 1000
    assert TopicConfig.effective({}, default).segment_bytes == 2000
    assert TopicConfig.effective({}, own).segment_bytes == 3000
    assert TopicConfig.effective({"segment.bytes": "4000"}, own).segment_bytes == 4000


def test_the_older_timestamp_limit_holds_on_both_sides_until_a_newer_one_is_set():
    older = TopicConfig.effective({"message.timestamp.difference.max.ms": "5"}, broker())
    assert older.message_timestamp_before_max_ms == older.message_timestamp_after_max_ms == 5
    one_side = TopicConfig.effective(
        {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "9"},
        broker(),
    )
    assert one_side.message_timestamp_before_max_ms == 5
    assert one_side.message_timestamp_after_max_ms == 9


def test_a_topic_can_be_compacted_and_deleted_from():
    both = TopicConfig.effective({"cleanup.policy": "compact, delete"}, broker())
    assert both.compacts
    assert both.deletes
    neither = TopicConfig.effective({"cleanup.policy": ""}, broker())
    assert not neither.compacts
    assert not neither.deletes


@pytest.mark.rule("CFG-5")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"foo": "1"}, "Unknown topic config name: foo"),
        (
            {"retention.ms": "abc"},
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (
            {"retention.ms": "-2"},
            "Invalid value -2 for configuration retention.ms: Value must be at least -1",
        ),
        (
            {"min.cleanable.dirty.ratio": "-1"},
            "Invalid value -1.0 for configuration min.cleanable.dirty.ratio:"
            " Value must be at least 0",
        ),
        (
            {"cleanup.policy": "compact,"},
            "Invalid value  for configuration cleanup.policy:"
            " String must be one of: compact, delete",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (
            {"leader.replication.throttled.replicas": "1:2,3"},
            "Invalid value [1:2, 3] for configuration leader.replication.throttled.replicas:"
            " leader.replication.throttled.replicas must be the literal '*' or a list of replicas"
            " in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker."
            " Topic cannot be configured with remote log storage.",
        ),
    ],
)
def test_a_bad_setting_is_refused_in_kafkas_words(overrides: dict[str, str], message: str):
    with pytest.raises(ConfigError) as refused:
        validate_topic_config(overrides)
    assert str(refused.value) == message


@pytest.mark.rule("CFG-6")
@pytest.mark.parametrize("replicas", ["*", "", "0:1,0:2", "1:2, 3:4"])
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_replicas_are_accepted(side: str, replicas: str):
    validate_topic_config({f"{side}.replication.throttled.replicas": replicas})


@pytest.mark.parametrize(
    "overrides",
    [
        {"cleanup.policy": ""},
        {"segment.bytes": " 100 "},
        {"segment.bytes": "+100"},
        {"retention.bytes": "-5"},
        {"unclean.leader.election.enable": " TRUE "},
        {"message.format.version": "2.0"},
    ],
)
def test_what_kafka_accepts_is_accepted(overrides: dict[str, str]):
    validate_topic_config(overrides)


def test_the_broker_keys_behind_the_fields_take_effect_and_no_others_do():
    implemented = {field.name.replace("_", ".") for field in fields(TopicConfig)}
    # It has no field of its own, as it is the default of two others.
    implemented.add("message.timestamp.difference.max.ms")
    for name, key in TOPIC_KEYS.items():
        if key.broker_key is not None:
            assert (key.broker_key in KEYS_WITH_EFFECT) == (name in implemented), name
