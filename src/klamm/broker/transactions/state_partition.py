"""What the transaction coordinator keeps for each partition of `__transaction_state` it leads."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from klamm.broker.transactions.effects import NoteTransition, What
from klamm.broker.transactions.messages import Requester
from klamm.broker.transactions.records import TransactionState
from klamm.broker.transactions.transaction import Transaction, Transit
from klamm.names import TopicPartition


class TransactionsLoaded(NamedTuple):
    """What a state partition was found to hold."""

    transactions: int
    prepared: int  # whose markers are sent again
    ignored: int  # records that could not be read


class TransactionCounts(NamedTuple):
    """For the metrics."""

    transactions: Mapping[TransactionState, int]
    #: Completions that wait to be written again.
    append_retries: int


class StatePartition:
    """A partition of `__transaction_state` that this broker coordinates."""

    __slots__ = ("epoch", "index", "transactions")

    def __init__(self, index: int, epoch: int) -> None:
        self.index = index
        #: The leader epoch with which this broker became leader (TXN-16).
        self.epoch = epoch
        self.transactions: dict[str, Transaction] = {}


class Completion(NamedTuple):
    """A decided transaction whose markers are being written."""

    home: StatePartition
    transaction: Transaction
    transit: Transit


def note_of(
    home: StatePartition,
    transaction: Transaction,
    what: What,
    requester: Requester | None,
    partitions: Collection[TopicPartition] | None,
) -> NoteTransition:
    """What happened to an id, with the state it is in now; None: all of its partitions."""
    return NoteTransition(
        what,
        transaction.id,
        home.index,
        home.epoch,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        transaction.state.label,
        tuple(transaction.partitions if partitions is None else partitions),
        requester,
    )
