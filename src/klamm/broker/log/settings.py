"""The settings of one log, as typed values.

The names are those of a topic's configuration. Which broker setting stands behind each of them is
not known here: whoever makes a `LogConfig` passes the values that are in effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
