"""Shipping: nothing is left out while the spool has it, and the topic is made if it is missing."""

import asyncio
import itertools
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

from klamm.core.cluster import ClusterState
from klamm.core.context import Context
from klamm.core.events import BrokerChange, QueuedEvent
from klamm.errors import UnavailableError
from klamm.history import shipping
from klamm.history.recorder import History
from klamm.history.shipping import POSITION_FILE, Shipper, TooLargeError
from klamm.history.spool import Spool, spool_files
from klamm.history.topic import HistoryTopicWriter
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import Request, decode_request, encode_response
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.produce import (
    ProducePartitionResponse,
    ProduceResponse,
    ProduceTopicResponse,
    encode_produce_response,
)
from klamm.protocol.records import iterate_batches, iterate_records
from tests.history.test_spool import record
from tests.support.recorded_controller import Clock, history_config
from tests.support.waiting import until


class Inbox:
    """A topic as the shipper sees it; `failures` happen to the next messages."""

    def __init__(self, *failures: Exception | None) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.largest = 1 << 30
        self._failures = iter(failures)

    async def send(self, value: bytes, key: bytes) -> None:
        if len(sequences([value])) > self.largest:
            raise TooLargeError("too much")
        failure = next(self._failures, None)
        if failure is not None:
            raise failure
        self.messages.append((key, value))

    @property
    def sequences(self) -> list[int]:
        return sequences(value for _, value in self.messages)


def sequences(values: Any) -> list[int]:
    tables = [pa.ipc.open_stream(value).read_all() for value in values]
    return [seq for table in tables for seq in table.column("seq").to_pylist()]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path)
    yield spool
    spool.close()


def put(spool: Spool, *seqs: int) -> None:
    for seq in seqs:
        spool.put(record(seq))
    spool.flush()


def shipped(spool: Spool, inbox: Inbox, topic: str = "history") -> list[int]:
    """What a shipper that starts now sends until nothing is left."""
    inbox.messages.clear()
    asyncio.run(Shipper(spool.directory, topic, inbox.send).ship())
    return inbox.sequences


def test_what_the_spool_holds_is_sent_in_order_and_once(spool: Spool):
    inbox = Inbox()
    put(spool, 1, 2)
    put(spool, 3)
    assert shipped(spool, inbox) == [1, 2, 3]
    assert [key for key, _ in inbox.messages] == [b"1-1", b"1-3"]
    assert shipped(spool, inbox) == []
    put(spool, 4)
    assert shipped(spool, inbox) == [4]


def test_shipping_goes_on_with_the_files_that_follow(spool: Spool):
    inbox = Inbox()
    put(spool, 1)
    assert shipped(spool, inbox) == [1]
    put(spool, 2)
    spool.close()
    put(spool, 3)
    spool.close()
    put(spool, 4)
    assert shipped(spool, inbox) == [2, 3, 4]


def test_a_batch_that_was_not_acknowledged_is_sent_again(spool: Spool):
    inbox = Inbox(None, UnavailableError("no leader"))
    put(spool, 1)
    put(spool, 2)
    with pytest.raises(UnavailableError):
        shipped(spool, inbox)
    assert inbox.sequences == [1]
    assert shipped(spool, inbox) == [2]


def test_a_torn_file_is_shipped_up_to_the_tear_and_then_left(spool: Spool):
    inbox = Inbox()
    put(spool, 1)
    put(spool, 2)
    spool.close()
    (path,) = spool_files(spool.directory)
    path.write_bytes(path.read_bytes()[:-100])
    assert shipped(spool, inbox) == [1]
    put(spool, 3)
    assert shipped(spool, inbox) == [3]


def test_a_file_of_another_version_holds_nothing_up(spool: Spool, caplog: pytest.LogCaptureFixture):
    inbox = Inbox()
    schema = pa.schema([("seq", pa.int64())], metadata={"klamm.history": "0"})
    with (
        pa.OSFile(str(spool.directory / "000000000000001.arrows"), "wb") as file,
        pa.ipc.new_stream(file, schema),
    ):
        pass
    put(spool, 1)
    assert shipped(spool, inbox) == [1]
    assert "is not shipped" in caplog.text


