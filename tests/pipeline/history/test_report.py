"""The report: one file, which needs nothing from anywhere."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from klamm.pipeline.history.report import render, verdict
from klamm.pipeline.history.report_facts import gap_sentence, is_failure
from tests.pipeline.history.conftest import Told
from tests.pipeline.history.night import START
from tests.pipeline.pages import Page, network_references

#: The first test of a run pays for Spark's start and for all tables.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def html(told: Told) -> str:
    return (told.out / "report.html").read_text(encoding="utf-8")


def test_it_refers_to_nothing_on_the_network(html: str):
    assert network_references(html) == []


def test_all_pictures_and_sections_are_there(html: str):
    page = Page(html)
    labels = {a["aria-label"] for tag, a in page.elements if tag == "svg"}
    assert labels == {
        "Controllers and brokers over time",
        "Time without a leader by topic",
        "Elections by kind over time",
        "Leaders on each broker over time",
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
    for series in heat.values():
        series.widen(5 * 10**6)
    assert set(heat) == {"audit-0", "bulk-0", "orders-0", "orders-1", "orders-2"}
    lacking = [at / 1e6 - START for at, missing in heat["orders-2"].items() if missing]
    width_s = heat["orders-2"].width_us / 1e6
    # 60 to 95 seconds after the beginning, and 206 to 242.
    assert all(60 - width_s <= at <= 95 or 206 - width_s <= at <= 242 for at in lacking)
    assert min(lacking) <= 60
    assert max(lacking) > 242 - width_s


def test_the_first_sentence_is_the_verdict(told: Told, html: str):
    assert verdict(told.facts) == (
        "Every partition has a leader; 2 partitions of 2 topics had none for a time, 48 s at the "
        "longest and 66 s together: 36 s until it was noticed, 30 s until a leader was announced."
    )
    assert verdict(told.facts) in html


def test_failures_on_the_card_are_the_crosses_of_the_picture(told: Told):
    assert told.facts.counts["failures"] == sum(map(is_failure, told.facts.sessions)) == 5


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
        told.facts, topics=[], elections={}, failovers=[], stories=[], heat=[], balance={}
    )
    assert "There was none." in render(quiet)
