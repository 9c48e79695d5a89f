"""Loads for any cluster: producing, consuming, records one at a time, many connections at once.

Records have 1 KB, topics six partitions, and clients their defaults: librdkafka, Java's
ProducerPerformance and ConsumerPerformance. `raw_produce` and `raw_consume` send prepared requests
and look at nothing but offsets and errors, so that they show what brokers can do where a client is
the limit. Each load returns its figures; MB is what it has moved.
"""

import contextlib
import os
import random
import re
import socket
import statistics
import struct
import subprocess
import threading
import time
from collections import defaultdict, deque

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.side_by_side.duel import Figures
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.fast.fetch import FetchResponse
from klamm.protocol.records import Record, build_batch, iterate_batches

KB = os.urandom(1024)
PARTITIONS = 6
#: Records of one raw batch: nearly librdkafka's limit of a million bytes.
RAW_BATCH = 950
#: Requests that a raw producer sends to a broker before it waits for a response.
RAW_IN_FLIGHT = 5
_PRODUCE_VERSION = 9
_FETCH_VERSION = 12


def name(prefix: str) -> str:
    """A name that no other topic or group has."""
    return f"{prefix}-{random.randrange(16**8):08x}"


def topic_of(bootstrap: str, replication_factor: int) -> str:
    """Create a topic; return its name when every partition has a leader."""
    topic = name("load")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"file.delete.delay.ms": "0"}
    created = admin.create_topics(
        [NewTopic(topic, PARTITIONS, replication_factor, config=settings)]
    )
    created[topic].result(40)
    while len(leaders_of(bootstrap, topic)) < PARTITIONS:
        time.sleep(0.1)
    return topic


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic: rows of gigabytes would fill a disk."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(40)


def leaders_of(bootstrap: str, topic: str) -> dict[int, tuple[str, int]]:
    """The addresses of the leaders of the partitions that have one."""
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, 10)
    return {
        index: (metadata.brokers[each.leader].host, metadata.brokers[each.leader].port)
        for index, each in metadata.topics[topic].partitions.items()
        if each.leader in metadata.brokers
    }


def rate(records: int, seconds: float) -> Figures:
    megabytes = records * 1024 / 1e6
    return {"MB/s": megabytes / seconds, "MB": megabytes}


# librdkafka


def produce_for(bootstrap: str, topic: str, seconds: float, acks: str) -> tuple[int, float]:
    """Produce for some time; return how many records were acknowledged, and the time it took."""
    acked, errors = 0, []

    def delivered(error, _):
        nonlocal acked
        if error:
            errors.append(error)
        else:
            acked += 1

    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks})
    producer.list_topics(topic, 10)
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            try:
                producer.produce(topic, KB, partition=number % PARTITIONS, on_delivery=delivered)
                number += 1
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(120)
    if errors or left:
        raise RuntimeError(f"{len(errors)} records failed, {left} were not sent: {errors[:1]}")
    return acked, time.perf_counter() - began


def fill(bootstrap: str, records: int) -> str:
    """Produce at least this number of records to a new topic, and return it."""
    topic, done = topic_of(bootstrap, 1), 0
    while done < records:
        done += produce_for(bootstrap, topic, 2, "all")[0]
    return topic


def consume(bootstrap: str, topic: str, wanted: int) -> Figures:
    """Read all records.

    The queue's back-off is short: at its default librdkafka pauses for a second whenever its own
    queue is full, and the figure would show that and not the broker.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name("load"),
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    count, began, last = 0, 0.0, time.perf_counter()
    while count < wanted:
        messages = consumer.consume(1000, 0.2)
        now = time.perf_counter()
        if messages:
            began, last = began or now, now
            count += sum(each.error() is None for each in messages)
        elif now - last > 30:
            raise RuntimeError(f"{count} of {wanted} records were read")
    took = last - began
    consumer.close()
    return rate(count, took)


def one_at_a_time(bootstrap: str, topic: str, count: int) -> Figures:
    """Milliseconds from producing a record with acks=all until it is acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    took = []
    for number in range(count + 50):
        began = time.perf_counter()
        producer.produce(topic, KB, partition=number % PARTITIONS)
        if producer.flush(30):
            raise RuntimeError("no response in 30 s")
        took.append((time.perf_counter() - began) * 1000)
    took = sorted(took[50:])
    return {"p50 ms": statistics.median(took), "p99 ms": took[int(len(took) * 0.99)]}


