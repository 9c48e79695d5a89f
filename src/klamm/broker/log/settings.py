"""The settings of one log, as typed values.

The names are those of a topic's configuration. `LogConfig` is made from the effective values: the
topic's overrides, or else the broker's settings.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.names import TopicPartition
from klamm.protocol.compression import (
    GZIP_LEVEL_DEFAULT,
    LZ4_LEVEL_DEFAULT,
    ZSTD_LEVEL_DEFAULT,
    Codec,
)

FOREVER: Final = 9223372036854775807


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of a topic's logs, with Kafka's defaults."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_gzip_level: int = GZIP_LEVEL_DEFAULT
    compression_lz4_level: int = LZ4_LEVEL_DEFAULT
    compression_type: str = "producer"
    compression_zstd_level: int = ZSTD_LEVEL_DEFAULT
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
    def compression_levels(self) -> Mapping[Codec, int]:
        """The level at which the broker compresses a batch itself, by codec."""
        return {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }

    @property
    def preallocated_bytes(self) -> int:
        """The size that the file of a new segment gets at once."""
        return self.segment_bytes if self.preallocate else 0

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The largest age of an active segment, which compaction cannot clean."""
        if self.compacts and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    def jitter_ms(self, partition: TopicPartition, base_offset: int) -> int:
        """A share of the age limit, different for each segment, so that not all roll together."""
        if not self.segment_jitter_ms:
            return 0
        limit_ms = min(self.segment_jitter_ms, self.max_segment_ms)
        return zlib.crc32(f"{partition} {base_offset}".encode()) % limit_ms if limit_ms else 0

    @property
    def stamps_on_append(self) -> bool:
        """Whether the broker's clock, not the producer's, dates the records."""
        return self.message_timestamp_type == "LogAppendTime"
