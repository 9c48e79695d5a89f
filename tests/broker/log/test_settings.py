from dataclasses import fields

import pytest

from klamm.broker.log.settings import LogConfig
from klamm.config.topic_keys import TOPIC_KEYS


@pytest.mark.rule("CFG-8")
def test_every_setting_is_a_topics_and_has_its_default():
    for field in fields(LogConfig):
        key = TOPIC_KEYS[field.name.replace("_", ".")]
        default = key.default_value
        expected = frozenset(default) if isinstance(default, tuple | list) else default
        assert getattr(LogConfig(), field.name) == expected


def test_policies_may_be_combined():
    both = LogConfig(cleanup_policy=frozenset({"compact", "delete"}))
    assert both.compacts
    assert both.deletes


def test_a_compacted_topic_ends_its_segments_in_time_for_compaction():
    assert LogConfig(segment_ms=1000, max_compaction_lag_ms=100).max_segment_ms == 1000
    compacted = frozenset({"compact"})
    config = LogConfig(cleanup_policy=compacted, segment_ms=1000, max_compaction_lag_ms=100)
    assert config.max_segment_ms == 100
