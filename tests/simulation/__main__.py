"""`make sim`: histories from many seeds, on all cores; the first that fails is shrunk and told."""

import argparse
import sys
import time

from tests.simulation.batch import first_seeds, outcomes
from tests.simulation.history import Outcome, run
from tests.simulation.shrinking import shrink
from tests.simulation.story import tell
from tests.simulation.variants import FOUND_WITHIN, VARIANTS


def main(words: list[str] | None = None) -> int:
    """Run what was asked for; 0 if all is well."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", help="one history, told as a story")
    parser.add_argument("--seeds", type=int, default=100, help="how many histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed of many")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="with this mistake in klamm")
    parser.add_argument("--variants", action="store_true", help="find every variant")
    parser.add_argument("--everything", action="store_true", help="leave nothing out of a story")
    arguments = parser.parse_args(words)
    if arguments.variants:
        return _find_variants()
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.variant, arguments.everything)
    return _many(range(arguments.first, arguments.first + arguments.seeds), arguments.variant)


def _one(seed: str, variant: str | None, everything: bool) -> int:
    broken = VARIANTS[variant] if variant else None
    outcome = run(seed, variant=broken)
    if outcome.failure:
        faults = len(outcome.plan.actions)
        print(f"seed {seed}: {outcome.failure}\nleaving out what does not matter ...\n")
        outcome = shrink(outcome, broken)
        print(f"Another history, with {len(outcome.plan.actions)} of {faults} faults:\n")
    print(tell(outcome, broken, everything=everything))
    return 1 if outcome.failure else 0


def _many(seeds: range, variant: str | None) -> int:
    started = time.perf_counter()
    events = count = 0
    failed: list[Outcome] = []
    for outcome in outcomes(seeds, variant):
        count += 1
        events += outcome.events
        if outcome.failure:
            failed.append(outcome)
            print(f"seed {outcome.plan.seed}: {outcome.failure}", flush=True)
    elapsed_s = time.perf_counter() - started
    print(
        f"{count} histories, {events / max(count, 1):.0f} events each, {len(failed)} failed, "
        f"{elapsed_s:.0f} s"
    )
    if failed:
        print(f"\nThe first of them (make sim SEED={failed[0].plan.seed}):\n")
        return _one(failed[0].plan.seed, variant, False)
    return 0


def _find_variants() -> int:
    """Look for each variant in as many seeds as it is promised to be found in."""
    missed = 0
    for name, (seed, failure) in zip(VARIANTS, first_seeds(VARIANTS), strict=True):
        missed += seed is None
        found = f"seed {seed}: {failure}" if seed else "NOT FOUND"
        print(f"{name} (within {FOUND_WITHIN[name]}): {found}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
