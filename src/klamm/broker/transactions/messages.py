"""What the transaction coordinator is asked and what it responds, without wire formats.

Error codes are those of the newest version of a request; handlers translate them for older ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from klamm.broker.transactions.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionState,
)
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: The error that a client gets when the log refuses a record (TXN-15).
APPEND_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.NONE: ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class Requester(NamedTuple):
    """The sender of a request, for the history."""

    principal: str
    address: str
    client_id: str | None
    api: str


class ProducerIdAndEpoch(NamedTuple):
    """A producer id with its epoch."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """An InitProducerId request with a transactional id."""

    transactional_id: str
    timeout_ms: int
    #: What the producer has, if it asks for a higher epoch (KIP-360).
    current: ProducerIdAndEpoch | None = None
    requester: Requester | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResponse:
    """The response to an InitProducerId request."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """Add partitions to the transaction, or verify that they are in it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    requester: Requester | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddResponse:
    """The response to an AddPartitionsToTxn or AddOffsetsToTxn request."""

    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResponse:
    """`error` concerns the whole transaction; if it is NONE, `errors` has one per partition."""

    error: ErrorCode
    errors: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    """An EndTxn request: commit or abort."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    requester: Requester | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndResponse:
    """The response to an EndTxn request."""

    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransaction:
    """With an error, numbers are zero, as in Kafka."""

    error: ErrorCode
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """The filters of a ListTransactions request."""

    #: Only transactions in one of these states; None: in any.
    states: frozenset[TransactionState] | None = None
    #: States that were asked for and do not exist.
    unknown_states: tuple[str, ...] = ()
    producer_ids: frozenset[int] = frozenset()
    #: Transactions that began at most this long ago are left out; negative: none are.
    duration_ms: int = -1


class ListedTransaction(NamedTuple):
    """A transaction in the response to ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionList:
    """The response to ListTransactions."""

    error: ErrorCode
    unknown_states: tuple[str, ...] = ()
    transactions: Sequence[ListedTransaction] = ()


#: The responses of requests that may wait for the log.
Response = InitResponse | AddResponse | EndResponse
