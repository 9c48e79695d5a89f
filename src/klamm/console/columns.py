"""A cluster as columns: a row for each partition, as brokers or a history say.

The same form is shown live and at a moment of the past, and travels to the browser as bytes: a
header in JSON, then the columns `leader`, `replicas` and `isr` as places in the list of brokers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import orjson

from klamm.core.columns import I32, I64, NO_BROKER, Mask, count
from klamm.names import TopicPartition

_SMALL: Final = 1 << 8
_LARGE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ShownBroker:
    """A broker that is alive, or that partitions still name."""

    id: int
    host: str | None = None
    port: int | None = None
    rack: str | None = None
    live: bool = True


@dataclass(frozen=True, eq=False)
class ClusterColumns:
    """Brokers and partitions at one moment; rows are in the order of topic and partition."""

    brokers: tuple[ShownBroker, ...]
    controller: int  # -1: nobody
    topics: tuple[str, ...]
    topic_ids: tuple[str | None, ...]
    internal: tuple[bool, ...]
    counts: I32  # partitions of each topic
    partition: I32
    leader: I32
    leader_epoch: I32
    replicas: I32  # padded with NO_BROKER
    isr: I32
    cluster_id: str | None = None

    def __len__(self) -> int:
        return len(self.leader)

    @cached_property
    def topic_of(self) -> I64:
        """The place of each row's topic."""
        return np.repeat(np.arange(len(self.topics)), self.counts)

    @cached_property
    def first_row(self) -> I64:
        """The first row of each topic, and behind them the number of all rows."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @cached_property
    def row_of(self) -> Mapping[tuple[str, int], int]:
        """The row of each partition."""
        topic = self.topic_of
        return {
            (self.topics[topic[row]], number): row
            for row, number in enumerate(self.partition.tolist())
        }

    @cached_property
    def live(self) -> I32:
        return np.array([each.id for each in self.brokers if each.live], np.int32)

    @cached_property
    def is_under_replicated(self) -> Mask:
        return np.asarray(count(self.isr) < count(self.replicas))

    @cached_property
    def is_leaderless(self) -> Mask:
        return np.asarray(self.leader == NO_BROKER)

    def name(self, row: int) -> str:
        return f"{self.topics[self.topic_of[row]]}-{self.partition[row]}"

    def led_by(self, broker: int) -> list[TopicPartition]:
        """The partitions that a broker leads."""
        rows = np.flatnonzero(self.leader == broker)
        return [
            TopicPartition(self.topics[topic], number)
            for topic, number in zip(
                self.topic_of[rows].tolist(), self.partition[rows].tolist(), strict=True
            )
        ]

    def racks(self) -> dict[int, str | None]:
        """The live brokers with their racks."""
        return {each.id: each.rack for each in self.brokers if each.live}

    def has_same_rows(self, other: "ClusterColumns") -> bool:
        """Whether rows are the same partitions, so that two moments can be compared by row."""
        return (
            self.topics == other.topics
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self.partition, other.partition)
        )


def with_named_brokers(
    brokers: Sequence[ShownBroker], replicas: I32, known: Mapping[int, ShownBroker]
) -> tuple[ShownBroker, ...]:
    """The live brokers, and those that partitions name or that were known before, as down."""
    live = {each.id for each in brokers}
    named = np.unique(replicas[replicas != NO_BROKER]).tolist()
    gone = []
    for broker in {*named, *known} - live:
        last = known.get(broker, ShownBroker(broker))
        gone.append(ShownBroker(broker, last.host, last.port, last.rack, live=False))
    return tuple(sorted([*brokers, *gone], key=lambda each: each.id))


def encode_columns(columns: ClusterColumns, extra: Mapping[str, Any]) -> bytes:
    """The bytes of a map: size of the header (int32, little-endian), header, columns.

    A cell is the place of a broker in the header's list, and the highest number for nobody. The
    columns follow one another: `leader`, then `replicas` and `isr` row by row.
    """
    ids = np.array([each.id for each in columns.brokers], np.int32)
    # The controller of a cluster may be a broker that just went; leaders always are replicas.
    is_small = len(ids) < _SMALL - 1
    kind, nobody = (np.uint8, _SMALL - 1) if is_small else (np.uint16, _LARGE - 1)

    def places(cells: I32) -> bytes:
        at = np.searchsorted(ids, cells) if len(ids) else np.zeros(cells.shape, np.int64)
        at = np.minimum(at, max(len(ids) - 1, 0))
        is_known = ids[at] == cells if len(ids) else np.zeros(cells.shape, np.bool_)
        return bytes(np.where(is_known, at, nobody).astype(kind).tobytes())

    contiguous = all_counting(columns)
    header = orjson.dumps(
        {
            "brokers": [
                {"id": b.id, "host": b.host, "port": b.port, "rack": b.rack, "live": b.live}
                for b in columns.brokers
            ],
            "controller": columns.controller,
            "topics": columns.topics,
            "internal": [n for n, internal in enumerate(columns.internal) if internal],
            "counts": columns.counts.tolist(),
            # Partitions count from 0 unless a history knows only some of them.
            "partition": None if contiguous else columns.partition.tolist(),
            "cell_bytes": 1 if is_small else 2,
            "replicas_width": columns.replicas.shape[1],
            "isr_width": columns.isr.shape[1],
            **extra,
        }
    )
    # Cells of two bytes are read in place, so they have to begin at an even position.
    header += b" " * (-len(header) % 4)
    return b"".join(
        [
            len(header).to_bytes(4, "little"),
            header,
            places(columns.leader),
            places(columns.replicas),
            places(columns.isr),
        ]
    )


def all_counting(columns: ClusterColumns) -> bool:
    """Whether the partitions of each topic count from 0 without a gap."""
    expected = np.arange(len(columns)) - np.repeat(columns.first_row[:-1], columns.counts)
    return bool(np.array_equal(columns.partition, expected))
