"""Histories of many seeds, with a process for each core.

The functions that other processes call are here: they could not import them from `__main__`.
"""

import gc
import os
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import Pool

from tests.simulation.history import Outcome, run
from tests.simulation.variants import FOUND_WITHIN, VARIANTS


def outcomes(seeds: Iterable[int], variant: str | None = None) -> Iterator[Outcome]:
    """What comes of each seed, in order, with a process for each core."""
    with _processes() as pool:
        yield from pool.imap(partial(_outcome, variant), map(str, seeds), chunksize=4)


def first_seeds(variants: Iterable[str]) -> Iterator[tuple[int | None, str]]:
    """The first seed in which each variant is found, and how; None if it is not found in time."""
    with _processes() as pool:
        yield from pool.imap(_first_seed, variants)


def _processes() -> Pool:
    # What is loaded by now is not looked at again after each history.
    return get_context("spawn").Pool(os.cpu_count(), initializer=gc.freeze)


def _first_seed(variant: str) -> tuple[int | None, str]:
    for seed in range(1, FOUND_WITHIN[variant] + 1):
        outcome = run(str(seed), variant=VARIANTS[variant])
        if outcome.failure:
            return seed, outcome.failure
    return None, ""


def _outcome(variant: str | None, seed: str) -> Outcome:
    outcome = run(seed, variant=VARIANTS[variant] if variant else None)
    return Outcome(outcome.plan, outcome.failure, outcome.events, outcome.seconds, outcome.digest)
