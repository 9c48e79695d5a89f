import pytest

from klamm.broker.log.settings import LogConfig
from klamm.errors import ConfigError

KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.message.bytes": "1048588",
    "max.compaction.lag.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "9223372036854775807",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


@pytest.mark.rule("CFG-8")
def test_the_defaults_are_kafkas():
    assert LogConfig.from_strings(KAFKA_DEFAULTS) == LogConfig()
    assert len(KAFKA_DEFAULTS) == len(LogConfig.__dataclass_fields__)


def test_a_topics_strings_become_values():
    config = LogConfig.from_strings(
        {"cleanup.policy": "compact, delete", "preallocate": "TRUE", "retention.ms": " 5 ", "x": ""}
    )
    assert config.compacts
    assert config.deletes
    assert config.preallocate
    assert config.retention_ms == 5


@pytest.mark.parametrize(("key", "value"), [("retention.ms", "soon"), ("preallocate", "maybe")])
def test_what_cannot_be_read_is_named(key, value):
    with pytest.raises(ConfigError, match=key):
        LogConfig.from_strings({key: value})


def test_a_compacted_topic_ends_its_segments_in_time_for_compaction():
    config = LogConfig(segment_ms=1000, max_compaction_lag_ms=100)
    assert config.max_segment_ms == 1000
    config = LogConfig.from_strings(
        {"cleanup.policy": "compact", "segment.ms": "1000", "max.compaction.lag.ms": "100"}
    )
    assert config.max_segment_ms == 100
