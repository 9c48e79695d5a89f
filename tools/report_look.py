"""Look at the reports in a real browser: they have to draw without an error, on every width.

The pages are those of `klamm history` (a night with failures, from records of real procedures), of
`klamm whatif` and of `klamm plan`, unless the path of another page is given. Each is drawn as on a
desk, on a phone and on paper; the pictures stay in out/. A page that complains, asks for anything
but itself, or is wider than the screen fails. Without a Chromium there is nothing to look with,
which is said and is no failure.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
OUT: Final = ROOT / "out"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S: Final = 120
#: Chromium talks to its parent process through the descriptors 3 and 4.
BECOME: Final = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass(frozen=True)
class View:
    """A way to look at a page."""

    name: str
    width: int
    scale: float = 1
    media: str = "screen"
    mobile: bool = False


#: A desk, a phone, and a sheet of A4 between its margins.
VIEWS: Final = (
    View("desk", 1000),
    View("phone", 390, scale=2, mobile=True),
    View("paper", 680, media="print"),
)


class Browser:
    """A headless Chromium, spoken to in its DevTools protocol."""

    def __init__(self, to: int, back: int) -> None:
        self._to = os.fdopen(to, "wb", buffering=0)
        self._back = os.fdopen(back, "rb", buffering=0)
        self._unread = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have something done; what happens meanwhile is kept in `events`."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") != self._last_id:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, event: str) -> None:
        while not any(each.get("method") == event for each in self.events):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = self._back.read(1 << 20)
            if not data:
                raise RuntimeError("the browser is gone")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def close(self) -> None:
        self._to.close()
        self._back.close()


def main() -> int:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print(
            "Skipped: there is no Chromium to look with; Debian has it as `apt-get install "
            "chromium`.",
            file=sys.stderr,
        )
        return 0
    OUT.mkdir(exist_ok=True)
    pages = [Path(name).resolve() for name in sys.argv[1:]] or make_pages()
    complaints = []
    with open_browser(program) as browser:
        for page in pages:
            for view in VIEWS:
                picture = OUT / f"{page.stem}-{view.name}.png"
                complaints += [
                    f"{picture.stem}: {each}" for each in look(browser, page, view, picture)
                ]
                print(picture.relative_to(ROOT))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


@contextmanager
def open_browser(program: str) -> Iterator[Browser]:
    browser_reads, to = os.pipe()
    back, browser_writes = os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--headless=new", "--disable-gpu", "--remote-debugging-pipe"]
        command += [f"--user-data-dir={profile}", "--hide-scrollbars"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run as root with it
        process = subprocess.Popen(
            [sys.executable, "-c", BECOME, str(browser_reads), str(browser_writes), *command],
            pass_fds=(browser_reads, browser_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        browser = Browser(to, back)
        try:
            yield browser
        finally:
            browser.close()  # which ends it
            process.wait(TIMEOUT_S)


def look(browser: Browser, page: Path, view: View, picture: Path) -> list[str]:
    """Draw the whole page into a picture; returns what is wrong with it."""
    browser.events.clear()
    size = {"width": view.width, "height": 800, "deviceScaleFactor": view.scale}
    browser.ask("Emulation.setDeviceMetricsOverride", **size, mobile=view.mobile)
    browser.ask("Emulation.setEmulatedMedia", media=view.media)
    browser.ask("Page.navigate", url=page.as_uri())
    browser.wait_for("Page.loadEventFired")
    layout = browser.ask("Page.getLayoutMetrics")["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": view.width, "height": layout["height"], "scale": 1}
    shot = browser.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    picture.write_bytes(base64.b64decode(shot["data"]))
    complaints = [complaint for event in browser.events for complaint in complaints_in(event, page)]
    if layout["width"] > view.width:
        complaints.append(f"the page is {layout['width']} wide, on {view.width}")
    return complaints


def complaints_in(event: dict[str, Any], page: Path) -> Iterator[str]:
    details = event.get("params", {})
    match event.get("method"):
        case "Network.requestWillBeSent":
            url = details["request"]["url"]
            if url != page.as_uri() and not url.startswith("data:"):
                yield f"it asks for {url}"
        case "Network.loadingFailed":
            yield f"something cannot be loaded: {details['errorText']}"
        case "Runtime.exceptionThrown":
            yield details["exceptionDetails"]["text"]
        case "Log.entryAdded" if details["entry"]["level"] in ("warning", "error"):
            yield details["entry"]["text"]


def make_pages() -> list[Path]:
    """The report of one night, of all failures of two brokers, and of a plan, in out/."""
    sys.path.insert(0, str(ROOT))
    from klamm.pipeline.history.folder import SpoolInput, write_tables
    from klamm.pipeline.history.report import write_report
    from klamm.pipeline.output import output_folder
    from klamm.pipeline.planner.output import write_plan
    from klamm.pipeline.planner.planner import Demands, make_plan
    from klamm.pipeline.planner.waves import default_limit, make_waves
    from klamm.pipeline.session import spark_session
    from klamm.pipeline.snapshot.snapshot import read_snapshot, write_snapshot
    from klamm.pipeline.whatif.frames import play_through
    from klamm.pipeline.whatif.report import render_report
    from klamm.pipeline.whatif.whatif import broker_failures
    from tests.pipeline.history.night import night
    from tests.pipeline.whatif.test_frames import RACKS, make_snapshot

    pages = [OUT / name for name in ("report.html", "whatif.html", "plan.html")]
    snapshot = make_snapshot()
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session(progress=False, little=True) as spark,
    ):
        out = Path(folder, "history")
        records = SpoolInput(night(Path(folder, "nodes")).spools).lay_down(spark, out)
        assert records is not None
        write_report(records, write_tables(records, out), out)
        shutil.copyfile(out / "report.html", pages[0])

        write_snapshot(spark, snapshot, f"{folder}/snapshot")
        frames = read_snapshot(spark, f"{folder}/snapshot")
        answer = play_through(frames, broker_failures(RACKS, 2))
        pages[1].write_text(render_report(answer, []), encoding="utf-8")

        demands = Demands(add=(6, 7), racks={6: "rack-0", 7: "rack-1"})
        planned = make_plan(snapshot.partitions, RACKS, demands)
        waves = make_waves(planned, default_limit(planned))
        plan = output_folder(spark, f"{folder}/plan/plan.json")
        write_plan(plan, snapshot.partitions, planned, waves)
        shutil.copyfile(Path(folder, "plan", "summary.html"), pages[2])
    return pages


if __name__ == "__main__":
    sys.exit(main())
