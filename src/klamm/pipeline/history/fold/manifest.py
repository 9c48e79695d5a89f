"""The manifest of a folder of tables: the records that are in it, and its files.

The manifest is written last, as a whole. Files that it does not know are of a refresh that did not
come to its end; the next one writes them again. Files that it calls staged are complete; the
process that wrote it puts them in place, or else the next one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson

Row: TypeAlias = dict[str, Any]
#: Controller epoch, sequence, part; parts that there are.
RecordKey: TypeAlias = tuple[int, int, int]
EventKey: TypeAlias = tuple[int, int]
MANIFEST: Final = "manifest.json"
_VERSION: Final = 1


@dataclass(slots=True)
class Sealed:
    """Which events are final: ranges of sequences by epoch, and events that lack some parts."""

    ranges: dict[int, list[list[int]]] = field(default_factory=dict)
    partial: dict[int, dict[int, list[int]]] = field(default_factory=dict)

    def has(self, epoch: int, seq: int, part: int) -> bool:
        """Whether a record is final."""
        parts = self.partial.get(epoch, {}).get(seq)
        if parts is not None:
            return part in parts
        return any(first <= seq <= last for first, last in self.ranges.get(epoch, ()))

    def add(self, epoch: int, seq: int, parts: Iterable[int], of: int) -> None:
        """Add an event; events come in order."""
        found = sorted(set(parts))
        if len(found) < of:
            self.partial.setdefault(epoch, {})[seq] = found
        ranges = self.ranges.setdefault(epoch, [])
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1][1] = seq
        else:
            ranges.append([seq, seq])

    def to_json(self) -> Row:
        return {
            "ranges": list(self.ranges.items()),
            "partial": [(epoch, list(events.items())) for epoch, events in self.partial.items()],
        }

    @classmethod
    def from_json(cls, state: Row) -> "Sealed":
        return cls(
            dict(state["ranges"]), {epoch: dict(events) for epoch, events in state["partial"]}
        )


@dataclass(slots=True)
class Manifest:
    """The state of a folder between two refreshes."""

    shards: int
    #: Topics whose min.insync.replicas is not Kafka's default.
    min_isr: dict[str, int] = field(default_factory=dict)
    cluster_id: str | None = None
    #: How many seals there were, and how many refreshes.
    generation: int = 0
    serial: int = 0
    #: The file in `_state` with the records that are not final.
    tail: str | None = None
    #: The last event that is final.
    base: EventKey | None = None
    sealed: Sealed = field(default_factory=Sealed)
    history_from: int | None = None
    history_until: int | None = None
    #: Rows in sealed files, by table; partitions; and messages that were no history.
    sealed_rows: dict[str, int] = field(default_factory=dict)
    partitions: int = 0
    quarantined: int = 0
    #: The balance of leaders as of the base.
    balance: Row | None = None
    #: How far each spool file has been read, or the metadata log: the fields of its position.
    positions: dict[str, int] = field(default_factory=dict)
    #: Files of tables (`TABLE/NAME`) that wait to be put in place, with the refresh that made them.
    staged: dict[str, int] = field(default_factory=dict)
    #: The earlier base that the folder went back to, until the tables are complete again.
    reverted_to: int | None = None
    #: Files in `_state` with records after that base, and their first events.
    again: list[tuple[int, int, str]] = field(default_factory=list)

    def to_json(self) -> bytes:
        values = {name: getattr(self, name) for name in Manifest.__slots__}
        return orjson.dumps(values | {"sealed": self.sealed.to_json(), "version": _VERSION})

    @classmethod
    def from_json(cls, content: bytes) -> "Manifest":
        values = orjson.loads(content)
        assert values.pop("version") == _VERSION, "there is one version so far"
        base = values["base"]
        return cls(
            **values
            | {
                "base": None if base is None else tuple(base),
                "sealed": Sealed.from_json(values["sealed"]),
                "again": [tuple(each) for each in values.get("again", ())],
            }
        )
