"""Markers as the leaders of partitions write them (TXN-7)."""

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from klamm.broker.clock import Clock
from klamm.broker.log.errors import AppendError
from klamm.broker.log.validation import AppendOrigin
from klamm.broker.replication.manager import ReplicaManager
from klamm.names import CONSUMER_OFFSETS, TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Record, build_batch
from klamm.slices import Steps

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0

#: Makes the offsets of a transaction visible or forgets them: partition, producer id, commit.
EndOffsets = Callable[[int, int, bool], None]


class WritableMarker(NamedTuple):
    """The end of one transaction on some partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    partitions: tuple[TopicPartition, ...]


class MarkerWriter:
    """Appends markers to the partitions that are led here."""

    def __init__(
        self, replicas: ReplicaManager, end_offsets: EndOffsets, clock: Clock, timeout_ms: int
    ) -> None:
        self._replicas = replicas
        self._end_offsets = end_offsets
        self._clock = clock
        self._timeout_ms = timeout_ms

    def write(
        self, markers: Iterable[WritableMarker]
    ) -> Steps[dict[int, dict[TopicPartition, ErrorCode]]]:
        """Append markers and wait until they are replicated; the results by producer id."""
        results: dict[int, dict[TopicPartition, ErrorCode]] = {}
        required: dict[TopicPartition, int] = {}
        appended: list[tuple[WritableMarker, TopicPartition]] = []
        for marker in markers:
            errors = results.setdefault(marker.producer_id, {})
            for name in marker.partitions:
                error, end_offset = self._append(marker, name)
                errors[name] = error
                if not error:
                    required[name] = end_offset
                    appended.append((marker, name))
                yield None
        if required:
            operation = self._replicas.delay_produce(required, self._timeout_ms)
            if operation.is_pending:
                yield operation.wait()
            committed = operation.errors
            for marker, name in appended:
                results[marker.producer_id][name] = committed[name]
                if not committed[name] and name.topic == CONSUMER_OFFSETS:
                    # Before the response: a client that has seen the commit finds its offsets.
                    self._end_offsets(name.partition, marker.producer_id, marker.is_commit)
                yield None
        return results

    def _append(self, marker: WritableMarker, name: TopicPartition) -> tuple[ErrorCode, int]:
        """Append one marker; what has to be committed before it counts."""
        if isinstance(self._replicas.find(name), ErrorCode):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            return ErrorCode.UNKNOWN_SERVER_ERROR, -1  # no producer ends a transaction
        batch = build_batch(
            [
                Record(
                    _KEY.pack(_VERSION, marker.is_commit),
                    _VALUE.pack(_VERSION, marker.coordinator_epoch),
                    self._clock.wall_ms(),
                )
            ],
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transactional=True,
            control=True,
        )
        try:
            result = self._replicas.append(
                name, batch.data, acks_all=True, origin=AppendOrigin.COORDINATOR
            )
        except AppendError as error:
            return error.code, -1
        return ErrorCode.NONE, result.last_offset + 1
