"""Look at a report in a real browser: it has to draw without an error, on a desk and on a phone.

The report is that of a night with failures, made from records of real procedures, unless the path
of another one is given. The screenshots stay in out/. Without a Chromium there is nothing to look
with, which is said and is no failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
OUT: Final = ROOT / "out"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: name: width and height of the window. Headless Chromium has no narrower one than 500.
SIZES: Final = {"report-desk": (1000, 4200), "report-phone": (500, 6000)}
#: What a page has done wrong, in Chromium's log; the rest is about the machine it runs on.
COMPLAINT: Final = re.compile(r"(?:CONSOLE|Uncaught|net::ERR_).*")
TIMEOUT_S: Final = 120


def main() -> int:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(
            "Skipped: there is no Chromium to look with; Debian has it as `apt-get install "
            "chromium`.",
            file=sys.stderr,
        )
        return 0
    OUT.mkdir(exist_ok=True)
    report = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else make_report()
    complaints = []
    for name, size in SIZES.items():
        picture = OUT / f"{name}.png"
        picture.unlink(missing_ok=True)
        complaints += look(browser, report, picture, size)
        if not picture.exists():
            complaints.append(f"{name} was not drawn")
        else:
            print(picture.relative_to(ROOT))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def make_report() -> Path:
    """The report of one night, in out/."""
    sys.path.insert(0, str(ROOT))
    from klamm.pipeline.history import Spools, write_tables
    from klamm.pipeline.report import write_report
    from klamm.pipeline.session import spark_session
    from tests.pipeline.history.night import night

    with tempfile.TemporaryDirectory() as folder, spark_session(progress=False) as spark:
        out = Path(folder, "history")
        records = Spools(night(Path(folder, "nodes")).spools).lay_down(spark, out)
        assert records is not None
        write_report(records, write_tables(records, out), out)
        report = OUT / "report.html"
        shutil.copyfile(out / report.name, report)
    return report


def look(browser: str, report: Path, picture: Path, size: tuple[int, int]) -> list[str]:
    """Draw the page into a picture; returns what the page complained about."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless=new", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0"]
        command += [f"--window-size={size[0]},{size[1]}", f"--screenshot={picture}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run as root with it
        command.append(report.as_uri())
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    complaints = [match[0] for match in map(COMPLAINT.search, done.stderr.splitlines()) if match]
    if done.returncode:
        complaints.append(f"{browser} ended with {done.returncode}")
    return complaints


if __name__ == "__main__":
    sys.exit(main())
