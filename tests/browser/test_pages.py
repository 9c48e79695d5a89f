"""Every page, in both themes and on a phone, without a complaint of the browser or of axe."""

from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import OUT, Console

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
    "/lessons": "document.querySelectorAll('[data-start]').length > 3",
}
CHECK = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((each) => ["serious", "critical"].includes(each.impact))
  .map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => node.html).join(" ")}`))
"""


def name_of(path: str) -> str:
    return path.strip("/").replace("/", "-").replace("?", "-").replace("=", "-") or "now"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_drawn_and_accessible(page: Page, console: Console, path: str, theme: str):
    page.theme(theme)
    page.go(console.base + path)
    page.wait(PAGES[path])
    page.screenshot(OUT / f"console-{name_of(path)}-{theme}.png")
    page.evaluate(AXE + "; 0")
    assert page.evaluate(CHECK) == []


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
