"""Rows 1 and 32: what a connection is told first, and what happens to those that misbehave."""

import random
import select
import socket
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from klamm.protocol.apis import APIS, UNADVERTISED, ApiKey
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.compression import Codec, compress
from klamm.protocol.records import HEADER_SIZE, Record, build_batch
from tests.support.cluster import RealCluster
from tests.support.processes import memory_kb
from tests.support.raw import Raw, batch, fetch_values, produce_values
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture
def raw(cluster: RealCluster) -> Raw:
    with Raw(cluster[1].port) as connection:
        yield connection  # type: ignore[misc]


@pytest.mark.rule("API-1", "API-2", "API-6", "API-9", "API-11")
@pytest.mark.parametrize("version", range(5))
def test_api_versions_are_told_in_every_version(raw: Raw, version: int) -> None:
    response = raw.ask(
        ApiKey.API_VERSIONS,
        version,
        client_software_name="test",
        client_software_version="1.0",
    )
    assert response.error_code == ErrorCode.NONE
    assert {(each.api_key, each.min_version, each.max_version) for each in response.api_keys} == {
        (api.key, api.min_version, api.max_version)
        for api in APIS.values()
        if api.key not in UNADVERTISED
    }


@pytest.mark.rule("API-4", "API-5")
def test_a_client_from_the_future_is_told_what_is_spoken(raw: Raw) -> None:
    body = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1) + b"\0 something unknown"
    raw.socket.sendall(struct.pack(">i", len(body)) + body)
    correlation_id, error, count, key, low, high = struct.unpack(">ihihhh", raw.receive())
    assert (correlation_id, error) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert (count, key, low, high) == (1, ApiKey.API_VERSIONS, 0, 4)
    assert raw.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.NONE


