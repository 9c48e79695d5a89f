"""What can be done on the pages: moves, elections, topics, records, groups, lessons."""

import json

import pytest

from klamm.client.admin import Admin
from tests.browser.conftest import OUT, Console
from tests.support.chromium import Page
from tests.support.transactions import RawProducer, leave_hanging

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


@pytest.mark.parametrize(
    ("lesson", "steps_before_the_second_button"),
    [("leader", 3), ("controller", 3), ("sleep", 3), ("order", 2)],
)
def test_a_lesson_checks_its_own_outcome(
    page: Page, console: Console, lesson: str, steps_before_the_second_button: int
):
    console.heal()
    page.go(console.base + "/lessons")
    page.click(f"[data-start={lesson}]")
    page.click("#confirm")
    page.wait(f"document.querySelector('#lesson[data-lesson={lesson}]')")
    try:
        page.click("#do")
        page.click("#confirm")
        done = "document.querySelectorAll('#lesson li[data-done=true]').length"
        page.wait(f"{done} >= {steps_before_the_second_button}")
        page.click("#do")
        page.click("#confirm")
        page.wait("document.querySelector('#lesson[data-done=true] #learned')")
        assert page.wait("document.querySelector('[data-event]')?.innerText")
    finally:
        console.heal()


def test_a_user_and_a_quota_are_added_and_removed(page: Page, console: Console):
    page.go(console.base + "/users")
    page.click("#add-user")
    page.fill("#user-name", HOSTILE)
    page.fill("#user-password", "bob-pw-planted")
    page.fill("#user-again", "another")
    page.click("#confirm")
    assert "differ" in page.text("dialog [role=alert]")
    page.fill("#user-again", "bob-pw-planted")
    page.click("#confirm")
    page.wait("!document.querySelector('dialog')")
    page.wait(f"document.body.innerText.includes({HOSTILE!r})")
    assert HOSTILE in [each["user"] for each in console.get("/api/users")]
    page.go(console.base + "/quotas")
    page.click("#set-quota")
    page.fill("#quota-user", HOSTILE)
    page.fill("#quota-name", "request_percentage")
    page.fill("#quota-value", "12.5")
    page.click("#confirm")
    page.wait(f"document.body.innerText.includes({HOSTILE!r})")
    page.click("[data-remove-quota=request_percentage]")
    page.click("#confirm")
    page.wait(f"!document.body.innerText.includes({HOSTILE!r})")
    console.post("/api/users/remove", {"user": HOSTILE})
    page.go(console.base + "/moves")
    page.wait("document.querySelector('[aria-label=Actions]')?.innerText.includes('users/add')")
    assert "planted" not in page.text("main")
    assert page.evaluate("window.hacked === undefined")


def test_a_hanging_transaction_is_aborted(page: Page, console: Console):
    console.post("/api/topics/create", {"topic": "paid", "partitions": 1})
    with Admin(console.bootstrap_servers) as admin:
        ports = {each.node_id: each.port for each in admin.metadata([]).brokers}
        producer = RawProducer(ports, HOSTILE)
        producer.init_at_last()
        leave_hanging(admin, producer, "paid")
    page.go(console.base + "/transactions?show=hanging&topic=paid&minutes=0")
    page.click("[data-abort=paid-0]")
    assert "abort marker" in page.text("dialog")
    page.click("#confirm")
    page.wait("document.body.innerText.includes('No transaction hangs')")
    assert console.get("/api/hanging?topic=paid&minutes=0") == []
    page.go(console.base + "/transactions")
    page.click_text(HOSTILE)
    page.wait("document.querySelector('[aria-label=Partitions]')")
    assert page.evaluate("window.hacked === undefined")


def test_an_acl_is_added_explained_and_removed(secured_page: Page, secured: Console):
    page = secured_page
    page.go(secured.base + "/acls")
    page.click("#add-acl")
    page.fill("#new-acl-principal", f"User:{HOSTILE}")
    page.fill("#new-acl-permission", "Deny")
    page.fill("#new-acl-operation", "Write")
    page.fill("#new-acl-name", "ord")
    page.fill("#new-acl-pattern", "Prefixed")
    assert "comes before" in page.text("dialog")
    page.click("#confirm")
    page.wait(f"document.body.innerText.includes({HOSTILE!r})")
    page.go(secured.base + "/acls?show=explain")
    page.fill("#explain-principal", f"User:{HOSTILE}")
    page.fill("#explain-operation", "Write")
    page.fill("#resource-name", "orders")
    page.click("#explain")
    page.wait("document.querySelector('#verdict[data-allowed=false]')")
    assert "an ACL denies it" in page.text("#verdict")
    page.go(secured.base + "/acls")
    page.click(f"[data-remove-acl={json.dumps(f'User:{HOSTILE}')}]")
    page.click("#confirm")
    page.wait(f"!document.body.innerText.includes({HOSTILE!r})")
    assert [each["principal"] for each in secured.get("/api/acls")] == ["User:alice"]
    assert page.evaluate("window.hacked === undefined")


def test_a_broker_that_is_cut_off_comes_back(page: Page, console: Console):
    console.heal()
    page.go(console.base + "/lessons")
    page.click("[data-start=cut]")
    page.click("#confirm")
    page.wait("document.querySelector('#lesson[data-lesson=cut]')")
    try:
        page.click("#do")
        page.click("#confirm")
        page.wait("document.querySelectorAll('#lesson li[data-done=true]').length >= 2")
        page.click("#do")
        page.click("#confirm")
        page.wait("document.querySelector('#lesson[data-done=true] #learned')")
    finally:
        console.heal()


def test_the_charts_of_a_broker_are_made_of_its_metrics(page: Page, console: Console):
    page.go(console.base + "/brokers/1")
    page.wait("document.querySelector('#charts[data-source=metrics] canvas')")
    assert page.evaluate("document.querySelectorAll('#charts canvas').length") >= 6
    series = console.wait("/api/rates/1", lambda found: len(found["at"]) > 1)
    assert max(series["records_in"]) > 0
    page.screenshot(OUT / "console-brokers-charts.png", whole=True)


def test_lag_is_sampled_before_anybody_looks(console: Console):
    positions = console.get("/api/groups/billing")["positions"]
    # A consumer that stops after 200 records may have read from some partitions only.
    lag = sum(each["lag"] for each in positions)
    assert lag > 0
    console.wait("/api/lag", lambda found: found["groups"].get("billing", {}).get("lag") == lag)
