"""Where a broker's setting comes from: the file, the cluster's defaults, or the broker's own znode.

A layer is a map of strings. The more specific one decides; where none speaks, the key's default
does. This knows every key that there is, and leaves to others what the values are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from klamm.config.broker_keys import DYNAMIC_ONLY_KEYS, KEYS, SYNONYMS
from klamm.config.definitions import Key, Value

_LISTENER_PREFIX: Final = "listener.name."


class Source(IntEnum):
    """The layer of a value; the number is the one in DescribeConfigs responses."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One value that one layer gives for one key."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Layers:
    """The settings of one broker, layer by layer."""

    static: Mapping[str, str]
    dynamic_default: Mapping[str, str] = field(default_factory=dict)
    dynamic_broker: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """The string in force for `name`, as it was written."""
        for layer in (self.dynamic_broker, self.dynamic_default, self.static):
            if name in layer:
                return layer[name]
        return KEYS[name].default if name in KEYS else None

    def value(self, name: str) -> Value | None:
        """The typed value in force for `name`."""
        text = self.text(name)
        return None if text is None else KEYS[name].parse(text)

    def is_set(self, name: str) -> bool:
        """Whether any layer but the defaults speaks of `name`."""
        return any(
            name in layer for layer in (self.dynamic_broker, self.dynamic_default, self.static)
        )

    def settings(self, name: str) -> tuple[ConfigSynonym, ...]:
        """All values of `name` and its synonyms, the one in force first."""
        names = SYNONYMS.get(name, (name,))
        found = [
            ConfigSynonym(synonym, layer[synonym], source)
            for layer, source in (
                (self.dynamic_broker, Source.DYNAMIC_BROKER),
                (self.dynamic_default, Source.DYNAMIC_DEFAULT_BROKER),
                (self.static, Source.STATIC_BROKER),
                (_defaults(names), Source.DEFAULT),
            )
            for synonym in names
            if synonym in layer
        ]
        return tuple(found)


def base_name(name: str) -> str:
    """The key behind `listener.name.<listener>.<key>`, or `name` itself."""
    if not name.startswith(_LISTENER_PREFIX):
        return name
    return name.removeprefix(_LISTENER_PREFIX).partition(".")[2]


def key_of(name: str) -> Key | None:
    """The definition that a setting of this name follows."""
    return KEYS.get(base_name(name))


def _defaults(names: Iterable[str]) -> dict[str, str]:
    return {
        name: default
        for name in names
        if name in KEYS and name not in DYNAMIC_ONLY_KEYS
        if (default := KEYS[name].default) is not None
    }
