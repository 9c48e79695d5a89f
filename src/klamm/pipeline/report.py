"""The report: one page that a person looks at, from the tables of a history.

One file with everything in it: no script, no font, no picture and no style comes from elsewhere.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from pyspark.sql import DataFrame

from klamm.pipeline.report_facts import Facts, Story, gap_sentence, gather
from klamm.pipeline.report_pictures import (
    availability_picture,
    balance_picture,
    duration,
    elections_picture,
    failovers_picture,
    heat_picture,
    percent,
    timeline_picture,
)

#: Heading: what stands under it for one row. Headings that begin with # are of numbers.
Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]

REPORT: Final = "report.html"
_TITLE: Final = "What the controllers did"
_GAPS_SHOWN: Final = 20


def write_report(records: DataFrame, tables: Mapping[str, DataFrame], out: Path) -> Facts:
    """Write `out`/report.html from the records and their tables; returns what it tells."""
    facts = gather(records, tables)
    # Renamed into place, so that a browser that looks meanwhile sees the old page or the new one.
    path = out / REPORT
    fresh = path.with_suffix(".part")
    fresh.write_text(render(facts), encoding="utf-8")
    fresh.replace(path)
    return facts


def render(facts: Facts) -> str:
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
        body="\n".join(section for section in sections if section),
        footer="Made by <code>klamm history</code> from what the controllers recorded; the tables "
        "beside this file have all of it.",
    )


def page(*, title: str, subtitle: str, body: str, footer: str) -> str:
    """A page around a body; body and footer are HTML already."""
    template = files("klamm.pipeline").joinpath("report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=escape(title), subtitle=escape(subtitle), body=body, footer=footer
    )


def _cards(facts: Facts) -> str:
    counts = facts.counts
    cards = [
        ("terms of office", len(facts.terms), False),
        ("events", counts["events"], False),
        ("broker failures", counts["failures"], False),
        ("elections", counts["elections"], False),
        ("unclean elections", counts["unclean"], counts["unclean"] > 0),
        ("partitions that lost their leader", counts["affected"], False),
        ("without a leader at the end", counts["without_leader"], counts["without_leader"] > 0),
        ("gaps in the history", len(facts.gaps), bool(facts.gaps)),
    ]
    return (
        '<ul class="cards">'
        + "".join(
            f'<li class="{"bad" if is_bad else "good"}"><b>{value:,}</b><span>{name}</span></li>'
            for name, value, is_bad in cards
        )
        + "</ul>"
    )


def _gaps(facts: Facts) -> str:
    if not facts.gaps:
        return ""
    sentences = [gap_sentence(gap) for gap in facts.gaps]
    more = len(sentences) - _GAPS_SHOWN
    if more > 0:
        sentences = [*sentences[:_GAPS_SHOWN], f"And {more} more, in the table gaps."]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return (
        '<div class="note"><b>Something is missing from this history.</b> What happened in these '
        f"gaps is on this page only as far as later events show it.<ul>{items}</ul></div>"
    )


def _timeline(facts: Facts) -> str:
    caption = "A cross is a failure, a stroke a controlled shutdown."
    if facts.brokers_left_out:
        caption += f" {facts.brokers_left_out} brokers that came and went less are left out."
    names = "Numbers in the first row are the ids of the controllers."
    return _section(
        "Controllers and brokers", _picture(timeline_picture(facts), f"{names} {caption}")
    )


def _availability(facts: Facts) -> str:
    if not any(topic["seconds"] > 0 for topic in facts.topics):
        return _section(
            "Availability by topic", "<p>Every known partition had a leader all the time.</p>"
        )
    table = _table(
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
    return _section(
        "Availability by topic", _picture(availability_picture(facts), caption) + _wide(table)
    )


def _elections(facts: Facts) -> str:
    if not facts.elections:
        return _section("Elections", "<p>There was none.</p>")
    caption = (
        "clean: from the ISR; unclean: from outside it, so that records may be lost; none: nobody "
        "could be elected."
    )
    return _section(
        "Elections",
        _picture(elections_picture(facts), caption)
        + "<h3>Leaders on each broker</h3>"
        + _picture(balance_picture(facts), "Of partitions that the history mentions."),
    )


def _failovers(facts: Facts) -> str:
    if not facts.failovers:
        return ""
    table = _table(
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
    return _section(
        "Failover durations", _picture(failovers_picture(facts), caption) + _wide(table)
    )


def _latency_name(row: Mapping[str, Any]) -> str:
    match row["what"]:
        case "failover":
            return "failover of a partition"
        case "takeover":
            return "taking office"
        case _:
            return f"{row['kind']} handled"


def _worst_partitions(facts: Facts) -> str:
    if not facts.stories:
        return ""
    return _section("Worst partitions, and their stories", "".join(map(_story, facts.stories)))


def _story(story: Story) -> str:
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
        f"{_counted(story.intervals, 'interval')}; "
        f"{_counted(story.changes, 'change')} of leader</p>"
        f'<ol class="story">{items}</ol>{more}'
    )


def _sentence(sentence: str) -> str:
    """A sentence of `klamm story`; its beginning, when and which event, steps back a little."""
    head, colon, text = sentence.partition(": ")
    if sentence.startswith("(") or not colon:
        return escape(sentence)
    return f"<time>{escape(head)}</time>: {escape(text)}"


def _isr(facts: Facts) -> str:
    if not facts.heat:
        return _section("In-sync replicas", "<p>Every known ISR was complete all the time.</p>")
    caption = "The partitions that lacked in-sync replicas the longest."
    body = _picture(heat_picture(facts), caption)
    if facts.under_min_isr:
        body += "<h3>Under min ISR</h3>" + _wide(
            _table(
                facts.under_min_isr,
                {
                    "partition": lambda row: f"{row['topic']}-{row['partition']}",
                    "#min ISR": lambda row: str(row["min_isr"]),
                    "#times": lambda row: f"{row['intervals']:,}",
                    "#together": lambda row: _so_far(row["seconds"]),
                },
            )
        )
    return _section("In-sync replicas", body)


def _brokers(facts: Facts) -> str:
    table = _table(
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
    return _section("Brokers", _wide(table))


def _reassignments(facts: Facts) -> str:
    if not facts.reassignments:
        return ""
    table = _table(
        facts.reassignments,
        {
            "outcome": lambda row: row["outcome"] or "still going on",
            "#moves": lambda row: f"{row['count']:,}",
            "#longest": lambda row: _so_far(row["longest_seconds"]),
        },
    )
    return _section("Reassignments", _wide(table))


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{body}</section>"


def _picture(svg: str, caption: str) -> str:
    return f"<figure>{_wide(svg)}<figcaption>{escape(caption)}</figcaption></figure>"


def _wide(content: str) -> str:
    """What may be wider than a phone, and is moved sideways there."""
    return f'<div class="wide">{content}</div>'


def _table(rows: Iterable[Mapping[str, Any]], columns: Columns) -> str:
    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="{"n" if heading.startswith("#") else "t"}">{escape(text)}</{tag}>'
            for heading, text in zip(columns, texts, strict=True)
        )

    head = cells("th", [heading.removeprefix("#") for heading in columns])
    lines = (f"<tr>{cells('td', [show(row) for show in columns.values()])}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _so_far(seconds: float | None) -> str:
    return "not over" if seconds is None else duration(seconds)


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
