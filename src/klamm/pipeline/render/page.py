"""HTML pages: one self-contained file each, for screens, phones and paper.

No script, no font, no picture and no style comes from elsewhere. What is called a body or a picture
here is HTML already, and so is what `Html` marks; all other text is escaped.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

#: Fewer sections than this need no contents.
_CONTENTS_MIN: Final = 3
_HEADINGS: Final = re.compile(r'<section id="([^"]+)"><h2>(.*?)</h2>')
#: Colours of brokers, in which white text can be read: a broker has the same one everywhere.
_BROKER_COLORS: Final = (
    *("#0072b2", "#b35900", "#007a5a", "#a8231b", "#8a4f9e", "#5c6b00", "#00708a", "#a13670"),
    *("#4f5fb3", "#6b5344", "#3d7317", "#6d6875"),
)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


#: Heading: the function that gives the cell of a row. A heading with # has numbers.
Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]


def page(
    *,
    title: str,
    subtitle: str,
    body: Iterable[str],
    footer: str,
    facts: Mapping[str, str] | None = None,
) -> str:
    """A page around the parts of its body; the footer is HTML as well.

    The subtitle is the verdict, in a sentence. `facts` say what it is about: the cluster, its
    address, the time. Sections are listed at the top if there are several.
    """
    parts = "\n".join(part for part in body if part)
    return Template(_read("page.html")).substitute(
        design=design(),
        title=escape(title),
        subtitle=escape(subtitle),
        facts=_facts(facts or {}),
        contents=_contents(parts),
        body=parts,
        footer=footer,
    )


def _facts(facts: Mapping[str, str]) -> str:
    items = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f'<dl class="facts">{"".join(items)}</dl>' if facts else ""


def _contents(body: str) -> str:
    found = _HEADINGS.findall(body)
    if len(found) < _CONTENTS_MIN:
        return ""
    items = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading in found)
    return f'<nav class="contents" aria-label="Contents"><ul>{items}</ul></nav>'


def broker_color(broker: int) -> str:
    """The colour of a broker, in every picture and table."""
    return _BROKER_COLORS[broker % len(_BROKER_COLORS)]


def broker_chip(broker: int, mark: str = "") -> Html:
    """A broker in its colour; `mark` has classes: `new`, `gone` (replicas), `fresh` (brokers)."""
    return Html(
        f'<span class="broker {mark}" style="--broker: {broker_color(broker)}">{broker}</span>'
    )


def design() -> str:
    """The style that all pages of klamm share, those of the console included."""
    return _read("design.css")


def _read(name: str) -> str:
    return files("klamm.pipeline.render").joinpath(name).read_text(encoding="utf-8")


def cards(entries: Iterable[tuple[str, str, bool]]) -> str:
    """The key numbers at the top of a page: name, value, and whether it is bad."""
    items = (
        f'<li class="{"bad" if is_bad else "good"}"><b>{escape(value)}</b>'
        f"<span>{escape(name)}</span></li>"
        for name, value, is_bad in entries
    )
    return f'<ul class="cards">{"".join(items)}</ul>'


def section(heading: str, body: str) -> str:
    """A section with a heading and its parts."""
    name = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"
    return f'<section id="{name}"><h2>{escape(heading)}</h2>{body}</section>'


def details(summary: str, body: str, *, is_open: bool = False) -> str:
    """A part that readers open if they want to."""
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{_escaped(summary)}</summary>{body}</details>"


def command(line: str) -> str:
    """A command line to copy."""
    return f'<pre class="command"><code>{escape(line)}</code></pre>'


def paragraph(text: str) -> str:
    """A paragraph of escaped text."""
    return f"<p>{escape(text)}</p>"


def note(heading: str, sentences: Sequence[str]) -> str:
    """A highlighted note; empty if there are no sentences."""
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="note"><b>{escape(heading)}</b><ul>{items}</ul></div>'


def picture(svg: str, caption: str) -> str:
    """A picture with its caption."""
    return f"<figure>{_wide(svg)}<figcaption>{escape(caption)}</figcaption></figure>"


def table(rows: Iterable[Mapping[str, Any]], columns: Columns) -> str:
    """A table with a heading for each column."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="{"n" if heading.startswith("#") else "t"}">{_escaped(text)}</{tag}>'
            for heading, text in zip(columns, texts, strict=True)
        )

    head = cells("th", [heading.removeprefix("#") for heading in columns])
    lines = (f"<tr>{cells('td', [show(row) for show in columns.values()])}</tr>" for row in rows)
    return _wide(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>")


def _escaped(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)


def duration(seconds: float) -> str:
    """A time for people: 3 ms, 1.5 s, 12 min."""
    if seconds == 0:
        return "0 s"
    for limit, size, unit in (
        (1e-3, 1e-6, "µs"),
        (1.0, 1e-3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 60.0, "min"),
        (172_800.0, 3600.0, "h"),
    ):
        if seconds < limit * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} d"


def percent(share: float) -> str:
    """A share as a percentage; only a full share is shown as 100%."""
    if share >= 1:
        return "100%"
    digits = next((n for n in (1, 2, 3, 4) if round(share * 100, n) < 100), None)
    return "> 99.9999%" if digits is None else f"{share * 100:.{digits}f}%"


def size(count: float) -> str:
    """A number of bytes for people, in powers of 1000 as disks are sold: 3 B, 1.5 GB."""
    for limit, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB"), (1e12, "GB"), (1e15, "TB")):
        if count < limit * 0.9995:
            return f"{count / limit * 1000:.3g} {unit}"
    return f"{count / 1e15:,.3g} PB"


def _wide(content: str) -> str:
    """Content that scrolls sideways on a narrow screen."""
    return f'<div class="wide">{content}</div>'
