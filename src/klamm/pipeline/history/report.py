"""The report on a history: one HTML page, made from the tables.

The file is self-contained: it loads no script, font, picture or style.
"""

from collections.abc import Mapping
from datetime import datetime
from html import escape
from typing import Any, Final

from klamm.names import counted
from klamm.pipeline.history.report_facts import PartitionStory, ReportFacts, gap_sentence
from klamm.pipeline.history.report_pictures import (
    availability_picture,
    balance_picture,
    elections_picture,
    failovers_picture,
    heat_picture,
    timeline_picture,
)
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.render.page import (
    cards,
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
#: A histogram with fewer bars is not drawn.
_BARS_MIN: Final = 4


def write_report(facts: ReportFacts, out: Location) -> None:
    """Write report.html; a browser sees the old page or the new one, never a part."""
    (out / REPORT).replace(render(facts).encode())


def render(facts: ReportFacts) -> str:
    """The whole page."""
    sections = [
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
        subtitle=verdict(facts),
        facts={
            "Cluster": facts.origin.cluster_id or "unknown: its nodes did not record it",
            "From": facts.origin.address,
            "Time": f"{_moment(facts.since)} to {_moment(facts.until)} UTC, "
            f"{duration((facts.until - facts.since).total_seconds())}",
        },
        body=[_cards(facts), _quarantine(facts), _gaps(facts), *sections],
        footer="Made by <code>klamm history</code> from what the controllers recorded; the tables "
        "beside this file have all of it.",
    )


def verdict(facts: ReportFacts) -> str:
    """The first sentence of the page."""
    counts = facts.counts
    without, affected = counts["without_leader"], counts["affected"]
    if without:
        sentence = f"{counted(without, 'partition')} {'has' if without == 1 else 'have'} no leader"
    elif affected:
        sentence = (
            f"Every partition has a leader; {counted(affected, 'partition')} of "
            f"{counted(counts['topics_affected'], 'topic')} had none for a time"
        )
    else:
        sentence = "Every partition had a leader all the time"
    if affected:
        noticing, electing = (
            facts.outage[name] for name in ("noticing_seconds", "electing_seconds")
        )
        sentence += (
            f", {duration(facts.outage['longest_seconds'])} at the longest and "
            f"{duration(noticing + electing)} together: {duration(noticing)} until it was noticed, "
            f"{duration(electing)} until a leader was announced"
        )
    if counts["unclean"]:
        sentence += f". {counted(counts['unclean'], 'unclean election')} may have lost records"
    return f"{sentence}."


def _cards(facts: ReportFacts) -> str:
    counts = facts.counts
    numbers = [
        ("controller terms", counts["terms"], False),
        ("events", counts["events"], False),
        ("broker failures", counts["failures"], False),
        ("elections", counts["elections"], False),
        ("unclean elections", counts["unclean"], True),
        ("partitions that lost their leader", counts["affected"], False),
        ("without a leader at the end", counts["without_leader"], True),
        ("gaps in the history", counts["gaps"], True),
    ]
    return cards((name, f"{value:,}", is_bad and value > 0) for name, value, is_bad in numbers)


def _quarantine(facts: ReportFacts) -> str:
    count = facts.counts["quarantined"]
    if not count:
        return ""
    what = "message was" if count == 1 else "messages were"
    return note(
        f"{count:,} {what} no history and {'is' if count == 1 else 'are'} left out.",
        ["The table quarantine has them, with the reason for each."],
    )


def _gaps(facts: ReportFacts) -> str:
    sentences = [gap_sentence(gap) for gap in facts.gaps]
    more = facts.counts["gaps"] - _GAPS_SHOWN
    if more > 0:
        sentences = [*sentences[:_GAPS_SHOWN], f"And {more:,} more, in the table gaps."]
    return note(
        "Something is missing from this history; what happened there is on this page only as far "
        "as later events show it.",
        sentences,
    )


def _timeline(facts: ReportFacts) -> str:
    caption = (
        "A broker has the same colour everywhere. A cross is a failure, a stroke a controlled "
        "shutdown."
    )
    if facts.brokers_left_out:
        left_out = counted(facts.brokers_left_out, "broker")
        caption += f" Brokers that came and went less are left out: {left_out}."
    names = "Numbers in the first row are the ids of the controllers."
    hidden = facts.counts["terms"] - len(facts.terms)
    if hidden > 0:
        names += f" Left out: {counted(hidden, 'earlier term')}."
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
            "#until noticed": lambda t: duration(t["noticing_seconds"]),
            "#until elected": lambda t: duration(t["electing_seconds"]),
            "#longest": lambda t: duration(t["longest_seconds"]),
            "#partitions affected": lambda t: f"{t['affected']:,} of {t['partitions']:,}",
            "#still": lambda t: f"{t['still_without_leader']:,}",
        },
    )
    shown = ""
    if facts.counts["topics"] > len(facts.topics):
        shown = f"The {len(facts.topics)} worst of {facts.counts['topics']:,} topics. "
    caption = shown + (
        "A partition counts as without a leader from when its leader was last known to be alive: "
        "its broker's last sign of life, at most a ZooKeeper session timeout before the loss was "
        "noticed. Of partitions that the history mentions, from the first time it does."
    )
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
    shown = [
        row for row in facts.latencies if row["what"] == "failover" or row["measure"] == "total"
    ]
    listed = table(
        shown,
        {
            "what": lambda row: _latency_name(row),
            "#count": lambda row: f"{row['count']:,}",
            "#median": lambda row: duration(row["p50"]),
            "#90%": lambda row: duration(row["p90"]),
            "#99%": lambda row: duration(row["p99"]),
            "#longest": lambda row: duration(row["max"]),
        },
    )
    drawn = ""
    # A histogram of two or three values says less than the table.
    if len(facts.failovers) >= _BARS_MIN:
        caption = "One for each partition that lost its leader and got another."
        drawn = picture(failovers_picture(facts), caption)
    return section("Failover durations", drawn + listed)


def _latency_name(row: Mapping[str, Any]) -> str:
    match row["what"]:
        case "failover" if row["measure"] == "noticing":
            return "failover: until noticed"
        case "failover" if row["measure"] == "electing":
            return "failover: until elected"
        case "failover":
            return "failover of a partition"
        case "takeover":
            return "failover of the controller"
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
                "partition": lambda row: row["name"],
                "#min ISR": lambda row: str(row["min_isr"]),
                "#times": lambda row: f"{row['intervals']:,}",
                "#together": lambda row: "not over" if row["is_open"] else duration(row["seconds"]),
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
            "#longest": lambda row: duration(row["longest_seconds"]),
        },
    )
    return section("Reassignments", listed)


def _so_far(seconds: float | None) -> str:
    return "not over" if seconds is None else duration(seconds)


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
