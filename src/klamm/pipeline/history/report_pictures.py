"""The pictures of a history's report."""

from datetime import datetime, timedelta
from typing import Final

from matplotlib import dates as mdates
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.ticker import MaxNLocator

from klamm.pipeline.history.report_facts import BUCKETS, ReportFacts
from klamm.pipeline.render.page import duration, percent
from klamm.pipeline.render.pictures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    add_legend,
    drawing,
    inline_svg,
    make_figure,
    short,
)

#: What is left free on either side of a logarithmic scale, as a factor.
_MARGIN: Final = 4
_LINES: Final = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, INK)
#: For controllers; green is the brokers'.
_TERMS: Final = (BLUE, PURPLE, ORANGE, SKY, INK)
_KINDS: Final = {
    "clean": BLUE,
    "preferred": GREEN,
    "reassignment": SKY,
    "controlled_shutdown": PURPLE,
    "unclean": ORANGE,
    "none": RED,
}
_HEAT: Final = ("#eef3f7", "#f6c566", "#e07b39", "#a61c1c")


def timeline_picture(facts: ReportFacts) -> str:
    """Who was controller, and which brokers were registered, over time."""
    brokers = sorted({each["broker"] for each in facts.sessions})
    with drawing():
        figure, axes = make_figure(rows=len(brokers) + 1)
        for term in facts.terms:
            color = _TERMS[term["controller"] % len(_TERMS)]
            _bar(axes, facts, 0, term["from"], term["until"], color)
            middle = (
                term["from"] + (min(term["until"] or facts.until, facts.until) - term["from"]) / 2
            )
            label = f"{term['controller']}"
            axes.text(_day(middle), 0, label, ha="center", va="center", color="white", fontsize=8)
        for session in facts.sessions:
            row = 1 + brokers.index(session["broker"])
            _bar(axes, facts, row, session["from"], session["until"], GREEN)
            if session["end"] in ("failed", "unseen"):
                axes.plot(_day(session["until"]), row, "x", color=RED, markersize=6, mew=2)
            elif session["end"] == "shut_down":
                axes.plot(_day(session["until"]), row, "|", color=INK, markersize=8, mew=2)
        _time_axis(axes, facts)
        axes.set_yticks(range(len(brokers) + 1), ["controller", *(f"broker {b}" for b in brokers)])
        axes.set_ylim(len(brokers) + 0.6, -0.6)
        return inline_svg(figure, "timeline", "Controllers and brokers over time")


def elections_picture(facts: ReportFacts) -> str:
    """Elections of each kind over time, one upon the other."""
    found = {each["kind"] for each in facts.elections}
    kinds = [kind for kind in _KINDS if kind in found]
    counts = {kind: [0] * BUCKETS for kind in kinds}
    for each in facts.elections:
        counts[each["kind"]][each["bucket"]] += each["count"]
    width = (facts.until - facts.since) / BUCKETS
    starts = [_day(facts.since + width * k) for k in range(BUCKETS)]
    with drawing():
        figure, axes = make_figure(inches=2.6)
        bottom = [0] * BUCKETS
        for kind in kinds:
            axes.bar(
                starts,
                counts[kind],
                width=width / timedelta(days=1),
                align="edge",
                bottom=bottom,
                color=_KINDS[kind],
                label=f"{kind.replace('_', ' ')} ({sum(counts[kind])})",
            )
            bottom = [below + count for below, count in zip(bottom, counts[kind], strict=True)]
        axes.grid(axis="y")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("elections")
        _time_axis(axes, facts)
        add_legend(axes, kinds)
        return inline_svg(figure, "elections", "Elections by kind over time")


def failovers_picture(facts: ReportFacts) -> str:
    """How long partitions were without a leader, on a logarithmic scale."""
    with drawing():
        figure, axes = make_figure(inches=2.4)
        for start, end, count in facts.failovers:
            axes.bar(start, count, width=end - start, align="edge", color=BLUE, ec="white")
        axes.set_xscale("log")
        # Some room, so that a single bar shows where it is.
        axes.set_xlim(facts.failovers[0][0] / _MARGIN, facts.failovers[-1][1] * _MARGIN)
        axes.xaxis.set_major_formatter(lambda value, _: duration(value))
        axes.minorticks_off()
        axes.grid(axis="y")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("from leader lost to leader announced")
        axes.set_ylabel("failovers")
        return inline_svg(figure, "failovers", "Failover durations")


