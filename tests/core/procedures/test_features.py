"""Updates of features: judged one by one, written together, and only if all brokers go along."""

from collections.abc import Mapping

import pytest

from klamm.core import effects
from klamm.core.events import ControllerError, FeatureUpdate, UpdateFeatures, UpgradeType
from klamm.core.procedures.dispatch import handle
from klamm.errors import UnavailableError
from tests.support.procedure_world import World

UP, DOWN, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE
CONTROLLER, OTHER = 1, 2


def world_with(
    finalized: Mapping[str, int], others: tuple[tuple[str, int, int], ...] = (("f", 2, 6),)
) -> World:
    """The controller knows f from 2 to 6 and g from 1 to 1; `others` says what broker 2 knows."""
    world = World([])
    world.register(CONTROLLER, features=(("f", 2, 6), ("g", 1, 1)))
    world.register(OTHER, features=others)
    world.features = dict(finalized)
    world.fail_over(CONTROLLER)
    return world


def codes(world: World, *updates: FeatureUpdate, validate_only: bool = False) -> dict[str, int]:
    error, verdicts = world.ask(UpdateFeatures(updates, validate_only))
    assert error == ControllerError.NONE
    return {feature: code for feature, (code, _) in verdicts.items()}


@pytest.mark.rule("ADM-40")
@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (FeatureUpdate("", 1, UP), "can not be empty"),
        (FeatureUpdate("f", 4, None), "unknown upgrade type"),
        (FeatureUpdate("none", 0, DOWN), "non-existing finalized feature"),
        (FeatureUpdate("f", 0, UP), "less than 1"),
        (FeatureUpdate("f", 3, UP), "same value"),
        (FeatureUpdate("f", 3, DOWN), "same value"),
        (FeatureUpdate("f", 2, UP), "downgrade finalized feature"),
        (FeatureUpdate("f", 2, UNSAFE), "downgrade finalized feature"),
        (FeatureUpdate("f", 4, DOWN), "can not be greater"),
        (FeatureUpdate("f", 1, DOWN), "lower than the supported minVersion:2"),
        (FeatureUpdate("f", 7, UP), "incompatible versions"),
        (FeatureUpdate("g", 1, UP), "incompatible versions"),
        (FeatureUpdate("h", 1, UP), "not supported"),
    ],
)
def test_an_update_that_makes_no_sense_is_refused_with_the_reason(
    update: FeatureUpdate, reason: str
) -> None:
    world = world_with({"f": 3})
    _, verdicts = world.ask(UpdateFeatures([update]))
    code, text = verdicts[update.feature]
    assert code == ControllerError.INVALID_REQUEST
    assert reason in text
    assert world.features == {"f": 3}
    assert not any(isinstance(effect, effects.WriteFeatures) for effect in world.performed)


@pytest.mark.rule("ADM-40", "ADM-41")
def test_the_valid_updates_of_a_request_are_written_together() -> None:
    world = world_with({"f": 3}, others=(("f", 1, 6), ("g", 1, 3)))
    world.performed.clear()
    assert codes(
        world,
        FeatureUpdate("f", 5, UP),
        FeatureUpdate("g", 1, UP),
        FeatureUpdate("h", 1, UP),
    ) == {
        "f": ControllerError.NONE,
        "g": ControllerError.NONE,
        "h": ControllerError.INVALID_REQUEST,
    }
    assert world.features == {"f": 5, "g": 1}
    assert sum(isinstance(effect, effects.WriteFeatures) for effect in world.performed) == 1
    assert codes(world, FeatureUpdate("f", 4, DOWN)) == {"f": ControllerError.NONE}
    assert codes(world, FeatureUpdate("g", 0, UNSAFE)) == {"g": ControllerError.NONE}
    assert world.features == {"f": 4}


@pytest.mark.rule("ADM-41")
def test_validating_only_writes_nothing() -> None:
    world = world_with({"f": 3})
    assert codes(world, FeatureUpdate("f", 5, UP), validate_only=True) == {
        "f": ControllerError.NONE
    }
    assert world.features == {"f": 3}
    assert world.ctx.cluster.finalized_features == {"f": 3}


@pytest.mark.rule("ADM-42")
def test_where_the_write_fails_only_the_valid_updates_are_told_so() -> None:
    world = world_with({"f": 3})

    def fail(effect: effects.Effect) -> None:
        if isinstance(effect, effects.WriteFeatures):
            raise UnavailableError("gone")

    world.faults.before = fail
    updates = [FeatureUpdate("f", 5, UP), FeatureUpdate("h", 1, UP)]
    event = UpdateFeatures(updates)
    world.run(handle(world.ctx, event))
    _, verdicts = world.responses[-1]
    assert {name: code for name, (code, _) in verdicts.items()} == {
        "f": ControllerError.FEATURE_UPDATE_FAILED,
        "h": ControllerError.INVALID_REQUEST,
    }
    assert world.ctx.cluster.finalized_features == {"f": 3}
