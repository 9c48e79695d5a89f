"""What the pages show while the cluster changes."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.browser.conftest import OUT, Console, start_klamm
from tests.support.chromium import Page

#: A partition of the page as its attributes say it is.
SHOWN = """
Object.fromEntries([...document.querySelectorAll("[data-partition]")].map((each) => [
  each.dataset.partition, [each.dataset.leader, each.dataset.isr, each.dataset.replicas]]))
"""


def test_partitions_are_as_the_cluster_says(page: Page, console: Console):
    page.go(console.base + "/")
    page.wait("document.querySelector('[data-partition]')")
    expected = {
        f"{each['topic']}-{each['partition']}": [
            str(each["leader"]),
            ",".join(map(str, each["isr"])),
            ",".join(map(str, each["replicas"])),
        ]
        for each in console.get("/api/partitions")
    }
    assert page.evaluate(SHOWN) == expected
    controller = console.get("/api/cluster")["controller"]
    selector = f'[data-broker="{controller}"][data-controller="true"][data-state="live"]'
    assert page.evaluate(f"!!document.querySelector({selector!r})")


def test_a_broker_is_killed_while_one_watches(page: Page, console: Console):
    page.go(console.base + "/")
    page.wait("document.querySelector('#health')?.innerText.startsWith('All ')")
    page.wait("document.querySelector('[data-event]')")
    victim = next(
        broker["id"]
        for broker in console.get("/api/cluster")["brokers"]
        if not broker["controller"]
    )
    try:
        console.post("/api/lessons/act", {"do": "kill", "broker": victim})
        page.wait(f"document.querySelector('[data-broker=\"{victim}\"][data-state=down]')")
        health = page.text("#health")
        assert f"because broker {victim} is down" in health
        page.screenshot(OUT / "console-now-failure.png")
        assert page.wait(
            f"[...document.querySelectorAll('[data-event]')].find((e) => "
            f"e.innerText.includes('Broker {victim} disappeared'))?.dataset.event"
        )
        assert page.evaluate(f"!document.querySelector('[data-leader=\"{victim}\"]')")
    finally:
        console.heal()
    page.wait("document.querySelector('#health').innerText.startsWith('All ')")
    page.wait(f"document.querySelector('[data-broker=\"{victim}\"][data-state=live]')")


def test_a_decision_is_on_the_page_within_half_a_second(page: Page, console: Console):
    page.go(console.base + "/")
    page.wait("document.querySelector('[data-event]')")
    page.evaluate(
        "window.seen = {}; new MutationObserver(() => { for (const e of "
        "document.querySelectorAll('[data-event]')) window.seen[e.dataset.event] ??= Date.now(); })"
        ".observe(document.body, {childList: true, subtree: true}); 0"
    )
    body = {"topic": "quick", "partitions": 1, "replication_factor": 3}
    console.post("/api/topics/create", body)
    created = page.wait(
        "[...document.querySelectorAll('[data-event]')].find((e) => "
        "e.innerText.includes('opic quick was created'))?.dataset.event"
    )
    seen_ms = page.evaluate(f"window.seen[{created!r}]")
    event = console.get(f"/api/history/{created}")
    decided_ms = _milliseconds(event["at"]) + event["total_us"] / 1000
    assert seen_ms - decided_ms < 500


def _milliseconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000


@pytest.mark.timeout(400)
def test_time_travel_is_what_the_tables_of_the_history_say(page: Page, console: Console):
    page.go(console.base + "/time")
    page.wait("document.querySelector('#moment[data-shown=yes]')")
    past = console.get("/api/history")
    # The tables are made afterwards, so that they have every event that is compared.
    spools = sorted(str(path) for path in console.data_dir.glob("*/log-history"))
    out = console.data_dir / "tables"
    console.klamm("history", "--out", str(out), "--json", "--spool", *spools)
    timeline = pq.read_table(out / "timeline").to_pylist()
    positions = [n for n, count in enumerate(past["decisions"]) if count]
    assert len(positions) >= 5
    for position in positions[:: max(1, len(positions) // 8)]:
        key = (past["epoch"][position], past["seq"][position])
        page.fill("#position", str(position))
        page.wait(
            f"(() => {{ const m = document.querySelector('#moment'); return m.dataset.seq === "
            f"'{key[1]}' && m.dataset.epoch === '{key[0]}' && m.dataset.shown === 'yes'; }})()"
        )
        happened = datetime.fromisoformat(console.get(f"/api/history/{key[0]}:{key[1]}")["at"])
        latest: dict[str, dict[str, Any]] = {}
        for row in sorted(timeline, key=_event):
            if _event(row) <= key:
                latest[f"{row['topic']}-{row['partition']}"] = row
        expected = {
            name: [str(max(row["leader"], -1)), ",".join(map(str, row["isr"]))]
            for name, row in latest.items()
            if not (row["topic_ended"] and row["until"] <= happened)
        }
        shown = {name: state[:2] for name, state in page.evaluate(SHOWN).items()}
        assert shown == expected


def _event(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["controller_epoch"], row["seq"]


@pytest.mark.timeout(400)
def test_what_if_answers_as_the_command_does(page: Page, console: Console):
    # With preferred leaders everywhere, no rebalancing changes them between the two answers.
    console.heal()
    console.klamm("elect", "preferred", "--all")
    page.go(console.base + "/whatif")
    for broker in (1, 2):
        page.click(f'[data-broker="{broker}"]')
    page.wait("document.querySelector('#answer[data-scenario=\"brokers:1,2\"]')")
    folder = console.data_dir
    server = ("--bootstrap-server", console.bootstrap_servers)
    console.klamm("snapshot", *server, "--out", str(folder / "snapshot"))
    said = console.klamm(
        *("whatif", "--snapshot", str(folder / "snapshot"), "--set", "brokers:1,2", "--json"),
        *("--out", str(folder / "whatif")),
    )
    (row,) = json.loads(said)
    answer = console.post("/api/whatif", {"brokers": [1, 2]})
    assert {name: answer[name] for name in row if name != "rank"} == {
        name: value for name, value in row.items() if name != "rank"
    }


def test_a_page_connects_again_after_the_console_was_restarted(
    tab: Page, console: Console, tmp_path
):
    def start(port: int):
        return start_klamm(
            *("console", "--bootstrap-server", console.bootstrap_servers, "--json"),
            *("--port", str(port), "--allow-changes", "--state-dir", str(tmp_path / "state")),
            log=tmp_path / "console.log",
        )

    process = start(0)
    try:
        url = process.ready["url"]
        tab.go(url)
        tab.wait("document.querySelector('[data-event]')")
        process.end()
        tab.wait("document.querySelector('[role=alert]')")
        process = start(int(url.split(":")[2].partition("/")[0]))
        tab.wait("!document.querySelector('[role=alert]')")
        body = {"topic": "after", "partitions": 1, "replication_factor": 1}
        console.post("/api/topics/create", body)
        tab.wait("document.querySelector('[data-partition=\"after-0\"]')")
        tab.wait("document.querySelector('#decisions').innerText.includes('after')")
        events = tab.evaluate(
            "[...document.querySelectorAll('[data-event]')].map((e) => e.dataset.event)"
        )
        assert len(events) == len(set(events))
    finally:
        process.end()
        tab.go("about:blank")
        tab.complaints.clear()
