"""The settings of one log, as typed values.

The keys are those of a topic's configuration. Which broker setting stands behind each of them is
not known here: whoever makes a `LogConfig` passes the values that are in effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from klamm.errors import ConfigError

FOREVER: Final = 9223372036854775807


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What a topic's configuration says about its logs; the defaults are Kafka's."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = FOREVER
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = FOREVER
    message_timestamp_before_max_ms: int = FOREVER
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False

    @classmethod
    def from_strings(cls, values: Mapping[str, str]) -> LogConfig:
        """Take the keys that concern a log from a topic's configuration; others are ignored."""
        known: dict[str, Any] = {}
        for name, parse in _PARSERS.items():
            key = name.replace("_", ".")
            if key in values:
                try:
                    known[name] = parse(values[key].strip())
                except ValueError as error:
                    raise ConfigError(f"{key}: {values[key]!r} cannot be read: {error}") from error
        return cls(**known)

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """When a segment ends at the latest: what is being written cannot be compacted."""
        if self.compacts and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    @property
    def stamps_on_append(self) -> bool:
        """Whether the broker's clock, not the producer's, dates the records."""
        return self.message_timestamp_type == "LogAppendTime"


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false would be accepted")
    return text.lower() == "true"


def _parse_policy(text: str) -> frozenset[str]:
    return frozenset(policy.strip() for policy in text.split(",") if policy.strip())


_BY_TYPE: Final[Mapping[str, Callable[[str], Any]]] = {
    "int": int,
    "float": float,
    "bool": _parse_boolean,
    "str": str,
    "frozenset[str]": _parse_policy,
}
_PARSERS: Final = {field.name: _BY_TYPE[str(field.type)] for field in fields(LogConfig)}