def test_files_that_the_retention_took_are_passed_over(spool: Spool):
    inbox = Inbox()
    put(spool, 1)
    assert shipped(spool, inbox) == [1]
    spool.close()
    put(spool, 2)
    spool.close()
    put(spool, 3)
    for path in spool_files(spool.directory)[:2]:
        path.unlink()
    assert shipped(spool, inbox) == [3]


def test_another_topic_gets_everything_from_the_start(spool: Spool):
    inbox = Inbox()
    put(spool, 1)
    assert shipped(spool, inbox) == [1]
    assert shipped(spool, inbox, topic="another") == [1]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"topic": "history", "file": 1}'])
def test_a_position_that_cannot_be_read_is_the_beginning(spool: Spool, content: str):
    inbox = Inbox()
    put(spool, 1)
    (spool.directory / POSITION_FILE).write_text(content)
    assert shipped(spool, inbox) == [1]


def test_a_batch_that_is_too_large_is_divided(spool: Spool):
    inbox = Inbox()
    inbox.largest = 2
    put(spool, 1, 2, 3, 4, 5)
    assert shipped(spool, inbox) == [1, 2, 3, 4, 5]
    assert max(len(sequences([value])) for _, value in inbox.messages) <= 2


def test_an_event_that_is_too_large_by_itself_is_named_and_left_out(
    spool: Spool, caplog: pytest.LogCaptureFixture
):
    inbox = Inbox()
    inbox.largest = 0
    put(spool, 7)
    assert shipped(spool, inbox) == []
    assert "event 7 of epoch 1 cannot be shipped" in caplog.text
    inbox.largest = 9
    put(spool, 8)
    assert shipped(spool, inbox) == [8]


def test_a_shipper_waits_for_news_and_outlives_failures(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shipping, "RETRY_PAUSE_S", 0.0)
    inbox = Inbox(UnavailableError("not yet"), OSError("nor now"))

    async def scenario() -> None:
        shipper = Shipper(spool.directory, "history", inbox.send)
        loop = asyncio.get_running_loop()
        spool.on_written = partial(loop.call_soon_threadsafe, shipper.notify)
        task = asyncio.create_task(shipper.run())
        for seq in (1, 2, 3):
            spool.put(record(seq))
            await until(lambda seq=seq: inbox.sequences == list(range(1, seq + 1)))
        task.cancel()
        spool.on_written = None

    asyncio.run(scenario())


# The topic


class ScriptedBroker:
    """Answers Metadata, CreateTopics and Produce as a broker of a small cluster would."""

    def __init__(self, brokers: int = 1) -> None:
        self.requests: list[Request] = []
        self.values: list[bytes] = []
        self.exists = True
        self.is_led = True
        self.holders = brokers
        self.produce_codes = itertools.repeat(ErrorCode.NONE)
        self._brokers = brokers
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "ScriptedBroker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
            await writer.wait_closed()

    def asked(self, key: ApiKey) -> list[Any]:
        return [request.body for request in self.requests if request.header.api_key == key]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = decode_request(await reader.readexactly(size))
                self.requests.append(request)
                writer.write(self._answer(request))
        except asyncio.IncompleteReadError:
            pass

    def _answer(self, request: Request) -> bytes:
        match request.header.api_key:
            case ApiKey.METADATA:
                return encode_response(request.header, self._metadata(request.body))
            case ApiKey.CREATE_TOPICS:
                topic = request.body.topics[0]
                code = ErrorCode.NONE
                if topic.replication_factor > self.holders:
                    code = ErrorCode.INVALID_REPLICATION_FACTOR
                else:
                    self.exists = True
                result = {"name": topic.name, "error_code": code, "error_message": None}
                return encode_response(request.header, {"topics": [result]})
            case _:
                code = next(self.produce_codes)
                topic = request.body.topics[0]
                if code == ErrorCode.NONE:
                    (batch,) = iterate_batches(topic.partitions[0].records)
                    self.values += [r.value or b"" for r in iterate_records(batch)]
                response = ProducePartitionResponse(0, code)
                return encode_produce_response(
                    request.header, ProduceResponse([ProduceTopicResponse(topic.name, [response])])
                )

    def _metadata(self, request: Any) -> dict[str, Any]:
        brokers = [
            {"node_id": id, "host": "127.0.0.1", "port": self.port, "rack": None}
            for id in range(self._brokers)
        ]
        partition = {"error_code": 0, "partition_index": 0, "leader_id": 0 if self.is_led else -1}
        code = ErrorCode.NONE if self.exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = {
            "name": request.topics[0].name,
            "error_code": code,
            "partitions": [partition] if self.exists else [],
        }
        return {"brokers": brokers, "controller_id": 0, "topics": [topic]}


