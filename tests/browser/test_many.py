"""Very many partitions and very many events: the page stays usable."""

import time
from pathlib import Path

import pytest

from klamm.core.events import AutoRebalance, TopicChange
from tests.browser.conftest import OUT, start_klamm
from tests.browser.test_pages import name_of
from tests.support.chromium import Page
from tests.support.large_cluster import large_cluster
from tests.support.recorded_controller import RecordedController

TILES = "document.querySelector('canvas.tiles')?.width > 100"
#: The pages of a console without a cluster: a page says what only brokers could tell.
OFFLINE_PAGES = {
    "/": "document.querySelector('[data-partition]')",
    "/time": "document.querySelector('#moment[data-shown=yes]')",
    "/whatif?brokers=1": "document.querySelector('#answer') && document.querySelector('#assumed')",
    "/topics": "document.querySelector('[data-topic]')",
    "/brokers": "document.querySelector('tbody tr')",
    **dict.fromkeys(
        (
            *("/moves", "/topics/audit", "/groups", "/groups/billing", "/brokers/1"),
            *("/transactions", "/transactions/loader", "/users", "/acls", "/quotas"),
        ),
        "document.querySelector('#offline')",
    ),
}
#: The longest time in which the page did nothing else, from here on.
WATCH_FREEZES = """
window.longest = 0;
(() => { let last = performance.now(); const tick = () => { const now = performance.now();
  window.longest = Math.max(window.longest, now - last); last = now; setTimeout(tick, 5); };
  tick(); })(); 0
"""


@pytest.mark.timeout(300)
def test_a_hundred_thousand_partitions_are_drawn_and_usable(tab: Page, tmp_path: Path):
    with large_cluster(1000, 100, 100) as cluster:
        process = start_klamm(
            *("console", "--bootstrap-server", cluster.bootstrap_servers, "--port", "0"),
            *("--json", f"--spool={cluster.spool}"),
            log=tmp_path / "console.log",
        )
        try:
            tab.resize(1280, 900)
            tab.go(process.ready["url"])
            tab.wait(TILES, 60)
            tab.wait("document.querySelector('#health').innerText.startsWith('All 100,000 part')")
            tab.screenshot(OUT / "console-now-100000.png")
            tab.evaluate("document.querySelector('canvas.tiles').focus()")
            tab.press("ArrowRight")
            tab.press("ArrowDown")
            assert "leader" in tab.text(".tip")
            tab.click('[data-broker="7"]')
            tab.wait("document.querySelector('[data-broker=\"7\"][aria-pressed=true]')")
            cluster.stubs.say("kill 7")
            tab.wait("document.querySelector('[data-broker=\"7\"][data-state=down]')", 60)
            tab.wait("document.querySelector('#health').innerText.includes('broker 7 is down')", 60)
            tab.screenshot(OUT / "console-now-100000-failure.png")
        finally:
            process.end()
            tab.go("about:blank")
            tab.complaints.clear()


def test_a_thousand_events_a_second_do_not_freeze_the_page(tab: Page, tmp_path: Path):
    controller = RecordedController(tmp_path / "node", (1, 2, 3))
    controller.fail_over()
    controller.create_topic("orders", {0: [1, 2, 3], 1: [2, 3, 1]})
    controller.handle(TopicChange())
    controller.history.spool.flush()
    process = start_klamm(
        *("console", "--port", "0", "--json"),
        f"--spool={controller.config.klamm_history_dir}",
        log=tmp_path / "console.log",
    )
    try:
        tab.go(process.ready["url"])
        tab.wait("document.querySelector('[data-event]')")
        tab.evaluate(WATCH_FREEZES)
        begun = time.monotonic()
        events = 0
        while time.monotonic() - begun < 3:
            for _ in range(100):
                controller.handle(AutoRebalance())
                events += 1
            pause = events / 1000 - (time.monotonic() - begun)
            if pause > 0:
                time.sleep(pause)
        controller.create_topic("last", {0: [1, 2, 3]})
        controller.handle(TopicChange())
        controller.history.spool.flush()
        tab.wait("document.querySelector('#decisions').innerText.includes('last')")
        # Events from which nothing came do not push away those from which something did.
        assert "orders" in tab.text("#decisions")
        assert events > 1000
        assert tab.evaluate("window.longest") < 1000
    finally:
        controller.history.spool.close()
        process.end()
        tab.go("about:blank")
        tab.complaints.clear()


def test_a_saved_history_opens_offline(tab: Page, tmp_path: Path):
    from tests.pipeline.history.night import night

    spools = night(tmp_path / "night").spools
    process = start_klamm(
        *("console", "--port", "0", "--json", *(f"--spool={spool}" for spool in spools)),
        log=tmp_path / "console.log",
    )
    try:
        tab.complaints.clear()
        tab.go(process.ready["url"])
        tab.wait("document.querySelector('#health')?.innerText.startsWith('At the end of this')")
        tab.go(process.ready["url"].partition("/?")[0] + "/time?at=1:1")
        tab.click("#next-failure")
        tab.wait("document.querySelector('#event')?.innerText.includes('Broker 2 disappeared')")
        tab.wait('document.querySelector(\'[data-partition="audit-0"][data-leader="-1"]\')')
        tab.screenshot(OUT / "console-time-failure.png")
        tab.click('[data-partition="audit-0"]')
        tab.wait("document.querySelector('#story').innerText.includes('audit-0')")
        base = process.ready["url"].partition("/?")[0]
        for path, is_drawn in OFFLINE_PAGES.items():
            tab.go(base + path)
            tab.wait(is_drawn)
            # Without a cluster, the command that gives the same answer reads the history.
            tab.wait("document.querySelector('.cli code')?.innerText.includes('--spool')")
            assert not tab.evaluate("!!document.querySelector('[role=alert]')")
            tab.screenshot(OUT / f"console-offline-{name_of(path)}.png")
        assert tab.complaints == []
    finally:
        process.end()
        tab.go("about:blank")
        tab.complaints.clear()
