"""The report on failures: what they cost, why and what helps, by topic and by scenario."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np
from pyspark.sql import functions as F

from klamm.names import counted
from klamm.pipeline.render.page import (
    Html,
    broker_chip,
    cards,
    command,
    details,
    note,
    page,
    paragraph,
    section,
    table,
)
from klamm.pipeline.whatif.frames import WhatIf

_SCENARIOS_SHOWN: Final = 25
_STORIES: Final = 10
_TOPICS_SHOWN: Final = 40
_NUMBERS_SHOWN: Final = 6
_HEAT_UNITS: Final = 40
#: outcome: its name for people.
_OUTCOMES: Final = {
    "leaderless": "without a leader",
    "unclean": "losing records (unclean)",
    "below_min_isr": "below min ISR",
}
#: (reason, outcome): what is wrong, and what helps.
_REMEDIES: Final = {
    ("one_replica", "leaderless"): ("one replica", "add replicas with --set-rf"),
    ("one_replica", "unclean"): ("one replica", "add replicas with --set-rf"),
    ("one_replica", "below_min_isr"): (
        "one replica, fewer than min.insync.replicas",
        "add replicas with --set-rf",
    ),
    ("replicas_failed", "leaderless"): (
        "all replicas on brokers that fail together",
        "spread them over more racks or brokers, or add replicas",
    ),
    ("replicas_failed", "below_min_isr"): (
        "fewer replicas left than min.insync.replicas",
        "add replicas with --set-rf, or lower min.insync.replicas",
    ),
    ("not_in_sync", "leaderless"): (
        "live replicas, but none that was in sync",
        "bring the replicas back in sync: klamm topics describe --under-replicated",
    ),
    ("not_in_sync", "unclean"): (
        "live replicas, but none that was in sync",
        "bring them back in sync; unclean.leader.election.enable=false keeps the records",
    ),
    ("not_in_sync", "below_min_isr"): (
        "enough live replicas, but not in sync",
        "bring the replicas back in sync: klamm topics describe --under-replicated",
    ),
}
Row = Mapping[str, Any]


def render_report(answer: WhatIf, warnings: Sequence[str]) -> str:
    """The page, from the tables as they were written."""
    worst = answer.worst.slice(0, _SCENARIOS_SHOWN).to_pylist()
    lost = answer.ranked["leaderless"].to_numpy() + answer.ranked["unclean"].to_numpy()
    scenarios, harmful = len(lost), int(np.count_nonzero(lost))
    told = [row for row in worst[:_STORIES] if row["leaderless"] or row["unclean"]]
    by_topic = _casualties_by_topic(answer, [row["scenario"] for row in told])
    return page(
        title="What if",
        subtitle=_verdict(answer, scenarios, harmful, worst),
        facts=answer.facts,
        body=[
            cards(
                [
                    ("failures played through", f"{scenarios:,}", False),
                    ("cost a leader or records", f"{harmful:,}", harmful > 0),
                    *(
                        (f"partitions {text}, at worst", f"{most:,}", most > 0)
                        for name, text in _OUTCOMES.items()
                        for most in [int(answer.ranked[name].to_numpy().max(initial=0))]
                    ),
                ]
            ),
            note("What to know about this", warnings),
            _topics(by_topic.get(None, [])),
            _pairs(answer),
            _ranking(answer, worst),
            _stories(told, by_topic),
        ],
        footer="Made by <code>klamm whatif</code> with the controller's own election; the tables "
        "beside this file have all scenarios, partitions and brokers.",
    )


def _verdict(answer: WhatIf, scenarios: int, harmful: int, worst: Sequence[Row]) -> str:
    failures = answer.failures
    units = f"one {failures.kind[:-1]}"
    if failures.together > 1:
        units = f"{failures.together} {failures.kind} at once"
    what = f"{harmful:,} of {scenarios:,} failures of {units}" if harmful else f"Any {units}"
    if scenarios == 1:
        what = f"The failure {worst[0]['scenario']}"
    if not harmful:
        leaves = "leaves" if scenarios == 1 else "can fail and leave"
        return f"{what} {leaves} every partition with a leader that has all committed records."
    first = worst[0]
    costs = [
        f"{counted(first[name], 'partition')} {text}"
        for name, text in list(_OUTCOMES.items())[:2]
        if first[name]
    ]
    if scenarios == 1:
        return f"{what} leaves {' and '.join(costs)}."
    verb = "costs" if harmful == 1 else "cost"
    return (
        f"{what} {verb} leaders or records; the worst, {first['scenario']}, leaves "
        f"{' and '.join(costs)}."
    )


def _casualties_by_topic(answer: WhatIf, told: Sequence[str]) -> dict[str | None, list[Row]]:
    """Casualties by topic, outcome and reason: of all scenarios (None), and of those told."""
    by = ["topic", "outcome", "reason"]
    numbers = F.array_sort(F.collect_set("partition")).alias("numbers")
    changed = F.max("changed").alias("changed")
    # The set is there anyway; a count of distinct values would double the rows first.
    distinct = F.size(F.collect_set("partition")).cast("long").alias("partitions")
    of_all = answer.partitions.groupBy(*by).agg(distinct, numbers, changed)
    found = of_all.select(F.lit(None).cast("string").alias("scenario"), "*")
    if told:
        of_told = (
            answer.partitions.where(F.col("scenario").isin(list(told)))
            .groupBy("scenario", *by)
            .agg(F.count("*").alias("partitions"), numbers, changed)
        )
        found = found.unionByName(of_told)
    shown = found.withColumn("numbers", F.slice("numbers", 1, _NUMBERS_SHOWN))
    hit: dict[str | None, list[Row]] = {}
    for row in shown.collect():
        hit.setdefault(row["scenario"], []).append(row.asDict())
    for rows in hit.values():
        order = list(_OUTCOMES)
        rows.sort(key=lambda row: (order.index(row["outcome"]), -row["partitions"], row["topic"]))
    return hit


def _topics(rows: Sequence[Row]) -> str:
    if not rows:
        return section("What is lost, and what helps", paragraph("Nothing is lost."))
    totals: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row["reason"], row["outcome"])
        totals[key] = totals.get(key, 0) + row["partitions"]
    items = "".join(
        f"<li><b>{counted(number, 'partition')}</b> {'has' if number == 1 else 'have'} "
        f"{escape(_REMEDIES[key][0])} ({_OUTCOMES[key[1]]}): {escape(_REMEDIES[key][1])}.</li>"
        for key, number in totals.items()
    )
    single = [row["topic"] for row in rows if row["reason"] == "one_replica"]
    to_run = ""
    if single:
        names = "|".join(name.replace(".", "\\.") for name in dict.fromkeys(single[:20]))
        to_run = command(
            f"klamm plan --snapshot SNAPSHOT --set-rf 3 --topics '{names}' --out plan.json"
        )
    return section("What is lost, and what helps", f"<ul>{items}</ul>{to_run}{_listed(rows)}")


def _listed(rows: Sequence[Row]) -> str:
    more = len(rows) - _TOPICS_SHOWN
    left_out = paragraph(f"In the table partitions/: {more:,} more.") if more > 0 else ""
    return (
        table(
            rows[:_TOPICS_SHOWN],
            {
                "topic": lambda row: row["topic"],
                "#partitions": lambda row: f"{row['partitions']:,}",
                "which": _which,
                "outcome": lambda row: _OUTCOMES[row["outcome"]],
                "why": lambda row: _REMEDIES[row["reason"], row["outcome"]][0],
                "because of the failure": lambda row: "yes" if row["changed"] else "was so before",
            },
        )
        + left_out
    )


def _which(row: Row) -> str:
    more = " …" if row["partitions"] > len(row["numbers"]) else ""
    return ", ".join(map(str, row["numbers"])) + more


def _pairs(answer: WhatIf) -> str:
    """A cell for each pair of units: how many partitions are lost when both fail."""
    failures = answer.failures
    if failures.together != 2 or len(failures) < 3:
        return ""
    units = len(failures.units)
    lost = answer.ranked["leaderless"].to_numpy() + answer.ranked["unclean"].to_numpy()
    if not lost.any():
        return ""
    key = answer.ranked["key"].to_numpy()
    first, second = key // (units + 1) - 1, key % (units + 1) - 1
    costs = np.zeros((units, units), np.int64)
    costs[first, second] = costs[second, first] = lost
    shown = np.sort(np.argsort(-costs.sum(axis=1), kind="stable")[:_HEAT_UNITS])
    most = max(1, int(costs.max()))

    def label(unit: int) -> str:
        name = failures.labels[unit]
        return broker_chip(int(name)) if failures.kind == "brokers" else escape(name)

    def cell(one: int, other: int) -> str:
        if one == other:
            return '<td class="none"></td>'
        number = int(costs[one, other])
        names = f"{failures.labels[one]} and {failures.labels[other]}: {number:,}"
        share = 0.15 + 0.85 * number / most if number else 0.0
        text = f"{number:,}" if number else ""
        return f'<td style="--share: {share:.2f}" title="{escape(names)}">{text}</td>'

    head = "".join(f"<th>{label(unit)}</th>" for unit in shown.tolist())
    lines = "".join(
        f"<tr><th>{label(one)}</th>{''.join(cell(one, other) for other in shown.tolist())}</tr>"
        for one in shown.tolist()
    )
    only = ""
    if len(shown) < units:
        only = f" The {len(shown)} {failures.kind} that cost most are shown."
    what = paragraph(
        "Partitions that lose their leader or records when both fail; an empty cell costs "
        f"nothing.{only}"
    )
    rows = f'<tr><td class="none"></td>{head}</tr>{lines}'
    heat = f'<div class="wide"><table class="heat">{rows}</table></div>'
    return section(f"Pairs of {failures.kind}", what + heat)


def _ranking(answer: WhatIf, worst: Sequence[Row]) -> str:
    if len(answer.ranked) == 1:
        heading = "The failure"
    else:
        heading = f"The worst {len(worst)} of {len(answer.ranked):,} failures"
    listed = table(
        worst,
        {
            "failure": _failure,
            "#leaderless": lambda row: f"{row['leaderless']:,}",
            "#unclean": lambda row: f"{row['unclean']:,}",
            "#below min ISR": lambda row: f"{row['below_min_isr']:,}",
            "#leaders moved": lambda row: f"{row['leaders_moved']:,}",
            "#leaderless if all were in sync": lambda row: f"{row['leaderless_in_sync']:,}",
            "#most led by one broker": _load_of_the_busiest,
        },
    )
    return section(heading, listed)


def _failure(row: Row) -> str:
    """A scenario with the brokers that it takes down, in their colours."""
    kind, _, names = row["scenario"].partition(":")
    if kind == "brokers":
        return Html(f"brokers:{''.join(map(broker_chip, row['failed']))}")
    return Html(f"{escape(kind)}:{escape(names)} {''.join(map(broker_chip, row['failed']))}")


def _load_of_the_busiest(row: Row) -> str:
    if row["busiest"] is None:
        return "nobody is left"
    return Html(f"{row['busiest_leads']:,} {broker_chip(row['busiest'])}")


def _stories(told: Sequence[Row], by_topic: Mapping[str | None, Sequence[Row]]) -> str:
    """What the worst scenarios cost, by topic."""
    if not told:
        return ""
    stories = []
    for number, row in enumerate(told):
        lost = row["leaderless"] + row["unclean"]
        subject = "partition does" if lost == 1 else "partitions do"
        summary = Html(f"{_failure(row)}: {lost:,} {subject} not survive")
        rows = by_topic.get(row["scenario"], ())
        stories.append(details(summary, _listed(rows), is_open=number == 0))
    return section("What the worst failures cost", "".join(stories))
