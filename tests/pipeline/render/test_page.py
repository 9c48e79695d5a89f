"""The parts of pages, and what finds a reference to the network in one."""

import pytest

from klamm.pipeline.render.page import duration, note, page, percent, size, table
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
