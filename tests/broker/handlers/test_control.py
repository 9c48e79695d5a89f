"""The controller's requests, at a broker that has not heard of its own registration yet."""

import asyncio
from types import SimpleNamespace

import pytest

from klamm.broker.handlers.control import ControlHandlers, NoReplicas
from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import MetadataCache
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode


@pytest.mark.rule("CTRL-2", "FENCE-11")
@pytest.mark.parametrize(
    ("broker_epoch", "answer"), [(53, ErrorCode.STALE_BROKER_EPOCH), (60, ErrorCode.NONE)]
)
def test_a_request_waits_until_the_broker_knows_which_incarnation_it_is(broker_epoch, answer):
    async def scenario() -> None:
        identity = BrokerIdentity(1, "cluster")
        control = ControlHandlers(identity, MetadataCache(), NoReplicas(), [], asyncio.Lock())
        body = SimpleNamespace(
            controller_id=2,
            controller_epoch=7,
            broker_epoch=broker_epoch,
            live_brokers=[],
            topics=[],
        )
        handle = control.handlers()[ApiKey.UPDATE_METADATA]
        answering = asyncio.ensure_future(handle(SimpleNamespace(body=body)))  # type: ignore
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not answering.done()
        identity.broker_epoch = 60
        control.registered()
        assert (await answering)["error_code"] == answer

    asyncio.run(scenario())
