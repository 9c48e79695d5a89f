"""What a controller writes into its logs, and what its channels do with responses."""

import asyncio
import contextlib
import logging
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from klamm.controller.channels import ControllerChannels, QueuedRequest
from klamm.controller.event_queue import EventQueue
from klamm.core.cluster import AdvertisedEndpoint, RegisteredBroker
from klamm.core.context import Level
from klamm.core.events import UpdateMetadataResponseReceived
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.headers import RequestHeader
from klamm.zookeeper import znodes
from tests.support.candidate import Node, running
from tests.support.lab import ScriptedBroker

#: The prefixes of section 19, for controller 1.
PREFIX = re.compile(
    r"\[Controller id=1\] |\[PartitionStateMachine controllerId=1\] "
    r"|\[ReplicaStateMachine controllerId=1\] |\[Topic Deletion Manager 1\] "
    r"|\[RequestSendThread controllerId=1\] "
)


@pytest.mark.rule("MET-6", "MET-7", "MET-10")
def test_every_line_says_who_speaks_and_the_milestones_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)

    async def scenario(node: Node) -> None:
        await node.register(7, port=1)
        topic = znodes.encode_topic(znodes.TopicAssignment(None, {0: [7], 1: [7, 8]}))
        await node.controller.enter_election()
        await node.until(lambda: "controller of" in caplog.text)
        await node.store.create(znodes.topic_path("t"), topic)
        await node.until(lambda: "t-1" in caplog.text)
        await node.register(8, port=1)
        await node.until(lambda: "new [8]" in caplog.text)
        move = znodes.encode_reassignment({("t", 0): [8]})
        await node.store.create(znodes.REASSIGN_PARTITIONS, move)
        await node.until(lambda: "partitions are reassigned" in caplog.text)
        await node.store.create(znodes.topic_path("u"), topic)
        await node.until(lambda: "u-1" in caplog.text)
        await node.store.create(znodes.delete_topic_path("u"))
        await node.until(lambda: "deletion of ['u'] starts" in caplog.text)
        await node.store.delete(znodes.broker_path(8))
        await node.until(lambda: "gone [8]" in caplog.text)
        await node.controller.expire("test")

    async def main() -> None:
        async with running(tmp_path) as node:
            await scenario(node)

    asyncio.run(main())
    ours = [record for record in caplog.records if record.name.startswith("klamm.controller")]
    for record in ours:
        assert PREFIX.match(record.getMessage()), record.getMessage()
    changes = [record for record in caplog.records if record.name == "state.change.logger"]
    for record in changes:
        assert record.getMessage().startswith("[Controller id=1 epoch=1] ")
    said = "\n".join(record.getMessage() for record in ours)
    for milestone in (
        "elected, epoch 1, epoch zkVersion 1",
        "found 0 topics with 0 partitions",
        "sending metadata to brokers [7]",
        "controller of 0 topics",
        "new topics: ['t']",
        "brokers: new [8], gone [], bounced [], all [7, 8]",
        "partitions are reassigned: t-0",
        "topics queued for deletion: ['u']",
        "deletion of ['u'] starts",
        "brokers: new [], gone [8], bounced [], all [7]",
        "resigned",
    ):
        assert milestone in said
    changed = "\n".join(record.getMessage() for record in changes)
    for line in (
        "partitions become NEW: t-0, t-1",
        "partitions become ONLINE with their first leader: t-0 (leader 7, epoch 0",
        "sending LeaderAndIsr to broker 7 with 2 become-leader and 0 become-follower partitions",
        "sending UpdateMetadata to brokers [7] for 2 partitions",
        "sending StopReplica to broker 7 for 2 replicas",
    ):
        assert line in changed


@pytest.mark.rule("MET-8")
def test_with_tracing_on_every_entry_of_a_request_and_every_response_has_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(Level.TRACE, "state.change.logger")

    async def scenario(node: Node, port: int) -> None:
        await node.register(7, port)
        await node.controller.enter_election()
        topic = znodes.encode_topic(znodes.TopicAssignment(None, {0: [7], 1: [7]}))
        await node.store.create(znodes.topic_path("t"), topic)
        await node.until(lambda: "broker 7 responded to LEADER_AND_ISR" in caplog.text)
        await node.store.create(znodes.delete_topic_path("t"))
        await node.until(lambda: "broker 7 responded to STOP_REPLICA" in caplog.text)

    async def main(port: int) -> None:
        async with running(tmp_path) as node:
            await scenario(node, port)

    with contextlib.closing(ScriptedBroker("not registered", 7)) as broker:
        asyncio.run(main(broker.port))
    traced = [record.getMessage() for record in caplog.records if record.levelno == Level.TRACE]
    for partition in (0, 1):
        state = f"t-{partition} (leader 7, epoch 0, ISR [7], replicas [7])"
        for line in (
            f"LeaderAndIsr to broker 7: {state}, new True",
            f"StopReplica to broker 7: t-{partition}, epoch -2, delete False",
            f"StopReplica to broker 7: t-{partition}, epoch -2, delete True",
        ):
            assert f"[Controller id=1 epoch=1] {line}" in traced
    assert any("broker 7 responded to UPDATE_METADATA" in line for line in traced)


def outgoing(on_response: Any) -> QueuedRequest:
    def encode(header: RequestHeader) -> list[bytes]:
        return [struct.pack(">ii", 4, header.correlation_id)]

    return QueuedRequest(ApiKey.UPDATE_METADATA, 0, encode, on_response)


@pytest.mark.rule("CHAN-6")
def test_a_request_for_a_broker_without_a_channel_is_dropped(caplog: pytest.LogCaptureFixture):
    ControllerChannels(1, "PLAINTEXT").send(9, outgoing(lambda *_: None))
    assert "[Controller id=1] no channel to broker 9: UPDATE_METADATA is dropped" in caplog.text


@pytest.mark.rule("CHAN-1")
def test_a_broker_without_the_controllers_listener_cannot_be_told(
    caplog: pytest.LogCaptureFixture,
):
    channels = ControllerChannels(1, "CONTROL")
    channels.open(RegisteredBroker(9, 1, (AdvertisedEndpoint("PLAINTEXT", "127.0.0.1", 1),)))
    assert list(channels) == []
    assert "broker 9 has no listener CONTROL" in caplog.text


@pytest.mark.rule("CHAN-1", "CHAN-7")
def test_a_response_becomes_an_event_and_nothing_else():
    async def scenario() -> None:
        has_left = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while frame := await reader.read(8):
                writer.write(struct.pack(">i", 5) + frame[4:] + b"!")
            writer.close()
            await writer.wait_closed()
            has_left.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        queue = EventQueue(lambda: 0.0, lambda _: None)
        channels = ControllerChannels(1, "CONTROL")
        channels.attach(queue)
        endpoints = (
            AdvertisedEndpoint("PLAINTEXT", "127.0.0.1", 1),
            AdvertisedEndpoint("CONTROL", "127.0.0.1", port),
        )
        channels.open(RegisteredBroker(9, 1, endpoints))
        heard = []

        def on_response(header: RequestHeader, frame: memoryview) -> UpdateMetadataResponseReceived:
            heard.append((header.correlation_id, bytes(frame)))
            return UpdateMetadataResponseReceived(9, 0)

        channels.send(9, outgoing(on_response))
        async with asyncio.timeout(10):
            queued = await queue.take()
        assert heard == [(1, struct.pack(">i", 1) + b"!")]
        assert queued.event == UpdateMetadataResponseReceived(9, 0)
        assert queued.cause == "answer of broker 9 to UPDATE_METADATA"
        channels.close_all()
        await has_left.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