def crowd(bootstrap: str, topic: str, seconds: float) -> Figures:
    """Ten producers with connections of their own, among a hundred that said hello and wait."""
    with contextlib.ExitStack() as stack:
        addresses = bootstrap.split(",")
        for number in range(100):
            host, port = addresses[number % len(addresses)].rsplit(":", 1)
            idle = stack.enter_context(socket.create_connection((host, int(port)), 10))
            hello = struct.pack(">hhih4s", ApiKey.API_VERSIONS, 0, number, 4, b"idle")
            idle.sendall(struct.pack(">i", len(hello)) + hello)
            idle.recv(65536)
        counts: list[int] = []

        def work() -> None:
            counts.append(produce_for(bootstrap, topic, seconds, "all")[0])

        threads = [threading.Thread(target=work) for _ in range(10)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return rate(sum(counts), time.perf_counter() - began)


# Java


def java(main: str, *args: object, timeout: float) -> str:
    """Run one of Kafka's own tools; return what it printed."""
    done = subprocess.run(
        ["java", "-Xmx512m", "-cp", os.environ["KAFKA_LIBS"] + "/*", main, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        raise RuntimeError(f"{main}: {(done.stdout + done.stderr)[-300:]}")
    return done.stdout


def java_produce(bootstrap: str, topic: str, records: int, acks: str) -> Figures:
    """Java's producer with batches of 16 KB, which is its default."""
    out = java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", records, "--record-size", 1024, "--throughput", -1),
        *("--producer-props", f"bootstrap.servers={bootstrap}", f"acks={acks}"),
        timeout=600,
    )
    last = out.strip().splitlines()[-1]
    found = re.search(r"([\d.]+) MB/sec\).*?(\d+) ms 50th.*?(\d+) ms 99th", last)
    if not found:
        raise RuntimeError(last)
    mebibytes, p50, p99 = map(float, found.groups())
    megabytes = records * 1024 / 1e6
    return {"MB/s": mebibytes * 1.048576, "p50 ms": p50, "p99 ms": p99, "MB": megabytes}


def java_consume(bootstrap: str, topic: str, wanted: int) -> Figures:
    """Java's consumer."""
    out = java(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--messages", wanted, "--timeout", 30000),
        timeout=300,
    )
    columns = out.strip().splitlines()[-1].split(", ")
    return {"MB/s": float(columns[-2]) * 1.048576, "MB": wanted * 1024 / 1e6}


# Without a client


class RawConnection:
    """A socket on which requests are sent before earlier ones have their response."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, 30)
        self._sent: deque[RequestHeader] = deque()

    def send(self, key: ApiKey, version: int, values: dict[str, object]) -> None:
        header = RequestHeader(key, version, 1, "raw")
        self._socket.sendall(encode_request(header, values))
        self._sent.append(header)

    def receive(self):
        """The body of the response to the oldest request that has none."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return decode_response(self._sent.popleft(), self._exactly(size))

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> memoryview:
        data, filled = memoryview(bytearray(size)), 0
        while filled < size:
            count = self._socket.recv_into(data[filled:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            filled += count
        return data


def raw_produce(bootstrap: str, topic: str, seconds: float) -> Figures:
    """Send one prepared batch again and again with acks=all, from a thread for each broker."""
    batch = bytes(build_batch([Record(None, KB, int(time.time() * 1000))] * RAW_BATCH).data)
    counts: list[int] = []

    def work(address: tuple[str, int], indexes: list[int]) -> None:
        connection, count = RawConnection(address), 0
        end = time.perf_counter() + seconds
        while connection.in_flight or time.perf_counter() < end:
            while connection.in_flight < RAW_IN_FLIGHT and time.perf_counter() < end:
                partitions = [{"index": index, "records": batch} for index in indexes]
                connection.send(
                    ApiKey.PRODUCE,
                    _PRODUCE_VERSION,
                    {
                        "transactional_id": None,
                        "acks": -1,
                        "timeout": 30000,
                        "topic_data": [{"name": topic, "partition_data": partitions}],
                    },
                )
            for response in connection.receive().responses:
                for each in response.partition_responses:
                    if each.error_code:
                        raise RuntimeError(f"{topic}-{each.index}: error {each.error_code}")
                    count += RAW_BATCH
        connection.close()
        counts.append(count)

    took = _one_thread_each(bootstrap, topic, work)
    return rate(sum(counts), took)


def raw_consume(bootstrap: str, topic: str, wanted: int) -> Figures:
    """Fetch records with librdkafka's limits, from a thread for each broker."""
    ends = dict.fromkeys(range(PARTITIONS), wanted // PARTITIONS)

    def work(address: tuple[str, int], indexes: list[int]) -> None:
        connection, offsets = RawConnection(address), dict.fromkeys(indexes, 0)
        while left := [index for index in indexes if offsets[index] < ends[index]]:
            connection.send(ApiKey.FETCH, _FETCH_VERSION, _fetch_body(topic, left, offsets))
            response: FetchResponse = connection.receive()
            for entry in (entry for each in response.topics for entry in each.partitions):
                if entry.error_code:
                    raise RuntimeError(f"{topic}-{entry.partition}: error {entry.error_code}")
                for batch in iterate_batches(entry.records or b"", may_end_early=True):
                    offsets[entry.partition] = batch.header.last_offset + 1
        connection.close()

    took = _one_thread_each(bootstrap, topic, work)
    return rate(wanted, took)


def _fetch_body(topic: str, indexes: list[int], offsets: dict[int, int]) -> dict[str, object]:
    return {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": index,
                        "current_leader_epoch": -1,
                        "fetch_offset": offsets[index],
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                    for index in indexes
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _one_thread_each(bootstrap: str, topic: str, work) -> float:
    """Run `work` for each broker with the partitions that it leads; return the seconds it took."""
    led: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, address in leaders_of(bootstrap, topic).items():
        led[address].append(index)
    failures: list[BaseException] = []

    def guarded(address: tuple[str, int], indexes: list[int]) -> None:
        try:
            work(address, indexes)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=each) for each in led.items()]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - began
