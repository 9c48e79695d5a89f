"""What the transaction coordinator keeps for each partition of `__transaction_state` it leads.

A log can hold a hundred thousand ids, so a `TransactionReplay` is filled in another thread; the
coordinator touches it again when it is finished.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from klamm.broker.transactions.effects import NoteTransition, What
from klamm.broker.transactions.messages import Requester
from klamm.broker.transactions.records import TransactionState, decode_key, decode_value
from klamm.broker.transactions.transaction import Transaction, Transit
from klamm.errors import RemoteProtocolError
from klamm.names import TopicPartition


class TransactionsLoaded(NamedTuple):
    """The content of a loaded state partition."""

    transactions: int
    prepared: int  # whose markers are sent again
    ignored: int  # records that could not be read


class TransactionCounts(NamedTuple):
    """The numbers of the metrics, of one state partition."""

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


#: Key and value of a record.
KeyAndValue = tuple[bytes | None, bytes | None]


class TransactionReplay:
    """Folds records, in the order of the log, into the last state of each transactional id."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch  # of the leader on whose behalf the log is read
        self.ignored = 0  # records that could not be read
        #: Set once the partition has another leader: the rest of the load is dropped.
        self.is_abandoned = False
        self.transactions: dict[str, Transaction] = {}
        #: Undecoded values: most of them are replaced by a later one.
        self._values: dict[bytes, bytes] = {}

    def read(self, records: Iterable[KeyAndValue]) -> None:
        """Take in the records of some batches."""
        values = self._values
        for key, value in records:
            if key is None:
                self.ignored += 1
            elif value is None:
                values.pop(key, None)
            else:
                values[key] = value

    def finish(self) -> None:
        """Decode the rest, at the end of the log."""
        for key, value in self._values.items():
            try:
                transactional_id = decode_key(key)
                stored = decode_value(value)
            except RemoteProtocolError:
                # One record that cannot be read is no reason to lose the ids around it.
                self.ignored += 1
            else:
                self.transactions[transactional_id] = Transaction(transactional_id, stored)
        self._values.clear()
