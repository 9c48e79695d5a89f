"""The controller's requests at a broker whose registration is not confirmed yet."""

import asyncio
from types import SimpleNamespace

import pytest

from klamm.broker.handlers.control import ControlHandlers
from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.no_data import NoData
from klamm.config.broker import BrokerConfig
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

SINGLE_BROKER = BrokerConfig.from_properties(
    {"broker.id": "1", "zookeeper.connect": "localhost:2181", "listeners": "PLAINTEXT://:9092"}
)


@pytest.mark.rule("CTRL-2", "FENCE-11")
@pytest.mark.parametrize(
    ("broker_epoch", "error"), [(53, ErrorCode.STALE_BROKER_EPOCH), (60, ErrorCode.NONE)]
)
def test_a_request_waits_until_the_broker_knows_which_incarnation_it_is(broker_epoch, error):
    async def scenario() -> None:
        identity = BrokerIdentity(1, "cluster")
        metadata = MetadataCache()
        replicas = NoData(SINGLE_BROKER, identity, metadata)
        control = ControlHandlers(identity, metadata, replicas, [], asyncio.Lock())
        body = SimpleNamespace(
            controller_id=2,
            controller_epoch=7,
            broker_epoch=broker_epoch,
            live_brokers=[],
            topics=[],
        )
        handle = control.handlers()[ApiKey.UPDATE_METADATA]
        responding = asyncio.ensure_future(handle(SimpleNamespace(body=body, frame=b"")))  # type: ignore
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not responding.done()
        identity.broker_epoch = 60
        control.registered()
        assert (await responding)["error_code"] == error

    asyncio.run(scenario())
