"""The effective settings of each topic that has a replica on this broker.

Overrides are read from ZooKeeper when a topic gets its first replica here, and again when a
notification says that they have changed.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Final

from klamm.broker.log.settings import LogConfig
from klamm.config.broker import BrokerConfig
from klamm.config.topics import TopicConfig, validate_topic_config
from klamm.errors import ConfigError, MalformedZnodeError, SessionLostError
from klamm.zookeeper import znodes
from klamm.zookeeper.store import Store

log = logging.getLogger("klamm.broker.config")

_RETRY_PAUSE_S: Final = 0.1
_FIELDS: Final = tuple(field.name for field in fields(LogConfig))


def log_config(overrides: dict[str, str], config: BrokerConfig) -> LogConfig:
    """The effective settings of a log: the topic's overrides, or else the broker's settings."""
    effective = TopicConfig.effective(overrides, config)
    values = {name: getattr(effective, name) for name in _FIELDS}
    values["cleanup_policy"] = frozenset(effective.cleanup_policy)
    return LogConfig(**values)


class TopicConfigs:
    """The overrides of each topic, and its effective settings."""

    def __init__(self, config: BrokerConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._overrides: dict[str, dict[str, str]] = {}
        self._configs: dict[str, LogConfig] = {}
        self._default = log_config({}, config)

    def __contains__(self, topic: str) -> bool:
        return topic in self._overrides

    def of(self, topic: str) -> LogConfig:
        """The settings of a topic's logs."""
        return self._configs.get(topic, self._default)

    def overrides(self, topic: str) -> dict[str, str]:
        """The overrides of the topic."""
        return self._overrides.get(topic, {})

    async def learn(self, topics: Iterable[str]) -> None:
        """Read the settings of topics that have no replica here yet."""
        reading: dict[str, dict[str, str]] = {
            name: {} for name in topics if name not in self._overrides
        }
        if not reading:
            return
        # From here on notifications are applied; they are newer than what is read below.
        self._overrides.update(reading)
        while True:
            try:
                await self._read(reading)
            except SessionLostError:
                # Without its settings a log might delete records that it has to keep.
                await asyncio.sleep(_RETRY_PAUSE_S)
            else:
                return

    async def _read(self, reading: dict[str, dict[str, str]]) -> None:
        async for chunk in self._store.read_many(
            znodes.config_path(f"topics/{name}") for name in reading
        ):
            for path, data in zip(chunk.path, chunk.data, strict=True):
                name = path.rpartition("/")[2]
                if data is not None and self._overrides.get(name) is reading[name]:
                    self._take(name, _decode(path, data))

    def change(self, topic: str, overrides: dict[str, str]) -> LogConfig | None:
        """Apply new overrides; return the effective settings, None if no replica is here."""
        if topic not in self._overrides:
            return None
        self._take(topic, overrides)
        return self.of(topic)

    def forget(self, topic: str) -> None:
        """Forget a topic whose last replica is gone."""
        self._overrides.pop(topic, None)
        self._configs.pop(topic, None)

    def use(self, config: BrokerConfig) -> Iterator[tuple[str, LogConfig]]:
        """Apply a changed configuration of the broker; yield each topic's effective settings."""
        self._config = config
        self._default = log_config({}, config)
        for topic, overrides in list(self._overrides.items()):
            self._take(topic, overrides)
            yield topic, self.of(topic)

    def _take(self, topic: str, overrides: dict[str, str]) -> None:
        self._overrides[topic] = overrides
        self._configs.pop(topic, None)
        if not overrides:
            return
        try:
            validate_topic_config(overrides)
            self._configs[topic] = log_config(overrides, self._config)
        except ConfigError as error:
            log.error("settings of topic %s have no effect: %s", topic, error)


def _decode(path: str, data: bytes) -> dict[str, str]:
    try:
        return znodes.decode_config(path, data)
    except MalformedZnodeError as error:
        log.error("%s", error)
        return {}
