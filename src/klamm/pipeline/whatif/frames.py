"""What failures do to a snapshot, as data frames: the kernels of `whatif` on Spark's workers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from klamm.core.columns import I32, I64, Mask
from klamm.pipeline.arrow import in_chunks, partitions_from_arrow, rows_to_arrow
from klamm.pipeline.session import side_by_side
from klamm.pipeline.snapshot.snapshot import SnapshotFrames
from klamm.pipeline.whatif.whatif import (
    OUTCOMES,
    REASONS,
    SUMS,
    Failures,
    Terms,
    block_of,
    find_casualties,
    key_of,
    least_key,
    merge_terms,
    scenario_sums,
    sum_terms,
)

_ROWS_AT_A_TIME: Final = 200_000
#: Scenarios times brokers that one task adds up at a time.
_CELLS_PER_BLOCK: Final = 2_000_000
_TASKS_PER_CORE: Final = 2
#: Partitions times scenarios that the driver looks at itself.
_CASUALTIES_HERE: Final = 1_000_000
#: How many of the worst scenarios a report can show.
WORST: Final = 50
#: The block of terms that every block of scenarios needs.
_EVERY_BLOCK: Final = -1
_TERMS: Final = pa.schema(
    [("block", pa.int32()), ("key", pa.int64()), ("number", pa.int32()), ("value", pa.int64())]
)
_TERMS_SQL: Final = "block int, key long, number int, value long"
_CASUALTIES: Final = pa.schema(
    [
        ("scenario", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("outcome", pa.string()),
        ("leader", pa.int32()),
        ("isr", pa.list_(pa.int32())),
        ("changed", pa.bool_()),
        ("reason", pa.string()),
    ]
)
_CASUALTIES_SQL: Final = (
    "scenario string, topic string, partition int, outcome string, leader int, isr array<int>, "
    "changed boolean, reason string"
)
#: The only block, which has no terms but those of every block.
_NO_TERMS: Final = pa.Table.from_pylist([{"block": 0, "key": 0, "number": 0, "value": 0}], _TERMS)
_OF_A_TERM: Final = (("key", "long"), ("number", "int"), ("value", "long"))
_SUMS: Final = range(len(SUMS))
_SUMS_SQL: Final = ", ".join(["key long", *(f"{name} long" for name in SUMS)])


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """The answer: a row for each scenario, each casualty, and each broker that is left."""

    facts: Mapping[str, str]  # which cluster, and when
    failures: Failures
    scenarios: DataFrame
    partitions: DataFrame
    brokers: DataFrame
    ranked: pa.Table  # the scenarios, the worst first, on the driver
    worst: pa.Table  # the first of them, with the broker that leads most afterwards


def play_through(snapshot: SnapshotFrames, failures: Failures) -> WhatIf:
    """What each of these failures does to the partitions of a snapshot.

    The driver collects the sums of every scenario, to rank them. What each broker leads in each
    scenario is far more: tasks add it up, a block of scenarios each. Terms of smaller sets of units
    concern many scenarios and are few, so every task gets them. If all of it is little, the driver
    runs the same kernels itself, since Spark takes seconds to start Python for tasks.
    """
    blocks = 1 + len(failures) * len(failures.brokers) // _CELLS_PER_BLOCK
    here = snapshot.partitions_here
    # A failure may cost every partition.
    if here is not None and blocks == 1 and len(here) * len(failures) <= _CASUALTIES_HERE:
        return _play_here(snapshot.partitions.sparkSession, snapshot.facts, failures, here)
    wanted = snapshot.partitions.select(
        "topic", "partition", "replicas", "isr", "leader", "min_isr", "unclean"
    )
    return _play_on_tasks(snapshot.facts, failures, _spread_out(wanted), blocks)


def _play_here(
    spark: SparkSession, facts: Mapping[str, str], failures: Failures, partitions: pa.Table
) -> WhatIf:
    def frame(table: pa.Table) -> DataFrame:
        return spark.createDataFrame(table).coalesce(1)

    batches = partitions.to_batches()
    terms = terms_of(failures, batches)
    ranked = scenario_table(failures, scenario_sums(failures, failures.sets(), terms, _SUMS))
    casualties = pa.Table.from_batches(list_casualties(failures, batches), _CASUALTIES)
    # Spark does not take a table without a chunk.
    casualties = pa.concat_tables([_CASUALTIES.empty_table(), casualties]).combine_chunks()
    return WhatIf(
        facts=facts,
        failures=failures,
        scenarios=frame(ranked.drop_columns("key")),
        partitions=frame(casualties),
        brokers=frame(broker_rows(failures, 1, terms, _NO_TERMS)),
        ranked=ranked,
        worst=_with_busiest(failures, terms, ranked.slice(0, WORST)),
    )


def _play_on_tasks(
    facts: Mapping[str, str], failures: Failures, wanted: DataFrame, blocks: int
) -> WhatIf:
    spark = wanted.sparkSession
    terms = (
        wanted.drop("topic", "partition")
        .mapInArrow(partial(add_up, failures, blocks), _TERMS_SQL)
        .groupBy("block", "key", "number")
        .agg(sf.sum("value").alias("value"))
    )
    if blocks > 1:
        terms = terms.persist()
    few = _collect(terms.where(sf.col("block") == _EVERY_BLOCK) if blocks > 1 else terms)
    # A row for each block, so that a block whose scenarios have no terms of their own is there too.
    rest = spark.range(blocks).select(
        sf.col("id").cast("int").alias("block"),
        *(sf.lit(0).cast(kind).alias(name) for name, kind in _OF_A_TERM),
    )
    if blocks > 1:
        rest = rest.unionByName(terms.where(sf.col("block") != _EVERY_BLOCK))

    # Spark looks at the types of this function, and cannot do so on a partial one.
    def leaders_in_block(rows: pa.Table) -> pa.Table:
        return broker_rows(failures, blocks, few, rows)

    ranked = scenario_table(failures, _sums(failures, few, rest, blocks))
    worst = ranked.slice(0, WORST)
    of_worst = few
    if blocks > 1:
        keys = worst["key"].to_pylist()
        of_worst = merge_terms([few, _collect(rest.where(sf.col("key").isin(keys)))])
    return WhatIf(
        facts=facts,
        failures=failures,
        scenarios=spark.createDataFrame(ranked.drop_columns("key")),
        partitions=wanted.mapInArrow(partial(list_casualties, failures), _CASUALTIES_SQL),
        brokers=rest.groupBy("block").applyInArrow(
            leaders_in_block, "scenario string, broker int, leaders long"
        ),
        ranked=ranked,
        worst=_with_busiest(failures, of_worst, worst),
    )


def _spread_out(partitions: DataFrame) -> DataFrame:
    """Spread rows over all cores, whatever the number of files that they come from."""
    spark = partitions.sparkSession
    return partitions.repartition(_TASKS_PER_CORE * spark.sparkContext.defaultParallelism)


def _sums(failures: Failures, few: Terms, rest: DataFrame, blocks: int) -> NDArray[np.int64]:
    """The sums of every scenario, in the order of `Failures.sets`."""
    if blocks == 1:
        return scenario_sums(failures, failures.sets(), few, _SUMS)
    few = few.where(few.number < len(SUMS))

    def sums_in_block(rows: pa.Table) -> pa.Table:
        return sum_rows(failures, blocks, few, rows)

    added = (
        rest.where(sf.col("number") < len(SUMS))
        .groupBy("block")
        .applyInArrow(sums_in_block, _SUMS_SQL)
        .toArrow()
    )
    key = added["key"].to_numpy()
    sums = np.stack([added[name].to_numpy() for name in SUMS], axis=1)
    sets_key = key_of(failures.sets(), len(failures.units) + 1)
    order = np.argsort(key)
    return np.asarray(sums[order[np.searchsorted(key[order], sets_key)]])


def _with_busiest(failures: Failures, terms: Terms, worst: pa.Table) -> pa.Table:
    """Scenarios with the broker that leads most afterwards, or null where nobody is left."""
    key = worst["key"].to_numpy()
    sets = failures.sets()
    chosen = sets[np.searchsorted(key_of(sets, len(failures.units) + 1), key)]
    leads = scenario_sums(failures, chosen, terms)[:, len(SUMS) :]
    leads[_is_failed(failures, chosen)] = -1
    busiest = leads.argmax(axis=1)
    most = leads.max(axis=1, initial=-1)
    brokers = np.array(failures.brokers, np.int32)[busiest]
    return worst.append_column("busiest", pa.array(brokers, mask=most < 0)).append_column(
        "busiest_leads", pa.array(most, mask=most < 0)
    )


def _collect(terms: DataFrame) -> Terms:
    found = terms.select("key", "number", "value").toArrow()
    return Terms(*(found[name].to_numpy() for name in ("key", "number", "value")))


def write_answer(answer: WhatIf, path: str) -> WhatIf:
    """Write the answer's tables below `path`, and return them as they were written."""

    def written(name: str) -> DataFrame:
        frame: DataFrame = getattr(answer, name)
        frame.write.mode("overwrite").parquet(f"{path}/{name}")
        return frame.sparkSession.read.schema(frame.schema).parquet(f"{path}/{name}")

    names = ("scenarios", "partitions", "brokers")
    scenarios, partitions, brokers = side_by_side(*(partial(written, name) for name in names))
    return replace(answer, scenarios=scenarios, partitions=partitions, brokers=brokers)


