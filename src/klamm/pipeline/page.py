"""Pages for people: one self-contained file each, readable on a phone and on paper."""

import html
from collections.abc import Iterable, Sequence
from typing import Final

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
@media print { body { margin: 0; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A page from parts that are HTML already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers are given thousands separators."""

    def cells(tag: str, values: Sequence[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{_text(each)}</{tag}>" for each in values) + "</tr>"

    body = "\n".join(cells("td", row) for row in rows)
    return f'<div class="wide"><table>{cells("th", headings)}\n{body}</table></div>'


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else html.escape(str(value))
