"""The content of DescribeConfigs: every key with its value, its source and its synonyms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from klamm.config.broker import BrokerConfig
from klamm.config.broker_keys import KAFKA_KEYS
from klamm.config.broker_security import mechanism_key
from klamm.config.definitions import Key, ValueType, format_value
from klamm.config.dynamic import is_dynamic
from klamm.config.layers import ConfigSynonym, Layers, Source, key_of
from klamm.config.topic_keys import TOPIC_KEYS, TopicKey
from klamm.config.topics import topic_value


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """One key of a described resource; the type of a plug-in's key is not known."""

    name: str
    value: str | None
    type: ValueType | None
    source: Source
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[DescribedConfig]:
    """Every topic key, whether the topic sets it or not."""
    return [_topic_entry(key, overrides, broker) for key in TOPIC_KEYS.values()]


def describe_broker(broker: BrokerConfig) -> list[DescribedConfig]:
    """Every key of the broker: Kafka's, and all others that its layers hold."""
    layers = broker.layers
    names = {name for name, key in KAFKA_KEYS.items() if not key.internal}
    names.update(layers.static, layers.dynamic_default, layers.dynamic_broker)
    return [_broker_entry(name, layers, layers.text(name)) for name in sorted(names)]


def describe_broker_defaults(broker: BrokerConfig) -> list[DescribedConfig]:
    """The cluster-wide dynamic defaults, and nothing else: the broker without a name."""
    layers = Layers(static={}, dynamic_default=broker.layers.dynamic_default)
    return [
        _broker_entry(name, layers, text, only=Source.DYNAMIC_DEFAULT_BROKER)
        for name, text in sorted(layers.dynamic_default.items())
    ]


def _topic_entry(
    key: TopicKey, overrides: Mapping[str, str], broker: BrokerConfig
) -> DescribedConfig:
    value = topic_value(key, overrides, broker)
    text = None if value is None else format_value(value)
    settings = _settings_from(broker.layers, key.broker_key) if key.broker_key else ()
    if key.name in overrides:
        settings = (ConfigSynonym(key.name, text, Source.TOPIC), *settings)
    return DescribedConfig(
        name=key.name,
        value=text,
        type=key.type,
        source=settings[0].source if settings else Source.DEFAULT,
        read_only=False,
        sensitive=False,
        synonyms=settings,
    )


def _broker_entry(
    name: str, layers: Layers, text: str | None, only: Source | None = None
) -> DescribedConfig:
    key = key_of(name) or key_of(mechanism_key(name) or "")
    settings = tuple(
        setting
        for setting in _settings_from(layers, name)
        if only is None or setting.source is only
    )
    # What cannot be shown to be harmless is not shown: a plug-in's setting may be a password.
    sensitive = key is None or key.sensitive
    if sensitive:
        settings = tuple(ConfigSynonym(each.name, None, each.source) for each in settings)
    return DescribedConfig(
        name=name,
        value=None if sensitive else _shown(key, text),
        type=key.type if key else None,
        source=settings[0].source if settings else Source.DEFAULT,
        read_only=not is_dynamic(name),
        sensitive=sensitive,
        synonyms=settings,
    )


def _settings_from(layers: Layers, name: str) -> tuple[ConfigSynonym, ...]:
    """The synonyms of `name`, from the first one that is the key itself.

    Synonyms that come before it are left out, as Kafka does.
    """
    settings = layers.settings(name)
    first = next((at for at, each in enumerate(settings) if each.name == name), len(settings))
    return settings[first:]


def _shown(key: Key | None, text: str | None) -> str | None:
    return text if key is None or text is None else format_value(key.parse(text))
