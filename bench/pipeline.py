"""How long the pipeline's kernels take on a large cluster, and how much plans move.

Run with `python -m bench.pipeline [PARTITIONS]` from the root of the repository: three replicas
each, on 100 brokers in 10 racks. Every failure of two brokers is played through, and plans are made
for the usual occasions; beside each stands what `kafka-reassign-partitions --generate` would move,
which assigns every topic anew.
"""

import sys
import time

import numpy as np
import pyarrow as pa

from klamm.core.assignment import assign_replicas
from klamm.core.columns import contains
from klamm.pipeline.arrow import PARTITIONS, partitions_from_arrow, rows_to_arrow
from klamm.pipeline.planner.planner import Demands, make_plan
from klamm.pipeline.planner.waves import default_limit, make_waves
from klamm.pipeline.whatif.whatif import broker_failures, find_casualties, scenario_sums, sum_terms

BROKERS = 100
RACK_COUNT = 10
PER_TOPIC = 100


def rack_of(broker: int) -> str:
    return f"rack-{broker % RACK_COUNT}"


RACKS = {broker: rack_of(broker) for broker in range(BROKERS)}
NEW = tuple(range(BROKERS, BROKERS + 10))


def assign(racks: dict[int, str], partitions: int, random: np.random.Generator) -> np.ndarray:
    """Every topic by itself, from a random start, as Kafka does it."""
    topics = [
        assign_replicas(
            racks,
            PER_TOPIC,
            3,
            start=int(random.integers(len(racks))),
            shift=int(random.integers(len(racks))),
        )
        for _ in range(partitions // PER_TOPIC)
    ]
    return np.concatenate(topics)


def sample(partitions: int, random: np.random.Generator) -> pa.Table:
    replicas = assign(RACKS, partitions, random)
    isr = replicas.copy()
    isr[random.random(partitions) < 0.01, 2] = -1
    number = np.arange(partitions, dtype=np.int32)
    names = pa.array([f"topic-{each}" for each in range(partitions // PER_TOPIC)])
    return pa.table(
        {
            "topic": names.take(pa.array(number // PER_TOPIC)),
            "partition": number % PER_TOPIC,
            "replicas": rows_to_arrow(replicas),
            "isr": rows_to_arrow(isr),
            "leader": replicas[:, 0],
            "leader_epoch": number * 0,
            "min_isr": number * 0 + 2,
            "unclean": number % 10 == 0,
            "bytes": random.lognormal(20, 1, partitions).astype(np.int64),
        },
        schema=PARTITIONS,
    )


def play_failures_through(table: pa.Table) -> None:
    failures = broker_failures(RACKS, 2)
    partitions, sets = partitions_from_arrow(table), failures.sets()
    start, cpu = time.perf_counter(), time.process_time()
    scenario_sums(failures, sets, sum_terms(failures, partitions))
    casualties = sum(len(each) for each in find_casualties(failures, sets, partitions))
    print(
        f"{len(failures):,} pairs of brokers: {time.perf_counter() - start:.1f} s "
        f"({time.process_time() - cpu:.1f} s of one core), {casualties:,} casualties"
    )


def plan(name: str, table: pa.Table, demands: Demands, random: np.random.Generator) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    planned = make_plan(table, RACKS, demands)
    waves = make_waves(planned, default_limit(planned))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    brokers = [*RACKS, *demands.add]
    staying = {broker: rack_of(broker) for broker in brokers if broker not in demands.remove}
    anew = assign(staying, len(table), random)
    moved_anew = int((~contains(planned.before, anew)).sum())
    print(
        f"{name:<18}{seconds:>7.1f} s ({cpu:.1f} s of one core) {planned.replicas_moved:>10,} "
        f"replicas moved, at least {planned.bound.replicas:,}, --generate {moved_anew:,}; bytes "
        f"{planned.bytes_moved / max(1, planned.bound.bytes):.3f} of the least; {len(waves)} waves"
    )


def main(partitions: int) -> None:
    random = np.random.default_rng(7)
    print(f"{partitions:,} partitions of 3 replicas on {BROKERS} brokers in {RACK_COUNT} racks")
    table = sample(partitions, random)
    play_failures_through(table)
    racks = {broker: rack_of(broker) for broker in NEW}
    plan("balance", table, Demands(), random)
    plan("add ten brokers", table, Demands(add=NEW, racks=racks), random)
    plan("remove ten", table, Demands(remove=tuple(range(10))), random)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
