"""Cuts a failing plan down: what can be left out without the failure going away is left out."""

import re
from collections.abc import Callable, Sequence

from tests.simulation.history import Outcome, Variant, run
from tests.simulation.plan import Action, Plan

#: Enough for a plan of the usual size.
_RUNS_MAX = 100


def shrink(outcome: Outcome, variant: Variant | None = None) -> Outcome:
    """The same kind of failure from as few actions as can be found by leaving some out."""
    runs = 0
    kind = _kind(outcome)

    def still_fails(plan: Plan) -> Outcome | None:
        nonlocal runs
        runs += 1
        found = run(plan, variant=variant)
        return found if _kind(found) == kind else None

    best = outcome
    size = max(len(best.plan.actions) // 2, 1)
    while runs < _RUNS_MAX:
        smaller = _without_one_part(best.plan, size, still_fails, lambda: runs < _RUNS_MAX)
        if smaller is not None:
            best = smaller
            size = min(size, max(len(best.plan.actions) // 2, 1))
        elif size > 1:
            size //= 2
        else:
            break
    return best


def _kind(outcome: Outcome) -> str | None:
    """What is wrong, apart from numbers and from what else is."""
    if outcome.failure is None:
        return None
    return re.sub(r"\[.*?\]|b'.*?'|\d+", "#", outcome.failure.partition(";")[0])


def _without_one_part(
    plan: Plan,
    size: int,
    still_fails: Callable[[Plan], Outcome | None],
    may_go_on: Callable[[], bool],
) -> Outcome | None:
    """What comes of the plan without some of its actions, if that still fails."""
    actions: Sequence[Action] = plan.actions
    for start in range(0, len(actions), size):
        if not may_go_on():
            return None
        found = still_fails(plan.without(actions[start : start + size]))
        if found is not None:
            return found
    return None
