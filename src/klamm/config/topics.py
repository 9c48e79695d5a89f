"""The configuration of a topic: its own settings over those of the broker that reads them.

The fields of `TopicConfig` are the topic keys that take effect, dots written as underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from klamm.config.broker import BrokerConfig, duration_ms, retention_ms
from klamm.config.broker_keys import KEYS
from klamm.config.definitions import Value
from klamm.config.layers import Layers
from klamm.config.topic_keys import TOPIC_KEYS, TopicKey
from klamm.errors import ConfigError

#: The limits on a record's timestamp, which have an older key for both sides behind them.
_TIMESTAMP_LIMITS: Final = {
    "message_timestamp_after_max_ms": "message.timestamp.after.max.ms",
    "message_timestamp_before_max_ms": "message.timestamp.before.max.ms",
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings in force for one topic on one broker."""

    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @classmethod
    def effective(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
        """The topic's own settings where it has any, otherwise the broker's."""
        values: dict[str, Any] = {
            field.name: topic_value(TOPIC_KEYS[field.name.replace("_", ".")], overrides, broker)
            for field in fields(cls)
        }
        for field_name, name in _TIMESTAMP_LIMITS.items():
            if values[field_name] == TOPIC_KEYS[name].default_value:
                values[field_name] = topic_value(
                    TOPIC_KEYS["message.timestamp.difference.max.ms"], overrides, broker
                )
        return cls(**values)

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy


def topic_value(key: TopicKey, overrides: Mapping[str, str], broker: BrokerConfig) -> Value | None:
    """The typed value in force for one key of a topic."""
    if key.name in overrides:
        return key.parse(overrides[key.name])
    if key.broker_key is None:
        return key.default_value
    derive = _DERIVED.get(key.name)
    return derive(broker.layers) if derive else broker.layers.value(key.broker_key)


def validate_topic_config(overrides: Mapping[str, str]) -> None:
    """Refuse settings that no topic can have, in the words of Kafka's INVALID_CONFIG."""
    for name in overrides:
        if name not in TOPIC_KEYS:
            raise ConfigError(f"Unknown topic config name: {name}")
    values = {name: TOPIC_KEYS[name].parse(text) for name, text in overrides.items()}
    least, most = (
        values.get(name, TOPIC_KEYS[name].default_value)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({least})"
            f" > max.compaction.lag.ms ({most})"
        )
    if values.get("remote.storage.enable"):
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker."
            " Topic cannot be configured with remote log storage."
        )


def _flush_ms(layers: Layers) -> Value | None:
    value = layers.value("log.flush.interval.ms")
    return layers.value("log.flush.scheduler.interval.ms") if value is None else value


def _timestamp_before_max_ms(layers: Layers) -> Value | None:
    return _timestamp_limit(layers, "log.message.timestamp.before.max.ms")


def _timestamp_after_max_ms(layers: Layers) -> Value | None:
    return _timestamp_limit(layers, "log.message.timestamp.after.max.ms")


def _timestamp_limit(layers: Layers, name: str) -> Value | None:
    """One side's limit, or the older key for both sides where the newer is at its default."""
    limit = layers.value(name)
    if limit != KEYS[name].default_value:
        return limit
    return layers.value("log.message.timestamp.difference.max.ms")


def _segment_ms(layers: Layers) -> Value | None:
    return duration_ms(layers, "log.roll.ms")


def _segment_jitter_ms(layers: Layers) -> Value | None:
    return duration_ms(layers, "log.roll.jitter.ms")


#: The keys whose broker setting has synonyms to look through.
_DERIVED: Final[Mapping[str, Callable[[Layers], Value | None]]] = {
    "flush.ms": _flush_ms,
    "message.timestamp.after.max.ms": _timestamp_after_max_ms,
    "message.timestamp.before.max.ms": _timestamp_before_max_ms,
    "retention.ms": retention_ms,
    "segment.ms": _segment_ms,
    "segment.jitter.ms": _segment_jitter_ms,
}
