"""What clients saw and what was done to the cluster, as rows that are written while it happens.

Times are seconds since 1970 by the one clock of this machine. A checker needs nothing
but these rows, so that a run can be checked again, and a checker tested with rows made by hand.
"""

import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

Name = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Write:
    """A record that a producer was given; without an error it was acknowledged.

    The numbers of a producer count up. Of an acknowledgement that came twice the offset is unknown.
    """

    producer: str
    number: int
    topic: str
    partition: int
    sent_at: float
    done_at: float
    offset: int | None = None
    error: str | None = None
    is_idempotent: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a member of a group got it, in one of its stretches of owning the partition."""

    group: str
    member: str
    assignment: int
    topic: str
    partition: int
    offset: int
    producer: str
    number: int
    at: float


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """An offset of a group that was committed (by a member) or seen (by nobody in particular)."""

    group: str
    member: str | None
    topic: str
    partition: int
    offset: int
    began_at: float
    done_at: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A record that the cluster holds when all is over, and the leader epoch it was written in.

    `written_as` are the id and the epoch of an idempotent producer, as its batch has them.
    """

    topic: str
    partition: int
    offset: int
    epoch: int | None
    producer: str
    number: int
    written_as: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """An administrator's call to create, expand or delete; without an error it was carried out."""

    call: str
    topic: str
    partitions: int
    began_at: float
    done_at: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the cluster, from when until when.

    `lasting` faults may keep partitions from being written for as long as they last; the others
    only until the cluster has got over them. `led` is what the broker led when it was lost.
    """

    kind: str
    text: str
    began_at: float
    ended_at: float
    lasting: bool = False
    broker: int | None = None
    led: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Stall:
    """A stretch in which this process itself did not get to run: nobody else is to blame for it."""

    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Leader:
    """Who led a partition in the end, as ZooKeeper had it at that time; -1: nobody."""

    topic: str
    partition: int
    leader: int
    epoch: int
    at: float


@dataclass(frozen=True, slots=True)
class Ending:
    """The cluster after the faults: partitions of topics, and what did not settle in time.

    `tracebacks` are the exceptions that brokers logged and nobody had expected.
    """

    seconds: float
    topics: dict[str, int]
    wrong: tuple[str, ...] = ()
    tracebacks: tuple[str, ...] = ()


@dataclass(slots=True)
class History:
    """All rows of a run, each kind in the order of writing."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    offsets: list[GroupOffset] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)

    @property
    def topics(self) -> set[str]:
        """The topics that producers write to; those live as long as the run."""
        return {write.topic for write in self.writes}


Row = Write | Read | GroupOffset | Kept | Asked | Fault | Stall | Leader | Ending
#: Each kind of row, and the field of a history that holds it.
_FIELDS: Final[dict[type[Any], str]] = {
    Write: "writes",
    Read: "reads",
    GroupOffset: "offsets",
    Kept: "kept",
    Asked: "asked",
    Fault: "faults",
    Stall: "stalls",
    Leader: "leaders",
    Ending: "endings",
}
_TYPES: Final = {name: kind for kind, name in _FIELDS.items()}


class Recorder:
    """Takes rows from any thread, keeps them and writes them to a file."""

    def __init__(self, path: Path) -> None:
        self.history = History()
        self._lock = threading.Lock()
        self._file: BinaryIO = path.open("wb")

    def add(self, row: Row) -> None:
        name = _FIELDS[type(row)]
        line = orjson.dumps({"row": name, **asdict(row)}, option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            getattr(self.history, name).append(row)
            self._file.write(line)

    def close(self) -> None:
        self._file.close()


def read_history(path: Path) -> History:
    """The rows of a file that a recorder wrote."""
    with path.open("rb") as file:
        return _history(orjson.loads(line) for line in file)


def _history(rows: Iterable[dict[str, Any]]) -> History:
    history = History()
    for row in rows:
        name = row.pop("row")
        kind = _TYPES[name]
        getattr(history, name).append(kind(**{key: _frozen(value) for key, value in row.items()}))
    return history


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


assert {each.name for each in fields(History)} == set(_TYPES), "each kind of row has its field"
