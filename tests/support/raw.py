"""A connection on which a test says exactly what it wants, well-formed or not."""

import socket
import struct
import time
from types import TracebackType
from typing import Any

from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.encoding import Values
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.records import Record, build_batch


class Raw:
    """One socket to one broker."""

    def __init__(self, port: int, client_id: str = "raw", timeout_s: float = 20.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> "Raw":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.socket.close()

    def ask(self, api: ApiKey, version: int | None = None, /, **values: Any) -> Any:
        """Send a request, in the newest version if none is named; return its response."""
        header = self.send(api, version, **values)
        return decode_response(header, self.receive())

    def send(self, api: ApiKey, version: int | None = None, /, **values: Any) -> RequestHeader:
        self._correlation_id += 1
        number = APIS[api].max_version if version is None else version
        header = RequestHeader(api, number, self._correlation_id, self._client_id)
        self.socket.sendall(encode_request(header, values))
        return header

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of the connection; False if something else comes first."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return bytes(data)

    # The requests that tests send most

    def metadata(self, *topics: str, version: int | None = None, may_create: bool = False) -> Any:
        """About these topics, or about none."""
        return self.ask(
            ApiKey.METADATA,
            version,
            topics=[{"name": topic, "topic_id": None} for topic in topics],
            allow_auto_topic_creation=may_create,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=False,
        )

    def topic_id(self, topic: str) -> Any:
        """The id of a topic that exists."""
        return self.metadata(topic).topics[0].topic_id

    def produce(
        self,
        topic: str,
        records: bytes | memoryview | None,
        *,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 10_000,
        version: int | None = None,
    ) -> Any:
        """The answer about the one partition."""
        response = self.ask(
            ApiKey.PRODUCE,
            version,
            **produce_values(topic, records, partition=partition, acks=acks, timeout_ms=timeout_ms),
        )
        return response.responses[0].partition_responses[0]

    def fetch(
        self,
        topic_id: Any,
        offset: int,
        *,
        partition: int = 0,
        epoch: int = -1,
        version: int = 13,
        topic: str = "",
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        **more: Any,
    ) -> Any:
        """The whole response to a fetch of one partition."""
        return self.ask(
            ApiKey.FETCH,
            version,
            **fetch_values(
                topic_id,
                offset,
                partition=partition,
                epoch=epoch,
                topic=topic,
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                partition_max_bytes=partition_max_bytes,
                **more,
            ),
        )

    def list_offset(self, topic: str, timestamp: int, *, partition: int = 0, **more: Any) -> Any:
        response = self.ask(
            ApiKey.LIST_OFFSETS,
            more.pop("version", None),
            replica_id=more.pop("replica_id", -1),
            isolation_level=more.pop("isolation_level", 0),
            topics=[
                {
                    "name": topic,
                    "partitions": [{"partition_index": partition, "timestamp": timestamp, **more}],
                }
            ],
        )
        return response.topics[0].partitions[0]


def produce_values(
    topic: str,
    records: bytes | memoryview | None,
    *,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 10_000,
) -> Values:
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [
            {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        ],
    }


def fetch_values(
    topic_id: Any,
    offset: int,
    *,
    partition: int = 0,
    epoch: int = -1,
    last_epoch: int = -1,
    topic: str = "",
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    **more: Any,
) -> Values:
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "topics": [
            {
                "topic": topic,
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": last_epoch,
                        "log_start_offset": -1,
                        "partition_max_bytes": partition_max_bytes,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
        **more,
    }


def batch(*values: bytes, timestamp: int | None = None, **more: Any) -> bytes:
    """A batch of records with these values, as a producer would send it; of now, if not said."""
    at = int(time.time() * 1000) if timestamp is None else timestamp
    records = [Record(b"key", value, at) for value in values]
    return bytes(build_batch(records, **more).data)
