"""A plan for people: what moves, why so much, and what brokers hold before and after."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from klamm.pipeline.planner.targets import TOLERANCE
from klamm.pipeline.render.page import (
    cards,
    counted,
    note,
    page,
    paragraph,
    picture,
    section,
    size,
    table,
)
from klamm.pipeline.render.pictures import (
    BLUE,
    GREEN,
    GREY,
    WIDTH_INCHES,
    add_legend,
    drawing,
    inline_svg,
)

_MEASURES: Final = ("replicas", "leaders", "bytes")
_PANEL_INCHES: Final = 1.9
#: A label for each broker as long as there is room for them.
_LABELS_MAX: Final = 30


def render_summary(summary: Mapping[str, Any]) -> str:
    """The page, from what `summarise` says."""
    return page(
        title="Reassignment plan",
        subtitle=f"{counted(summary['partitions_changed'], 'partition')} change, "
        f"{summary['partitions_reordered']:,} of them only in their preferred leader, in "
        f"{counted(summary['waves'], 'wave')}.",
        body=[
            _cards(summary),
            note("What to know about this plan", summary["notes"]),
            _movement(summary),
            _balance(summary),
            _brokers(summary),
        ],
        footer="Made by <code>klamm plan</code>; <code>summary.json</code> beside this file has "
        "the same numbers, and <code>waves/</code> the moves in portions.",
    )


def _cards(summary: Mapping[str, Any]) -> str:
    after = summary["balance"]["after"]
    spreads = [
        (f"furthest from the mean in {name}, after", f"{after[name]['max_deviation_percent']:.3g}%")
        for name in _measures(summary)
    ]
    numbers = [("replicas to be copied", f"{summary['replicas_moved']:,}")]
    if summary["bytes_moved"] is not None:
        numbers.append(("to be copied", size(summary["bytes_moved"])))
    return cards((name, value, False) for name, value in [*numbers, *spreads])


def _movement(summary: Mapping[str, Any]) -> str:
    rows = [
        {"what": what, "planned": summary[f"{what}_moved"], "least": summary[f"lower_bound_{what}"]}
        for what in ("replicas", "bytes")
        if summary[f"{what}_moved"] is not None
    ]
    listed = table(
        rows,
        {
            "": lambda row: row["what"],
            "#planned": lambda row: _amount(row["what"], row["planned"]),
            "#at least": lambda row: _amount(row["what"], row["least"]),
            "#times": lambda row: f"{row['planned'] / row['least']:.3f}" if row["least"] else "",
        },
    )
    reason = f"At least that much, because {summary['lower_bound_reason']}"
    return section("What moves", listed + paragraph(reason))


def _balance(summary: Mapping[str, Any]) -> str:
    rows = [
        {"what": name, "when": when, **summary["balance"][when][name]}
        for name in _measures(summary)
        for when in ("before", "after")
    ]
    listed = table(
        rows,
        {
            "": lambda row: f"{row['what']}, {row['when']}",
            "#least": lambda row: _amount(row["what"], row["min"]),
            "#mean": lambda row: _amount(row["what"], row["mean"]),
            "#most": lambda row: _amount(row["what"], row["max"]),
            "#furthest from the mean": lambda row: f"{row['max_deviation_percent']:.3g}%",
        },
    )
    caption = f"Each broker before and after; the band is {TOLERANCE:.0%} around the mean."
    return section("Balance", picture(balance_picture(summary), caption) + listed)


def _brokers(summary: Mapping[str, Any]) -> str:
    before, after = (summary["balance"][when]["brokers"] for when in ("before", "after"))
    rows = []
    for broker in _every_broker(summary):
        row = {"broker": broker}
        for name in _measures(summary):
            for when, held in (("before", before), ("after", after)):
                row[f"#{name} {when}"] = _amount(name, held.get(broker, {}).get(name, 0))
        rows.append(row)
    columns = {heading: itemgetter(heading) for heading in rows[0]}
    return section("Brokers", table(rows, columns))


def balance_picture(summary: Mapping[str, Any]) -> str:
    """What each broker holds before and after, one panel for each measure."""
    brokers = _every_broker(summary)
    measures = _measures(summary)
    place = np.arange(len(brokers))
    with drawing():
        figure = Figure(figsize=(WIDTH_INCHES, _PANEL_INCHES * len(measures)), layout="constrained")
        panels = figure.subplots(len(measures), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(panels, measures, strict=True):
            for when, color, width in (("before", GREY, 0.9), ("after", BLUE, 0.5)):
                held = summary["balance"][when]["brokers"]
                values = [held.get(broker, {}).get(name, 0) for broker in brokers]
                axes.bar(place, values, width=width, color=color, label=when)
            mean = summary["balance"]["after"][name]["mean"]
            axes.axhspan(mean * (1 - TOLERANCE), mean * (1 + TOLERANCE), color=GREEN, alpha=0.35)
            axes.set_ylabel(name)
            axes.grid(axis="y")
            axes.margins(x=0.01)
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.yaxis.set_major_formatter(lambda value, _, name=name: _amount(name, value))
        add_legend(panels[0], ("before", "after"))
        if len(brokers) <= _LABELS_MAX:
            panels[-1].set_xticks(place, brokers)
        else:
            step = -(-len(brokers) // _LABELS_MAX)
            panels[-1].set_xticks(place[::step], brokers[::step])
        panels[-1].set_xlabel("broker")
        return inline_svg(figure, "balance", "What brokers hold before and after")


def _measures(summary: Mapping[str, Any]) -> list[str]:
    return [name for name in _MEASURES if name in summary["balance"]["after"]]


def _every_broker(summary: Mapping[str, Any]) -> list[str]:
    before, after = (summary["balance"][when]["brokers"] for when in ("before", "after"))
    return sorted({*before, *after}, key=int)


def _amount(measure: str, value: float) -> str:
    if measure == "bytes":
        return size(value)
    return f"{value:,.1f}".removesuffix(".0")