@pytest.mark.rule("API-7")
def test_software_names_have_a_form(raw: Raw) -> None:
    response = raw.ask(
        ApiKey.API_VERSIONS, 3, client_software_name="-bad-", client_software_version="1"
    )
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.rule("META-1", "META-2", "META-3", "META-5", "META-7", "META-8", "FRM-10", "UMD-8")
def test_metadata_of_all_none_named_and_unknown_topics(
    cluster: RealCluster, raw: Raw, topic: str
) -> None:
    cluster.create(topic, partitions=2)
    flags = {
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }
    everything = raw.ask(ApiKey.METADATA, topics=None, **flags)
    assert topic in {each.name for each in everything.topics}
    assert {(each.node_id, each.port, each.rack) for each in everything.brokers} == {
        (broker.id, broker.port, rack)
        for broker, rack in zip(cluster.brokers.values(), "abc", strict=True)
    }
    assert everything.controller_id == cluster.controller_id()
    assert everything.cluster_id == cluster.znode("/cluster/id")["id"]
    assert raw.metadata().topics == ()
    (named,) = raw.metadata(topic).topics
    assert (named.error_code, len(named.partitions), named.is_internal) == (0, 2, False)
    for partition in named.partitions:
        assert set(partition.isr_nodes) == set(partition.replica_nodes) == {1, 2, 3}
        assert partition.leader_id == partition.replica_nodes[0]
    by_id = raw.ask(ApiKey.METADATA, topics=[{"name": None, "topic_id": named.topic_id}], **flags)
    assert by_id.topics[0].name == topic
    for name, error in (
        ("no-such-topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("not/legal", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ):
        assert raw.metadata(name).topics[0].error_code == error
    for name in (None, topic):
        other = [{"name": name, "topic_id": uuid.uuid4()}]
        unknown = raw.ask(ApiKey.METADATA, topics=other, **flags)
        assert (unknown.topics[0].error_code, unknown.topics[0].name) == (100, None)
    by_id_too_early = raw.ask(
        ApiKey.METADATA, 11, topics=[{"name": topic, "topic_id": named.topic_id}], **flags
    )
    assert by_id_too_early.topics[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.rule("META-11", "API-13")
def test_the_cluster_is_described_by_any_broker(cluster: RealCluster, raw: Raw) -> None:
    response = raw.ask(
        ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True, endpoint_type=1
    )
    assert {each.broker_id for each in response.brokers} == {1, 2, 3}
    assert response.controller_id == cluster.controller_id()
    assert response.cluster_authorized_operations > 0
    for endpoint_type, error in (
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ):
        refused = raw.ask(
            ApiKey.DESCRIBE_CLUSTER,
            include_cluster_authorized_operations=False,
            endpoint_type=endpoint_type,
        )
        assert refused.error_code == error


def _frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _header(key: int, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1)


ABUSE = {
    "a negative size": struct.pack(">i", -5),
    "a size beyond the limit": struct.pack(">i", 104_857_601),
    "an unknown key": _frame(_header(999, 0)),
    "a key that is not advertised": _frame(_header(68, 0)),
    "a version that is too high": _frame(_header(ApiKey.FETCH, 99)),
    "a version that is too low": _frame(_header(ApiKey.PRODUCE, 2) + b"\0" * 30),
    "an empty frame": _frame(b""),
    "half a header": _frame(b"\0\3\0"),
    "a body that ends early": _frame(_header(ApiKey.LIST_OFFSETS, 1) + b"\0\0"),
    "a count that cannot be": _frame(
        _header(ApiKey.LIST_OFFSETS, 1) + struct.pack(">ii", -1, 0x7FFFFFFF)
    ),
    "a null where there has to be an array": _frame(
        _header(ApiKey.DELETE_RECORDS, 2) + b"\0" + b"\0" + bytes(4) + b"\0"
    ),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS hello": bytes.fromhex("1603010200010001fc0303") + bytes(500),
}


@pytest.mark.rule("FRM-1", "FRM-4", "API-10")
@pytest.mark.parametrize("sent", ABUSE.values(), ids=ABUSE.keys())
def test_nonsense_closes_its_connection_and_no_other(
    cluster: RealCluster, raw: Raw, sent: bytes
) -> None:
    with Raw(cluster[1].port) as abuser:
        abuser.socket.sendall(sent)
        abuser.socket.shutdown(socket.SHUT_WR)
        assert abuser.is_closed_by_peer()
    assert raw.metadata().controller_id >= 0


@pytest.mark.rule("FRM-1")
def test_random_bytes_harm_nobody(cluster: RealCluster, raw: Raw) -> None:
    noise = random.Random(7)
    for _ in range(50):
        with Raw(cluster[1].port) as abuser:
            body = noise.randbytes(noise.randint(1, 400))
            abuser.socket.sendall(_frame(body) if noise.random() < 0.8 else body)
            abuser.socket.shutdown(socket.SHUT_WR)
            while abuser.socket.recv(1 << 16):
                pass
    assert raw.metadata().controller_id >= 0


@pytest.mark.rule("FRM-5", "FRM-6")
def test_what_follows_a_body_is_ignored(raw: Raw) -> None:
    values = {"topics": [], "allow_auto_topic_creation": False}
    request = encode_request(RequestHeader(ApiKey.METADATA, 5, 3, "x"), values)[4:]
    raw.socket.sendall(_frame(request + b"and more"))
    assert raw.receive()[:4] == struct.pack(">i", 3)


@pytest.mark.rule("FRM-2")
def test_pipelined_requests_are_answered_in_order(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic)
    with Raw(cluster[cluster.leader(topic)].port) as raw:
        topic_id = raw.topic_id(topic)
        # The slow one comes first: a fetch that waits for what the third brings would never end,
        # so it waits for its time to pass.
        headers = [
            raw.send(ApiKey.FETCH, 13, **fetch_values(topic_id, 0, max_wait_ms=300)),
            raw.send(ApiKey.METADATA, 5, topics=[], allow_auto_topic_creation=False),
            raw.send(ApiKey.PRODUCE, **produce_values(topic, batch(b"x"))),
            raw.send(ApiKey.METADATA, 5, topics=[], allow_auto_topic_creation=False),
        ]
        for header in headers:
            assert raw.receive()[:4] == struct.pack(">i", header.correlation_id)


@pytest.mark.rule("FRM-2")
def test_a_slow_reader_holds_up_nobody_else(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic)
    leader = cluster[cluster.leader(topic)]
    cluster.produce(topic, [b"x" * 900_000 for _ in range(20)])
    with Raw(leader.port) as slow, Raw(leader.port) as other:
        topic_id = slow.topic_id(topic)
        limits = {"max_bytes": 50 << 20, "partition_max_bytes": 50 << 20}
        for _ in range(3):
            slow.send(ApiKey.FETCH, 13, **fetch_values(topic_id, 0, **limits))
        started = time.monotonic()
        for _ in range(20):
            other.metadata()
        assert time.monotonic() - started < 5
        for _ in range(3):
            assert len(slow.receive()) > 17_000_000


@pytest.mark.rule("FRM-1")
def test_a_client_that_goes_in_the_middle_of_its_response_harms_nobody(
    cluster: RealCluster, raw: Raw, topic: str
) -> None:
    cluster.create(topic, assignment=[[1]])
    cluster.produce(topic, [b"x" * 900_000 for _ in range(20)])
    limits = {"max_bytes": 50 << 20, "partition_max_bytes": 50 << 20}
    values = fetch_values(raw.topic_id(topic), 0, **limits)
    for is_reset in (False, True):
        with Raw(cluster[1].port) as leaving:
            leaving.send(ApiKey.FETCH, 13, **values)
            leaving.socket.recv(1000)
            if is_reset:
                linger = struct.pack("ii", 1, 0)
                leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert len(raw.fetch(raw.topic_id(topic), 0, **limits).topics) == 1


@pytest.mark.rule("FRM-1")
def test_requests_may_arrive_in_any_pieces(cluster: RealCluster, raw: Raw, topic: str) -> None:
    cluster.create(topic, assignment=[[1]], config={"max.message.bytes": "3000000"})

    def request(number: int, records: bytes) -> bytes:
        header = RequestHeader(ApiKey.PRODUCE, 9, number, "pieces")
        return encode_request(header, produce_values(topic, records))

    small, large = request(1, batch(b"x")), request(2, batch(b"x" * 2_500_000))
    stream = small + large + small + request(3, batch(b"x" * 400_000)) + small
    cuts = random.Random(7)
    at = 0
    while at < len(stream):
        # Single bytes around the places where one request ends and another begins.
        is_near = min(abs(at - end) for end in (0, len(small), len(small + large))) < 40
        size = 1 if is_near else cuts.randint(1, 200_000)
        raw.socket.sendall(stream[at : at + size])
        at += size
    responses = [struct.unpack(">i", raw.receive()[:4])[0] for _ in range(5)]
    assert responses == [1, 2, 1, 3, 1]
    assert raw.list_offset(topic, -1).offset == 5


@pytest.mark.rule("FRM-1")
def test_announcing_a_large_request_costs_nothing(cluster: RealCluster, raw: Raw) -> None:
    before = memory_kb(cluster[1].pid)
    crowd = [socket.create_connection(("127.0.0.1", cluster[1].port)) for _ in range(30)]
    try:
        for each in crowd:
            each.sendall(struct.pack(">i", 100 << 20) + _header(ApiKey.PRODUCE, 9))
        assert raw.metadata().controller_id >= 0
        assert memory_kb(cluster[1].pid) - before < 100_000
    finally:
        for each in crowd:
            each.close()


def test_a_thousand_idle_connections_cost_little(cluster: RealCluster, raw: Raw) -> None:
    before = memory_kb(cluster[1].pid)
    crowd = [socket.create_connection(("127.0.0.1", cluster[1].port)) for _ in range(1000)]
    try:
        assert raw.metadata().controller_id >= 0
        assert memory_kb(cluster[1].pid) - before < 20_000
    finally:
        for each in crowd:
            each.close()


@pytest.mark.rule("FRM-8")
def test_idle_connections_are_closed(start_cluster: Callable[..., RealCluster]) -> None:
    cluster = start_cluster(brokers=1, settings={"connections.max.idle.ms": "500"})
    with Raw(cluster[1].port) as idle:
        idle.metadata()
        assert idle.is_closed_by_peer()
    cluster.create("waited-for", factor=1)
    with Raw(cluster[1].port) as busy:
        # A request that takes its time is not idleness.
        topic_id = busy.topic_id("waited-for")
        busy.fetch(topic_id, 0, max_wait_ms=1500)
        wait_until(lambda: busy.metadata().controller_id == 1, "the broker answers")


@pytest.mark.rule(
    "CTRL-2", "CTRL-3", "CTRL-5", "LISR-3", "LISR-4", "LISR-6", "LISR-10", "LISR-14", "API-12"
)
@pytest.mark.rule("STOP-1", "STOP-2", "STOP-5", "FENCE-13", "REPL-11", "FETCH-12")
def test_orders_are_carried_out_unless_they_are_stale_or_strange(
    cluster: RealCluster, raw: Raw
) -> None:
    epoch = cluster.znode("/controller_epoch")

    def order(controller_epoch: int, broker_epoch: int, replicas: list[int]) -> Any:
        return raw.ask(
            ApiKey.LEADER_AND_ISR,
            controller_id=1,
            controller_epoch=controller_epoch,
            broker_epoch=broker_epoch,
            type=0,
            topic_states=[
                {
                    "topic_name": "ghost",
                    "topic_id": uuid.UUID(int=5),
                    "partition_states": [
                        {
                            "partition_index": 0,
                            "controller_epoch": controller_epoch,
                            "leader": replicas[0],
                            "leader_epoch": 0,
                            "isr": replicas,
                            "partition_epoch": 0,
                            "replicas": replicas,
                            "adding_replicas": [],
                            "removing_replicas": [],
                            "is_new": True,
                            "leader_recovery_state": 1,
                        }
                    ],
                }
            ],
            live_leaders=[],
        )

    def of_partition(response: Any) -> tuple[int, int]:
        (topic,) = response.topics
        assert topic.topic_id == uuid.UUID(int=5)
        (entry,) = topic.partition_errors
        return int(response.error_code), int(entry.error_code)

    stale = ErrorCode.STALE_CONTROLLER_EPOCH
    assert of_partition(order(epoch - 1, -1, [1])) == (stale, stale)
    assert order(epoch, 1, [1]).error_code == ErrorCode.STALE_BROKER_EPOCH
    elsewhere = of_partition(order(epoch, -1, [2]))
    assert elsewhere == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert raw.list_offset("ghost", -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert of_partition(order(epoch, -1, [1, 2])) == (ErrorCode.NONE, ErrorCode.NONE)
    # Led at once, though marked as recovering; the same order again is old.
    assert raw.list_offset("ghost", -1).offset == 0
    assert of_partition(order(epoch, -1, [1, 2])) == (ErrorCode.NONE, stale)

    def fetched_by(replica: int) -> int:
        response = raw.fetch(uuid.UUID(int=5), 0, epoch=0, replica_id=replica)
        return int(response.topics[0].partitions[0].error_code)

    # A topic that is to be deleted is like this: in no metadata, and yet its moves have to end.
    assert fetched_by(-1) == ErrorCode.UNKNOWN_TOPIC_ID
    assert fetched_by(2) == ErrorCode.NONE

    def stop(leader_epoch: int) -> tuple[int, int]:
        response = raw.ask(
            ApiKey.STOP_REPLICA,
            controller_id=1,
            controller_epoch=epoch,
            broker_epoch=-1,
            topic_states=[
                {
                    "topic_name": "ghost",
                    "partition_states": [
                        {
                            "partition_index": 0,
                            "leader_epoch": leader_epoch,
                            "delete_partition": True,
                        }
                    ],
                }
            ],
        )
        (entry,) = response.partition_errors
        return int(response.error_code), int(entry.error_code)

    replica = cluster[1].log_dir / "ghost-0"
    assert replica.exists()
    assert stop(-2) == (ErrorCode.NONE, ErrorCode.NONE)
    assert not replica.exists(), "it is renamed before the answer"
    assert fetched_by(2) == ErrorCode.UNKNOWN_TOPIC_ID
    assert stop(-2) == (ErrorCode.NONE, ErrorCode.NONE), "what is not here is stopped already"


@pytest.mark.rule("FRM-12", "CTRL-4", "UMD-1", "UMD-2", "UMD-5")
def test_much_metadata_keeps_nobody_waiting(start_cluster: Callable[..., RealCluster]) -> None:
    cluster = start_cluster(brokers=1)
    epoch = cluster.znode("/controller_epoch")
    values = {
        "controller_id": 1,
        "controller_epoch": epoch,
        "broker_epoch": -1,
        "live_brokers": [
            {
                "id": 1,
                "endpoints": [
                    {
                        "port": cluster[1].port,
                        "host": "127.0.0.1",
                        "listener": "PLAINTEXT",
                        "security_protocol": 0,
                    }
                ],
                "rack": None,
            }
        ],
        "topic_states": [
            {
                "topic_name": f"topic-{number}",
                "topic_id": uuid.UUID(int=number + 1),
                "partition_states": [
                    {
                        "partition_index": index,
                        "controller_epoch": epoch,
                        "leader": 1,
                        "leader_epoch": 0,
                        # Lists of different lengths take longest.
                        "isr": [1, 2][: 1 + index % 2],
                        "zk_version": 0,
                        "replicas": [1, 2],
                        "offline_replicas": [],
                    }
                    for index in range(100)
                ],
            }
            for number in range(500)
        ],
    }
    with Raw(cluster[1].port) as control, Raw(cluster[1].port) as client:
        header = control.send(ApiKey.UPDATE_METADATA, **values)
        answered = 0
        while not select.select([control.socket], [], [], 0)[0]:
            client.ask(ApiKey.API_VERSIONS, 0)
            answered += 1
        assert decode_response(header, control.receive()).error_code == ErrorCode.NONE
        assert answered > 2, "others are served while the metadata is taken in"
        assert len(client.metadata("topic-499").topics[0].partitions) == 100


def _bomb(count: int) -> bytes:
    """A batch of a few bytes that claims, and has, `count` records, all of them the first."""
    record = bytes(build_batch([Record(None, b"", 0)]).data[HEADER_SIZE:])
    body = compress(Codec.ZSTD, record * count)
    whole = bytearray(build_batch([Record(None, b"", 0)], codec=Codec.ZSTD).data[:HEADER_SIZE])
    whole += body
    struct.pack_into(">i", whole, 8, len(whole) - 12)
    struct.pack_into(">i", whole, 23, count - 1)
    struct.pack_into(">i", whole, 57, count)
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    return bytes(whole)


def test_records_that_take_long_to_check_hold_up_nobody_else(
    cluster: RealCluster, topic: str
) -> None:
    cluster.create(topic, assignment=[[1]] * 60)
    bomb = _bomb(49_999)
    entries = [{"index": index, "records": bomb} for index in range(60)]
    with Raw(cluster[1].port, timeout_s=100) as hostile, Raw(cluster[1].port) as other:
        header = hostile.send(
            ApiKey.PRODUCE,
            9,
            transactional_id=None,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": topic, "partition_data": entries}],
        )
        served = 0
        while not select.select([hostile.socket], [], [], 0)[0]:
            other.metadata()
            served += 1
        response = decode_response(header, hostile.receive())
    assert served > 10
    codes = {each.error_code for each in response.responses[0].partition_responses}
    assert codes == {ErrorCode.INVALID_RECORD}


@pytest.mark.rule("PROD-2")
def test_of_several_entries_for_a_partition_the_last_counts(
    cluster: RealCluster, topic: str
) -> None:
    cluster.create(topic, assignment=[[1]])
    entries = [{"index": 0, "records": batch(value)} for value in (b"first", b"last")]
    with Raw(cluster[1].port) as raw:
        response = raw.ask(
            ApiKey.PRODUCE,
            9,
            transactional_id=None,
            acks=1,
            timeout=30_000,
            topic_data=[{"name": topic, "partition_data": entries}],
        )
        (only,) = response.responses[0].partition_responses
        assert (only.error_code, only.base_offset) == (ErrorCode.NONE, 0)
        found = raw.fetch(raw.topic_id(topic), 0).topics[0].partitions[0]
    assert b"last" in bytes(found.records)
    assert b"first" not in bytes(found.records)


@pytest.mark.rule("META-3")
def test_a_topic_that_is_named_many_times_is_described_once(cluster: RealCluster, topic: str):
    cluster.create(topic)
    with Raw(cluster[1].port, timeout_s=60) as raw:
        response = raw.metadata(*[topic] * 100_000)
    assert [each.name for each in response.topics] == [topic]


def test_many_unknown_topics_hold_up_nobody_else(cluster: RealCluster):
    names = [f"unknown-{number}" for number in range(100_000)]
    with Raw(cluster[1].port, timeout_s=100) as hostile, Raw(cluster[1].port) as other:
        header = hostile.send(
            ApiKey.METADATA,
            9,
            topics=[{"name": name} for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=False,
        )
        served = 0
        while not select.select([hostile.socket], [], [], 0)[0]:
            other.metadata()
            served += 1
        response = decode_response(header, hostile.receive())
    assert served > 5
    assert len(response.topics) == len(names)
    assert {each.error_code for each in response.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
