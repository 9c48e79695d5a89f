"""What every procedure has at hand: the cluster, the settings, and a journal for its remarks."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from klamm.core.cluster import ClusterState
from klamm.core.columns import I32

#: The delay of the first balance check after a failover (REBAL-1).
FIRST_REBALANCE_DELAY_S: Final = 5.0
#: How many partitions a remark about many names.
_NAMED_MAX: Final = 10


class Level(IntEnum):
    """How loud a remark is; the values are those of the standard library's logging."""

    TRACE = 5
    INFO = 20
    WARNING = 30
    ERROR = 40


class LoggerName(IntEnum):
    """Which log a remark belongs to (MET-6, MET-10)."""

    STATE_CHANGE = 0
    CONTROLLER = 1
    PARTITION_MACHINE = 2
    REPLICA_MACHINE = 3
    DELETION = 4


@dataclass(frozen=True, slots=True)
class Remark:
    """One line for a log, in the order it came up."""

    log: LoggerName
    level: Level
    text: str


@dataclass(slots=True)
class Settings:
    """Configuration that decisions depend on. `unclean_default` may change during a term."""

    unclean_default: bool = False
    delete_topics: bool = True
    auto_rebalance: bool = True
    imbalance_percentage: int = 10
    imbalance_check_interval_s: float = 300.0
    #: Gates of `inter.broker.protocol.version` (CONF-3).
    topic_ids: bool = True
    recovery_state: bool = True
    alter_partition: bool = True


@dataclass(slots=True)
class Context:
    """The state that procedures read and change, and their remarks for the log."""

    cluster: ClusterState
    settings: Settings = field(default_factory=Settings)
    remarks: list[Remark] = field(default_factory=list)
    #: How many leaders came from outside the ISR (LEAD-7).
    unclean_elections: int = 0

    def say(self, log: LoggerName, level: Level, text: str) -> None:
        """Leave a remark; the interpreter writes it to the log."""
        self.remarks.append(Remark(log, level, text))

    def say_of(
        self, log: LoggerName, level: Level, rows: I32, text: str, *, with_leaders: bool = False
    ) -> None:
        """Leave one remark about partitions, if there are any: the first ones are named.

        One line for many, because a line for each of 100,000 would cost more than deciding.
        """
        if len(rows):
            name = self.cluster.describe if with_leaders else self._name
            names = map(name, rows[:_NAMED_MAX].tolist())
            more = f" and {len(rows) - _NAMED_MAX} more" if len(rows) > _NAMED_MAX else ""
            self.say(log, level, f"{text}: {', '.join(names)}{more}")

    def _name(self, row: int) -> str:
        topic, partition = self.cluster.name(row)
        return f"{topic}-{partition}"
