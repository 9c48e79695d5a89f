"""Stretches of time in which something was asked for and nothing came, and what may excuse them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.recording import Fault, Stall


class Span(NamedTuple):
    """From when until when."""

    began_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s"


def silences(waits: Iterable[Span]) -> list[Span]:
    """The gaps between answers in which at least one question was open.

    A wait is a request and its response: a record from sent to acknowledged, or from acknowledged
    to read.
    """
    by_end = sorted(waits, key=lambda wait: wait.ended_at)
    # For each response, since when anything was open that was answered then or later.
    open_since: list[float] = []
    earliest = float("inf")
    for wait in reversed(by_end):
        earliest = min(earliest, wait.began_at)
        open_since.append(earliest)
    open_since.reverse()
    if not by_end:
        return []
    first = Span(by_end[0].began_at, by_end[0].ended_at)
    return [first] + [
        Span(max(before.ended_at, since), after.ended_at)
        for (before, after), since in zip(pairwise(by_end), open_since[1:], strict=True)
    ]


def uncovered_s(span: Span, windows: Sequence[Span]) -> float:
    """How much of a span lies in none of the windows."""
    left = span.seconds
    reached = span.began_at
    for window in sorted(windows):
        begin, end = max(window.began_at, reached), min(window.ended_at, span.ended_at)
        if end > begin:
            left -= end - begin
            reached = end
    return left


@dataclass(frozen=True, slots=True)
class Excuses:
    """What a silence may be put down to.

    Lasting faults, and stretches in which this machine stood still, do not count. What is left of a
    silence may last for `bound_s` if a fault began or ended no longer than that before it or during
    it, else for `grace_s`.
    """

    faults: Sequence[Fault]
    stalls: Sequence[Stall]
    bound_s: float
    grace_s: float

    def too_long_s(self, silence: Span) -> float:
        """How much longer a silence was than it may be; 0 if it was not."""
        spans = [Span(stall.began_at, stall.ended_at) for stall in self.stalls]
        spans += [Span(each.began_at, each.ended_at) for each in self.faults if each.lasting]
        limit_s = self.bound_s if self._is_near_a_fault(silence) else self.grace_s
        return max(0.0, uncovered_s(silence, spans) - limit_s)

    def _is_near_a_fault(self, silence: Span) -> bool:
        earliest = silence.began_at - self.bound_s
        return any(
            earliest <= at <= silence.ended_at
            for fault in self.faults
            for at in (fault.began_at, fault.ended_at)
        )
