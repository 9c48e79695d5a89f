"""What can be done on the pages: moves, elections, topics, records, groups, lessons."""

from tests.browser.chromium import Page
from tests.browser.conftest import Console

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


def moved(console: Console, topic: str) -> dict[int, list[int]]:
    (found,) = console.get(f"/api/topics/{topic}")
    return {each["partition"]: each["replicas"] for each in found["partitions"]}


def test_a_reassignment_runs_to_its_end(page: Page, console: Console):
    page.go(console.base + "/moves")
    page.fill("#goal", "factor")
    page.fill("#factor", "2")
    page.fill("#plan-topics", "audit")
    page.fill("#wave-moves", "1")
    page.click("#preview")
    page.wait("document.querySelector('#plan')")
    page.click("#run")
    page.click("#confirm")
    page.wait("document.querySelector('#job')?.dataset.status === 'done'")
    assert all(len(replicas) == 2 for replicas in moved(console, "audit").values())
    page.go(console.base + "/")
    told = page.wait(
        "[...document.querySelectorAll('[data-event]')].map((e) => e.innerText)"
        ".find((t) => t.includes('reassignment was asked for'))"
    )
    assert "by klamm-console/" in told


def test_a_reassignment_is_cancelled(page: Page, console: Console):
    body = {"topic": "heavy", "partitions": 4, "replication_factor": 1}
    console.post("/api/topics/create", body)
    console.klamm("produce", "heavy", input="\n".join("x" * 1000 for _ in range(20_000)))
    before = moved(console, "heavy")
    page.go(console.base + "/moves")
    page.fill("#goal", "factor")
    page.fill("#factor", "3")
    page.fill("#plan-topics", "heavy")
    page.click("#preview")
    page.wait("document.querySelector('#plan')")
    page.fill("#throttle", "0.01")
    page.click("#run")
    page.click("#confirm")
    page.wait("document.querySelector('#job')?.dataset.status === 'running'")
    page.wait("document.querySelector('[aria-label=\"Under way\"]')")
    page.click("#cancel")
    page.click("#confirm")
    page.wait("document.querySelector('#job')?.dataset.status === 'cancelled'")
    after = moved(console, "heavy")
    assert {number: replicas[:1] for number, replicas in after.items()} == before
    settings = console.get("/api/topics/heavy/settings")
    assert not any("throttled" in each["name"] and each["source"] == "topic" for each in settings)


def test_an_election_shows_its_effect_before(page: Page, console: Console):
    controller = console.get("/api/cluster")["controller"]
    victim = next(
        each["leader"]
        for each in console.get("/api/partitions")
        if each["topic"] == "orders" and each["leader"] != controller
    )
    console.post("/api/lessons/act", {"do": "kill", "broker": victim})
    console.wait("/api/partitions", lambda rows: not any(each["leader"] == victim for each in rows))
    console.heal()
    page.go(console.base + "/moves")
    page.click("#preferred")
    page.wait("document.querySelector('#effect tbody tr')")
    page.click("#elect")
    page.click("#confirm")
    console.wait(
        "/api/partitions",
        lambda rows: all(r["leader"] == r["replicas"][0] for r in rows if r["topic"] == "orders"),
    )


def test_a_topic_is_created_filled_filtered_and_deleted(page: Page, console: Console):
    page.go(console.base + "/topics")
    page.click("#create")
    page.fill("#new-topic", "letters")
    page.fill("#new-partitions", "2")
    page.click("#confirm")
    page.click("[data-topic=letters]")
    page.click("#tab-records")
    for value in ('{"n": 1}', '{"n": 2}', HOSTILE):
        page.click("#produce")
        page.fill("#record-value", value)
        page.fill("#record-key", HOSTILE)
        page.click("#confirm")
        page.wait("!document.querySelector('dialog')")
    page.wait("document.querySelectorAll('[data-record]').length === 3")
    assert HOSTILE in page.text("#records")
    page.fill("#filter", "json.n > 1")
    page.click("#read")
    page.wait("document.querySelector('#progress').innerText === '3 of 3 scanned, 1 found'")
    page.fill("#filter", "__import__('os')")
    page.click("#read")
    assert "cannot have" in page.text("[role=alert]")
    page.click("#delete")
    page.click("#confirm")
    page.wait("location.pathname === '/topics' && !document.querySelector('[data-topic=letters]')")
    assert page.evaluate("window.hacked === undefined")
    page.complaints.clear()  # the filter was refused, and the browser says so


def test_a_hostile_group_is_only_a_name(page: Page, console: Console):
    console.klamm("consume", "orders", "--group", HOSTILE, "--count", "10")
    page.go(console.base + "/groups")
    page.wait(f"document.body.innerText.includes({HOSTILE!r})")
    page.click_text(HOSTILE)
    page.wait("document.querySelector('[aria-label=Positions] tbody tr')")
    page.click("#reset")
    page.click("#dry-run")
    page.wait("document.querySelector('dialog tbody tr')")
    page.click("#confirm")
    page.wait("!document.querySelector('dialog')")
    assert page.evaluate("window.hacked === undefined")


def test_a_lesson_checks_its_own_outcome(page: Page, console: Console):
    console.heal()
    page.go(console.base + "/lessons")
    page.click("[data-start=leader]")
    page.wait("document.querySelector('#lesson[data-lesson=leader]')")
    try:
        page.click("#do")
        page.click("#confirm")
        page.wait("document.querySelectorAll('#lesson li[data-done=true]').length >= 3")
        page.click("#do")
        page.click("#confirm")
        page.wait("document.querySelector('#lesson[data-done=true] #learned')", 60)
        assert page.wait("document.querySelector('[data-event]')?.innerText")
    finally:
        console.heal()
