"""The tour says what it checked, and stops at the first thing that is not so."""

import io
import os
import pty
import re
import select
import subprocess
import sys

import pytest
from rich.console import Console

from klamm.errors import KlammError
from klamm.local.demo.presenter import Presenter


def run_on_terminal(arguments: list[str], keys_at: str) -> tuple[int, str]:
    """A command under a pseudo-terminal, which presses a key wherever `keys_at` is shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "klamm", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
        start_new_session=True,
    )
    os.close(theirs)
    shown = ""
    try:
        while True:
            # A prompt for a key drops what was typed before it.
            is_silent = not select.select([ours], [], [], 0.2)[0]
            if is_silent:
                if shown.rstrip().endswith(keys_at):
                    os.write(ours, b" ")
                continue
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            shown += data.decode(errors="replace")
        return process.wait(30), shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def without_colours(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_the_tour_holds_and_waits_for_a_key_between_its_steps():
    code, shown = run_on_terminal(["demo", "--step", "--no-spark"], keys_at="(any key goes on)")
    assert code == 0, shown
    text = without_colours(shown)
    steps = re.findall(r"^(\d)\. (.*?)\r?$", text, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, 9))
    assert text.count("(any key goes on)") == len(steps) - 1
    assert "every partition has a leader that lives" in text
    # The decisions are told in sentences, by the history of the controllers themselves.
    assert re.search(r"broker \d\s+disappeared", text)
    assert re.search(r"none of \d+ acknowledged records is missing", text)
    assert re.search(r"All of it held: \d+ checks in 8 steps\.", text)


@pytest.mark.real
@pytest.mark.spark_heavy
@pytest.mark.timeout(600)
def test_a_spark_job_reads_through_the_whole_tour_which_ends_with_a_report(tmp_path):
    code, shown = run_on_terminal(["demo", "--out", str(tmp_path)], keys_at="never")
    assert code == 0, shown
    text = without_colours(shown)
    assert re.search(r"it has the same \d+ records in the same order", text)
    assert "the table finds each of them once, in its order" in text
    assert re.search(r"All of it held: \d+ checks in 11 steps\.", text)
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_a_claim_that_does_not_hold_ends_the_tour():
    written = io.StringIO()
    guide = Presenter(Console(file=written))
    guide.check("water is wet", True)
    with pytest.raises(KlammError, match="it was not so: pigs fly"):
        guide.check("pigs fly", False)
    assert "pigs fly" not in written.getvalue()
