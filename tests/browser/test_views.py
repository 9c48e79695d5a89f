"""Every view: a link to be shared, the command that gives the same answer, and that answer."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Console
from tests.browser.test_pages import WHY
from tests.support.chromium import Page

Shape = Callable[[Any], Any]


def as_it_is(value: Any) -> Any:
    return value


def all_partitions(topics: Any) -> Any:
    return [partition for topic in topics for partition in topic["partitions"]]


def without_sizes(broker: Any) -> Any:
    """Sizes grow while one looks."""
    directories = [each | {"bytes": 0, "usable_bytes": 0} for each in broker["log_dirs"]]
    return broker | {"log_dirs": directories}


#: link: the address of the API that has its answer, what the command's answer has of that, what
#: the API's answer has of that, and texts of the answer that the page has to show.
VIEWS: dict[str, tuple[str, Shape, Shape, Callable[[Any], list[str]]]] = {
    "/": ("/api/partitions", all_partitions, as_it_is, lambda rows: [rows[0]["topic"]]),
    "/?story=orders-0": (
        "/api/story/orders-0",
        as_it_is,
        as_it_is,
        lambda rows: [row["text"] for row in rows],
    ),
    "/moves": ("/api/moves", as_it_is, lambda found: found["under_way"], lambda rows: []),
    "/topics?internal=1": (
        "/api/topics",
        as_it_is,
        as_it_is,
        lambda rows: [row["topic"] for row in rows],
    ),
    "/topics/orders": (
        "/api/topics/orders",
        as_it_is,
        as_it_is,
        lambda rows: [rows[0]["topic"], rows[0]["topic_id"]],
    ),
    "/topics/orders?show=settings": (
        "/api/topics/orders/settings",
        as_it_is,
        as_it_is,
        lambda rows: [row["name"] for row in rows if row["source"] != "default"],
    ),
    "/groups": (
        "/api/groups",
        as_it_is,
        as_it_is,
        lambda rows: [text for row in rows for text in (row["group"], row["state"])],
    ),
    "/groups/billing": (
        "/api/groups/billing",
        as_it_is,
        as_it_is,
        lambda group: [f"{each['topic']}-{each['partition']}" for each in group["positions"]],
    ),
    "/brokers": (
        "/api/brokers",
        as_it_is,
        as_it_is,
        lambda rows: [f"{row['host']}:{row['port']}" for row in rows],
    ),
    "/brokers/1": (
        "/api/brokers/1",
        without_sizes,
        without_sizes,
        lambda broker: [*broker["configs"], *(each["path"] for each in broker["log_dirs"])],
    ),
    "/transactions": (
        "/api/transactions",
        as_it_is,
        as_it_is,
        lambda rows: [text for row in rows for text in (row["transactional_id"], row["state"])],
    ),
    "/transactions?state=CompleteCommit": (
        "/api/transactions?state=CompleteCommit",
        as_it_is,
        as_it_is,
        lambda rows: [row["transactional_id"] for row in rows],
    ),
    "/transactions/loader": (
        "/api/transactions/loader",
        as_it_is,
        as_it_is,
        lambda found: [found["state"], str(found["producer_id"])],
    ),
    "/transactions?show=hanging&minutes=5": (
        "/api/hanging?minutes=5",
        as_it_is,
        as_it_is,
        lambda rows: [],
    ),
    "/users": (
        "/api/users",
        as_it_is,
        as_it_is,
        lambda rows: [text for row in rows for text in (row["user"], row["mechanism"])],
    ),
    "/quotas": (
        "/api/quotas",
        as_it_is,
        as_it_is,
        lambda rows: [text for row in rows for text in (row["user"], *row["quotas"])],
    ),
}
SECURED_VIEWS = {
    "/acls": (
        "/api/acls",
        lambda rows: [text for row in rows for text in (row["principal"], row["operation"])],
    ),
    "/acls?principal=User:alice&kind=topic&name=orders": (
        "/api/acls?principal=User:alice&topic=orders",
        lambda rows: [row["name"] for row in rows],
    ),
    WHY: (
        "/api/acls/explain?principal=User:alice&operation=Write&topic=orders&host=127.0.0.1",
        lambda found: [found["reason"], *found["considered"]],
    ),
}
#: Views whose commands start Spark, change something or end in an hour: test_watching.py compares
#: the answers of the first two, and here the commands have to be ones that there are.
COMMANDS_ONLY = ("/time", "/whatif?brokers=1,2", "/moves?goal=balance", "/moves?elect=preferred")


SHOWN = "[...document.querySelectorAll('.cli code')].map((e) => e.innerText)"


def command_of(page: Page, link: str) -> list[str]:
    """The words of the command that a page opened by its link shows last."""
    page.go(link)
    # The address of the cluster is known a little later than the page.
    page.wait(
        f"{SHOWN}.some((text) => text.includes('--bootstrap-server') || /--spool/.test(text))"
    )
    page.wait("!document.body.innerText.includes('Reading…')")
    shown = page.evaluate(SHOWN)
    words = shlex.split(page.text("dialog[open] .cli code") if "story=" in link else shown[-1])
    assert words[0] == "klamm"
    return words[1:]


def run(words: list[str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "klamm", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, (words, done.stderr)
    return json.loads(done.stdout)


@pytest.mark.parametrize("link", VIEWS)
def test_a_view_shows_what_its_command_says(page: Page, console: Console, link: str):
    address, of_command, of_api, shown = VIEWS[link]
    words = command_of(page, console.base + link)
    answer = of_command(run(words))
    assert answer == of_api(console.get(address))
    for text in shown(answer):
        page.wait(f"document.body.innerText.includes({json.dumps(text)})")


@pytest.mark.parametrize("link", SECURED_VIEWS)
def test_a_view_of_a_secured_cluster_shows_what_its_command_says(
    secured_page: Page, secured: Console, link: str
):
    address, shown = SECURED_VIEWS[link]
    words = command_of(secured_page, secured.base + link)
    assert words[words.index("--command-config") + 1] == secured.command_config
    answer = run(words)
    assert answer == secured.get(address)
    for text in shown(answer):
        secured_page.wait(f"document.body.innerText.includes({json.dumps(text)})")


def place(record: Any) -> tuple[int, int, str]:
    return record["partition"], record["offset"], record["value"]


def test_records_are_those_that_consume_prints(page: Page, console: Console):
    words = command_of(page, console.base + "/topics/orders?show=records&from=beginning")
    page.wait("document.querySelector('[data-record]')")
    done = subprocess.run(
        [sys.executable, "-m", "klamm", *words], capture_output=True, text=True, check=True
    )
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    exported = console.get_text("/api/topics/orders/export?from=beginning&format=json").splitlines()
    assert sorted(map(place, printed)) == sorted(map(place, map(json.loads, exported)))


@pytest.mark.parametrize("link", COMMANDS_ONLY)
def test_a_view_names_commands_that_there_are(page: Page, console: Console, link: str):
    page.go(console.base + link)
    page.wait("document.querySelectorAll('.cli code').length > 0")
    for text in page.evaluate(
        "[...document.querySelectorAll('.cli code')].map((e) => e.innerText)"
    ):
        words = shlex.split(text)
        help_text = console.klamm(
            *words[1 : 3 if words[1] in ("reassign", "topics") else 2], "--help"
        )
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert [each for each in options if each not in help_text] == []


def test_a_command_keeps_a_hostile_name_in_one_word(page: Page, console: Console):
    words = command_of(page, console.base + "/transactions/" + "%3B%20rm%20-rf%20'%24(x)'")
    assert words[:3] == ["transactions", "describe", "; rm -rf '$(x)'"]
    page.complaints.clear()  # there is no such id, and the browser says so
