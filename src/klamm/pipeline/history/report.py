"""The report on a history: one HTML page, made from the tables.

The file is self-contained: it loads no script, font, picture or style.
"""

from collections.abc import Mapping
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from klamm.pipeline.history.report_facts import PartitionStory, ReportFacts, gap_sentence, gather
from klamm.pipeline.history.report_pictures import (
    availability_picture,
    balance_picture,
    elections_picture,
    failovers_picture,
    heat_picture,
    timeline_picture,
)
from klamm.pipeline.render.page import (
    cards,
    counted,
    duration,
    note,
    page,
    paragraph,
    percent,
    picture,
    section,
    table,
)

REPORT: Final = "report.html"
_TITLE: Final = "What the controllers did"
_GAPS_SHOWN: Final = 20


def write_report(records: DataFrame, tables: Mapping[str, DataFrame], out: Path) -> ReportFacts:
    """Write `out`/report.html from the records and their tables; returns the facts in it."""
    facts = gather(records, tables)
    # Renamed into place, so that a browser sees the old page or the new one, never a part.
    path = out / REPORT
    fresh = path.with_suffix(".part")
    fresh.write_text(render(facts), encoding="utf-8")
    fresh.replace(path)
    return facts


def render(facts: ReportFacts) -> str:
    """The whole page."""
    sections = [
        _cards(facts),
        _gaps(facts),
        _timeline(facts),
        _availability(facts),
        _elections(facts),
        _failovers(facts),
        _worst_partitions(facts),
        _isr(facts),
        _brokers(facts),
        _reassignments(facts),
    ]
    return page(
        title=_TITLE,
        subtitle=f"{_moment(facts.since)} to {_moment(facts.until)}, "
        f"{duration((facts.until - facts.since).total_seconds())}. All times are UTC.",
        body=sections,
        footer="Made by <code>klamm history</code> from what the controllers recorded; the tables "
        "beside this file have all of it.",
    )


def _cards(facts: ReportFacts) -> str:
    counts = facts.counts
    numbers = [
        ("terms of office", len(facts.terms), False),
        ("events", counts["events"], False),
        ("broker failures", counts["failures"], False),
        ("elections", counts["elections"], False),
        ("unclean elections", counts["unclean"], True),
        ("partitions that lost their leader", counts["affected"], False),
        ("without a leader at the end", counts["without_leader"], True),
        ("gaps in the history", len(facts.gaps), True),
    ]
    return cards((name, f"{value:,}", is_bad and value > 0) for name, value, is_bad in numbers)


def _gaps(facts: ReportFacts) -> str:
    sentences = [gap_sentence(gap) for gap in facts.gaps]
    more = len(sentences) - _GAPS_SHOWN
    if more > 0:
        sentences = [*sentences[:_GAPS_SHOWN], f"And {more:,} more, in the table gaps."]
    return note(
        "Something is missing from this history; what happened there is on this page only as far "
        "as later events show it.",
        sentences,
    )


def _timeline(facts: ReportFacts) -> str:
    caption = "A cross is a failure, a stroke a controlled shutdown."
    if facts.brokers_left_out:
        caption += f" {facts.brokers_left_out} brokers that came and went less are left out."
    names = "Numbers in the first row are the ids of the controllers."
    return section(
        "Controllers and brokers", picture(timeline_picture(facts), f"{names} {caption}")
    )


def _availability(facts: ReportFacts) -> str:
    if not any(topic["seconds"] > 0 for topic in facts.topics):
        return section(
            "Availability by topic", paragraph("Every known partition had a leader all the time.")
        )
    listed = table(
        facts.topics,
        {
            "topic": lambda t: t["topic"],
            "#available": lambda t: percent(t["availability"]),
            "#without leader": lambda t: duration(t["seconds"]),
            "#longest": lambda t: duration(t["longest_seconds"]),
            "#partitions affected": lambda t: f"{t['affected']:,} of {t['partitions']:,}",
            "#still": lambda t: f"{t['still_without_leader']:,}",
        },
    )
    shown = ""
    if facts.topics_in_all > len(facts.topics):
        shown = f"The {len(facts.topics)} worst of {facts.topics_in_all:,} topics. "
    caption = shown + "Of partitions that the history mentions, from the first time it does."
    return section("Availability by topic", picture(availability_picture(facts), caption) + listed)


