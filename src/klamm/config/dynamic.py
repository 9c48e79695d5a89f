"""Changing configuration while a cluster runs: what may be changed, and by which operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from klamm.config.broker_keys import KAFKA_KEYS
from klamm.config.definitions import Key, UpdateMode, ValueType
from klamm.config.layers import base_name, key_of
from klamm.errors import ConfigError


class Operation(IntEnum):
    """An operation of IncrementalAlterConfigs on one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One key's part of an IncrementalAlterConfigs request."""

    name: str
    operation: Operation
    value: str | None


def altered(
    current: Mapping[str, str], changes: Iterable[Change], keys: Mapping[str, Key]
) -> dict[str, str]:
    """The settings after `changes`; lists are the only values that grow and shrink.

    Whether the outcome is acceptable is for the caller to check, as it depends on the resource.
    """
    settings = dict(current)
    for change in changes:
        text = change.value or ""
        match change.operation:
            case Operation.SET:
                settings[change.name] = text
            case Operation.DELETE:
                settings.pop(change.name, None)
            case Operation.APPEND:
                held = _list_of(change, settings, keys)
                added = [item for item in text.split(",") if item not in held]
                settings[change.name] = ",".join(item for item in held + added if item)
            case Operation.SUBTRACT:
                left = _list_of(change, settings, keys)
                for item in text.split(","):
                    if item in left:
                        left.remove(item)
                settings[change.name] = ",".join(left)
    return settings


def _list_of(change: Change, settings: Mapping[str, str], keys: Mapping[str, Key]) -> list[str]:
    key = keys.get(change.name)
    if key is None:
        raise ConfigError(f"Unknown config name: {change.name}")
    if key.type is not ValueType.LIST:
        raise ConfigError(
            f"Config value {change.operation.name.lower()} is not allowed"
            f" for config key: {change.name}"
        )
    return settings.get(change.name, key.default or "").split(",")


def validate_broker_config(settings: Mapping[str, str], *, per_broker: bool) -> None:
    """Refuse what cannot be set on a running broker, or not for all of them at once.

    Names that are not known are let through: they are for plug-ins, and Kafka stores them too.
    """
    known = {name: key for name in settings if (key := key_of(name)) is not None}
    _refuse(
        "Cannot update these configs dynamically",
        [name for name, key in known.items() if key.mode is UpdateMode.READ_ONLY],
    )
    _refuse(
        "These security configs can be dynamically updated only per-listener"
        " using the listener prefix",
        [name for name in known if name.startswith(("ssl.", "sasl.")) and base_name(name) == name],
    )
    for name, key in known.items():
        key.parse(settings[name])
    if not per_broker:
        _refuse(
            "Cannot update these configs at default cluster level, broker id must be specified",
            [name for name, key in known.items() if key.mode is UpdateMode.PER_BROKER],
        )


def sift(settings: Mapping[str, str], *, per_broker: bool) -> tuple[dict[str, str], list[str]]:
    """The valid settings of a znode, and an error message for each invalid one.

    Any client can write to ZooKeeper; a broker ignores invalid values that it finds there.
    """
    usable: dict[str, str] = {}
    complaints: list[str] = []
    for name, text in settings.items():
        try:
            validate_broker_config({name: text}, per_broker=per_broker)
        except ConfigError as error:
            complaints.append(str(error))
        else:
            usable[name] = text
    return usable, complaints


def is_dynamic(name: str) -> bool:
    """Whether a key of the file can also be changed while the broker runs."""
    return name in KAFKA_KEYS and KAFKA_KEYS[name].mode is not UpdateMode.READ_ONLY


def _refuse(reason: str, names: list[str]) -> None:
    if names:
        raise ConfigError(f"{reason}: Set({', '.join(names)})")
