"""What both ways to a snapshot share: settings that decide elections, and the partition table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from klamm.pipeline import arrow

_MIN_ISR: Final = "min.insync.replicas"
_UNCLEAN: Final = "unclean.leader.election.enable"

#: The bytes of partitions by topic and number.
Sizes = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """What a topic's settings say about its elections."""

    min_isr: int
    unclean: bool

    @classmethod
    def of(cls, *layers: Mapping[str, str]) -> "ElectionSettings":
        """The first layer that has a key decides; Kafka's defaults are behind the last."""

        def first(key: str, default: str) -> str:
            return next((layer[key] for layer in layers if key in layer), default)

        return cls(int(first(_MIN_ISR, "1")), first(_UNCLEAN, "false").strip().lower() == "true")


@dataclass(slots=True)
class PartitionLists:
    """The partition table while it is being read: a list for each column."""

    topic: list[str] = field(default_factory=list)
    partition: list[int] = field(default_factory=list)
    replicas: list[Sequence[int]] = field(default_factory=list)
    isr: list[Sequence[int]] = field(default_factory=list)
    leader: list[int] = field(default_factory=list)
    leader_epoch: list[int] = field(default_factory=list)

    def table(self, settings: Mapping[str, ElectionSettings], sizes: Sizes) -> pa.Table:
        """The table, with what the topics' settings and the brokers' logs add to it."""
        of_row = [settings[topic] for topic in self.topic]
        known = None
        if sizes:
            known = [sizes.get(name) for name in zip(self.topic, self.partition, strict=True)]
        return pa.table(
            {
                "topic": self.topic,
                "partition": self.partition,
                "replicas": self.replicas,
                "isr": self.isr,
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "min_isr": np.fromiter((each.min_isr for each in of_row), np.int32, len(of_row)),
                "unclean": np.fromiter((each.unclean for each in of_row), np.bool_, len(of_row)),
                "bytes": pa.nulls(len(of_row), pa.int64()) if known is None else known,
            },
            schema=arrow.PARTITIONS,
        )
