"""Every page, in both themes and on a phone, without a complaint of the browser or of axe."""

import re
from pathlib import Path

import pytest

from tests.browser.conftest import OUT, Console
from tests.support.chromium import Page

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
#: path: what is there once the page is drawn.
PAGES = {
    "/": "document.querySelectorAll('[data-partition]').length > 10",
    "/time": "document.querySelector('#moment[data-shown=yes]')",
    "/whatif?brokers=1,2": "document.querySelector('#answer') && document.querySelector('#worst')",
    "/moves": "document.querySelector('#goal')",
    "/topics": "document.querySelector('[data-topic=orders]')",
    "/topics/orders": "document.querySelectorAll('tbody tr').length === 8",
    "/topics/orders?show=records": "document.querySelectorAll('[data-record]').length > 10",
    "/topics/orders?show=settings": "document.querySelector('[aria-label=Settings] p, tbody')",
    "/groups": "document.body.innerText.includes('billing')",
    "/groups/billing": "document.querySelector('[aria-label=Positions] tbody tr')",
    "/brokers": "document.querySelectorAll('tbody tr').length === 4",
    "/brokers/1": "document.body.innerText.includes('log.dirs')",
    "/transactions": "document.querySelector('[data-transaction=loader]')",
    "/transactions/loader": "document.body.innerText.includes('CompleteCommit')",
    "/transactions?show=hanging": "document.body.innerText.includes('No transaction hangs')",
    "/users": "document.querySelector('[data-user=alice]')",
    "/acls": "document.querySelector('#no-authorizer')",
    "/quotas": "document.querySelector('[data-quota]')",
    "/lessons": "document.querySelectorAll('[data-start]').length > 3",
}
WHY = "/acls?show=explain&principal=User:alice&operation=Write&kind=topic&name=orders"
#: The same of a secured cluster.
SECURED_PAGES = {
    "/users": "document.querySelector('[aria-label=Users] p')",
    "/acls": "document.querySelector('[data-remove-acl]')",
    WHY: "document.querySelector('#verdict[data-allowed=false]')",
}
CHECK = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((each) => ["serious", "critical"].includes(each.impact))
  .map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => node.html).join(" ")}`))
"""


def name_of(path: str) -> str:
    return re.sub(r"[^\w]+", "-", path).strip("-") or "now"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_drawn_and_accessible(page: Page, console: Console, path: str, theme: str):
    page.theme(theme)
    page.go(console.base + path)
    page.wait(PAGES[path])
    page.screenshot(OUT / f"console-{name_of(path)}-{theme}.png")
    page.evaluate(AXE + "; 0")
    assert page.evaluate(CHECK) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", SECURED_PAGES)
def test_a_page_of_a_secured_cluster_is_drawn_and_accessible(
    secured_page: Page, secured: Console, path: str, theme: str
):
    secured_page.theme(theme)
    secured_page.go(secured.base + path)
    secured_page.wait(SECURED_PAGES[path])
    secured_page.screenshot(OUT / f"console-secured-{name_of(path)}-{theme}.png")
    secured_page.evaluate(AXE + "; 0")
    assert secured_page.evaluate(CHECK) == []
    secured_page.resize(400, 800, mobile=True)
    assert secured_page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_on_a_phone(page: Page, console: Console, path: str):
    page.resize(400, 800, mobile=True)
    page.go(console.base + path)
    page.wait(PAGES[path])
    page.screenshot(OUT / f"console-{name_of(path)}-phone.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_token_does_not_stay_in_the_address(page: Page):
    page.wait("document.querySelector('#health')")
    assert "token" not in page.evaluate("location.href")
