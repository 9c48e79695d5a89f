"""What is measured of a node, and how far it may grow. Nothing here starts or stops a process."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a figure may be above its earlier value: a factor, and what is always allowed."""

    unit: str
    factor: float
    always: float

    def limit(self, before: float) -> float:
        return before * self.factor + self.always


#: The caches of an allocator and of connections fill for longer than a few minutes; what is lost
#: with every topic, segment or connection grows for as long as the run lasts.
BOUNDS: Final[Mapping[str, Bound]] = {
    "memory": Bound("MB", 1.25, 32),
    "descriptors": Bound("", 1.1, 50),
    "p50": Bound("ms", 2, 5),
    "p99": Bound("ms", 3, 100),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One value, of a broker or of all of them, after some minutes and at the end."""

    name: str
    of: str
    before: float
    after: float

    @property
    def limit(self) -> float:
        return BOUNDS[self.name].limit(self.before)

    @property
    def has_grown(self) -> bool:
        return self.after > self.limit

    def __str__(self) -> str:
        unit = BOUNDS[self.name].unit
        verdict = "TOO MUCH" if self.has_grown else "fine"
        return (
            f"{self.name:12} {self.of:12} {self.before:9.1f} -> {self.after:9.1f} {unit:3}"
            f" (at most {self.limit:.1f}) {verdict}"
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """A node with all of its processes, at one moment."""

    memory_mb: float
    descriptors: int


def sample(pids: Iterable[int]) -> Sample:
    """Resident memory and open descriptors of some processes, summed up."""
    memory_kb = descriptors = 0
    for pid in pids:
        folder = Path("/proc", str(pid))
        status = (folder / "status").read_text().splitlines()
        memory_kb += sum(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        descriptors += sum(1 for _ in (folder / "fd").iterdir())
    return Sample(memory_kb / 1024, descriptors)


def processes_of(pid: int) -> list[int]:
    """A process and its children, theirs included."""
    found, left = [], [pid]
    while left:
        one = left.pop()
        found.append(one)
        for task in Path("/proc", str(one), "task").iterdir():
            left += map(int, (task / "children").read_text().split())
    return found


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