def _elections(facts: ReportFacts) -> str:
    if not facts.elections:
        return section("Elections", paragraph("There was none."))
    caption = (
        "clean: from the ISR; unclean: from outside it, so that records may be lost; none: nobody "
        "could be elected."
    )
    return section(
        "Elections",
        picture(elections_picture(facts), caption)
        + "<h3>Leaders on each broker</h3>"
        + picture(balance_picture(facts), "Of partitions that the history mentions."),
    )


def _failovers(facts: ReportFacts) -> str:
    if not facts.failovers:
        return ""
    listed = table(
        facts.latencies,
        {
            "what": lambda row: _latency_name(row),
            "#count": lambda row: f"{row['count']:,}",
            "#median": lambda row: duration(row["p50"]),
            "#90%": lambda row: duration(row["p90"]),
            "#99%": lambda row: duration(row["p99"]),
            "#longest": lambda row: duration(row["max"]),
        },
    )
    caption = "One for each partition that lost its leader and got another."
    return section("Failover durations", picture(failovers_picture(facts), caption) + listed)


def _latency_name(row: Mapping[str, Any]) -> str:
    match row["what"]:
        case "failover":
            return "failover of a partition"
        case "takeover":
            return "taking office"
        case _:
            return f"{row['kind']} handled"


def _worst_partitions(facts: ReportFacts) -> str:
    if not facts.stories:
        return ""
    return section("Worst partitions, and their stories", "".join(map(_story, facts.stories)))


def _story(story: PartitionStory) -> str:
    items = "".join(f"<li>{_sentence(sentence)}</li>" for sentence in story.sentences)
    more = ""
    if story.left_out:
        more = (
            f'<p class="soft">{story.left_out} more sentences: '
            f"<code>klamm story {escape(story.name)}</code></p>"
        )
    return (
        f"<h3>{escape(story.name)}</h3>"
        f'<p class="soft">{duration(story.seconds)} without a leader in '
        f"{counted(story.intervals, 'interval')}; "
        f"{counted(story.changes, 'change')} of leader</p>"
        f'<ol class="story">{items}</ol>{more}'
    )


def _sentence(sentence: str) -> str:
    """A sentence of `klamm story`; its beginning, when and which event, steps back a little."""
    head, colon, text = sentence.partition(": ")
    if sentence.startswith("(") or not colon:
        return escape(sentence)
    return f"<time>{escape(head)}</time>: {escape(text)}"


def _isr(facts: ReportFacts) -> str:
    if not facts.heat:
        return section("In-sync replicas", paragraph("Every known ISR was complete all the time."))
    caption = "The partitions that lacked in-sync replicas the longest."
    body = picture(heat_picture(facts), caption)
    if facts.under_min_isr:
        body += "<h3>Under min ISR</h3>" + table(
            facts.under_min_isr,
            {
                "partition": lambda row: f"{row['topic']}-{row['partition']}",
                "#min ISR": lambda row: str(row["min_isr"]),
                "#times": lambda row: f"{row['intervals']:,}",
                "#together": lambda row: _so_far(row["seconds"]),
            },
        )
    return section("In-sync replicas", body)


def _brokers(facts: ReportFacts) -> str:
    listed = table(
        facts.flapping,
        {
            "broker": lambda row: f"{row['broker']}{' (flapping)' if row['is_flapping'] else ''}",
            "#sessions": lambda row: f"{row['sessions']:,}",
            "#failed": lambda row: f"{row['failed']:,}",
            "#shut down": lambda row: f"{row['shut_down']:,}",
            "#otherwise gone": lambda row: f"{row['otherwise_gone']:,}",
            "#shortest": lambda row: _so_far(row["shortest_seconds"]),
            "#starts in an hour": lambda row: f"{row['starts_within_window']:,}",
        },
    )
    return section("Brokers", listed)


def _reassignments(facts: ReportFacts) -> str:
    if not facts.reassignments:
        return ""
    listed = table(
        facts.reassignments,
        {
            "outcome": lambda row: row["outcome"] or "still going on",
            "#moves": lambda row: f"{row['count']:,}",
            "#longest": lambda row: _so_far(row["longest_seconds"]),
        },
    )
    return section("Reassignments", listed)


def _so_far(seconds: float | None) -> str:
    return "not over" if seconds is None else duration(seconds)


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