async def send(broker: ScriptedBroker, attempts: int = 3) -> None:
    """Send one message, as often as it takes."""
    writer = HistoryTopicWriter("127.0.0.1", broker.port, "history", "a test")
    try:
        for attempt in range(attempts):
            try:
                await writer.send(b"value", b"key")
            except UnavailableError:
                if attempt == attempts - 1:
                    raise
            else:
                return
    finally:
        writer.close()


def test_a_message_waits_for_all_in_sync_replicas():
    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            await send(broker, attempts=1)
            assert broker.values == [b"value"]
            (request,) = broker.asked(ApiKey.PRODUCE)
            assert request.acks == -1
            assert not broker.asked(ApiKey.CREATE_TOPICS)

    asyncio.run(scenario())


def test_a_missing_topic_is_created_with_one_partition_and_up_to_three_replicas():
    async def scenario() -> None:
        async with ScriptedBroker(brokers=5) as broker:
            broker.exists = False
            await send(broker)
            (request,) = broker.asked(ApiKey.CREATE_TOPICS)
            topic = request.topics[0]
            assert (topic.name, topic.num_partitions, topic.replication_factor) == ("history", 1, 3)
            assert broker.values == [b"value"]

    asyncio.run(scenario())


def test_nodes_that_hold_no_replicas_make_for_fewer_of_them():
    async def scenario() -> None:
        async with ScriptedBroker(brokers=3) as broker:
            broker.exists, broker.holders = False, 1
            await send(broker)
            factors = [r.topics[0].replication_factor for r in broker.asked(ApiKey.CREATE_TOPICS)]
            assert factors == [3, 2, 1]

    asyncio.run(scenario())


def test_the_leader_is_looked_up_again_when_it_has_changed():
    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            broker.produce_codes = iter([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE])
            await send(broker)
            assert broker.values == [b"value"]
            assert len(broker.asked(ApiKey.METADATA)) == 2

    asyncio.run(scenario())


def test_no_leader_and_no_broker_are_worth_another_try():
    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            broker.is_led = False
            with pytest.raises(UnavailableError, match="no leader"):
                await send(broker, attempts=1)
        with pytest.raises(UnavailableError):
            await send(broker, attempts=1)

    asyncio.run(scenario())


def test_a_message_that_the_topic_does_not_take_is_told_apart():
    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            broker.produce_codes = itertools.repeat(ErrorCode.MESSAGE_TOO_LARGE)
            with pytest.raises(TooLargeError):
                await send(broker, attempts=1)

    asyncio.run(scenario())


def test_a_history_with_a_topic_ships_what_it_records(tmp_path: Path):
    async def scenario() -> None:
        async with ScriptedBroker() as broker:
            listener = f"PLAINTEXT://127.0.0.1:{broker.port}"
            config = history_config(
                tmp_path, **{"klamm.history.topic": "history", "listeners": listener}
            )
            history = History(config, Clock())
            context = Context(ClusterState())
            context.cluster.controller_epoch = 3
            for _ in range(2):
                history.begin(QueuedEvent(BrokerChange(), 0.0, "a test"), 3, 1e9)
                history.end("done", context)
            await until(lambda: sequences(broker.values) == [1, 2])
            await history.close()

    asyncio.run(scenario())
