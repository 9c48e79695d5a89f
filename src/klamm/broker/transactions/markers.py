"""Markers on their way to the leaders of their partitions (TXN-16).

There is one request in flight to each broker, for all transactions that wait for it. A marker that
could not be written is located and sent again after a pause; a partition that no longer exists is
reported as written, since its records cannot be read any more.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from klamm.broker.transactions.effects import SendMarkers
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: Stands for the leader of a partition that has none, or none that is alive.
NO_BROKER: Final = -1
RETRY_MS: Final = 50

#: A newer coordinator, or a newer producer, has taken over: it writes the markers.
_STOP: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
#: The partition has a format without transactions: it needs no marker.
_DROP: Final = frozenset({ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})

#: The broker that leads a partition, NO_BROKER, or None for a partition that does not exist.
Locate = Callable[[TopicPartition], int | None]
#: The results of a WriteTxnMarkers, by producer id and partition.
MarkerResults = Mapping[int, Mapping[TopicPartition, ErrorCode]]


class MarkerRequest(NamedTuple):
    """One WriteTxnMarkers."""

    broker: int
    markers: tuple[SendMarkers, ...]


class MarkersWritten(NamedTuple):
    """Partitions of a transaction that need no marker any more."""

    transactional_id: str
    coordinator_epoch: int
    partitions: Collection[TopicPartition]


class MarkerChannels:
    """Queues of markers, one for each broker."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._queues: dict[int, dict[str, SendMarkers]] = {}  # by broker and transactional id
        self._in_flight: dict[int, dict[str, SendMarkers]] = {}
        self._retries: list[tuple[int, SendMarkers]] = []
        self._written: list[MarkersWritten] = []

    @property
    def unknown_destinations(self) -> int:
        """How many transactions have markers that wait to be located again."""
        return len(self._retries)

    def add(self, markers: SendMarkers, now_ms: int) -> None:
        """Queue the markers of a transaction."""
        destinations: dict[int | None, list[TopicPartition]] = {}
        for partition in markers.partitions:
            destinations.setdefault(self._locate(partition), []).append(partition)
        for broker, partitions in destinations.items():
            part = replace(markers, partitions=tuple(partitions))
            if broker is None:
                self._report(part)
            elif broker == NO_BROKER:
                self._retry(part, now_ms)
            else:
                queue = self._queues.setdefault(broker, {})
                queued = queue.get(part.transactional_id)
                if queued is not None:
                    part = replace(part, partitions=(*queued.partitions, *part.partitions))
                queue[part.transactional_id] = part

    def drop(self, state_partition: int) -> None:
        """Forget the markers of a state partition that another broker coordinates now."""
        self._forget(lambda each: each.state_partition == state_partition)

    def poll(self, now_ms: int) -> tuple[list[MarkerRequest], list[MarkersWritten]]:
        """Requests to send now, and what needs no marker any more."""
        if self._retries:
            due = [each for at_ms, each in self._retries if at_ms <= now_ms]
            self._retries = [entry for entry in self._retries if entry[0] > now_ms]
            for markers in due:
                self.add(markers, now_ms)
        requests = []
        for broker in [each for each in self._queues if each not in self._in_flight]:
            queue = self._in_flight[broker] = self._queues.pop(broker)
            requests.append(MarkerRequest(broker, tuple(queue.values())))
        written, self._written = self._written, []
        return requests, written

    def on_response(self, broker: int, results: MarkerResults | None, now_ms: int) -> None:
        """Take in the results of the request in flight; None: the broker did not respond."""
        for markers in self._in_flight.pop(broker).values():
            if results is None:
                self._retry(markers, now_ms)
            else:
                self._read(markers, results.get(markers.producer_id, {}), now_ms)

    def on_metadata(self) -> None:
        """Leaders may have changed: locate at once what waits."""
        self._retries = [(0, markers) for _, markers in self._retries]

    def next_deadline_ms(self) -> int | None:
        """When to call `poll` next; None: not before something else happens."""
        return min((at_ms for at_ms, _ in self._retries), default=None)

    def _read(
        self, markers: SendMarkers, errors: Mapping[TopicPartition, ErrorCode], now_ms: int
    ) -> None:
        """Sort the partitions of one transaction by what their leader said."""
        again, done = [], []
        for partition in markers.partitions:
            error = errors.get(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if error in _STOP:
                self._forget(lambda each: each.transactional_id == markers.transactional_id)
                return
            if error is ErrorCode.NONE or error in _DROP:
                done.append(partition)
            else:  # written later, by this leader or by the next one
                again.append(partition)
        if done:
            self._report(replace(markers, partitions=tuple(done)))
        if again:
            self._retry(replace(markers, partitions=tuple(again)), now_ms)

    def _report(self, markers: SendMarkers) -> None:
        self._written.append(
            MarkersWritten(markers.transactional_id, markers.coordinator_epoch, markers.partitions)
        )

    def _retry(self, markers: SendMarkers, now_ms: int) -> None:
        self._retries.append((now_ms + RETRY_MS, markers))

    def _forget(self, is_unwanted: Callable[[SendMarkers], bool]) -> None:
        self._retries = [entry for entry in self._retries if not is_unwanted(entry[1])]
        for queues in (self._queues, self._in_flight):
            for queue in queues.values():
                for id in [id for id, each in queue.items() if is_unwanted(each)]:
                    del queue[id]
        for broker in [each for each, queue in self._queues.items() if not queue]:
            del self._queues[broker]
