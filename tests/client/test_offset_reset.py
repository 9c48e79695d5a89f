"""The targets to which an operator can reset the offsets of a group."""

import pytest

from klamm.client import offset_reset


@pytest.mark.parametrize(
    ("goal", "committed", "offset"),
    [
        (offset_reset.to_earliest, 7, 2),
        (offset_reset.to_latest, 7, 10),
        (offset_reset.to_current, 7, 7),
        (offset_reset.to_current, -1, 10),
        (offset_reset.to_offset(5), 7, 5),
        (offset_reset.shift_by(-3), 7, 4),
        (offset_reset.shift_by(-3), -1, 7),
    ],
)
def test_a_target_gives_an_offset(goal: offset_reset.OffsetTarget, committed: int, offset: int):
    assert goal(2, 10, committed) == offset
