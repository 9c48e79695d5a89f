"""The configuration keys of a topic, and the broker key that each one falls back to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.config.broker_keys import KEYS
from klamm.config.definitions import Between, Key, UpdateMode, Validator, Value, ValueType

_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """`*` for all replicas, or a list of `partition:broker`."""

    name: str

    def complaint(self, value: Value) -> str | None:
        entries = value if isinstance(value, tuple) else ()
        if entries == ("*",) or all(_REPLICA.fullmatch(entry) for entry in entries):
            return None
        return (
            f"{self.name} must be the literal '*' or a list of replicas in the following format:"
            " [partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )


@dataclass(frozen=True, slots=True)
class TopicKey(Key):
    """A key of a topic; `broker_key` has the value for topics that do not set it."""

    broker_key: str | None = None


def _follows(
    broker_key: str, name: str, *, default: str | None = None, check: Validator | None = None
) -> TopicKey:
    """A topic key of its broker key's type, and of its default and check unless they differ."""
    key = KEYS[broker_key]
    return TopicKey(
        name,
        key.type,
        default=key.default if default is None else default,
        mode=UpdateMode.CLUSTER_WIDE,
        check=key.check if check is None else check,
        broker_key=broker_key,
    )


def _throttle(name: str) -> TopicKey:
    return TopicKey(
        name, ValueType.LIST, "", mode=UpdateMode.CLUSTER_WIDE, check=ThrottledReplicas(name)
    )


def _flag(name: str) -> TopicKey:
    return TopicKey(name, ValueType.BOOLEAN, "false", mode=UpdateMode.CLUSTER_WIDE)


_WEEK_MS: Final = "604800000"
_FOR_EVER_MS: Final = "9223372036854775807"

TOPIC_KEYS: Final[Mapping[str, TopicKey]] = {
    key.name: key
    for key in (
        _follows("log.cleanup.policy", "cleanup.policy"),
        _follows("compression.gzip.level", "compression.gzip.level"),
        _follows("compression.lz4.level", "compression.lz4.level"),
        _follows("compression.type", "compression.type"),
        _follows("compression.zstd.level", "compression.zstd.level"),
        _follows("log.cleaner.delete.retention.ms", "delete.retention.ms"),
        _follows("log.segment.delete.delay.ms", "file.delete.delay.ms"),
        _follows("log.flush.interval.messages", "flush.messages"),
        _follows("log.flush.interval.ms", "flush.ms", default=_FOR_EVER_MS, check=Between(0)),
        _throttle("follower.replication.throttled.replicas"),
        _follows("log.index.interval.bytes", "index.interval.bytes"),
        _throttle("leader.replication.throttled.replicas"),
        _follows("log.local.retention.bytes", "local.retention.bytes"),
        _follows("log.local.retention.ms", "local.retention.ms"),
        _follows("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
        _follows("message.max.bytes", "max.message.bytes"),
        _follows("log.message.downconversion.enable", "message.downconversion.enable"),
        _follows("log.message.format.version", "message.format.version"),
        _follows("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms"),
        _follows("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms"),
        _follows("log.message.timestamp.difference.max.ms", "message.timestamp.difference.max.ms"),
        _follows("log.message.timestamp.type", "message.timestamp.type"),
        _follows("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
        _follows("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
        _follows("min.insync.replicas", "min.insync.replicas"),
        _follows("log.preallocate", "preallocate"),
        _flag("remote.log.copy.disable"),
        _flag("remote.log.delete.on.disable"),
        _flag("remote.storage.enable"),
        _follows("log.retention.bytes", "retention.bytes"),
        _follows("log.retention.ms", "retention.ms", default=_WEEK_MS, check=Between(-1)),
        _follows("log.segment.bytes", "segment.bytes"),
        _follows("log.index.size.max.bytes", "segment.index.bytes"),
        _follows("log.roll.jitter.ms", "segment.jitter.ms", default="0", check=Between(0)),
        _follows("log.roll.ms", "segment.ms", default=_WEEK_MS, check=Between(1)),
        _follows("unclean.leader.election.enable", "unclean.leader.election.enable"),
    )
}
