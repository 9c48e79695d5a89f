"""What the transaction coordinator wants done: responses, records to append, markers to send.

The service carries effects out in the order in which they are given, and reports the result of
each `AppendState` once. Each marker of a `SendMarkers` is reported once it is written, unless a
`DropMarkers` comes first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from klamm.broker.transactions.messages import Requester, Response
from klamm.broker.transactions.records import TransactionRecord
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: Chosen by the caller to find the request that a response belongs to.
Ticket = int


@dataclass(frozen=True, slots=True)
class RespondToProducer:
    """The response to the request that came with `ticket`."""

    ticket: Ticket
    response: Response


@dataclass(frozen=True, slots=True)
class AppendState:
    """Write `records` to a partition of `__transaction_state` with acks=all, in one batch."""

    number: int  # names this append in the report; higher means later in the log
    partition: int
    records: tuple[TransactionRecord, ...]
    timeout_ms: int  # after this long without the acks: REQUEST_TIMED_OUT


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the marker of a decided transaction to each of its partitions."""

    state_partition: int
    coordinator_epoch: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: tuple[TopicPartition, ...]


class What(StrEnum):
    """The kinds of events of a transactional id."""

    INITIALIZED = "initialized"  # a producer was given the id, and every earlier one is fenced
    BEGAN = "began"
    ADDED = "added"  # partitions
    DECIDED = "decided"  # to commit or to abort, as its producer asked
    FENCED = "fenced"  # aborted, because another producer asked for the id
    TIMED_OUT = "timed_out"  # aborted, because it was open for too long
    COMPLETED = "completed"  # all markers are written
    REFUSED = "refused"  # a request of a fenced producer
    LOADED = "loaded"  # a new coordinator found the transaction unfinished
    EXPIRED = "expired"  # the id was removed


@dataclass(frozen=True, slots=True)
class NoteTransition:
    """Put into the history what happened to a transactional id, and the state it is in now."""

    what: What
    transactional_id: str
    state_partition: int
    coordinator_epoch: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: str
    partitions: tuple[TopicPartition, ...]
    requester: Requester | None


@dataclass(frozen=True, slots=True)
class DropMarkers:
    """Another broker coordinates `state_partition`: forget its unsent markers."""

    state_partition: int


Effect = RespondToProducer | AppendState | SendMarkers | DropMarkers | NoteTransition
#: Called with the result of an append and the time.
Continuation = Callable[[ErrorCode, int], None]


class TransactionOutbox:
    """Collects the effects of a call, and remembers which continuation waits for which append."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._waiting: dict[int, Continuation] = {}
        self._appends = 0

    def respond(self, ticket: Ticket, response: Response) -> None:
        self._effects.append(RespondToProducer(ticket, response))

    def append(
        self,
        partition: int,
        records: Sequence[TransactionRecord],
        timeout_ms: int,
        then: Continuation,
    ) -> None:
        """Write, and go on with `then` once the result is known."""
        self._appends += 1
        self._waiting[self._appends] = then
        self._effects.append(AppendState(self._appends, partition, tuple(records), timeout_ms))

    def add(self, effect: SendMarkers | DropMarkers | NoteTransition) -> None:
        self._effects.append(effect)

    def report(self, number: int, error: ErrorCode, now_ms: int) -> None:
        """Go on with what waited for this append."""
        self._waiting.pop(number)(error, now_ms)

    def drain(self) -> list[Effect]:
        """Hand over what has been collected."""
        effects, self._effects = self._effects, []
        return effects
