"""Tells a history: what was planned, what happened, and what was wrong in the end."""

from collections.abc import Iterator

from tests.simulation.history import Outcome, Variant, run

#: Of a long history, the lines before its end that are shown.
_LINES_MAX = 400
#: What happens all the time and says little.
_NOISE = (" Fetch, ", " answer of ", " Heartbeat, ", " OffsetCommit, ", " Metadata, ", " Produce, ")


def tell(outcome: Outcome, variant: Variant | None = None, *, everything: bool = False) -> str:
    """The story of a history, which is run once more with the parts' own logs in it."""
    told = run(outcome.plan, variant=variant, tell=True)
    return "\n".join(_chapters(told, everything))


def _chapters(outcome: Outcome, everything: bool) -> Iterator[str]:
    plan = outcome.plan
    yield f"seed {plan.seed}: {outcome.failure or 'nothing is wrong'}"
    yield ""
    orders = [list(each) for each in plan.orders]
    yield f"{plan.brokers} brokers, orders on {orders} with min.insync.replicas={plan.min_isr}:"
    yield from (f"  {action}" for action in plan.actions)
    yield ""
    lines = outcome.lines
    if not everything:
        lines = tuple(line for line in lines if not any(word in line for word in _NOISE))
        if len(lines) > _LINES_MAX:
            left_out = len(lines) - _LINES_MAX
            yield f"... {left_out} lines are left out; SIM=--everything shows them ..."
            lines = lines[-_LINES_MAX:]
    yield from lines
    yield ""
    yield f"seed {plan.seed}: {outcome.failure or 'nothing is wrong'}"