def terms_of(failures: Failures, batches: Iterable[pa.RecordBatch]) -> Terms:
    """The terms of all partitions in these batches."""
    none = Terms(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))
    chunks = in_chunks(batches, _ROWS_AT_A_TIME)
    found = (sum_terms(failures, partitions_from_arrow(chunk)) for chunk in chunks)
    return merge_terms([none, *found])


def add_up(
    failures: Failures, blocks: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The terms of all partitions in these batches (given to `mapInArrow`)."""
    terms = terms_of(failures, batches)
    block = np.full(len(terms.key), _EVERY_BLOCK, np.int32)
    if blocks > 1:
        is_whole = terms.key >= least_key(failures.together, len(failures.units) + 1)
        block[is_whole] = block_of(terms.key[is_whole], blocks)
    yield pa.record_batch([block, terms.key, terms.number, terms.value], schema=_TERMS)


def sum_rows(failures: Failures, blocks: int, few: Terms, rows: pa.Table) -> pa.Table:
    """The sums of the scenarios of a block (given to `applyInArrow`)."""
    key, sets, terms = _block(failures, blocks, few, rows)
    sums = scenario_sums(failures, sets, terms, _SUMS)
    return pa.table({"key": key, **{name: sums[:, n] for n, name in enumerate(SUMS)}})


def broker_rows(failures: Failures, blocks: int, few: Terms, rows: pa.Table) -> pa.Table:
    """What the brokers that are left lead in each scenario of a block (given to `applyInArrow`)."""
    _, sets, terms = _block(failures, blocks, few, rows)
    behind = range(len(SUMS), len(SUMS) + len(failures.brokers))
    leads = scenario_sums(failures, sets, terms, behind)
    scenario, broker = np.nonzero(~_is_failed(failures, sets))
    names = pa.array([failures.name(units) for units in sets.tolist()], pa.string())
    return pa.table(
        {
            "scenario": names.take(pa.array(scenario)),
            "broker": np.array(failures.brokers, np.int32)[broker],
            "leaders": leads[scenario, broker],
        }
    )


def _block(failures: Failures, blocks: int, few: Terms, rows: pa.Table) -> tuple[I64, I32, Terms]:
    """The scenarios of the block that these rows belong to, and all terms that concern them."""
    sets = failures.sets()
    key = key_of(sets, len(failures.units) + 1)
    number = rows["block"][0].as_py()
    here = block_of(key, blocks) == number
    own = Terms(*(rows[name].to_numpy() for name in ("key", "number", "value")))
    return key[here], sets[here], merge_terms([few, own.where(own.value != 0)])


def _is_failed(failures: Failures, sets: I32) -> Mask:
    """Whether each broker fails in each of these scenarios."""
    place = {broker: number for number, broker in enumerate(failures.brokers)}
    of_unit = np.zeros((len(failures.units), len(place)), np.bool_)
    for unit, brokers in enumerate(failures.units):
        of_unit[unit, [place[broker] for broker in brokers]] = True
    failed = np.zeros((len(sets), len(place)), np.bool_)
    for units in sets.T:
        failed |= of_unit[units]
    return failed


def list_casualties(
    failures: Failures, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The casualties of every scenario in these batches (given to `mapInArrow`)."""
    sets = failures.sets()
    names = pa.array([failures.name(units) for units in sets.tolist()])
    outcomes, reasons = pa.array(OUTCOMES), pa.array(REASONS)
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
                    "reason": reasons.take(pa.array(found.reason)),
                },
                schema=_CASUALTIES,
            ).to_batches(_ROWS_AT_A_TIME)


def scenario_table(failures: Failures, sums: NDArray[np.int64]) -> pa.Table:
    """The scenarios, the worst first."""
    sets = failures.sets()
    # Sort by leaderless partitions, then unclean ones, then those below min ISR.
    order = np.lexsort([*-sums[:, 3::-1].T])
    sets, sums = sets[order], sums[order]
    return pa.table(
        {
            "scenario": pa.array([failures.name(units) for units in sets.tolist()], pa.string()),
            "failed": pa.array(map(failures.failed, sets.tolist()), pa.list_(pa.int32())),
            **{name: sums[:, number] for number, name in enumerate(SUMS)},
            "rank": np.arange(1, len(sets) + 1, dtype=np.int32),
            "key": key_of(sets, len(failures.units) + 1),
        }
    )
