"""The reassignments of one partition, one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from klamm.history.records import MOVE_BEGINNINGS, MOVE_ENDINGS

Row: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class PartitionReassignments:
    """The last reassignment of a partition: it may get more phases until the next one begins."""

    move: Row | None = None
    last_phase: str | None = None
    last_target: list[int] | None = None

    def apply(
        self, at: int, epoch: int, seq: int, moves: Sequence[Row], milestones: Sequence[str]
    ) -> Iterator[Row]:
        """Apply an event to the partition's reassignment; yield the reassignments that it replaces.

        A reassignment is noted at the end of its event, whose decisions (the milestones) come after
        a beginning but before an ending.
        """
        entries: list[tuple[int, str, Row | None]] = [
            (2 if move["phase"] in MOVE_ENDINGS else 0, move["phase"], move) for move in moves
        ]
        entries += [(1, phase, None) for phase in milestones]
        for rank, phase, move in sorted(entries, key=lambda entry: entry[:2]):
            was_over = self.last_phase is None or self.last_phase in MOVE_ENDINGS
            if move is None and was_over:
                continue
            begins = False
            if move is not None:
                target = sorted(_without(move["replicas"], move["removing"]))
                begins = phase in MOVE_BEGINNINGS or (
                    phase == "present" and (was_over or target != self.last_target)
                )
                self.last_phase, self.last_target = phase, target
            if begins or self.move is None:
                number = 0
                if self.move is not None:
                    number = self.move["number"]
                    yield _row(self.move, next_from=at)
                self.move = {
                    "number": number + 1 if begins else number,
                    "from": at,
                    "replicas": None,
                    "adding": None,
                    "removing": None,
                    "phases": [],
                }
            current = self.move
            if move is not None and current["replicas"] is None:
                current |= {name: move[name] for name in ("replicas", "adding", "removing")}
            current["phases"].append([epoch, seq, rank, phase, at])
            current["last_epoch"] = epoch
            current["next_term"] = None

    def on_term(self, epoch: int, at: int) -> None:
        """A controller term began; its first event lists the reassignments that it found."""
        move = self.move
        if move is not None and move["next_term"] is None and move["last_epoch"] < epoch:
            move["next_term"] = at

    def open_row(self) -> Row | None:
        """The last reassignment as far as it is known; None if there was none."""
        return None if self.move is None else _row(self.move, next_from=None)


def _row(move: Row, next_from: int | None) -> Row:
    phases = sorted(move["phases"])
    _, _, _, last_phase, last_at = phases[-1]
    next_term, start = move["next_term"], move["from"]
    until: int | None = None
    outcome: str | None = None
    if last_phase in MOVE_ENDINGS:
        until, outcome = last_at, last_phase
    elif next_from is not None and (next_term is None or next_from <= next_term):
        until, outcome = next_from, "replaced"
    elif next_term is not None:
        until, outcome = next_term, "unseen"
    if until is not None:
        until = max(start, until)
    # An end whose beginning is not in the history.
    shown = start if move["number"] > 0 else None
    return {
        "from": shown,
        "until": until,
        "outcome": outcome,
        "target": None
        if move["replicas"] is None
        else _without(move["replicas"], move["removing"]),
        "adding": move["adding"],
        "removing": move["removing"],
        "phases": [
            {"phase": phase, "at": at, "controller_epoch": epoch, "seq": seq}
            for epoch, seq, _, phase, at in phases
        ],
        "seconds": None if shown is None or until is None else (until - shown) / 1e6,
    }


def _without(ids: Sequence[int], others: Sequence[int]) -> list[int]:
    """The ids that are not among the others, each once, in their order."""
    return [id for id in dict.fromkeys(ids) if id not in others]
