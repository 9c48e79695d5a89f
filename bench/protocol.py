"""What messages cost: microseconds for each, kio's way and klamm's.

Run with `python -m bench.protocol` from the root of the repository. Figures are the best of several
rounds, in CPU time, so that a busy machine does not show. The last block is what a controller that
takes over has to encode, and a broker to read.
"""

import io
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from klamm.broker.metadata.cache import (
    BrokerEndpoint,
    CachedBroker,
    ClusterSnapshot,
    MetadataUpdate,
)
from klamm.broker.metadata.response import FoundTopic, MetadataEncoder
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_request, decode_response, encode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.fast.control import (
    PartitionStates,
    RequestTopics,
    encode_leader_and_isr,
    encode_update_metadata,
)
from klamm.protocol.fast.control_decode import TopicStates
from klamm.protocol.fast.fetch import (
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
    decode_fetch_request,
)
from klamm.protocol.fast.fetch_response import encode_fetch_response
from klamm.protocol.fast.metadata import decode_metadata_columns
from klamm.protocol.fast.metadata_states import PartitionMetadata
from klamm.protocol.fast.produce import (
    ProducePartitionResponse,
    ProduceResponse,
    ProduceTopicResponse,
    decode_produce_request,
    encode_produce_response,
)
from klamm.protocol.records import Record, build_batch, has_valid_crc, records_data, scan_records
from klamm.protocol.schema._kio import entity_reader, entity_writer
from klamm.protocol.schema.lookup import message_schema
from tests.broker.metadata_states import states_of
from tests.support.messages import encode_struct

TOPIC_ID = uuid.UUID(int=1)
RECORDS_BYTES = 10_000


def best_us(run: Callable[[], Any], rounds: int = 7) -> float:
    """Microseconds of CPU for one call."""
    times = max(1, int(0.02 / max(_once(run), 1e-7)))
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            run()
        best = min(best, (time.process_time() - began) / times)
    return best * 1e6


def _once(run: Callable[[], Any]) -> float:
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def line(what: str, kio_us: float, ours_us: float) -> None:
    print(f"{what:<44} kio {kio_us:>9.1f}   klamm {ours_us:>9.1f}", flush=True)


def kio_reads(key: int, version: int, body: bytes) -> float:
    read = entity_reader(message_schema(key, version, "request"))
    return best_us(lambda: read(body, 0))


def kio_writes(key: int, version: int, values: dict[str, Any]) -> float:
    schema = message_schema(key, version, "response")
    message, _ = entity_reader(schema)(encode_struct(schema, values), 0)
    write = entity_writer(schema)
    return best_us(lambda: write(io.BytesIO(), message))


def produce(partitions: int) -> None:
    version = 11
    schema = message_schema(ApiKey.PRODUCE, version, "request")
    data = [{"index": p, "records": bytes(RECORDS_BYTES)} for p in range(partitions)]
    body = encode_struct(
        schema,
        {
            "transactional_id": None,
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": "orders", "partition_data": data}],
        },
    )
    view = memoryview(body)
    line(
        f"decode Produce request, {partitions} partitions",
        kio_reads(ApiKey.PRODUCE, version, body),
        best_us(lambda: decode_produce_request(view, 0, version)),
    )
    header = RequestHeader(ApiKey.PRODUCE, version, 1, "")
    results = [ProducePartitionResponse(p, 0, 1_000_000, -1, 0) for p in range(partitions)]
    response = ProduceResponse([ProduceTopicResponse("orders", results)])
    rows = [
        {"index": p, "error_code": 0, "base_offset": 1_000_000, "log_start_offset": 0}
        for p in range(partitions)
    ]
    line(
        f"encode Produce response, {partitions} partitions",
        kio_writes(
            ApiKey.PRODUCE,
            version,
            {"responses": [{"name": "orders", "partition_responses": rows}]},
        ),
        best_us(lambda: encode_produce_response(header, response)),
    )


def fetch(partitions: int) -> None:
    version = 17
    schema = message_schema(ApiKey.FETCH, version, "request")
    wanted = [
        {"partition": p, "fetch_offset": 1_000_000, "partition_max_bytes": 1 << 20}
        for p in range(partitions)
    ]
    body = encode_struct(
        schema,
        {
            "max_wait": 500,
            "min_bytes": 1,
            "topics": [{"topic_id": TOPIC_ID, "partitions": wanted}],
        },
    )
    view = memoryview(body)
    line(
        f"decode Fetch request, {partitions} partitions",
        kio_reads(ApiKey.FETCH, version, body),
        best_us(lambda: decode_fetch_request(view, 0, version)),
    )
    header = RequestHeader(ApiKey.FETCH, version, 1, "")
    records = bytes(100)
    found = [
        FetchPartitionResponse(p, 0, 1_000_000, 1_000_000, 0, records) for p in range(partitions)
    ]
    response = FetchResponse([FetchTopicResponse(None, TOPIC_ID, found)])
    rows = [
        {"partition_index": p, "high_watermark": 1_000_000, "records": records}
        for p in range(partitions)
    ]
    line(
        f"encode Fetch response, {partitions} partitions",
        kio_writes(
            ApiKey.FETCH, version, {"responses": [{"topic_id": TOPIC_ID, "partitions": rows}]}
        ),
        best_us(lambda: encode_fetch_response(header, response)),
    )


