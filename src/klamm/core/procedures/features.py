"""Features of the cluster: at which levels they are finalized, as far as all brokers go along."""

from collections.abc import Mapping

from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import Procedure, Respond, WriteFeatures
from klamm.core.events import ControllerError, FeatureUpdate, UpdateFeatures, UpgradeType
from klamm.errors import FencedError, KlammError

#: Kafka's code, and a message if it has its own.
Verdict = tuple[int, str | None]


def on_update_features(ctx: Context, event: UpdateFeatures) -> Procedure[None]:
    """Check each update on its own and write the valid ones together (ADM-40..42)."""
    cluster = ctx.cluster
    levels = dict(cluster.finalized_features)
    verdicts: dict[str, Verdict] = {}
    for update in event.updates:
        text = _flaw(ctx, update, cluster.finalized_features)
        if text is not None:
            verdicts[update.feature] = (ControllerError.INVALID_REQUEST, text)
            continue
        verdicts[update.feature] = (ControllerError.NONE, None)
        if update.level < 1:
            del levels[update.feature]
        else:
            levels[update.feature] = update.level
    if levels != cluster.finalized_features and not event.validate_only:
        try:
            yield WriteFeatures(levels)
        except FencedError:
            raise
        except KlammError as error:
            ctx.say(LoggerName.CONTROLLER, Level.WARNING, f"features cannot be written: {error}")
            failed: Verdict = (ControllerError.FEATURE_UPDATE_FAILED, None)
            verdicts = {
                name: failed if verdict[0] == ControllerError.NONE else verdict
                for name, verdict in verdicts.items()
            }
        else:
            cluster.finalized_features = levels
            ctx.say(LoggerName.CONTROLLER, Level.INFO, f"features are finalized at {levels}")
    yield Respond((ControllerError.NONE, verdicts))


def _flaw(ctx: Context, update: FeatureUpdate, finalized: Mapping[str, int]) -> str | None:
    """The first of Kafka's checks that an update fails, as an error; None if it is valid."""
    present = finalized.get(update.feature)
    if not update.feature:
        return "Feature name can not be empty."
    if update.kind is None:
        return "Received unknown upgrade type."
    if update.level < 1:
        if update.kind == UpgradeType.UPGRADE:
            return (
                f"Can not provide maxVersionLevel: {update.level} less than 1 without setting the "
                "allowDowngrade flag to true in the request."
            )
        return "Can not delete non-existing finalized feature." if present is None else None
    if present is not None and (text := _wrong_way(update, present)) is not None:
        return text
    return _unsupported(ctx, update)


def _wrong_way(update: FeatureUpdate, present: int) -> str | None:
    if update.level == present:
        way = "upgrade" if update.kind == UpgradeType.UPGRADE else "downgrade"
        return (
            f"Can not {way} a finalized feature from existing maxVersionLevel:{present} to the "
            "same value."
        )
    if update.level < present and update.kind != UpgradeType.SAFE_DOWNGRADE:
        return (
            f"Can not downgrade finalized feature from existing maxVersionLevel:{present} to "
            f"provided maxVersionLevel:{update.level} without setting the allowDowngrade flag in "
            "the request."
        )
    if update.level > present and update.kind != UpgradeType.UPGRADE:
        return (
            "When the allowDowngrade flag set in the request, the provided maxVersionLevel:"
            f"{update.level} can not be greater than existing maxVersionLevel:{present}."
        )
    return None


def _unsupported(ctx: Context, update: FeatureUpdate) -> str | None:
    """Whether this broker, and then any other one, could not live with the level."""
    cluster = ctx.cluster
    own = cluster.brokers.get(cluster.controller_id)
    lowest = {name: low for name, low, _ in own.features} if own else {}
    prefix = "Could not apply finalized feature update because"
    if update.feature not in lowest:
        return f"{prefix} the provided feature is not supported."
    if update.level < lowest[update.feature]:
        return (
            f"{prefix} the provided maxVersionLevel:{update.level} is lower than the supported "
            f"minVersion:{lowest[update.feature]}."
        )
    wanted = {update.feature: update.level}
    if not all(broker.supports(wanted) for broker in cluster.brokers.values()):
        return f"{prefix} brokers were found to have incompatible versions for the feature."
    return None
