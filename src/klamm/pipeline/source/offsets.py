"""Offsets as Spark's own `kafka` format writes them: `{"orders": {"0": 23, "1": -1}}`.

A checkpoint holds the same, and beside the topics one key that no topic can have. The key itself
holds the ids of the topics, so that a topic that was deleted and created again is known for another
one, and, for the batch that a query began with, where it began: Spark asks for that anew after a
restart. The value under the key is empty, which Spark's own format reads as a topic without
partitions, so a query can change from either format to the other and keep its place.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from klamm.errors import ConfigError
from klamm.names import TopicPartition

#: `$` is not allowed in the name of a topic.
RESERVED_KEY: Final = "$klamm"
_KEPT_PREFIX: Final = f"{RESERVED_KEY} "
_TOPIC_IDS: Final = "topicIds"
_BEGAN_AT: Final = "beganAt"

#: Instead of an offset, in options.
LATEST: Final = -1
EARLIEST: Final = -2

_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMESTAMPS_EXAMPLE: Final = '{"topicA":{"0":1735689600000},"topicB":{"0":1735689600000}}'
_PARTITIONS_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[2,4]}'


Offsets: TypeAlias = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream stands: the next offset of each partition."""

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    #: Where the batch that ends here began, if it was the first one.
    began_at: Offsets | None = None

    @property
    def is_initial(self) -> bool:
        """Whether nothing has been read on the way here."""
        return self.began_at == self.offsets

    def to_json(self) -> dict[str, Any]:
        """As it is kept in the checkpoint."""
        kept: dict[str, Any] = {_TOPIC_IDS: dict(sorted(self.topic_ids.items()))}
        if self.began_at is not None:
            kept[_BEGAN_AT] = nested(self.began_at)
        return nested(self.offsets) | {_KEPT_PREFIX + json.dumps(kept, separators=(",", ":")): {}}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Position":
        """What was kept; Spark's own form, without a reserved key, is read as well."""
        offsets, kept = {}, {}
        for key, value in content.items():
            if key == RESERVED_KEY:  # as earlier versions of klamm wrote it
                kept = value
            elif key.startswith(_KEPT_PREFIX):
                kept = json.loads(key.removeprefix(_KEPT_PREFIX))
            else:
                offsets[key] = value
        began_at = kept.get(_BEGAN_AT)
        return cls(
            _flat(offsets),
            kept.get(_TOPIC_IDS, {}),
            None if began_at is None else _flat(began_at),
        )


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """In Spark's form, in the order of topics and partitions."""
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return topics


def _flat(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, partitions in topics.items()
        for number, offset in partitions.items()
    }


def parse_offsets(option: str, text: str) -> dict[TopicPartition, int]:
    """An option's offsets, -1 and -2 among them."""
    offsets = _parse(option, text, _OFFSETS_EXAMPLE)
    for partition, offset in offsets.items():
        if offset < EARLIEST:
            raise ConfigError(
                f"{option}: {partition} has offset {offset}; expected an offset, "
                f"{LATEST} for latest or {EARLIEST} for earliest"
            )
    return offsets


def parse_timestamps(option: str, text: str) -> dict[TopicPartition, int]:
    """An option's timestamps, in milliseconds."""
    timestamps = _parse(option, text, _TIMESTAMPS_EXAMPLE)
    for partition, timestamp in timestamps.items():
        if timestamp < 0:
            raise ConfigError(f"{option}: the timestamp of {partition} is negative: {timestamp}")
    return timestamps


def parse_partitions(option: str, text: str) -> frozenset[TopicPartition]:
    """An option's partitions."""
    try:
        content = json.loads(text)
        found = frozenset(
            TopicPartition(topic, _whole_number(number))
            for topic, numbers in content.items()
            for number in numbers
        )
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"{option}: Expected e.g. {_PARTITIONS_EXAMPLE}, got {text}") from None
    return found


def _parse(option: str, text: str, example: str) -> dict[TopicPartition, int]:
    try:
        content = json.loads(text)
        return {
            TopicPartition(topic, int(number)): _whole_number(value)
            for topic, partitions in content.items()
            for number, value in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"{option}: Expected e.g. {example}, got {text}") from None


def _whole_number(value: Any) -> int:
    # True is an int in Python, and 1.5 would be cut.
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value


def listed(partitions: Iterable[TopicPartition]) -> str:
    """For messages: `orders-0, orders-1`."""
    return ", ".join(map(str, sorted(partitions)))
