"""Rows 2 to 5 of the test matrix: what stock clients produce, stock clients consume."""

import select
import threading
import time
import uuid

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response
from klamm.protocol.codes import ErrorCode
from klamm.protocol.compression import Codec
from klamm.protocol.records import iterate_batches
from tests.real.clients import CLIENTS, Client, Record
from tests.support.cluster import RealCluster
from tests.support.raw import Raw, batch, fetch_values, produce_values
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

clients = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
RECORDS = [
    Record(b"key", b"value", (("h", b"1"), ("h", b"2"))),
    Record(None, b"no key"),
    Record(b"tombstone", None),
    Record(b"", b""),
    *(Record(b"%d" % each, b"x" * 1000) for each in range(500)),
]


@pytest.mark.parametrize(
    ("client", "codec"),
    [(client, codec) for client in CLIENTS for codec in client.codecs],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
@pytest.mark.rule("LOG-2", "LOG-8", "LOG-10", "PROD-4", "FETCH-3", "API-6")
def test_records_come_back_as_they_were_sent(
    cluster: RealCluster, topic: str, client: Client, codec: str
) -> None:
    cluster.create(topic)
    client.produce(cluster.bootstrap, topic, RECORDS, compression=codec)
    assert client.read(cluster.bootstrap, topic, len(RECORDS)) == RECORDS


@clients
@pytest.mark.parametrize("acks", ["0", "1"])
@pytest.mark.rule("PROD-5", "PROD-6", "DUR-4")
def test_fewer_acks_arrive_too(cluster: RealCluster, topic: str, client: Client, acks: str) -> None:
    cluster.create(topic)
    client.produce(cluster.bootstrap, topic, RECORDS[:10], acks=acks)
    assert client.read(cluster.bootstrap, topic, 10) == RECORDS[:10]


@clients
@pytest.mark.rule("IDEM-1", "IDEM-2", "API-8")
def test_idempotent_producers_get_ids(cluster: RealCluster, topic: str, client: Client) -> None:
    cluster.create(topic)
    client.produce(cluster.bootstrap, topic, RECORDS[:50], idempotent=True)
    client.produce(cluster.bootstrap, topic, RECORDS[50:60], idempotent=True)
    assert client.read(cluster.bootstrap, topic, 60) == RECORDS[:60]


@pytest.fixture
def led(cluster: RealCluster, topic: str) -> Raw:
    """A raw connection to the leader of a new topic of one partition."""
    cluster.create(topic, config={"retention.ms": "-1"})
    with Raw(cluster[cluster.leader(topic)].port) as raw:
        yield raw  # type: ignore[misc]


@pytest.mark.rule("IDEM-5", "IDEM-6", "IDEM-7", "IDEM-8", "IDEM-9", "IDEM-12", "LOG-4")
def test_sequences_are_checked(led: Raw, topic: str) -> None:
    def send(sequence: int, epoch: int = 0, *values: bytes) -> tuple[int, int]:
        records = batch(
            *(values or (b"v",)), producer_id=77, producer_epoch=epoch, base_sequence=sequence
        )
        entry = led.produce(topic, records)
        return int(entry.error_code), int(entry.base_offset)

    assert send(5) == (0, 0), "an unknown producer may begin anywhere"
    assert send(6, 0, b"a", b"b") == (0, 1)
    assert send(6, 0, b"a", b"b") == (0, 1), "the same batch again is the same batch"
    assert send(5) == (0, 0)
    assert send(9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(8) == (0, 3)
    assert send(1, 1) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(0, 1) == (0, 4)
    assert send(9, 0) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert send(-1, 1) == (ErrorCode.INVALID_RECORD, -1)
    assert led.list_offset(topic, -1).offset == 5


@pytest.mark.rule(
    "LOG-1", "LOG-3", "LOG-4", "LOG-5", "LOG-6", "LOG-7", "PROD-1", "PROD-2", "PROD-3"
)
def test_bad_batches_are_refused_and_leave_nothing(led: Raw, topic: str) -> None:
    good = batch(b"good")
    corrupt = good[:-1] + bytes([good[-1] ^ 1])
    old = good[:16] + b"\1" + good[17:]
    for records, error in (
        (corrupt, ErrorCode.CORRUPT_MESSAGE),
        (good[:40], ErrorCode.INVALID_RECORD),
        (good + good, ErrorCode.INVALID_RECORD),
        (old, ErrorCode.INVALID_RECORD),
        (batch(b"x", base_offset=3), ErrorCode.INVALID_RECORD),
        (batch(b"x", control=True), ErrorCode.INVALID_RECORD),
        (batch(b"x" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
        (None, ErrorCode.INVALID_RECORD),
        (b"short", ErrorCode.INVALID_RECORD),
        (b"longer than that, and no batch", ErrorCode.CORRUPT_MESSAGE),
        (bytes(100), ErrorCode.CORRUPT_MESSAGE),
    ):
        assert led.produce(topic, records).error_code == error
    both = produce_values(topic, good)
    both["topic_data"] += produce_values("no-such-topic", b"nonsense" * 5)["topic_data"]
    refused = led.ask(ApiKey.PRODUCE, **both).responses
    assert {each.partition_responses[0].error_code for each in refused} == {
        ErrorCode.CORRUPT_MESSAGE
    }, "all of the request, the good part too"
    assert led.produce(topic, good, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    zstd = batch(b"x", codec=Codec.ZSTD)
    too_old = led.produce(topic, zstd, version=6)
    assert too_old.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert led.list_offset(topic, -1).offset == 0
    assert led.produce(topic, good, partition=7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert led.produce(topic, good).base_offset == 0


@pytest.mark.rule("PROD-4")
def test_a_batch_of_very_many_records_holds_up_nobody(
    cluster: RealCluster, led: Raw, topic: str
) -> None:
    count = 100_000
    records = batch(*[b""] * count, codec=Codec.ZSTD)
    with Raw(cluster[cluster.leader(topic)].port) as other:
        header = led.send(ApiKey.PRODUCE, **produce_values(topic, records))
        answered = 0
        while not select.select([led.socket], [], [], 0)[0]:
            other.ask(ApiKey.API_VERSIONS, 0)
            answered += 1
        assert answered > 5, "others are served meanwhile"
        response = decode_response(header, led.receive())
        (entry,) = response.responses[0].partition_responses
        assert (entry.error_code, entry.base_offset) == (ErrorCode.NONE, 0)
        other.produce(topic, batch(b"next"))
        assert other.list_offset(topic, -1).offset == count + 1
        nonsense = batch(*[b""] * 51_000, base_offset=3)
        assert other.produce(topic, nonsense).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.rule("PROD-2")
def test_internal_topics_are_not_for_clients(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic)
    group = f"group of {topic}"
    cluster.produce(topic, [b"x"])
    CLIENTS[0].read_group(cluster.bootstrap, topic, group, 1)
    with Raw(cluster[1].port) as raw:
        entry = raw.produce("__consumer_offsets", batch(b"x"))
    assert entry.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.rule("PROD-5", "FRM-2")
def test_a_failure_without_acks_closes_the_connection(led: Raw, topic: str) -> None:
    led.send(ApiKey.PRODUCE, **produce_values(topic, batch(b"fine"), acks=0))
    led.send(ApiKey.PRODUCE, **produce_values(topic, b"nonsense", acks=0))
    assert led.is_closed_by_peer()


@pytest.mark.rule("EPOCH-2", "EPOCH-3", "META-10")
def test_a_follower_names_the_leader(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic)
    leader = cluster.leader(topic)
    other = next(each for each in cluster.brokers if each != leader)
    with Raw(cluster[other].port) as raw:
        response = raw.ask(ApiKey.PRODUCE, **produce_values(topic, batch(b"x")))
        entry = response.responses[0].partition_responses[0]
        assert entry.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert entry.current_leader.leader_id == leader
        assert [(each.node_id, each.port) for each in response.node_endpoints] == [
            (leader, cluster[leader].port)
        ]


@clients
@pytest.mark.rule("FETCH-3", "FETCH-4")
def test_consuming_can_begin_anywhere(cluster: RealCluster, topic: str, client: Client) -> None:
    cluster.create(topic)
    sent = [Record(None, b"%d" % each) for each in range(20)]
    client.produce(cluster.bootstrap, topic, sent)
    assert client.read(cluster.bootstrap, topic, 5, offset=15) == sent[15:]


@pytest.mark.rule("LIST-1", "LIST-2", "LIST-3", "LIST-4")
def test_offsets_are_found_by_time(led: Raw, topic: str) -> None:
    for at in (1000, 3000, 2000):
        led.produce(topic, batch(b"a", b"b", timestamp=at))
    assert (led.list_offset(topic, -1).offset, led.list_offset(topic, -2).offset) == (6, 0)
    found = led.list_offset(topic, 1500)
    assert (found.offset, found.timestamp, found.leader_epoch) == (2, 3000, 0)
    assert led.list_offset(topic, 4000).offset == -1
    newest = led.list_offset(topic, -3)
    assert (newest.offset, newest.timestamp) == (2, 3000)
    assert led.list_offset(topic, -4).offset == 0
    assert led.list_offset(topic, -5).offset == -1
    assert led.list_offset(topic, -9).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert led.list_offset(topic, -3, version=6).error_code == ErrorCode.UNSUPPORTED_VERSION
    twice = [{"partition_index": 0, "timestamp": -1}] * 2
    response = led.ask(
        ApiKey.LIST_OFFSETS,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": twice}],
    )
    assert {each.error_code for each in response.topics[0].partitions} == {
        ErrorCode.INVALID_REQUEST
    }


@pytest.mark.rule("FETCH-5", "FETCH-6", "FETCH-7", "FRM-3", "HW-5")
def test_a_long_poll_wakes_with_the_data(cluster: RealCluster, led: Raw, topic: str) -> None:
    topic_id = led.topic_id(topic)
    led.produce(topic, batch(b"first"))
    woken: list[float] = []

    def poll() -> None:
        with Raw(cluster[cluster.leader(topic)].port) as raw:
            response = raw.fetch(topic_id, 1, max_wait_ms=10_000)
            woken.append(time.monotonic())
            assert response.topics[0].partitions[0].records

    thread = threading.Thread(target=poll)
    thread.start()
    # Others on the same broker are served while it waits.
    wait_until(lambda: led.list_offset(topic, -1).offset == 1, "the broker answers")
    produced = time.monotonic()
    led.produce(topic, batch(b"second"))
    thread.join(20)
    assert woken[0] - produced < 1.0


@pytest.mark.rule("FETCH-1", "FETCH-2", "FETCH-5", "FETCH-8")
def test_limits_of_a_fetch(led: Raw, topic: str) -> None:
    topic_id = led.topic_id(topic)
    for _ in range(3):
        led.produce(topic, batch(b"x" * 1000))
    whole = led.fetch(topic_id, 0, max_wait_ms=0).topics[0].partitions[0]
    assert (whole.high_watermark, whole.log_start_offset) == (3, 0)
    assert len(list(iterate_batches(whole.records))) == 3
    tiny = led.fetch(topic_id, 1, partition_max_bytes=10).topics[0].partitions[0]
    (only,) = iterate_batches(tiny.records)
    assert only.header.base_offset == 1, "the first batch comes whole, whatever the limits"
    started = time.monotonic()
    empty = led.fetch(topic_id, 3, max_wait_ms=300).topics[0].partitions[0]
    assert not empty.records
    assert time.monotonic() - started > 0.25
    beyond = led.fetch(topic_id, 4).topics[0].partitions[0]
    assert (beyond.error_code, beyond.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.rule("EPOCH-1", "TRUNC-6", "FETCH-9", "FETCH-12", "FETCH-10", "REPL-11")
def test_epochs_and_ids_are_checked(cluster: RealCluster, led: Raw, topic: str) -> None:
    topic_id = led.topic_id(topic)
    led.produce(topic, batch(b"x"))

    def error(**changed: object) -> int:
        response = led.fetch(changed.pop("topic_id", topic_id), 0, **changed)  # type: ignore[arg-type]
        return int(response.topics[0].partitions[0].error_code)

    assert error(epoch=0) == ErrorCode.NONE
    assert error(epoch=7) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error(topic_id=uuid.uuid4()) == ErrorCode.UNKNOWN_TOPIC_ID
    follower = next(each for each in cluster.brokers if each != cluster.leader(topic))
    with Raw(cluster[follower].port) as raw:
        old = raw.fetch(None, 0, version=10, topic=topic).topics[0].partitions[0]
        assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        wait_until(
            lambda: raw.fetch(None, 0, version=11, topic=topic).topics[0].partitions[0].records,
            "a follower serves what is committed",
        )
    debugger = led.fetch(None, 0, version=12, topic=topic, replica_id=-2)
    assert debugger.topics[0].partitions[0].records, "anybody else is a consumer"
    stranger = led.fetch(None, 0, version=12, topic=topic, replica_id=9, epoch=0)
    assert stranger.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    ends = led.ask(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        replica_id=-1,
        topics=[
            {
                "topic": topic,
                "partitions": [
                    {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0},
                    {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 5},
                    {"partition": 0, "current_leader_epoch": 3, "leader_epoch": 0},
                ],
            }
        ],
    )
    assert [
        (each.error_code, each.leader_epoch, each.end_offset) for each in ends.topics[0].partitions
    ] == [(0, 0, 1), (0, -1, -1), (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)]


@pytest.mark.rule("SESS-1", "SESS-3", "SESS-4", "SESS-5", "SESS-6", "SESS-8")
def test_a_fetch_session_tells_only_what_is_new(led: Raw, topic: str) -> None:
    topic_id = led.topic_id(topic)
    led.produce(topic, batch(b"x"))
    full = led.fetch(topic_id, 1, session_id=0, session_epoch=0)
    assert full.session_id > 0
    assert len(full.topics) == 1

    def incremental(epoch: int, **changed: object) -> object:
        values = {**fetch_values(topic_id, 1), "topics": [], **changed}
        return led.ask(
            ApiKey.FETCH, 13, **{**values, "session_id": full.session_id, "session_epoch": epoch}
        )

    assert incremental(1).topics == []  # type: ignore[attr-defined]
    led.produce(topic, batch(b"y"))
    news = incremental(2)
    assert news.topics[0].partitions[0].high_watermark == 2  # type: ignore[attr-defined]
    assert incremental(2).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH  # type: ignore[attr-defined]
    gone = incremental(3, forgotten_topics_data=[{"topic_id": topic_id, "partitions": [0]}])
    assert gone.error_code == ErrorCode.NONE  # type: ignore[attr-defined]
    assert incremental(4).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # type: ignore[attr-defined]


@pytest.mark.rule("FETCH-11")
def test_a_consumer_is_sent_to_the_replica_in_its_rack(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, assignment=[[1, 2, 3]])
    cluster.produce(topic, [b"x"], acks="all")
    racks = {1: "a", 2: "b", 3: "c"}
    with Raw(cluster[1].port) as raw:
        topic_id = raw.topic_id(topic)
        for broker, rack in racks.items():
            entry = raw.fetch(topic_id, 0, rack_id=rack).topics[0].partitions[0]
            expected = -1 if broker == 1 else broker
            assert entry.preferred_read_replica == expected
            assert bool(entry.records) is (broker == 1)