def metadata(topics: int, partitions: int) -> None:
    """The response to a client that names its topics, from what the broker keeps of them."""
    header = RequestHeader(ApiKey.METADATA, 12, 1, None)
    states = states_of(
        *(PartitionMetadata(index, 1, 3, (1, 2, 3), (1, 2, 3)) for index in range(partitions))
    )
    broker = CachedBroker(1, {"PLAINTEXT": BrokerEndpoint("127.0.0.1", 9092)})
    update = MetadataUpdate(
        1,
        [broker],
        [TopicStates(f"t{n}", uuid.UUID(int=n + 1).bytes, states) for n in range(topics)],
    )
    snapshot = ClusterSnapshot().after(update).snapshot

    def encode() -> bytes:
        encoder = MetadataEncoder(header, snapshot, "PLAINTEXT", "cluster")
        for topic in snapshot.topics():
            encoder.add(FoundTopic(topic.name, topic=topic))
        return encoder.frame()

    values = decode_response(header, memoryview(encode())[4:])
    write = entity_writer(type(values))
    line(
        f"encode Metadata response, {topics} topics of {partitions} partitions",
        best_us(lambda: write(io.BytesIO(), values)),
        best_us(encode),
    )


def metadata_columns(partitions: int) -> None:
    """The response about a large cluster, as the console reads it."""
    rows = [
        {
            "partition_index": p,
            "leader_id": 1,
            "leader_epoch": 3,
            "replica_nodes": [1, 2, 3],
            "isr_nodes": [1, 2, 3],
        }
        for p in range(100)
    ]
    values = {
        "brokers": [],
        "controller_id": 1,
        "topics": [
            {"name": f"topic-{n}", "is_internal": False, "partitions": rows}
            for n in range(partitions // 100)
        ],
    }
    header = RequestHeader(ApiKey.METADATA, 12, 1, None)
    frame = encode_response(header, values)[4:]
    by_kio = best_us(lambda: decode_response(header, frame), rounds=3) / 1000
    ours = best_us(lambda: decode_metadata_columns(header, frame), rounds=3) / 1000
    print(
        f"decode Metadata response, {partitions} partitions: kio {by_kio:.0f} ms, "
        f"as columns {ours:.0f} ms"
    )


def records(count: int, size: int) -> None:
    """Records of one size, which are checked together, and of different sizes."""
    for kind, sizes in (("one size", [size]), ("different sizes", range(size, size + 16))):
        values = [os.urandom(each) for each in sizes]
        batch = build_batch(
            [Record(b"key", values[n % len(values)], 10**12 + n // 50) for n in range(count)]
        )
        data = records_data(batch)
        each = best_us(lambda data=data: scan_records(data, count)) / count
        crc = best_us(lambda batch=batch: has_valid_crc(batch))
        print(
            f"scan {count} records of {size} bytes, {kind}: {each:.2f} each; "
            f"CRC of their batch: {crc:.1f}"
        )


def control(partitions: int) -> None:
    columns = np.arange(partitions, dtype=np.int32)
    replicas = np.tile(np.array([1, 2, 3], np.int32), (partitions, 1))
    shrunk = replicas.copy()
    shrunk[::3, 2] = -1
    none = np.full((partitions, 1), -1, np.int32)
    count = partitions // 100
    topics = RequestTopics.of(
        [f"topic-{n}" for n in range(count)],
        [uuid.UUID(int=n + 1).bytes for n in range(count)],
        np.arange(count + 1, dtype=np.int64) * 100,
    )
    for isr, what in ((replicas, "equal ISRs"), (shrunk, "every third ISR shrunk")):
        states = PartitionStates(
            partition=columns % 100,
            controller_epoch=columns * 0 + 1,
            leader=columns % 3 + 1,
            leader_epoch=columns * 0,
            isr=isr,
            partition_epoch=columns * 0,
            replicas=replicas,
            offline=none,
            adding=none,
            removing=none,
            is_new=np.zeros(partitions, np.bool_),
            recovery=np.zeros(partitions, np.int8),
        )
        for name, encode in (
            (
                "LeaderAndIsr 7",
                lambda states=states: encode_leader_and_isr(
                    7, topics, states, controller_id=1, controller_epoch=1, live_leaders=[]
                ),
            ),
            (
                "UpdateMetadata 8",
                lambda states=states: encode_update_metadata(
                    8, topics, states, controller_id=1, controller_epoch=1, live_brokers=[]
                ),
            ),
        ):
            encoded = best_us(encode, rounds=3) / 1000
            request = encode()
            header = RequestHeader(request.api_key, request.api_version, 1, "")
            frame = b"".join(request.chunks(header, 1))[4:]
            body = decode_request(frame).body
            checked = best_us(lambda frame=frame: decode_request(frame), rounds=3) / 1000
            topics_of = getattr(body, "topic_states", None) or body.topics
            made = best_us(lambda read=topics_of: sum(1 for _ in read), rounds=3) / 1000
            print(
                f"{name}, {partitions} partitions, {what}: encode {encoded:.0f} ms; "
                f"check {checked:.0f} ms, then read by topic {made:.0f} ms"
            )


def main() -> None:
    """Print a table."""
    for partitions in (1, 100):
        produce(partitions)
        fetch(partitions)
    metadata(200, 100)
    metadata_columns(100_000)
    records(1000, 1000)
    records(10_000, 100)
    control(100_000)


if __name__ == "__main__":
    main()
