"""The report: one file, which needs nothing from anywhere."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from klamm.pipeline.report import render
from klamm.pipeline.report_facts import gap_sentence
from klamm.pipeline.report_pictures import duration, percent
from tests.pipeline.history.conftest import Told

#: The first test of a run pays for Spark's start and for all tables.
pytestmark = pytest.mark.timeout(600)

#: Attributes that make a browser fetch something, unless they point into the page.
_FETCHING = {"src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"}
_VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """A page as a list of elements; complains about elements that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def network_references(text: str) -> list[str]:
    """Whatever would make a browser ask somebody else."""
    page = Page(text)
    found = [
        f"<{tag} {name}={value}>"
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in _FETCHING and not value.startswith(("#", "data:"))
    ]
    found += [f"<{tag}>" for tag, _ in page.elements if tag in ("script", "iframe", "object")]
    found += re.findall(r"@import[^;]*|url\((?!['\"]?(?:#|data:))[^)]*\)|\w+://\S*", text)
    return found


@pytest.fixture(scope="module")
def html(told: Told) -> str:
    return (told.out / "report.html").read_text(encoding="utf-8")


def test_it_refers_to_nothing_on_the_network(html: str):
    assert network_references(html) == []


@pytest.mark.parametrize(
    "text",
    [
        '<img src="//example.com/x.png">',
        '<p style="background: url(x.png)">x</p>',
        "<script>x</script>",
        "<style>@import 'x.css';</style>",
    ],
)
def test_a_reference_to_the_network_would_be_found(text: str):
    assert network_references(text)


def test_all_pictures_and_sections_are_there(html: str):
    page = Page(html)
    labels = {a["aria-label"] for tag, a in page.elements if tag == "svg"}
    assert labels == {
        "Controllers and brokers over time",
        "Time without a leader by topic",
        "Elections by kind over time",
        "Leaders on each broker over time",
        "Failover durations",
        "In-sync replicas missing, by partition over time",
    }
    ids = Counter(a["id"] for _, a in page.elements if "id" in a)
    assert set(ids.values()) == {1}
    targets = set(re.findall(r'(?:href="|url\()#([^")]+)', html))
    assert targets <= set(ids)


def test_it_fits_a_phone_and_a_printer(html: str):
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in Page(
        html
    ).elements
    assert "@media print" in html


def test_the_worst_partition_tells_its_story(told: Told, html: str):
    assert [story.name for story in told.facts.stories][:2] == ["audit-0", "orders-1"]
    lost = told.facts.stories[0].sentences[2]
    assert lost.endswith(
        "broker 2 disappeared; a replica of audit-0 went offline: no leader (was 2), leader epoch "
        "1, ISR 2; nobody could be elected for audit-0, it has no leader (was 2): ISR 2 of "
        "replicas 2."
    )
    assert "nobody could be elected for audit-0" in html


def test_the_heat_map_shows_when_replicas_were_missing(told: Told):
    heat = {row.name: row.missing for row in told.facts.heat}
    assert set(heat) == {"audit-0", "bulk-0", "orders-0", "orders-1", "orders-2"}
    # 60 to 95 seconds of 301, in 60 buckets; and 206 to 242.
    assert [k for k, missing in enumerate(heat["orders-2"]) if missing] == [
        *range(11, 19),
        *range(41, 49),
    ]


def test_what_is_named_by_users_is_escaped(told: Told):
    bad = [{**told.facts.topics[0], "topic": "<script>alert(1)</script>"}]
    assert network_references(render(replace(told.facts, topics=bad))) == []


def test_gaps_are_named_with_their_sequences(told: Told):
    gap = {"controller_epoch": 3, "first_seq": 4, "last_seq": 9, "missing": "events"}
    assert gap_sentence(gap) == "Events 4 to 9 of controller epoch 3 are missing."
    assert gap_sentence({**gap, "last_seq": None}) == "Nothing is known of controller epoch 3."
    assert gap_sentence({**gap, "last_seq": 4, "missing": "parts"}) == (
        "Event 4 of controller epoch 3 is there only in part."
    )
    assert "Events 4 to 9" in render(replace(told.facts, gaps=[gap]))


def test_a_quiet_history_makes_a_page_too(told: Told):
    quiet = replace(
        told.facts, topics=[], elections=[], failovers=[], stories=[], heat=[], balance=[]
    )
    assert "There was none." in render(quiet)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (2e-5, "20 µs"), (0.0131, "13.1 ms"), (1, "1 s"), (90, "90 s"), (600, "10 min")],
)
def test_durations_are_for_people(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100%"), (0.9, "90.0%"), (0.99999, "99.999%"), (1 - 1e-9, "> 99.9999%")],
)
def test_what_is_not_whole_is_not_rounded_up(share: float, text: str):
    assert percent(share) == text
