"""What came of a run, for people (report.md) and for programs (report.json)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

from tests.chaos.checker import Violation, write_waits
from tests.chaos.plan import Plan
from tests.chaos.recording import Asked, Fault, History
from tests.chaos.silence import silences

_SHOWN_MAX: Final = 100
_SILENCES_SHOWN: Final = 10
_SILENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """A run, what it was to be, and what is wrong with it."""

    plan: Plan
    command: str
    history: History
    violations: Sequence[Violation]

    @property
    def began_at(self) -> float:
        return min((write.sent_at for write in self.history.writes), default=0.0)


def figures(history: History) -> dict[str, int | float]:
    """How much happened."""
    acknowledged = [write for write in history.writes if write.error is None]
    longest = [
        silence.seconds for waits in write_waits(history).values() for silence in silences(waits)
    ]
    return {
        "faults": len(history.faults),
        "records acknowledged": len(acknowledged),
        "records refused or given up": len(history.writes) - len(acknowledged),
        "records kept": len(history.kept),
        "records read by groups": len(history.reads),
        "offsets committed": sum(row.member is not None for row in history.offsets),
        "administrative calls": len(history.asked),
        "administrative calls that failed": sum(call.error is not None for call in history.asked),
        "exceptions in the brokers' logs": sum(len(each.tracebacks) for each in history.endings),
        "longest silence of a partition in seconds": round(max(longest, default=0.0), 1),
        "seconds in which this machine stood still": round(
            sum(stall.ended_at - stall.began_at for stall in history.stalls), 1
        ),
    }


def write_report(result: Result, directory: Path) -> None:
    """Both files."""
    text = "\n".join(_lines(result)) + "\n"
    (directory / "report.md").write_text(text, encoding="utf-8")
    facts = {
        "seed": result.plan.seed,
        "command": result.command,
        "figures": figures(result.history),
        "violations": [asdict(violation) for violation in result.violations],
        "faults": [asdict(fault) for fault in result.history.faults],
    }
    (directory / "report.json").write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2))


def _lines(result: Result) -> Iterator[str]:
    verdict = f"{len(result.violations)} violations" if result.violations else "nothing is wrong"
    yield f"# Chaos, seed {result.plan.seed}: {verdict}"
    yield ""
    yield f"Again: `{result.command}`"
    yield ""
    yield from _table(("what", "how much"), figures(result.history).items())
    if result.violations:
        yield "## What is wrong"
        yield ""
        kinds = Counter(violation.kind for violation in result.violations)
        yield ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common())
        yield ""
        for each in result.violations[:_SHOWN_MAX]:
            when = "" if each.at is None else f" ({each.at - result.began_at:.1f} s)"
            yield f"- {each}{when}"
        yield ""
    complaints = Counter(text for each in result.history.endings for text in each.tracebacks)
    if complaints:
        yield "## Exceptions in the brokers' logs"
        yield ""
        yield from _table(("how often", "what"), ((n, text) for text, n in complaints.items()))
    yield "## What was done"
    yield ""
    yield from _table(("from", "until", "what"), _timeline(result))
    yield "## The longest silences"
    yield ""
    yield from _table(("from", "seconds", "who", "where"), _silences(result))


def _timeline(result: Result) -> list[tuple[str, str, str]]:
    rows = [(each.began_at, each.ended_at, _fault(each)) for each in result.history.faults]
    rows += [(each.began_at, each.done_at, _call(each)) for each in result.history.asked]
    return [
        (f"{began_at - result.began_at:.1f} s", f"{ended_at - result.began_at:.1f} s", text)
        for began_at, ended_at, text in sorted(rows)
    ]


def _fault(fault: Fault) -> str:
    led = ", ".join(f"{topic}-{partition}" for topic, partition in fault.led)
    return f"**{fault.text}**" + (f", which led {led}" if led else "")


def _call(asked: Asked) -> str:
    return f"{asked.call} {asked.topic}" + (f": {asked.error}" if asked.error else "")


def _silences(result: Result) -> list[tuple[str, str, str, str]]:
    found = [
        (silence, producer, f"{topic}-{partition}")
        for (producer, (topic, partition)), waits in write_waits(result.history).items()
        for silence in silences(waits)
        if silence.seconds > _SILENCE_S
    ]
    found.sort(key=lambda each: -each[0].seconds)
    return [
        (f"{silence.began_at - result.began_at:.1f} s", f"{silence.seconds:.1f}", producer, where)
        for silence, producer, where in found[:_SILENCES_SHOWN]
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |"
    yield ""
