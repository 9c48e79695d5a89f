"""The tour says what it checked, and stops at the first thing that is not so."""

import io

import pytest
from rich.console import Console

from klamm.cli.main import main
from klamm.errors import KlammError
from klamm.local.demo import Guide


@pytest.mark.real
def test_the_tour_holds(capsys: pytest.CaptureFixture[str]):
    # The application for people ends as a process does.
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "every partition has a leader that lives" in shown
    assert shown.splitlines()[-1].startswith("All of it held: 1")


def test_a_claim_that_does_not_hold_ends_the_tour():
    written = io.StringIO()
    guide = Guide(Console(file=written))
    guide.check("water is wet", True)
    with pytest.raises(KlammError, match="it was not so: pigs fly"):
        guide.check("pigs fly", False)
    assert "pigs fly" not in written.getvalue()
