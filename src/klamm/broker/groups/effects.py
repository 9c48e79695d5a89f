"""What the coordinator wants done: responses to send and records to write.

The service that runs the coordinator performs effects in their order, and reports
the fate of each `Append` once, whatever its `acks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from klamm.broker.groups.messages import Response, TransactionalProducer
from klamm.broker.groups.records import GroupRecord
from klamm.protocol.codes import ErrorCode

#: Chosen by the caller to find the request again that a response belongs to.
Ticket = int


@dataclass(frozen=True, slots=True)
class SendResponse:
    """The response to the request that came with `ticket`."""

    ticket: Ticket
    response: Response


@dataclass(frozen=True, slots=True)
class Append:
    """Write `records` to a partition of `__consumer_offsets`, in one batch."""

    number: int  # names this append in the report; higher means later in the log
    partition: int
    records: tuple[GroupRecord, ...]
    timestamp_ms: int  # of every record, as CreateTime
    acks: int
    timeout_ms: int  # after this long without the acks: REQUEST_TIMED_OUT
    producer: TransactionalProducer | None = None  # of records that are part of a transaction


Effect = SendResponse | Append
#: Called with what became of an append, and when.
Continuation = Callable[[ErrorCode, int], None]


class Outbox:
    """Collects the effects of a call, and remembers what waits for which append."""

    def __init__(self, acks: int, timeout_ms: int) -> None:
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._effects: list[Effect] = []
        self._waiting: dict[int, Continuation] = {}
        self._appends = 0

    def response(self, ticket: Ticket, response: Response) -> None:
        self._effects.append(SendResponse(ticket, response))

    def append(
        self,
        partition: int,
        records: Sequence[GroupRecord],
        now_ms: int,
        then: Continuation | None,
        producer: TransactionalProducer | None = None,
    ) -> int:
        """Write with the configured acks, and go on with `then` once they are there."""
        number = self._append(partition, records, now_ms, self._acks, producer)
        if then is not None:
            self._waiting[number] = then
        return number

    def append_unawaited(self, partition: int, records: Sequence[GroupRecord], now_ms: int) -> None:
        """Write with acks 0; the next coordinator decides again about a record that is lost."""
        self._append(partition, records, now_ms, acks=0)

    def report(self, number: int, error: ErrorCode, now_ms: int) -> None:
        """Go on with what waited for this append, if anything did."""
        then = self._waiting.pop(number, None)
        if then is not None:
            then(error, now_ms)

    def drain(self) -> list[Effect]:
        """Hand over what has been collected."""
        effects, self._effects = self._effects, []
        return effects

    def _append(
        self,
        partition: int,
        records: Sequence[GroupRecord],
        now_ms: int,
        acks: int,
        producer: TransactionalProducer | None = None,
    ) -> int:
        self._appends += 1
        self._effects.append(
            Append(
                self._appends,
                partition,
                tuple(records),
                now_ms,
                acks,
                self._timeout_ms,
                producer,
            )
        )
        return self._appends
