"""What failures do, for people: which scenarios are worst, and whom they hit."""

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from klamm.pipeline.page import heading, page, paragraph, table

_SCENARIOS_SHOWN: Final = 50
_STORIES: Final = 10
_PARTITIONS_SHOWN: Final = 40
_COLUMNS: Final = ("leaderless", "unclean", "below_min_isr", "leaders_moved")
_HEADINGS: Final = (
    "failure",
    "leaderless",
    "unclean",
    "below min ISR",
    "leaders moved",
    "leaderless if all were in sync",
)


def render_report(scenarios: DataFrame, casualties: DataFrame, warnings: Sequence[str]) -> str:
    """The page, from the tables as they were written."""
    total = scenarios.count()
    worst = [row.asDict() for row in scenarios.orderBy("rank").limit(_SCENARIOS_SHOWN).collect()]
    parts = [paragraph(text) for text in warnings]
    survivors = scenarios.where("leaderless = 0 and unclean = 0").count()
    parts.append(
        paragraph(
            f"{total:,} failures were played through. {survivors:,} of them leave every partition "
            "with a leader that has all committed records."
        )
    )
    parts.append(heading(f"The worst {len(worst)}"))
    parts.append(
        table(
            _HEADINGS,
            [
                [row["scenario"], *(row[name] for name in _COLUMNS), row["leaderless_in_sync"]]
                for row in worst
            ],
        )
    )
    for row in worst[:_STORIES]:
        if row["leaderless"] or row["unclean"]:
            parts += _story(row, casualties)
    return page("What if", parts)


def _story(scenario: dict[str, Any], casualties: DataFrame) -> list[str]:
    name = scenario["scenario"]
    lost = scenario["leaderless"] + scenario["unclean"]
    rows = (
        casualties.where(casualties.scenario == name)
        .where("outcome in ('leaderless', 'unclean')")
        .orderBy("topic", "partition")
        .limit(_PARTITIONS_SHOWN)
        .collect()
    )
    only = "" if len(rows) == lost else f" (the first {len(rows)} are shown)"
    plural = "this partition does" if lost == 1 else f"these {lost:,} partitions do"
    return [
        heading(f"{name}: {plural} not survive{only}"),
        table(
            ("partition", "outcome", "leader", "ISR"),
            [
                (
                    f"{row['topic']}-{row['partition']}",
                    row["outcome"],
                    "none" if row["leader"] < 0 else str(row["leader"]),
                    ",".join(map(str, row["isr"])),
                )
                for row in rows
            ],
        ),
    ]
