"""How directories and files of logs are named.

<log dir>/<topic>-<partition>/                    a replica
<log dir>/<topic>-<partition>.<32 hex>-delete/    one that was removed, its files still to go
<log dir>/<topic>-<partition>.<32 hex>-future/    one that is being moved here
<log dir>/<topic>-<partition>.<32 hex>-stray/     one that the cluster does not know
<replica>/00000000000000000042.log                a segment whose first offset is 42
<replica>/00000000000000000042.log.deleted        the same, on its way out
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from klamm.names import TopicPartition

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
ABORTED_INDEX: Final = ".txnindex"
PRODUCER_SNAPSHOT: Final = ".snapshot"

DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

_REPLICA: Final = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")
_MARKED: Final = re.compile(r"(?P<replica>.+-\d+)\.[0-9a-f]{32}-(?P<mark>delete|future|stray)")
#: Kafka shortens the topic in a marked name so that the whole stays within a file name's limit.
_NAME_MAX: Final = 255


def parse_replica(name: str) -> TopicPartition | None:
    """The partition that a directory of this name belongs to; None for marked and foreign names."""
    if _MARKED.fullmatch(name):
        return None
    found = _REPLICA.fullmatch(name)
    return TopicPartition(found["topic"], int(found["partition"])) if found else None


def parse_mark(name: str) -> str | None:
    """`delete`, `future` or `stray` if the directory's name carries such a mark."""
    found = _MARKED.fullmatch(name)
    return found["mark"] if found else None


def marked(partition: TopicPartition, mark: str) -> str:
    """A fresh name for the directory of a replica: `delete` if it is to go, `stray` if to stay."""
    suffix = f"-{partition.partition}.{uuid.uuid4().hex}-{mark}"
    return partition.topic[: _NAME_MAX - len(suffix)] + suffix


def segment_name(base_offset: int) -> str:
    """The base offset in 20 digits, so that names sort as offsets do."""
    return f"{base_offset:020d}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Base offset and suffix, `.log` or `.index.swap`; None for files that are no segment's."""
    stem, dot, suffix = name.partition(".")
    if len(stem) != 20 or not stem.isdigit() or not dot:
        return None
    return int(stem), dot + suffix
