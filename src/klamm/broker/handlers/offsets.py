"""Handlers of ListOffsets, OffsetForLeaderEpoch and DeleteRecords (sections 6.3, 6.10, 11.4)."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from klamm.broker.handlers.dispatch import Body, Call, Handler, in_slices, translated
from klamm.broker.log.errors import StorageError
from klamm.broker.log.log import Log
from klamm.broker.log.results import TimestampedOffset
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.replication.partition import Partition
from klamm.broker.replication.replica_log import CONSUMER, Reader
from klamm.names import EARLIEST, LATEST, TopicPartition, is_internal
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps, counted, each

#: Timestamps that stand for a place in the log beside LATEST and EARLIEST, and the first version
#: of ListOffsets that may carry each.
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_FIRST_VERSION: Final[Mapping[int, int]] = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
}
_DEBUGGER: Final = -2
_FIRST_WITH_OFFSET_NOT_AVAILABLE: Final = 5
_MILLISECOND: Final = timedelta(milliseconds=1)
_NOTHING: Final = TimestampedOffset(-1, -1, -1)


class _OffsetReader(NamedTuple):
    """The sender of a ListOffsets request: version, replica id and isolation level."""

    version: int
    replica_id: int
    read_committed: bool

    @property
    def is_consumer(self) -> bool:
        return self.replica_id == CONSUMER


class OffsetHandlers:
    """Looks up offsets of partitions, and deletes records before an offset."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: self._delete_records,
        }

    # ListOffsets

    @in_slices
    def _list_offsets(self, call: Call) -> Steps[Body]:
        body = call.body
        reader = _OffsetReader(
            call.header.api_version, body.replica_id, getattr(body, "isolation_level", 0) == 1
        )
        asked = yield from counted(
            (topic.name, wanted.partition_index)
            for topic in body.topics
            for wanted in topic.partitions
        )
        topics = []
        for topic in body.topics:
            partitions = []
            for wanted in topic.partitions:
                if asked[topic.name, wanted.partition_index] == 1:
                    name = TopicPartition(topic.name, wanted.partition_index)
                    partitions.append((yield from self._list(reader, name, wanted)))
                else:
                    partitions.append(_no_offset(wanted.partition_index, ErrorCode.INVALID_REQUEST))
                yield None
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    def _list(self, reader: _OffsetReader, name: TopicPartition, wanted: Any) -> Steps[Body]:
        timestamp = wanted.timestamp
        if timestamp < 0 and reader.version < _FIRST_VERSION.get(timestamp, 1 << 15):
            return _no_offset(name.partition, ErrorCode.UNSUPPORTED_VERSION)
        partition = self._replicas.find(name)
        if isinstance(partition, ErrorCode):
            return _no_offset(name.partition, partition)
        error = partition.check_reader(
            Reader(leader_only=reader.replica_id != _DEBUGGER),
            getattr(wanted, "current_leader_epoch", -1),
        )
        if error:
            return _no_offset(name.partition, error)
        try:
            found = yield from _look_up(partition, reader, timestamp)
        except StorageError:
            return _no_offset(name.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        is_open_ended = timestamp == LATEST or found.offset < 0
        if reader.is_consumer and is_open_ended and partition.is_lagging_behind_predecessor():
            # Consumers of the previous leader may have seen later offsets (HW-6).
            is_known = reader.version >= _FIRST_WITH_OFFSET_NOT_AVAILABLE
            return _no_offset(
                name.partition,
                ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE,
            )
        return {
            "partition_index": name.partition,
            "error_code": ErrorCode.NONE,
            "timestamp": found.timestamp,
            "offset": found.offset,
            "leader_epoch": found.leader_epoch,
        }

    # OffsetForLeaderEpoch

    @in_slices
    def _offset_for_leader_epoch(self, call: Call) -> Steps[Body]:
        topics = []
        for topic in call.body.topics:
            ends = yield from each(partial(self._end_of_epoch, topic.topic), topic.partitions)
            topics.append({"topic": topic.topic, "partitions": ends})
            yield None
        return {"topics": topics}

    def _end_of_epoch(self, topic: str, wanted: Any) -> Body:
        name = TopicPartition(topic, wanted.partition)
        partition = self._replicas.find(name)
        if isinstance(partition, ErrorCode):
            return {"error_code": partition, "partition": name.partition}
        error, end = partition.end_of_epoch(wanted.leader_epoch, wanted.current_leader_epoch)
        return {
            "error_code": error,
            "partition": name.partition,
            "leader_epoch": end.epoch,
            "end_offset": end.end_offset,
        }

    # DeleteRecords

    @in_slices
    def _delete_records(self, call: Call) -> Steps[Body]:
        body = call.body
        errors: dict[TopicPartition, ErrorCode] = {}
        targets: dict[TopicPartition, int] = {}
        for topic in body.topics:
            for wanted in topic.partitions:
                yield None
                name = TopicPartition(topic.name, wanted.partition_index)
                if is_internal(topic.name):
                    errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
                    continue
                error, target = self._replicas.delete_records(name, wanted.offset)
                if error:
                    errors[name] = error
                else:
                    targets[name] = target
        low_watermarks: Mapping[TopicPartition, int] = {}
        if targets:
            timeout_ms = body.timeout // _MILLISECOND
            operation = self._replicas.delay_delete_records(targets, timeout_ms)
            yield operation.wait()
            errors.update(operation.errors)
            low_watermarks = operation.low_watermarks
        return (yield from translated(call, _deleted_records, body, low_watermarks, errors))


def _deleted_records(
    body: Any,
    low_watermarks: Mapping[TopicPartition, int],
    errors: Mapping[TopicPartition, ErrorCode],
) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "low_watermark": low_watermarks.get(
                            TopicPartition(topic.name, each.partition_index), -1
                        ),
                        "error_code": errors[TopicPartition(topic.name, each.partition_index)],
                    }
                    for each in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


def _look_up(
    partition: Partition, reader: _OffsetReader, timestamp: int
) -> Steps[TimestampedOffset]:
    """The offset and timestamp for a requested timestamp (LIST-1..3); -1 and -1 if none."""
    replica = partition.log
    assert isinstance(replica, Log), "a partition that can be read has a log on disk"
    if not reader.is_consumer:
        end = replica.end_offset
    elif reader.read_committed:
        end = replica.last_stable_offset
    else:
        end = replica.high_watermark
    if timestamp == LATEST:
        return TimestampedOffset(-1, end, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = replica.start_offset
        first = next(iter(replica.epochs.entries), None)
        is_covered = first is not None and first.start_offset <= start
        return TimestampedOffset(-1, start, first.epoch if first and is_covered else -1)
    if timestamp == LATEST_TIERED:
        return _NOTHING
    if timestamp == MAX_TIMESTAMP:
        found: TimestampedOffset | None = yield asyncio.to_thread(replica.offset_of_max_timestamp)
        return found if found is not None and found.offset < end else _NOTHING
    found = yield asyncio.to_thread(replica.offset_for_timestamp, timestamp, end)
    return found or _NOTHING


def _no_offset(partition: int, error: ErrorCode) -> Body:
    return {"partition_index": partition, "error_code": error, "timestamp": -1, "offset": -1}
