"""A headless Chromium, spoken to in its DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_GET_IT: Final = (
    "there is no Chromium to look with; Debian has it: `apt-get install chromium`"
)
PATIENCE_S: Final = 60.0
LOOK_INTERVAL_S: Final = 0.05
#: Chromium talks to its parent through the descriptors 3 and 4.
BECOME: Final = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
OPTIONS: Final = (
    "--headless=new",
    "--disable-gpu",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--metrics-recording-only",
)


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Page:
    """One tab: go somewhere, wait for conditions, click, type, and look."""

    def __init__(self, to: int, back: int) -> None:
        self._to = os.fdopen(to, "wb", buffering=0)
        self._back = os.fdopen(back, "rb", buffering=0)
        self._unread = b""
        self._last_id = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.warnings: list[str] = []
        self.not_loaded: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.resize(1280, 900)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") != self._last_id:
                self._note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = self._back.read(1 << 20)
            if not data:
                raise RuntimeError("the browser is gone")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])
            case "Runtime.exceptionThrown":
                thrown = details["exceptionDetails"]
                said = thrown.get("exception", {}).get("description", "")
                self.complaints.append(f"{thrown['text']} {said}")
            case "Network.loadingFailed":
                self.not_loaded.append(details["errorText"])
            case "Log.entryAdded" if details["entry"]["level"] == "warning":
                self.warnings.append(details["entry"]["text"])
            case "Log.entryAdded" if details["entry"]["level"] == "error":
                entry = details["entry"]
                # That a broker does not answer is shown on the page, and passes.
                if "status of 503" not in entry["text"]:
                    self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    # Doing

    def go(self, url: str) -> None:
        self.ask("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def resize(self, width: int, height: int, *, mobile: bool = False, scale: float = 1) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def theme(self, name: str, *, media: str = "screen") -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            raise RuntimeError(thrown.get("exception", {}).get("description", thrown["text"]))
        return answer["result"].get("value")

    def wait(self, script: str, patience_s: float = PATIENCE_S) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + patience_s
        # An element has no value of its own, and says by being there.
        asked = f"(() => {{ const f = ({script}); return f instanceof Element ? true : f; }})()"
        while True:
            try:
                found = self.evaluate(asked)
            except RuntimeError as error:
                found, last = None, str(error)
            else:
                last = ""
            if found:
                return found
            if time.monotonic() > deadline:
                shown = self.evaluate("document.body ? document.body.innerText.slice(0, 1500) : ''")
                raise AssertionError(f"waited in vain for {script} {last}; the page says:\n{shown}")
            time.sleep(LOOK_INTERVAL_S)

    def text(self, selector: str) -> str:
        return str(self.wait(f"document.querySelector({selector!r})?.innerText"))

    def click(self, selector: str) -> None:
        self.wait(
            f"(() => {{ const e = document.querySelector({selector!r}); "
            "if (!e || e.disabled) return false; e.click(); return true; })()"
        )

    def click_text(self, text: str, within: str = "body") -> None:
        """Click the button or link that says exactly this."""
        self.wait(
            f"(() => {{ const e = [...document.querySelectorAll({within!r} + ' button, ' + "
            f"{within!r} + ' a')].find((e) => e.innerText.trim() === {text!r} && !e.disabled); "
            "if (!e) return false; e.click(); return true; })()"
        )

    def fill(self, selector: str, value: str) -> None:
        """Set the value of a field as somebody who types or drags would."""
        self.wait(
            f"(() => {{ const e = document.querySelector({selector!r}); if (!e) return false; "
            "const set = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(e), 'value').set; "
            f"set.call(e, {json.dumps(value)}); "
            "e.dispatchEvent(new Event('input', {bubbles: true})); "
            "e.dispatchEvent(new Event('change', {bubbles: true})); return true; })()"
        )

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def size(self) -> tuple[int, int]:
        """Width and height of all that the page shows."""
        found = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return int(found["width"]), int(found["height"])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        more: dict[str, Any] = {}
        if whole:
            width, height = self.size()
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            more = {"clip": clip, "captureBeyondViewport": True}
        shot = self.ask("Page.captureScreenshot", **more)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._to.close()
        self._back.close()


@contextmanager
def open_page(program: str, profile: Path) -> Iterator[Page]:
    """A browser with a profile of its own, which ends with the block."""
    browser_reads, to = os.pipe()
    back, browser_writes = os.pipe()
    command = [program, *OPTIONS, f"--user-data-dir={profile}"]
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
    page = Page(to, back)
    try:
        yield page
    finally:
        page.close()  # which ends it
        process.wait(PATIENCE_S)
