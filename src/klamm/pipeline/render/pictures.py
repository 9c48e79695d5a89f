"""Draws pictures as inline SVG, all in one style.

Drawn by matplotlib without its global state. Text stays text, so that it can be found and copied;
ids get a prefix, because all pictures share one page. Ink, lines and the ground become those of the
page, which differ between light and dark.
"""

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from html import escape
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_INCHES: Final = 7.2
_ROW_INCHES: Final = 0.24
#: Colours that people with any kind of colour vision tell apart (Okabe and Ito).
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, GREY, INK = "#cc79a7", "#56b4e9", "#9aa5b1", "#1f2933"
_GRID: Final = "#e4e7eb"
_GROUND: Final = "#ffffff"
#: A colour of matplotlib's, and the one of the page that takes its place.
_THEMED: Final = {
    INK: "var(--ink)",
    GREY: "var(--soft)",
    _GRID: "var(--line)",
    _GROUND: "var(--surface)",
}
_STYLE: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "klamm",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "grid.color": _GRID,
    "axes.axisbelow": True,
}


def drawing() -> AbstractContextManager[None]:
    """Apply the style while a picture is drawn and written."""
    return mpl.rc_context(_STYLE)


def make_figure(rows: int = 0, inches: float = 0.7) -> tuple[Figure, Axes]:
    """A figure of this height, plus some for each row of a list in it."""
    figure = Figure(figsize=(WIDTH_INCHES, inches + rows * _ROW_INCHES), layout="constrained")
    return figure, figure.subplots()


def add_legend(axes: Axes, entries: Sequence[Any]) -> None:
    """Add a legend to a picture."""
    if entries:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=min(len(entries), 5),
            frameon=False,
            fontsize=8,
            handlelength=1.2,
            columnspacing=1.2,
        )


def short(name: str, longest: int = 28) -> str:
    """Shorten a long name in the middle."""
    return name if len(name) <= longest else f"{name[: longest // 2]}…{name[-longest // 2 + 1 :]}"


def inline_svg(figure: Figure, name: str, title: str) -> str:
    """The figure as inline SVG: without prologue and links, with unique ids."""
    out = io.StringIO()
    nothing: dict[str, None] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", text)
    text = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text, count=1)
    for color, of_page in _THEMED.items():
        text = text.replace(color, of_page)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = text.replace('xlink:href="#', f'href="#{name}-')
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1).strip()
