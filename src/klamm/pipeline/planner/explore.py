"""Variants of a plan, tried as Spark tasks: other seeds, fewer new brokers, capacities, more pins.

A variant is judged by three numbers, each the better the lower: what it moves, how far a broker is
from the mean afterwards, and what the worst failure costs then. Those that no other beats are the
ones to choose from: another is better in one of the numbers only by being worse in the next.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import count as count_from
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from klamm.errors import ConfigError
from klamm.names import counted
from klamm.pipeline.arrow import PartitionColumns, numbers_from_arrow
from klamm.pipeline.output import OutputFolder
from klamm.pipeline.planner.output import summarise
from klamm.pipeline.planner.planner import Capacity, Demands, Planned, make_plan
from klamm.pipeline.render.page import Html, cards, page, paragraph, section, size, table
from klamm.pipeline.snapshot.snapshot import write_table
from klamm.pipeline.whatif.whatif import broker_failures, rack_failures, scenario_sums, sum_terms

#: Shares of the largest topics that a variant leaves where they are.
_PINNED: Final = (0.05, 0.1, 0.25, 0.5)
_CAPACITIES: Final = (0.9, 0.95, 1.05, 1.1)
#: Up to this many brokers, all pairs are tried as failures; with more, single brokers only.
_PAIRS_MAX: Final = 60
_ROW: Final = pa.schema(
    [
        ("variant", pa.int32()),
        ("options", pa.string()),
        ("replicas_moved", pa.int64()),
        ("bytes_moved", pa.int64()),
        ("deviation_percent", pa.float64()),
        ("lost_at_worst", pa.int64()),
        ("worst_failure", pa.string()),
        ("refused", pa.string()),
    ]
)
_ROW_SQL: Final = (
    "variant int, options string, replicas_moved long, bytes_moved long, deviation_percent double, "
    "lost_at_worst long, worst_failure string, refused string"
)
#: A longer pattern is described instead.
_SHOWN_MAX: Final = 120
#: The plan as it was asked for is the variant 0.
AS_ASKED: Final = "as asked"


@dataclass(frozen=True, slots=True)
class Variant:
    """Demands, and the options that differ from what was asked for."""

    options: str
    demands: Demands


def variants(demands: Demands, topics: Sequence[str], wanted: int) -> list[Variant]:
    """The plan as asked and others, as many as wanted; `topics` are the largest first."""
    kinds = [
        _with_fewer_brokers(demands),
        _with_pins(demands, topics),
        _with_capacities(demands),
        _with_seeds(demands),
    ]
    found = [Variant(AS_ASKED, demands)]
    while len(found) < wanted:  # the seeds never end
        found += [each for kind in kinds if (each := next(kind, None)) is not None]
    return found[:wanted]


def _with_seeds(demands: Demands) -> Iterator[Variant]:
    for step in count_from(1):
        seed = demands.seed + step
        yield Variant(f"--seed {seed}", replace(demands, seed=seed))


def _with_fewer_brokers(demands: Demands) -> Iterator[Variant]:
    for kept in range(len(demands.add) - 1, -1, -1):
        added = list(demands.add)[:kept]
        named = f"--add-brokers {','.join(map(str, added))}" if added else "without --add-brokers"
        yield Variant(named, replace(demands, add=added))


def _with_pins(demands: Demands, topics: Sequence[str]) -> Iterator[Variant]:
    for share in _PINNED:
        if not (pinned := topics[: int(share * len(topics))]):
            continue
        pattern = "|".join(map(re.escape, pinned))
        if demands.pin is not None:
            pattern = f"{demands.pin}|{pattern}"
        shown = (
            f"--pin '{pattern}'"
            if len(pattern) <= _SHOWN_MAX
            else (f"--pin of the {len(pinned):,} largest topics")
        )
        yield Variant(shown, replace(demands, pin=pattern))


def _with_capacities(demands: Demands) -> Iterator[Variant]:
    for factor in _CAPACITIES if demands.capacities else ():
        scaled = {
            broker: Capacity(given.replicas * factor, given.bytes * factor)
            for broker, given in demands.capacities.items()
        }
        yield Variant(f"--capacities times {factor:g}", replace(demands, capacities=scaled))


def largest_topics(partitions: pa.Table) -> list[str]:
    """The topics, those with most bytes, or else with most partitions, first."""
    by = partitions.group_by("topic").aggregate([("bytes", "sum"), ("partition", "count")])
    keys = [("bytes_sum", "descending"), ("partition_count", "descending"), ("topic", "ascending")]
    order = pc.sort_indices(by, sort_keys=keys)
    names: list[str] = by["topic"].take(order).to_pylist()
    return names


def explore(
    spark: SparkSession,
    partitions: pa.Table,
    racks: Mapping[int, str | None],
    demands: Demands,
    wanted: int,
) -> pa.Table:
    """Try variants, one Spark task each, and mark those that no other beats."""
    chosen = variants(demands, largest_topics(partitions), wanted)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, partitions.schema) as stream:
        stream.write_table(partitions)
    given = spark.sparkContext.broadcast(sink.getvalue().to_pybytes())

    def tried(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                table = pa.ipc.open_stream(given.value).read_all()
                rows = [_score(n, chosen[n], table, racks) for n in batch["id"].to_pylist()]
                yield pa.RecordBatch.from_pylist(rows, _ROW)

    tasks = spark.range(0, len(chosen), 1, len(chosen))
    found = tasks.mapInArrow(tried, _ROW_SQL).toArrow().sort_by("variant")
    return found.append_column("is_best", pa.array(unbeaten(found)))


def _score(
    number: int, variant: Variant, partitions: pa.Table, racks: Mapping[int, str | None]
) -> dict[str, Any]:
    row: dict[str, Any] = {"variant": number, "options": variant.options}
    try:
        planned = make_plan(partitions, racks, variant.demands)
    except ConfigError as error:
        return row | {"refused": str(error)}
    after = summarise(planned, 0)["balance"]["after"]
    spread = max(each["max_deviation_percent"] for name, each in after.items() if name != "brokers")
    lost, failure = _worst_failure(planned, partitions)
    return row | {
        "replicas_moved": planned.replicas_moved,
        "bytes_moved": planned.bytes_moved,
        "deviation_percent": spread,
        "lost_at_worst": lost,
        "worst_failure": failure,
    }


def _worst_failure(planned: Planned, partitions: pa.Table) -> tuple[int, str]:
    """What the worst failure costs after the plan, when all replicas are in sync.

    Of one rack, where brokers have racks; else of two brokers, or of one where they are many.
    """
    after = planned.after
    racks = {broker: planned.racks.get(broker) for broker in planned.brokers.tolist()}
    if all(racks.values()) and len(set(racks.values())) > 1:
        failures = rack_failures(racks, 1)
    else:
        failures = broker_failures(racks, 2 if 2 < len(racks) <= _PAIRS_MAX else 1)
    ends = PartitionColumns(
        after,
        after,
        after[:, 0],
        numbers_from_arrow(partitions["min_isr"], 1).astype(np.int32),
        np.zeros(len(after), np.bool_),
    )
    sets = failures.sets()
    sums = scenario_sums(failures, sets, sum_terms(failures, ends), range(3))
    lost = sums.sum(axis=1)
    worst = int(lost.argmax())
    return int(lost[worst]), failures.name(sets[worst].tolist())


def unbeaten(found: pa.Table) -> list[bool]:
    """Which variants no other beats: as good in everything, and better in something."""
    moved = "bytes_moved" if found["bytes_moved"].null_count < len(found) else "replicas_moved"
    names = (moved, "deviation_percent", "lost_at_worst")
    points = np.stack(
        [numbers_from_arrow(found[name].cast(pa.float64()), np.inf) for name in names], axis=1
    )
    refused = np.array([each is not None for each in found["refused"].to_pylist()], np.bool_)
    as_good = (points[:, None] <= points[None, :]).all(axis=2)
    better = (points[:, None] < points[None, :]).any(axis=2)
    beaten = (as_good & better).any(axis=0)
    # Of equal ones, the first.
    twin = np.triu((points[:, None] == points[None, :]).all(axis=2), 1).any(axis=0)
    return list(map(bool, ~beaten & ~twin & ~refused))


def write_explored(
    folder: OutputFolder, spark: SparkSession, found: pa.Table, facts: Mapping[str, str]
) -> None:
    """Write the table `explore/` and the page `explore.html`."""
    write_table(spark, found, str(folder / "explore"))
    (folder / "explore.html").write(render_explored(found, facts).encode())


def render_explored(found: pa.Table, facts: Mapping[str, str]) -> str:
    """The page: the variants that no other beats, and all of them."""
    rows = found.to_pylist()
    best = [row for row in rows if row["is_best"]]
    tried = [row for row in rows if row["refused"] is None]
    asked = rows[0]["is_best"]
    verdict = (
        f"{counted(len(best), 'variant')} of {len(rows):,} {'is' if len(best) == 1 else 'are'} "
        f"beaten by no other; the plan as asked is {'' if asked else 'not '}among them."
    )
    columns = {
        "variant": lambda row: str(row["variant"]),
        "options": lambda row: row["options"],
        "#replicas moved": lambda row: f"{row['replicas_moved']:,}",
        "#bytes moved": lambda row: "" if row["bytes_moved"] is None else size(row["bytes_moved"]),
        "#furthest from the mean": lambda row: f"{row['deviation_percent']:.3g}%",
        "#lost in the worst failure": lambda row: f"{row['lost_at_worst']:,}",
        "failure": lambda row: row["worst_failure"],
    }
    refused = [row for row in rows if row["refused"] is not None]
    told = "".join(
        f"<li>{escape(row['options'])}: {escape(row['refused'])}</li>" for row in refused
    )
    return page(
        title="Variants of a plan",
        subtitle=verdict,
        facts=facts,
        body=[
            cards(
                [
                    ("variants tried", f"{len(rows):,}", False),
                    ("beaten by no other", f"{len(best):,}", False),
                    ("refused", f"{len(refused):,}", False),
                ]
            ),
            section(
                "Beaten by no other",
                paragraph("Another is better in one number only by being worse in the next.")
                + table(best, columns),
            ),
            section("All variants", table(tried, {**columns, "": _is_best})),
            section("Refused", f"<ul>{told}</ul>") if refused else "",
        ],
        footer="Made by <code>klamm plan --explore</code>; the table <code>explore/</code> beside "
        "this file has the same rows.",
    )


def _is_best(row: Mapping[str, Any]) -> str:
    return Html("<b>best</b>") if row["is_best"] else ""
