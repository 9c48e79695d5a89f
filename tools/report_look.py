"""Look at the reports in a real browser: they have to draw without an error, on every width.

The pages are those of `klamm history` (a night with failures, from records of real procedures), of
`klamm whatif` and of `klamm plan`, unless the path of another page is given. Each is drawn as on a
desk, by day and by night, on a phone and on paper; the pictures stay in out/. A page that
complains, asks for anything but itself, or is wider than the screen fails. Without a Chromium there
is nothing to look with, which is said and is no failure.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.chromium import HOW_TO_GET_IT, Page, find_browser, open_page

ROOT: Final = Path(__file__).resolve().parent.parent
OUT: Final = ROOT / "out"


@dataclass(frozen=True)
class View:
    """A way to look at a page."""

    name: str
    width: int
    scale: float = 1
    media: str = "screen"
    theme: str = "light"
    mobile: bool = False


#: A desk by day and by night, a phone, and a sheet of A4 between its margins.
VIEWS: Final = (
    View("desk", 1000),
    View("night", 1000, theme="dark"),
    View("phone", 390, scale=2, mobile=True),
    View("paper", 680, media="print"),
)


def main() -> int:
    program = find_browser()
    if program is None:
        print(f"Skipped: {HOW_TO_GET_IT}.", file=sys.stderr)
        return 0
    OUT.mkdir(exist_ok=True)
    files = [Path(name).resolve() for name in sys.argv[1:]] or make_pages()
    complaints = []
    with tempfile.TemporaryDirectory() as profile, open_page(program, Path(profile)) as page:
        for file in files:
            for view in VIEWS:
                picture = OUT / f"{file.stem}-{view.name}.png"
                complaints += [
                    f"{picture.stem}: {each}" for each in look(page, file, view, picture)
                ]
                print(picture.relative_to(ROOT))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def look(page: Page, file: Path, view: View, picture: Path) -> list[str]:
    """Draw the whole page into a picture; returns what is wrong with it."""
    noted = (page.complaints, page.warnings, page.not_loaded, page.requests)
    for each in noted:
        each.clear()
    page.resize(view.width, 800, mobile=view.mobile, scale=view.scale)
    page.theme(view.theme, media=view.media)
    page.go(file.as_uri())
    page.screenshot(picture, whole=True)
    wrong = [*page.complaints, *page.warnings]
    wrong += [f"something cannot be loaded: {each}" for each in page.not_loaded]
    wrong += [
        f"it asks for {url}"
        for url in page.requests
        if url != file.as_uri() and not url.startswith("data:")
    ]
    width, _ = page.size()
    if width > view.width:
        wrong.append(f"the page is {width} wide, on {view.width}")
    return wrong


def make_pages() -> list[Path]:
    """The report of one night, of all failures of two brokers, and of a plan, in out/."""
    from klamm.pipeline.history.sources import SpoolInput
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
        SpoolInput(night(Path(folder, "nodes")).spools).update(spark, out)
        shutil.copyfile(out / "report.html", pages[0])

        write_snapshot(spark, snapshot, f"{folder}/snapshot")
        frames = read_snapshot(spark, f"{folder}/snapshot")
        answer = play_through(frames, broker_failures(RACKS, 2))
        pages[1].write_text(render_report(answer, []), encoding="utf-8")

        demands = Demands(add=(6, 7), racks={6: "rack-0", 7: "rack-1"})
        planned = make_plan(snapshot.partitions, RACKS, demands)
        waves = make_waves(planned, default_limit(planned))
        plan = output_folder(spark, f"{folder}/plan/plan.json")
        write_plan(plan, snapshot.partitions, planned, waves, throttle=1_000_000)
        shutil.copyfile(Path(folder, "plan", "summary.html"), pages[2])
    return pages


if __name__ == "__main__":
    sys.exit(main())
