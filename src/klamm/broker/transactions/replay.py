"""Reading a partition of `__transaction_state` back into transactions, record by record.

A log can hold a hundred thousand ids, so a `TransactionReplay` is filled in another thread; the
coordinator touches it again when it is finished.
"""

from collections.abc import Iterable

from klamm.broker.transactions.records import decode_key, decode_value
from klamm.broker.transactions.transaction import Transaction
from klamm.errors import RemoteProtocolError

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
        """The end of the log is reached: decode what is left of it."""
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
