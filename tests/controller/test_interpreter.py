"""The interpreter performs every effect, and the history knows every reason of a decision."""

from klamm.controller.interpreter import _HANDLERS
from klamm.core import effects
from klamm.core.effects import DecisionReason, Effect, ReadEffect, WriteEffect
from klamm.history.recorder import _KIND_OF

BASES = {Effect, ReadEffect, WriteEffect}
EFFECTS = {
    kind
    for kind in vars(effects).values()
    if isinstance(kind, type) and issubclass(kind, Effect) and kind not in BASES
}


def test_every_effect_has_a_handler():
    assert set(_HANDLERS) == EFFECTS


def test_effects_named_read_or_watch_are_reads_and_those_named_write_or_drop_are_writes():
    for kind in EFFECTS:
        assert issubclass(kind, ReadEffect) == kind.__name__.startswith(("Read", "Watch"))
        if kind.__name__.startswith(("Write", "Create", "Delete", "Drop", "SetUp")):
            assert issubclass(kind, WriteEffect)


def test_the_history_has_a_kind_for_every_reason():
    assert set(_KIND_OF) == set(DecisionReason)
