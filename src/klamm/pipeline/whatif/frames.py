"""What failures do to a snapshot, as data frames: the kernels of `whatif` on Spark's workers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from klamm.pipeline.arrow import in_chunks, partitions_from_arrow, rows_to_arrow
from klamm.pipeline.snapshot.snapshot import SnapshotFrames
from klamm.pipeline.whatif.whatif import (
    OUTCOMES,
    SUMS,
    Failures,
    Terms,
    find_casualties,
    merge_terms,
    scenario_sums,
    sum_terms,
)

_ROWS_AT_A_TIME: Final = 200_000
_TERMS: Final = pa.schema([("key", pa.int64()), ("number", pa.int32()), ("value", pa.int64())])
_CASUALTIES: Final = pa.schema(
    [
        ("scenario", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("outcome", pa.string()),
        ("leader", pa.int32()),
        ("isr", pa.list_(pa.int32())),
        ("changed", pa.bool_()),
    ]
)
_CASUALTIES_SQL: Final = (
    "scenario string, topic string, partition int, outcome string, leader int, isr array<int>, "
    "changed boolean"
)


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """The answer: a row for each scenario, each casualty, and each broker that is left."""

    scenarios: DataFrame
    partitions: DataFrame
    brokers: DataFrame


def play_through(snapshot: SnapshotFrames, failures: Failures) -> WhatIf:
    """What each of these failures does to the partitions of a snapshot."""
    spark = snapshot.partitions.sparkSession
    wanted = snapshot.partitions.select(
        "topic", "partition", "replicas", "isr", "leader", "min_isr", "unclean"
    )
    added = (
        wanted.drop("topic", "partition")
        .mapInArrow(partial(add_up, failures), "key long, number int, value long")
        .groupBy("key", "number")
        .agg(sf.sum("value").alias("value"))
        .toArrow()
    )
    terms = Terms(*(added[name].to_numpy() for name in _TERMS.names))
    scenarios, brokers = scenario_tables(failures, terms)
    return WhatIf(
        scenarios=spark.createDataFrame(scenarios),
        partitions=wanted.mapInArrow(partial(list_casualties, failures), _CASUALTIES_SQL),
        brokers=spark.createDataFrame(brokers),
    )


def write_answer(answer: WhatIf, path: str) -> WhatIf:
    """Write the answer's tables below `path`, and return them as they were written."""

    def written(name: str) -> DataFrame:
        frame: DataFrame = getattr(answer, name)
        frame.write.mode("overwrite").parquet(f"{path}/{name}")
        return frame.sparkSession.read.schema(frame.schema).parquet(f"{path}/{name}")

    return WhatIf(*map(written, ("scenarios", "partitions", "brokers")))


def add_up(failures: Failures, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The terms of all partitions in these batches (given to `mapInArrow`)."""
    found = [
        sum_terms(failures, partitions_from_arrow(chunk))
        for chunk in in_chunks(batches, _ROWS_AT_A_TIME)
    ]
    if found:
        terms = merge_terms(found)
        yield pa.record_batch([terms.key, terms.number, terms.value], schema=_TERMS)


def list_casualties(
    failures: Failures, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The casualties of every scenario in these batches (given to `mapInArrow`)."""
    sets = failures.sets()
    names = pa.array([failures.name(units) for units in sets.tolist()])
    outcomes = pa.array(OUTCOMES)
    for chunk in in_chunks(batches, _ROWS_AT_A_TIME):
        for found in find_casualties(failures, sets, partitions_from_arrow(chunk)):
            yield from pa.table(
                {
                    "scenario": names.take(pa.array(found.scenario)),
                    "topic": chunk["topic"].take(pa.array(found.row)),
                    "partition": chunk["partition"].take(pa.array(found.row)),
                    "outcome": outcomes.take(pa.array(found.outcome)),
                    "leader": found.leader,
                    "isr": rows_to_arrow(found.isr),
                    "changed": found.changed,
                },
                schema=_CASUALTIES,
            ).to_batches(_ROWS_AT_A_TIME)


def scenario_tables(failures: Failures, terms: Terms) -> tuple[pa.Table, pa.Table]:
    """The scenarios, the worst first, and the leaders of the brokers that each one leaves."""
    sets = failures.sets()
    sums = scenario_sums(failures, sets, terms)
    # Sort by leaderless partitions, then unclean ones, then those below min ISR.
    order = np.lexsort([*-sums[:, 3::-1].T])
    sets, sums = sets[order], sums[order]
    names = pa.array([failures.name(units) for units in sets.tolist()])
    failed = [failures.failed(units) for units in sets.tolist()]
    scenarios = pa.table(
        {
            "scenario": names,
            "failed": pa.array(failed, pa.list_(pa.int32())),
            **{name: sums[:, number] for number, name in enumerate(SUMS)},
            "rank": np.arange(1, len(sets) + 1, dtype=np.int32),
        }
    )
    place = {broker: number for number, broker in enumerate(failures.brokers)}
    stays = np.ones((len(sets), len(place)), np.bool_)
    for row, brokers in enumerate(failed):
        stays[row, [place[broker] for broker in brokers]] = False
    scenario, broker = np.nonzero(stays)
    brokers_left = pa.table(
        {
            "scenario": names.take(pa.array(scenario)),
            "broker": np.array(failures.brokers, np.int32)[broker],
            "leaders": sums[scenario, len(SUMS) + broker],
        }
    )
    return scenarios, brokers_left
