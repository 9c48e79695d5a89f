"""Controllers of a KRaft quorum that serve a metadata log made by hand."""

import contextlib
import socket
import struct
import threading
from typing import Any

from klamm.protocol.apis import KNOWN_APIS, ApiKey
from klamm.protocol.codec.encoding import encode_parts
from klamm.protocol.codec.headers import RequestHeader, encode_response_header, framed
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import SnapshotId
from klamm.protocol.records import Batch
from klamm.protocol.schema.lookup import message_schema
from tests.support.lab import decode_any_request


class ScriptedQuorum:
    """The log and the leader; any number of controllers serve it."""

    def __init__(self) -> None:
        self.leader = 101
        self.epoch = 3
        self.batches: list[Batch] = []
        self.high_watermark = 0
        self.log_start = 0
        self.snapshots: dict[SnapshotId, bytes] = {}
        #: What controllers answer with, instead.
        self.errors: dict[ApiKey, ErrorCode] = {}
        #: As newer versions of Kafka do: a snapshot in place of the log from offset 0.
        self.prefers_snapshots = False
        self.controllers: list[ScriptedController] = []

    def add(self, *ids: int, **options: Any) -> "ScriptedController":
        for each in ids:
            self.controllers.append(ScriptedController(self, each, **options))
        return self.controllers[-1]

    def close(self) -> None:
        for each in self.controllers:
            each.close()


class ScriptedController:
    """One controller, or with `is_broker` a broker, which serves no snapshots."""

    def __init__(self, quorum: ScriptedQuorum, node_id: int, *, is_broker: bool = False) -> None:
        self.id = node_id
        self._quorum = quorum
        self._serves = {
            ApiKey.API_VERSIONS: 4,
            ApiKey.FETCH: 17,
            ApiKey.DESCRIBE_QUORUM: 2,
            ApiKey.DESCRIBE_CLUSTER: 1,
            **({} if is_broker else {ApiKey.FETCH_SNAPSHOT: 1}),
        }
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = ("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), connection:
            stream = connection.makefile("rb")
            while size := stream.read(4):
                header, body = decode_any_request(stream.read(struct.unpack(">i", size)[0]))
                connection.sendall(self._response(header, body))

    def _response(self, header: RequestHeader, body: Any) -> bytes:
        api = ApiKey(header.api_key)
        answers = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
            ApiKey.DESCRIBE_QUORUM: self._describe_quorum,
            ApiKey.FETCH: self._fetch,
            ApiKey.FETCH_SNAPSHOT: self._fetch_snapshot,
        }
        parts = [encode_response_header(header)]
        schema = message_schema(header.api_key, header.api_version, "response")
        encode_parts(schema, answers[api](body), parts.append)
        return framed(parts)

    def _error(self, api: ApiKey) -> ErrorCode:
        if api in self._quorum.errors:
            return self._quorum.errors[api]
        is_leader = self._quorum.leader == self.id
        return ErrorCode.NONE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _api_versions(self, _: Any) -> dict[str, Any]:
        keys = [
            {"api_key": key, "min_version": KNOWN_APIS[key].min_version, "max_version": highest}
            for key, highest in self._serves.items()
        ]
        return {"error_code": ErrorCode.NONE, "api_keys": keys}

    def _describe_cluster(self, _: Any) -> dict[str, Any]:
        return {
            "error_code": self._quorum.errors.get(ApiKey.DESCRIBE_CLUSTER, ErrorCode.NONE),
            "error_message": None,
            "endpoint_type": 2,
            "cluster_id": "cluster",
            "controller_id": self._quorum.leader,
            "brokers": [
                {"broker_id": each.id, "host": each.address[0], "port": each.address[1]}
                for each in self._quorum.controllers
            ],
            "cluster_authorized_operations": 0,
        }

    def _describe_quorum(self, _: Any) -> dict[str, Any]:
        partition = {
            "partition_index": 0,
            "error_code": self._error(ApiKey.DESCRIBE_QUORUM),
            "error_message": None,
            "leader_id": self._quorum.leader,
            "leader_epoch": self._quorum.epoch,
            "high_watermark": self._quorum.high_watermark,
            "current_voters": [],
            "observers": [],
        }
        topics = [{"topic_name": "__cluster_metadata", "partitions": [partition]}]
        return {"error_code": 0, "error_message": None, "topics": topics, "nodes": []}

    def _fetch(self, body: Any) -> dict[str, Any]:
        (topic,) = body.topics
        (asked,) = topic.partitions
        quorum = self._quorum
        partition: dict[str, Any] = {
            "partition_index": 0,
            "error_code": self._error(ApiKey.FETCH),
            "high_watermark": quorum.high_watermark,
            "last_stable_offset": -1,
            "log_start_offset": quorum.log_start,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": b"",
        }
        if not partition["error_code"] and asked.current_leader_epoch != quorum.epoch:
            partition["error_code"] = ErrorCode.FENCED_LEADER_EPOCH
        elif not partition["error_code"]:
            offset = asked.fetch_offset
            at_start = SnapshotId(offset, asked.last_fetched_epoch)
            is_cut = offset < quorum.log_start or (
                offset == quorum.log_start > 0 and at_start not in quorum.snapshots
            )
            if is_cut or (offset == 0 and quorum.prefers_snapshots):
                partition["snapshot_id"] = max(quorum.snapshots)._asdict()
            else:
                batches = [each for each in quorum.batches if each.header.last_offset >= offset]
                # Two at a time, and half of another one.
                records = b"".join(each.data for each in batches[:3])
                cut = batches[2].header.size // 2 if len(batches) > 2 else 0
                partition["records"] = records[: len(records) - cut]
        topics = [{"topic_id": topic.topic_id, "partitions": [partition]}]
        return {"error_code": 0, "session_id": 0, "responses": topics}

    def _fetch_snapshot(self, body: Any) -> dict[str, Any]:
        ((asked,),) = (topic.partitions for topic in body.topics)
        id = SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        content = self._quorum.snapshots.get(id)
        error = self._error(ApiKey.FETCH_SNAPSHOT)
        if not error and content is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        content = content or b""
        partition = {
            "index": 0,
            "error_code": error,
            "snapshot_id": id._asdict(),
            "current_leader": {
                "leader_id": self._quorum.leader,
                "leader_epoch": self._quorum.epoch,
            },
            "size": len(content),
            "position": asked.position,
            # In pieces of fifty bytes, which are not aligned with batches.
            "unaligned_records": content[asked.position : asked.position + 50],
        }
        topics = [{"name": "__cluster_metadata", "partitions": [partition]}]
        return {"error_code": 0, "topics": topics}
