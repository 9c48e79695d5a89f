"""The parts of pages, and what finds a reference to the network in one."""

import pytest

from klamm.pipeline.render.page import (
    broker_chip,
    duration,
    note,
    page,
    percent,
    section,
    size,
    table,
)
from tests.pipeline.pages import Page, network_references


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


def test_what_is_not_html_is_escaped():
    rows = [{"topic": "<script>x</script>"}]
    body = [table(rows, {"topic": lambda row: row["topic"]}), note("<b>", ["<iframe>"])]
    text = page(title="<i>", subtitle="a & b", body=body, footer="")
    assert network_references(text) == []
    assert "a & b" in Page(text).text


def test_sections_are_listed_and_facts_shown():
    body = [section(f"Part {number} & more", "") for number in range(3)]
    text = page(
        title="t", subtitle="All is well.", body=body, footer="", facts={"Cluster": "<abc>"}
    )
    found = Page(text)
    links = [attributes["href"] for tag, attributes in found.elements if tag == "a"]
    assert links == ["#part-0-more", "#part-1-more", "#part-2-more"]
    assert {attributes.get("id") for tag, attributes in found.elements if tag == "section"} == {
        link.removeprefix("#") for link in links
    }
    assert "<abc>" in found.text
    few = page(title="t", subtitle="", body=body[:2], footer="")
    assert "contents" not in [attributes.get("class") for _, attributes in Page(few).elements]


def test_a_broker_has_one_colour_and_cells_may_be_html():
    rows = [{"broker": 7}, {"broker": 7}]
    listed = table(rows, {"broker": lambda row: broker_chip(row["broker"], "new")})
    chips = [attributes for tag, attributes in Page(listed).elements if tag == "span"]
    assert len({chip["style"] for chip in chips}) == 1
    assert chips[0]["class"] == "broker new"


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


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB"), (7e15, "7 PB")],
)
def test_bytes_are_for_people(count: float, text: str):
    assert size(count) == text