def availability_picture(facts: ReportFacts) -> str:
    """Seconds that partitions of each topic were without a leader, the worst topics first."""
    topics = [each for each in facts.topics if each["seconds"] > 0]
    with drawing():
        figure, axes = make_figure(rows=len(topics))
        bars = axes.barh(
            range(len(topics)), [each["seconds"] for each in topics], height=0.7, color=RED
        )
        labels = [
            f"{duration(each['seconds'])}, {percent(each['availability'])}" for each in topics
        ]
        axes.bar_label(bars, labels, padding=4, fontsize=8)
        axes.set_yticks(range(len(topics)), [short(each["topic"]) for each in topics])
        axes.set_ylim(len(topics) - 0.4, -0.6)
        axes.margins(x=0.28)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: duration(value))
        axes.grid(axis="x")
        axes.set_xlabel("without a leader, all partitions together")
        return inline_svg(figure, "availability", "Time without a leader by topic")


def heat_picture(facts: ReportFacts) -> str:
    """When the ISRs of the worst partitions were incomplete, and by how many replicas."""
    worst = max(max(each.missing) for each in facts.heat)
    levels = min(worst, len(_HEAT) - 1)
    colors = ListedColormap(_HEAT[: levels + 1])
    edges = [
        _day(facts.since + (facts.until - facts.since) / BUCKETS * k) for k in range(BUCKETS + 1)
    ]
    values = [[min(count, levels) for count in each.missing] for each in facts.heat]
    with drawing():
        figure, axes = make_figure(rows=len(facts.heat))
        norm = BoundaryNorm([level - 0.5 for level in range(levels + 2)], levels + 1)
        rows = [row - 0.5 for row in range(len(facts.heat) + 1)]
        axes.pcolormesh(edges, rows, values, cmap=colors, norm=norm, edgecolors="white", lw=0.4)
        axes.set_yticks(range(len(facts.heat)), [short(each.name) for each in facts.heat])
        axes.set_ylim(len(facts.heat) - 0.5, -0.5)
        _time_axis(axes, facts)
        for level in range(levels + 1):
            text = "all in sync" if level == 0 else f"{level} missing"
            more = " or more" if level == levels < worst else ""
            axes.plot([], [], "s", color=_HEAT[level], label=text + more, mec=GREY, mew=0.5)
        add_legend(axes, _HEAT[: levels + 1])
        return inline_svg(figure, "heat", "In-sync replicas missing, by partition over time")


def balance_picture(facts: ReportFacts) -> str:
    """How many of the known partitions each broker led."""
    series: dict[int, list[tuple[float, int]]] = {}
    for row in facts.balance:
        series.setdefault(row["broker"], []).append((_day(row["at"]), row["leaders"]))
    with drawing():
        figure, axes = make_figure(inches=2.6)
        for place, (broker, points) in enumerate(sorted(series.items())):
            points = [*points, (_day(facts.until), points[-1][1])]
            axes.step(
                [at for at, _ in points],
                [leaders for _, leaders in points],
                where="post",
                color=_LINES[place % len(_LINES)],
                ls=("-", "--", ":", "-.")[place // len(_LINES) % 4],
                label=f"broker {broker}",
            )
        axes.grid(axis="y")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("partitions led")
        _time_axis(axes, facts)
        add_legend(axes, list(series))
        return inline_svg(figure, "balance", "Leaders on each broker over time")


def _bar(
    axes: Axes, facts: ReportFacts, row: int, start: datetime, end: datetime | None, color: str
) -> None:
    last = max(start, min(end or facts.until, facts.until))
    axes.broken_barh([(_day(start), _day(last) - _day(start))], (row - 0.32, 0.64), color=color)


def _time_axis(axes: Axes, facts: ReportFacts) -> None:
    locator = mdates.AutoDateLocator(minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))
    axes.set_xlim(_day(facts.since), _day(facts.until))


def _day(moment: datetime) -> float:
    days: float = mdates.date2num(moment)
    return days
