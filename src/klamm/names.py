"""Names that every part of klamm shares: partitions, topic names, and Kafka's sentinel values.

And how a number of things is said.
"""

import re
from typing import Final, NamedTuple

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
#: The topic of KRaft, whose name clients may not use.
CLUSTER_METADATA: Final = "__cluster_metadata"
_INTERNAL: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")
_LENGTH_MAX: Final = 249

#: The timestamps of a ListOffsets request that ask for the log's end and its start.
LATEST: Final = -1
EARLIEST: Final = -2
#: The `acks` of a Produce request that waits for every in-sync replica.
ACKS_ALL: Final = -1


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: 1 partition, 2,000 partitions, 3 replicas in sync."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def is_internal(name: str) -> bool:
    """Whether clients may read but not write the topic."""
    return name in _INTERNAL


def is_legal(name: str) -> bool:
    """Whether a topic can have this name (META-5)."""
    return complaint_about(name) is None


def complaint_about(name: str) -> str | None:
    """Why no topic can have this name, in Kafka's words."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > _LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {_LENGTH_MAX}"
    elif not _LEGAL.fullmatch(name):
        reason = (
            f"'{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    else:
        return None
    return f"Topic name is invalid: {reason}"
