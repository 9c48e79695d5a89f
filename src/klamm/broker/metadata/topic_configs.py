"""The settings in force for each topic that has a replica here.

They come from ZooKeeper: read when the first replica of a topic arrives, and again whenever a
notification says that they changed.
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
    """What a topic's own settings and the broker's come to, for a log."""
    effective = TopicConfig.effective(overrides, config)
    values = {name: getattr(effective, name) for name in _FIELDS}
    values["cleanup_policy"] = frozenset(effective.cleanup_policy)
    return LogConfig(**values)


class TopicConfigs:
    """Overrides by topic, and what they come to."""

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
        """What the topic itself sets."""
        return self._overrides.get(topic, {})

    async def learn(self, topics: Iterable[str]) -> None:
        """Read the settings of topics that are new here."""
        reading: dict[str, dict[str, str]] = {
            name: {} for name in topics if name not in self._overrides
        }
        if not reading:
            return
        # From now on a notification is for us; what it brings is newer than what is read here.
        self._overrides.update(reading)
        while True:
            try:
                await self._read(reading)
            except SessionLostError:
                # Without its settings a log could lose what it is to keep.
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
        """Take in new settings; what they come to, None if the topic has no replica here."""
        if topic not in self._overrides:
            return None
        self._take(topic, overrides)
        return self.of(topic)

    def forget(self, topic: str) -> None:
        """The last replica of a topic is gone."""
        self._overrides.pop(topic, None)
        self._configs.pop(topic, None)

    def use(self, config: BrokerConfig) -> Iterator[tuple[str, LogConfig]]:
        """Let another configuration of the broker stand behind the topics'; each topic anew."""
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
