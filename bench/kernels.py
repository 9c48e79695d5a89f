"""How long the kernels take, and how many times longer their scalar twins do.

Run with `python -m bench.kernels [PARTITIONS]` from the root of the repository. The twins are those
of the tests, which show that both give the same results; each side is given its arguments in its
own form, arrays or lists, before the clock starts.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from klamm.core.assignment import assign_replicas
from klamm.core.columns import padded
from klamm.core.elections import (
    elect_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassign,
    initialise,
    is_imbalanced,
    needs_preferred_election,
    shrink_isr,
)
from klamm.core.reassignment import Assignment
from tests.core import test_assignment as assignment_twins
from tests.core import test_balance as balance_twins
from tests.core import test_elections as election_twins
from tests.support.strategies import Partition, columns_of

BROKERS = 30
FACTOR = 3
LOST = frozenset({1, 2})  # the brokers that have failed, or are shutting down


def seconds(run: Callable[[], object], times: int) -> float:
    """The best of several runs: what the work takes when nothing else disturbs it."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def report(name: str, kernel: Callable[[], object], twin: Callable[[], object]) -> None:
    fast, slow = seconds(kernel, 7), seconds(twin, 1)
    print(f"{name:<28}{fast * 1e3:>10.2f} ms{slow * 1e3:>10.0f} ms{slow / fast:>8.0f} x")


def sample(partitions: int) -> list[Partition]:
    """A cluster after the loss of two brokers: one partition in eight had lost a member before."""
    random = np.random.default_rng(7)
    replicas = assign_replicas(
        dict.fromkeys(range(BROKERS)), partitions, FACTOR, start=0, shift=0
    ).tolist()
    return [
        Partition(
            row,
            isr=row[::-1] if whole else row[:-1],
            leader=row[0],
            online=set(row) - LOST,
            unclean=bool(row[0] % 2),
            recovery=0,
        )
        for row, whole in zip(replicas, random.random(partitions) > 1 / 8, strict=True)
    ]


def main(partitions: int) -> None:
    rows = sample(partitions)
    c = columns_of(rows)
    known = np.ones(partitions, np.bool_)
    new = [[(broker + 1) % BROKERS for broker in row.replicas] for row in rows]
    reassignments = [
        Assignment(tuple(row.replicas)).reassign_to(target)
        for row, target in zip(rows, new, strict=True)
    ]
    adding = padded(each.adding for each in reassignments)
    brokers = dict.fromkeys(range(BROKERS))
    racks = {broker: f"rack-{broker % 3}" for broker in brokers}

    print(f"{partitions:,} partitions of {FACTOR} replicas on {BROKERS} brokers")
    print(f"{'':<28}{'kernel':>13}{'twin':>13}{'ratio':>10}")
    report(
        "first leaders",
        lambda: initialise(c.replicas, c.online),
        lambda: [election_twins.initialise_twin(p.replicas, p.online) for p in rows],
    )
    report(
        "offline election",
        lambda: elect_offline(c.replicas, c.isr, c.online, c.unclean, c.recovery),
        lambda: [
            election_twins.elect_offline_twin(p.replicas, p.isr, p.online, p.unclean, p.recovery)
            for p in rows
        ],
    )
    report(
        "preferred election",
        lambda: elect_preferred(c.replicas, c.isr, c.online, c.recovery),
        lambda: [
            election_twins.elect_preferred_twin(p.replicas, p.isr, p.online, p.recovery)
            for p in rows
        ],
    )
    report(
        "reassignment election",
        lambda: elect_reassign(c.replicas, c.isr, c.online, c.recovery),
        lambda: [
            election_twins.elect_reassign_twin(p.replicas, p.isr, p.online, p.recovery)
            for p in rows
        ],
    )
    report(
        "controlled shutdown election",
        lambda: elect_controlled_shutdown(c.replicas, c.isr, c.online, [*LOST], c.recovery),
        lambda: [
            election_twins.elect_controlled_shutdown_twin(
                p.replicas, p.isr, p.online, LOST, p.recovery
            )
            for p in rows
        ],
    )
    report(
        "leaving the ISR",
        lambda: shrink_isr(c.leader, c.isr, 1),
        lambda: [election_twins.shrink_isr_twin(p.leader, p.isr, 1) for p in rows],
    )
    report(
        "placement",
        lambda: assign_replicas(brokers, partitions, FACTOR, start=5, shift=5),
        lambda: assignment_twins.assign_twin([*brokers], partitions, FACTOR, 5, 5, 0),
    )
    report(
        "placement over racks",
        lambda: assign_replicas(racks, partitions, FACTOR, start=5, shift=5),
        lambda: assignment_twins.assign_over_racks_twin(racks, partitions, FACTOR, 5, 5, 0),
    )
    report(
        "imbalance gauge",
        lambda: is_imbalanced(c.replicas, adding, c.leader, c.isr, known),
        lambda: [
            balance_twins.is_imbalanced_twin(p.replicas, a.adding, p.leader, p.isr, True)
            for a, p in zip(reassignments, rows, strict=True)
        ],
    )
    report(
        "rebalance",
        lambda: needs_preferred_election(
            c.replicas, c.replicas[:, 1], c.isr, known, c.online[:, 0], 10
        ),
        lambda: balance_twins.needs_preferred_election_twin(rows, known, 10),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
