"""What all tests of the broker's parts share."""

import math

import pytest

from klamm import slices


@pytest.fixture(autouse=True)
def _one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers answer at once, however busy the machine is; tests of slices set their own."""
    monkeypatch.setattr(slices, "SLICE_S", math.inf)
