"""Run chaos and check what came of it; exit code 1 if anything is wrong."""

import argparse
import shutil
import sys
import time
from pathlib import Path

from tests.chaos.agreement import Margins, compare
from tests.chaos.checker import Promises, check
from tests.chaos.pipeline_view import compare_refreshes, make_view, read_view
from tests.chaos.plan import Plan, make_plan
from tests.chaos.recording import read_history
from tests.chaos.report import Result, figures, write_report
from tests.chaos.run import run, spools

_SHOWN_MAX = 20


def main() -> int:
    given = _arguments()
    plan = make_plan(given.seed, 60 * given.minutes, given.brokers, given.zookeepers)
    directory: Path = given.out or Path("out", "chaos", f"seed-{given.seed}")
    _say(f"seed {plan.seed}; everything is kept in {directory}")
    if not given.again:
        _run(plan, given, directory)
    history = read_history(directory / "history.jsonl")
    violations = check(history, Promises())
    if not given.no_view:
        _say(f"{len(violations)} violations of what clients are promised; now for the history")
        view = directory / "view"
        shutil.rmtree(view, ignore_errors=True)
        make_view(spools(directory), view)
        violations += compare(history, read_view(view), Margins())
        pieces = directory / "view-in-pieces"
        violations += compare_refreshes(spools(directory), view, pieces, given.seed)
    result = Result(plan, _command(given), history, violations)
    write_report(result, directory)
    for what, how_much in figures(history).items():
        _say(f"{how_much:>10} {what}")
    for violation in violations[:_SHOWN_MAX]:
        _say(str(violation))
    if violations:
        _say(f"{len(violations)} violations; again: {result.command}")
    _say(f"Everything is in {directory / 'report.md'}.")
    return 1 if violations else 0


def _run(plan: Plan, given: argparse.Namespace, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "plan.txt").write_text(f"{plan}\n", encoding="utf-8")
    run(
        plan,
        60 * given.minutes,
        directory,
        brokers=given.brokers,
        zookeepers=given.zookeepers,
        say=_say,
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _command(given: argparse.Namespace) -> str:
    return (
        f"python -m tests.chaos --minutes {given.minutes:g} --seed {given.seed} "
        f"--brokers {given.brokers} --zookeepers {given.zookeepers}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument(
        "--brokers", type=int, default=3, help="one is enough for a first look, on a small machine"
    )
    parser.add_argument("--zookeepers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--out", type=Path, help="where the files go; out/chaos/seed-N")
    parser.add_argument(
        "--no-view", action="store_true", help="without Spark, and without comparing its tables"
    )
    parser.add_argument("--again", action="store_true", help="check the files of an earlier run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
