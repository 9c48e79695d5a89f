"""Handlers of ListOffsets, OffsetForLeaderEpoch and DeleteRecords (sections 6.3, 6.10, 11.4)."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from klamm.broker.handlers.dispatch import Body, Call, Handler
from klamm.broker.log.errors import StorageError
from klamm.broker.log.log import Log
from klamm.broker.log.results import TimestampedOffset
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.replication.partition import Partition
from klamm.broker.replication.replica_log import CONSUMER, Reader
from klamm.names import EARLIEST, LATEST, TopicPartition, is_internal
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

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
    """Who sends a ListOffsets request: its version, replica id and isolation level."""

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

    async def _list_offsets(self, call: Call) -> Body:
        body = call.body
        reader = _OffsetReader(
            call.header.api_version, body.replica_id, getattr(body, "isolation_level", 0) == 1
        )
        asked = Counter(
            (topic.name, each.partition_index) for topic in body.topics for each in topic.partitions
        )
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        await self._list(
                            reader, TopicPartition(topic.name, each.partition_index), each
                        )
                        if asked[topic.name, each.partition_index] == 1
                        else _no_offset(each.partition_index, ErrorCode.INVALID_REQUEST)
                        for each in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }

    async def _list(self, reader: _OffsetReader, name: TopicPartition, wanted: Any) -> Body:
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
            found = await _look_up(partition, reader, timestamp)
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

    def _offset_for_leader_epoch(self, call: Call) -> Body:
        return {
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": [
                        self._end_of_epoch(TopicPartition(topic.topic, each.partition), each)
                        for each in topic.partitions
                    ],
                }
                for topic in call.body.topics
            ]
        }

    def _end_of_epoch(self, name: TopicPartition, wanted: Any) -> Body:
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

    async def _delete_records(self, call: Call) -> Body:
        body = call.body
        errors: dict[TopicPartition, ErrorCode] = {}
        targets: dict[TopicPartition, int] = {}
        for topic in body.topics:
            for each in topic.partitions:
                name = TopicPartition(topic.name, each.partition_index)
                if is_internal(topic.name):
                    errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
                    continue
                error, target = self._replicas.delete_records(name, each.offset)
                if error:
                    errors[name] = error
                else:
                    targets[name] = target
        low_watermarks: Mapping[TopicPartition, int] = {}
        if targets:
            timeout_ms = body.timeout // _MILLISECOND
            operation = self._replicas.delay_delete_records(targets, timeout_ms)
            await operation.wait()
            errors.update(operation.errors)
            low_watermarks = operation.low_watermarks
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


async def _look_up(
    partition: Partition, reader: _OffsetReader, timestamp: int
) -> TimestampedOffset:
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
        found = await asyncio.to_thread(replica.offset_of_max_timestamp)
        return found if found is not None and found.offset < end else _NOTHING
    found = await asyncio.to_thread(replica.offset_for_timestamp, timestamp, end)
    return found or _NOTHING


def _no_offset(partition: int, error: ErrorCode) -> Body:
    return {"partition_index": partition, "error_code": error, "timestamp": -1, "offset": -1}
