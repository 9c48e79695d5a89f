"""Settings of topics: read when a topic is new here, changed when ZooKeeper says so."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from klamm.broker.metadata.topic_configs import TopicConfigs
from klamm.config.broker import BrokerConfig
from klamm.zookeeper import znodes
from klamm.zookeeper.memory import MemoryZooKeeper

CONFIG = BrokerConfig.from_properties(
    {"zookeeper.connect": "localhost:2181", "broker.id": "1", "log.retention.ms": "5000"}
)


def run(test: Callable[[TopicConfigs], Awaitable[None]], **topics: dict[str, str]) -> None:
    async def main() -> None:
        store = MemoryZooKeeper().session()
        await store.ensure_path("/config/topics")
        for name, settings in topics.items():
            path = znodes.config_path(f"topics/{name}")
            await store.create(path, znodes.encode_config(settings))
        await test(TopicConfigs(CONFIG, store))
        await store.close()

    asyncio.run(main())


@pytest.mark.rule("CFG-1", "CFG-8")
def test_a_topic_has_its_own_settings_over_the_brokers() -> None:
    async def test(topics: TopicConfigs) -> None:
        await topics.learn(["set", "plain"])
        assert topics.of("set").retention_ms == 7
        assert topics.of("plain").retention_ms == 5000
        assert topics.of("set").segment_bytes == topics.of("plain").segment_bytes

    run(test, set={"retention.ms": "7"})


@pytest.mark.rule("CFG-4")
def test_a_change_counts_for_topics_that_are_here() -> None:
    async def test(topics: TopicConfigs) -> None:
        assert topics.change("t", {"retention.ms": "9"}) is None
        await topics.learn(["t"])
        assert topics.of("t").retention_ms == 7
        changed = topics.change("t", {"retention.ms": "9"})
        assert changed is not None
        assert changed.retention_ms == topics.of("t").retention_ms == 9
        topics.forget("t")
        assert topics.of("t").retention_ms == 5000

    run(test, t={"retention.ms": "7"})


def test_settings_that_make_no_sense_have_no_effect() -> None:
    async def test(topics: TopicConfigs) -> None:
        await topics.learn(["bad"])
        assert topics.of("bad").retention_ms == 5000

    run(test, bad={"retention.ms": "soon"})


def test_new_settings_of_the_broker_stand_behind_those_of_topics() -> None:
    async def test(topics: TopicConfigs) -> None:
        await topics.learn(["set", "plain"])
        changed = CONFIG.with_dynamic(default={"log.retention.ms": "6000"}, broker={})
        found = {topic: config.retention_ms for topic, config in topics.use(changed)}
        assert found == {"set": 7, "plain": 6000}

    run(test, set={"retention.ms": "7"})
