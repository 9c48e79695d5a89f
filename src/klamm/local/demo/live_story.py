"""Prints the decisions of the controllers from the histories of all nodes, as they grow."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from klamm.history.partition_events import Gap, Row, read_partition_events
from klamm.history.spool import read_spool
from klamm.history.story import story


class LiveStory:
    """Prints each sentence about the partitions of a topic once, in the order of decisions."""

    def __init__(
        self, spools: Callable[[], Sequence[Path]], topic: str, say: Callable[[str], None]
    ) -> None:
        self._spools = spools
        self._topic = topic
        self._print = say
        self._printed: set[tuple[int, int, int]] = set()
        #: partition: the last leader epoch and ISR of the history.
        self._known: dict[int, tuple[int, frozenset[int]]] = {}

    def print_new(self, partitions: int) -> None:
        """Print the new sentences."""
        new: list[tuple[tuple[int, int, int], str]] = []
        batches = [batch for spool in self._spools() for batch in read_spool(spool)]
        for partition in range(partitions):
            for entry in read_partition_events(batches, self._topic, partition):
                if isinstance(entry, Gap):
                    continue  # the missing events may have been written by now
                key = (entry["controller_epoch"], entry["seq"], partition)
                if entry["term"]:
                    key = (*key[:2], 0)  # a controller term concerns all partitions
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
        """Whether the sentences about this state are printed; the history lags a little behind."""
        return self._known.get(partition) == (leader_epoch, frozenset(isr))


def _states(entry: Row) -> str:
    """The transitions of the partition's state machine, if there are any."""
    moves = [
        f"{decision['old_state']} → {decision['state']}"
        for decision in entry["decisions"]
        if decision["old_state"] != decision["state"]
    ]
    return f" [{', '.join(moves)}]" if moves else ""
