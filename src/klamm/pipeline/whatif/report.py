"""The report on failures: the worst scenarios, their partitions, and the load that remains."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from klamm.pipeline.render.page import (
    cards,
    counted,
    note,
    page,
    paragraph,
    picture,
    section,
    table,
)
from klamm.pipeline.render.pictures import (
    ORANGE,
    RED,
    SKY,
    add_legend,
    drawing,
    inline_svg,
    make_figure,
    short,
)
from klamm.pipeline.whatif.frames import WhatIf

_SCENARIOS_SHOWN: Final = 50
_BARS_SHOWN: Final = 25
_STORIES: Final = 10
_PARTITIONS_SHOWN: Final = 40
#: outcome: its name for people, and its colour.
_OUTCOMES: Final = {
    "leaderless": ("without a leader", RED),
    "unclean": ("losing records (unclean)", ORANGE),
    "below_min_isr": ("below min ISR", SKY),
}
Row = Mapping[str, Any]


def render_report(answer: WhatIf, warnings: Sequence[str]) -> str:
    """The page, from the tables as they were written."""
    (totals,) = answer.scenarios.agg(
        F.count("*").alias("scenarios"),
        F.count_if(F.expr("leaderless = 0 and unclean = 0")).alias("survived"),
        *(F.max(name).alias(name) for name in _OUTCOMES),
    ).collect()
    worst = [row.asDict() for row in _worst(answer)]
    lost = totals["scenarios"] - totals["survived"]
    return page(
        title="What if",
        subtitle=f"{counted(totals['scenarios'], 'failure')} played through. "
        f"{totals['survived']:,} of them leave every partition with a leader that has all "
        "committed records.",
        body=[
            cards(
                [
                    ("failures played through", f"{totals['scenarios']:,}", False),
                    ("cost a leader or records", f"{lost:,}", lost > 0),
                    *(
                        (f"partitions {text}, at worst", f"{totals[name]:,}", totals[name] > 0)
                        for name, (text, _) in _OUTCOMES.items()
                    ),
                ]
            ),
            note("What to know about this", warnings),
            _ranking(worst),
            *_stories(worst, answer.partitions),
        ],
        footer="Made by <code>klamm whatif</code> with the controller's own election; the tables "
        "beside this file have all scenarios, partitions and brokers.",
    )


def _worst(answer: WhatIf) -> list[Any]:
    """The worst scenarios, each with the broker that leads most afterwards."""
    worst = answer.scenarios.orderBy("rank").limit(_SCENARIOS_SHOWN)
    busiest = answer.brokers.groupBy("scenario").agg(
        F.max_by("broker", "leaders").alias("busiest"), F.max("leaders").alias("busiest_leads")
    )
    return worst.join(busiest, "scenario", "left").orderBy("rank").collect()


def _ranking(worst: Sequence[Row]) -> str:
    listed = table(
        worst,
        {
            "failure": lambda row: row["scenario"],
            "#leaderless": lambda row: f"{row['leaderless']:,}",
            "#unclean": lambda row: f"{row['unclean']:,}",
            "#below min ISR": lambda row: f"{row['below_min_isr']:,}",
            "#leaders moved": lambda row: f"{row['leaders_moved']:,}",
            "#leaderless if all were in sync": lambda row: f"{row['leaderless_in_sync']:,}",
            "#most led by one broker": _load_of_the_busiest,
        },
    )
    drawn = ""
    bars = [row for row in worst[:_BARS_SHOWN] if any(row[name] for name in _OUTCOMES)]
    if bars:
        drawn = picture(worst_picture(bars), "How many partitions do not end well.")
    return section(f"The worst {len(worst)}", drawn + listed)


def _load_of_the_busiest(row: Row) -> str:
    if row["busiest"] is None:
        return "nobody is left"
    return f"{row['busiest_leads']:,} (broker {row['busiest']})"


def worst_picture(scenarios: Sequence[Row]) -> str:
    """The partitions that each scenario costs, by outcome, one beside the other."""
    with drawing():
        figure, axes = make_figure(rows=len(scenarios), inches=0.9)
        left = [0] * len(scenarios)
        for name, (text, color) in _OUTCOMES.items():
            values = [row[name] for row in scenarios]
            axes.barh(range(len(values)), values, left=left, height=0.7, color=color, label=text)
            left = [start + value for start, value in zip(left, values, strict=True)]
        axes.set_yticks(range(len(scenarios)), [short(row["scenario"]) for row in scenarios])
        axes.set_ylim(len(scenarios) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value % 1 == 0 else "")
        axes.set_xlabel("partitions")
        add_legend(axes, tuple(_OUTCOMES))
        return inline_svg(figure, "worst", "The worst failures by what they cost")


def _stories(worst: Sequence[Row], casualties: DataFrame) -> list[str]:
    told = [row for row in worst[:_STORIES] if row["leaderless"] or row["unclean"]]
    if not told:
        return []
    in_order = Window.partitionBy("scenario").orderBy("topic", "partition")
    rows = (
        casualties.where(F.col("scenario").isin([row["scenario"] for row in told]))
        .where("outcome in ('leaderless', 'unclean')")
        .withColumn("place", F.row_number().over(in_order))
        .where(F.col("place") <= _PARTITIONS_SHOWN)
        .orderBy("scenario", "place")
        .collect()
    )
    hit: dict[str, list[Row]] = {}
    for row in rows:
        hit.setdefault(row["scenario"], []).append(row.asDict())
    return [_story(row, hit[row["scenario"]]) for row in told]


def _story(scenario: Row, partitions: Sequence[Row]) -> str:
    lost = scenario["leaderless"] + scenario["unclean"]
    subject = "this partition does" if lost == 1 else f"these {lost:,} partitions do"
    listed = table(
        partitions,
        {
            "partition": lambda row: f"{row['topic']}-{row['partition']}",
            "outcome": lambda row: _OUTCOMES[row["outcome"]][0],
            "leader": lambda row: "none" if row["leader"] < 0 else str(row["leader"]),
            "ISR": lambda row: ", ".join(map(str, row["isr"])),
            "because of this failure": lambda row: "yes" if row["changed"] else "was so before",
        },
    )
    only = ""
    if len(partitions) < lost:
        only = paragraph(f"The first {len(partitions)} are shown.")
    return section(f"{scenario['scenario']}: {subject} not survive", only + listed)
