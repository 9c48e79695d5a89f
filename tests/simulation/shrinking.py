"""Cuts a failing plan down: what can be left out without the failure going away is left out."""

from collections.abc import Callable, Sequence

from tests.simulation.history import Outcome, Variant, run
from tests.simulation.plan import Action, Plan

#: A failure that is more than this often looked for costs more than it is worth.
_RUNS_MAX = 60


def shrink(outcome: Outcome, variant: Variant | None = None) -> Outcome:
    """The same kind of failure from as few actions as can be found by leaving some out."""
    runs = 0

    def still_fails(plan: Plan) -> Outcome | None:
        nonlocal runs
        runs += 1
        found = run(plan, variant=variant)
        return found if found.failure else None

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
