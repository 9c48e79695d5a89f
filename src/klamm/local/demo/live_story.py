"""What the controllers decide, told while they do: the history of all nodes, as it grows."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from klamm.history.partition_events import Gap, Row, read_partition_events
from klamm.history.spool import read_spool
from klamm.history.story import story


class LiveStory:
    """Tells each sentence about some partitions once, in the order of the decisions."""

    def __init__(
        self, spools: Callable[[], Sequence[Path]], topic: str, say: Callable[[str], None]
    ) -> None:
        self._spools = spools
        self._topic = topic
        self._print = say
        self._printed: set[tuple[int, int, int]] = set()
        #: By partition, the leader epoch and ISR that the history knows last.
        self._known: dict[int, tuple[int, frozenset[int]]] = {}

    def print_new(self, partitions: int) -> None:
        """Tell what is new."""
        new: list[tuple[tuple[int, int, int], str]] = []
        batches = [batch for spool in self._spools() for batch in read_spool(spool)]
        for partition in range(partitions):
            for entry in read_partition_events(batches, self._topic, partition):
                if isinstance(entry, Gap):
                    continue  # it may be written by now
                key = (entry["controller_epoch"], entry["seq"], partition)
                if entry["term"]:
                    key = (*key[:2], 0)  # a term of office concerns all partitions alike
                if key not in self._printed:
                    self._printed.add(key)
                    new += [
                        (key, sentence + _states(entry))
                        for sentence in story([entry], self._topic, partition)
                    ]
                    for decision in entry["decisions"]:
                        state = decision["leader_epoch"], frozenset(decision["isr"])
                        self._known[partition] = state
        for _, text in sorted(new):
            self._print(text)

    def has_printed(self, partition: int, leader_epoch: int, isr: Collection[int]) -> bool:
        """Whether it has been told how the partition got this state; a spool is a moment late."""
        return self._known.get(partition) == (leader_epoch, frozenset(isr))


def _states(entry: Row) -> str:
    """The moves of the partition's state machine, where it made any."""
    moves = [
        f"{decision['old_state']} → {decision['state']}"
        for decision in entry["decisions"]
        if decision["old_state"] != decision["state"]
    ]
    return f" [{', '.join(moves)}]" if moves else ""
