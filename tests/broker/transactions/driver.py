"""Runs a transaction coordinator against a log in memory, in a time that passes only when told."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from klamm.broker.transactions.codec import list_request
from klamm.broker.transactions.coordinator import TransactionCoordinator, transaction_partition
from klamm.broker.transactions.effects import (
    AppendState,
    DropMarkers,
    Effect,
    NoteTransition,
    RespondToProducer,
    SendMarkers,
)
from klamm.broker.transactions.messages import (
    AddRequest,
    AddResponse,
    DescribedTransaction,
    EndRequest,
    EndResponse,
    InitRequest,
    InitResponse,
    ProducerIdAndEpoch,
    TransactionList,
)
from klamm.broker.transactions.records import StoredTransaction, decode_value, encode_key
from klamm.broker.transactions.transaction import TransactionConfig
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from tests.support.event_loop import result_of

START_MS = 1_700_000_000_000
PARTITIONS = 4
TIMEOUT_MS = 60_000
ID = "pay-1"
ORDERS = (TopicPartition("orders", 0), TopicPartition("orders", 1))


@dataclass
class Driver:
    """One broker's coordinator, with the log it writes to and the markers it sends."""

    config: TransactionConfig = field(default_factory=TransactionConfig)
    #: The result of appends; None leaves them to `acknowledge`.
    append_error: ErrorCode | None = ErrorCode.NONE
    #: Whether markers are written as soon as they are sent.
    writes_markers: bool = True
    owned: Iterable[int] = range(PARTITIONS)

    def __post_init__(self) -> None:
        self.now_ms = START_MS
        self.responses: dict[int, Any] = {}
        self.log: dict[int, list[AppendState]] = {partition: [] for partition in range(PARTITIONS)}
        self.unacknowledged: list[AppendState] = []
        self.markers: list[SendMarkers] = []
        self.unsent: list[SendMarkers] = []
        self.notes: list[NoteTransition] = []
        self.producer_ids: Iterable[int | None] = itertools.count(4000)
        self.tickets = itertools.count(1)
        self.epoch = 0
        self.coordinator = self.new_coordinator()
        self.lead(*self.owned)

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.config, self.new_producer_id, PARTITIONS)

    def new_producer_id(self) -> int | None:
        return next(iter(self.producer_ids), None)

    # State partitions

    def lead(self, *partitions: int) -> None:
        for partition in partitions:
            replay = self.coordinator.begin_load(partition, self.epoch)
            assert replay is not None
            for append in self.log[partition]:
                replay.read(append.records)
            replay.finish()
            loaded, effects = self.coordinator.finish_load(partition, replay, self.now_ms)
            assert loaded is not None
            self.carry_out(effects)

    def fail_over(self) -> None:
        """The broker dies and another one, which has the same log, takes over."""
        self.epoch += 1
        self.unacknowledged.clear()
        self.unsent.clear()
        self.coordinator = self.new_coordinator()
        self.lead(*range(PARTITIONS))

    # Effects

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case RespondToProducer(ticket, response):
                    assert ticket not in self.responses, "responded twice"
                    self.responses[ticket] = response
                case AppendState(partition=partition):
                    if self.append_error in (None, ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
                        self.log[partition].append(effect)
                    self.unacknowledged.append(effect)
                    if self.append_error is not None:
                        self.acknowledge(self.append_error)
                case SendMarkers():
                    self.markers.append(effect)
                    self.unsent.append(effect)
                    if self.writes_markers:
                        self.write_markers()
                case NoteTransition():
                    self.notes.append(effect)
                case DropMarkers(partition):
                    self.unsent = [x for x in self.unsent if x.state_partition != partition]

    def acknowledge(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Report the oldest append."""
        append = self.unacknowledged.pop(0)
        self.carry_out(self.coordinator.appended(append.number, error, self.now_ms))

    def write_markers(self) -> None:
        """All partitions of the oldest transaction get their marker."""
        sent = self.unsent.pop(0)
        self.carry_out(
            self.coordinator.markers_written(
                sent.transactional_id, sent.coordinator_epoch, sent.partitions, self.now_ms
            )
        )

    def tick(self, ms: int) -> None:
        """Let time pass, with all that is due on the way."""
        end_ms = self.now_ms + ms
        while (at_ms := self.coordinator.next_deadline_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(at_ms, self.now_ms)
            self.carry_out(self.coordinator.tick(self.now_ms))
        self.now_ms = end_ms

    # Requests

    def begin_init(
        self,
        transactional_id: str = ID,
        timeout_ms: int = TIMEOUT_MS,
        current: tuple[int, int] | None = None,
    ) -> int:
        ticket = next(self.tickets)
        request = InitRequest(
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            current=ProducerIdAndEpoch(*current) if current else None,
        )
        self.carry_out(self.coordinator.init_producer_id(ticket, request, self.now_ms))
        return ticket

    def init(
        self,
        transactional_id: str = ID,
        timeout_ms: int = TIMEOUT_MS,
        current: tuple[int, int] | None = None,
    ) -> InitResponse:
        ticket = self.begin_init(transactional_id, timeout_ms, current)
        response: InitResponse = self.responses[ticket]
        return response

    def begin_add(
        self,
        producer: InitResponse | tuple[int, int],
        partitions: Iterable[TopicPartition] = ORDERS,
        transactional_id: str = ID,
    ) -> int:
        ticket = next(self.tickets)
        request = add_request(producer, partitions, transactional_id)
        self.carry_out(self.coordinator.add_partitions(ticket, request, self.now_ms))
        return ticket

    def add(
        self,
        producer: InitResponse | tuple[int, int],
        partitions: Iterable[TopicPartition] = ORDERS,
        transactional_id: str = ID,
    ) -> ErrorCode:
        response: AddResponse = self.responses[
            self.begin_add(producer, partitions, transactional_id)
        ]
        return response.error

    def begin_end(
        self,
        producer: InitResponse | tuple[int, int],
        is_commit: bool = True,
        transactional_id: str = ID,
    ) -> int:
        ticket = next(self.tickets)
        producer_id, epoch = _pair(producer)
        request = EndRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            is_commit=is_commit,
        )
        self.carry_out(self.coordinator.end_transaction(ticket, request, self.now_ms))
        return ticket

    def end(
        self,
        producer: InitResponse | tuple[int, int],
        is_commit: bool = True,
        transactional_id: str = ID,
    ) -> ErrorCode:
        response: EndResponse = self.responses[
            self.begin_end(producer, is_commit, transactional_id)
        ]
        return response.error

    def verify(
        self,
        producer: InitResponse | tuple[int, int],
        partitions: Iterable[TopicPartition] = ORDERS,
        transactional_id: str = ID,
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        response = self.coordinator.verify_partitions(
            add_request(producer, partitions, transactional_id)
        )
        return response.error or dict(response.errors)

    def describe(self, transactional_id: str = ID) -> DescribedTransaction:
        return self.coordinator.describe(transactional_id)

    def state(self, transactional_id: str = ID) -> str:
        return self.describe(transactional_id).state

    def list_transactions(self, states: Sequence[str] = (), **filters: Any) -> TransactionList:
        body = SimpleNamespace(state_filters=states, producer_id_filters=())
        request = replace(list_request(body), **filters)
        return result_of(self.coordinator.list_transactions(request, self.now_ms))

    def listed(self, **filters: Any) -> list[str]:
        found = self.list_transactions(**filters)
        assert found.error is ErrorCode.NONE
        return [each.transactional_id for each in found.transactions]

    def stored(self, transactional_id: str = ID) -> list[StoredTransaction | None]:
        """Everything the log has about an id; None for a tombstone."""
        partition = transaction_partition(transactional_id, PARTITIONS)
        key = encode_key(transactional_id)
        return [
            None if record.value is None else decode_value(record.value)
            for append in self.log[partition]
            for record in append.records
            if record.key == key
        ]


def _pair(producer: InitResponse | tuple[int, int]) -> tuple[int, int]:
    if isinstance(producer, tuple):
        return producer
    return producer.producer_id, producer.producer_epoch


def add_request(
    producer: InitResponse | tuple[int, int],
    partitions: Iterable[TopicPartition] = ORDERS,
    transactional_id: str = ID,
) -> AddRequest:
    producer_id, epoch = _pair(producer)
    return AddRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        partitions=tuple(partitions),
    )
