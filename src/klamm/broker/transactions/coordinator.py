"""The transaction coordinator of a broker: all ids whose state partition the broker leads.

Each call comes with the time and returns effects to be carried out, in order. A request without a
response among them gets it with the effects of a later call. Time is in milliseconds since 1970,
since it is stored, and must not go backwards, since timeouts depend on it.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from klamm.broker.groups.coordinator import group_partition
from klamm.broker.transactions.effects import (
    DropMarkers,
    Effect,
    SendMarkers,
    Ticket,
    TransactionOutbox,
    What,
)
from klamm.broker.transactions.messages import (
    APPEND_ERRORS,
    AddRequest,
    AddResponse,
    DescribedTransaction,
    EndRequest,
    EndResponse,
    InitRequest,
    InitResponse,
    ListedTransaction,
    ListRequest,
    Requester,
    TransactionList,
    VerifyResponse,
)
from klamm.broker.transactions.records import (
    IDLE,
    PREPARED,
    StoredTransaction,
    TransactionRecord,
    TransactionState,
    encode_key,
    encode_value,
    is_storable,
)
from klamm.broker.transactions.state_partition import (
    Completion,
    StatePartition,
    TransactionCounts,
    TransactionReplay,
    TransactionsLoaded,
    note_of,
)
from klamm.broker.transactions.transaction import Transaction, TransactionConfig, Transit
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps

S = TransactionState
#: `transaction.state.log.num.partitions`, which counts until `__transaction_state` exists.
DEFAULT_PARTITION_COUNT: Final = 50
#: After this long a completion that the log refused is written again.
RETRY_MS: Final = 100
#: The most tombstones that one batch holds.
_TOMBSTONES_MAX: Final = 1_000

transaction_partition = group_partition
#: Called with the error for the client and the time, once a transition is done or taken back.
Then = Callable[[ErrorCode, int], None]


class TransactionCoordinator:
    """Knows the transactions of the state partitions that this broker leads."""

    def __init__(
        self,
        config: TransactionConfig,
        new_producer_id: Callable[[], int | None],
        partition_count: int = DEFAULT_PARTITION_COUNT,
    ) -> None:
        """`new_producer_id` returns None while the controller has yet to give a block of ids."""
        self.partition_count = partition_count  # of __transaction_state, once that is known
        self.config = config
        self._new_producer_id = new_producer_id
        self._outbox = TransactionOutbox()
        self._owned: dict[int, StatePartition] = {}
        self._loading: dict[int, TransactionReplay] = {}
        self._epochs: dict[int, int] = {}  # the latest leader epoch seen, by state partition
        self._completions: dict[str, Completion] = {}
        #: Completions that the log refused, and when they are written again.
        self._retries: dict[str, int] = {}
        self._timeouts: list[tuple[int, int, StatePartition, Transaction]] = []
        self._sequence = 0
        #: When timeouts and expired ids are first looked for; later checks follow at intervals.
        self._abort_check_ms: int | None = None
        self._expiry_check_ms: int | None = None

    # State partitions (TXN-14)

    def begin_load(self, partition: int, epoch: int) -> TransactionReplay | None:
        """This broker leads `partition` now; returns what its log has to be read into, if at all.

        A leader that stays through later epochs keeps what it has, and its first epoch.
        """
        if not self._is_current(partition, epoch) or partition in self._owned:
            return None
        loading = self._loading.get(partition)
        if loading is not None:
            if loading.epoch == epoch:
                return None
            loading.is_abandoned = True
        replay = self._loading[partition] = TransactionReplay(epoch)
        return replay

    def finish_load(
        self, partition: int, replay: TransactionReplay, now_ms: int
    ) -> tuple[TransactionsLoaded | None, list[Effect]]:
        """The log is read to its end: serve. None if the partition has moved on."""
        if self._loading.get(partition) is not replay:
            return None, []
        del self._loading[partition]
        home = self._owned[partition] = StatePartition(partition, replay.epoch)
        home.transactions = replay.transactions
        prepared = 0
        for transaction in home.transactions.values():
            if transaction.state in PREPARED:
                prepared += 1
                self._note(home, transaction, What.LOADED)
                self._send_markers(home, transaction, now_ms)
            elif transaction.state is S.ONGOING:
                self._note(home, transaction, What.LOADED)
                self._watch_timeout(home, transaction)
        if self._abort_check_ms is None:
            self._abort_check_ms = now_ms + self.config.abort_timed_out_interval_ms
        if self._expiry_check_ms is None:
            self._expiry_check_ms = now_ms + self.config.remove_expired_interval_ms
        loaded = TransactionsLoaded(len(home.transactions), prepared, replay.ignored)
        return loaded, self._outbox.drain()

    def unload(self, partition: int, epoch: int | None) -> list[Effect]:
        """Another broker leads `partition` now, or none; no epoch: the replica is removed."""
        if epoch is not None and not self._is_current(partition, epoch):
            return []
        loading = self._loading.pop(partition, None)
        if loading is not None:
            loading.is_abandoned = True
        home = self._owned.pop(partition, None)
        if home is not None:
            for transactional_id in home.transactions:
                self._completions.pop(transactional_id, None)
                self._retries.pop(transactional_id, None)
            self._outbox.add(DropMarkers(partition))
        if not self._owned:
            self._abort_check_ms = self._expiry_check_ms = None
            self._timeouts.clear()
        return self._outbox.drain()

    # Requests

    def init_producer_id(self, ticket: Ticket, request: InitRequest, now_ms: int) -> list[Effect]:
        """Give the producer of an id its epoch, and fence its previous producer (TXN-3)."""
        found = self._check_timeout(request) or self._find(request.transactional_id)
        if isinstance(found, ErrorCode):
            return self._refuse(ticket, InitResponse(error=found))
        home, transaction = found
        if transaction is None:
            producer_id = self._new_producer_id()
            if producer_id is None:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                return self._refuse(ticket, InitResponse(error=error))
            transaction = Transaction.create(
                request.transactional_id, producer_id, request.timeout_ms, now_ms
            )
            home.transactions[transaction.id] = transaction
        if error := transaction.check_init(request.current):
            if error is ErrorCode.PRODUCER_FENCED:
                self._note(home, transaction, What.REFUSED, request.requester)
            return self._refuse(ticket, InitResponse(error=error))
        if transaction.state is S.ONGOING:

            def on_aborted(error: ErrorCode, _: int) -> None:
                # The producer asks again, and finds the transaction aborted.
                error = error or ErrorCode.CONCURRENT_TRANSACTIONS
                self._outbox.respond(ticket, InitResponse(error=error))

            self._abort_and_fence(
                home, transaction, now_ms, on_aborted, What.FENCED, request.requester
            )
        else:
            self._renew(home, transaction, ticket, request, now_ms)
        return self._outbox.drain()

    def add_partitions(self, ticket: Ticket, request: AddRequest, now_ms: int) -> list[Effect]:
        """Add partitions to the transaction before anything is written to them (TXN-4)."""
        found = self._find_producer(request)
        if isinstance(found, ErrorCode):
            return self._refuse(ticket, AddResponse(error=found))
        home, transaction = found
        if transaction.pending is not None or transaction.state in PREPARED:
            return self._refuse(ticket, AddResponse(error=ErrorCode.CONCURRENT_TRANSACTIONS))
        if transaction.state is S.ONGOING and all(
            each in transaction.partitions for each in request.partitions
        ):
            self._confirm(
                home,
                transaction,
                lambda error, _: self._outbox.respond(ticket, AddResponse(error=error)),
            )
            return self._outbox.drain()

        what = What.ADDED if transaction.state is S.ONGOING else What.BEGAN

        def then(error: ErrorCode, _: int) -> None:
            if not error:
                self._note(home, transaction, what, request.requester, request.partitions)
                self._watch_timeout(home, transaction)
            self._outbox.respond(ticket, AddResponse(error=error))

        transit = transaction.prepare_add(request.partitions, now_ms)
        self._write(home, transaction, transit, then)
        return self._outbox.drain()

    def verify_partitions(self, request: AddRequest) -> VerifyResponse:
        """Whether partitions are in the transaction, for their leaders (TXN-12)."""
        found = self._find_producer(request)
        if isinstance(found, ErrorCode):
            return VerifyResponse(error=found)
        _, transaction = found
        if transaction.state in PREPARED:
            return VerifyResponse(error=ErrorCode.CONCURRENT_TRANSACTIONS)
        return VerifyResponse(
            error=ErrorCode.NONE,
            errors={
                each: ErrorCode.NONE
                if each in transaction.partitions
                else ErrorCode.TRANSACTION_ABORTABLE
                for each in request.partitions
            },
        )

    def end_transaction(self, ticket: Ticket, request: EndRequest, now_ms: int) -> list[Effect]:
        """Commit or abort: decided once the decision is replicated (TXN-6)."""
        found = self._find_producer(request)
        if isinstance(found, ErrorCode):
            return self._refuse(ticket, EndResponse(error=found))
        home, transaction = found
        if transaction.pending is not None or transaction.state in PREPARED:
            return self._refuse(ticket, EndResponse(error=ErrorCode.CONCURRENT_TRANSACTIONS))
        finished = S.COMPLETE_COMMIT if request.is_commit else S.COMPLETE_ABORT
        if transaction.state is finished:
            self._confirm(
                home,
                transaction,
                lambda error, _: self._outbox.respond(ticket, EndResponse(error=error)),
            )
            return self._outbox.drain()
        if transaction.state is not S.ONGOING:
            return self._refuse(ticket, EndResponse(error=ErrorCode.INVALID_TXN_STATE))

        def then(error: ErrorCode, now_ms: int) -> None:
            self._outbox.respond(ticket, EndResponse(error=error))
            if not error:
                self._note(home, transaction, What.DECIDED, request.requester)
                self._send_markers(home, transaction, now_ms)

        transit = transaction.prepare_end(is_commit=request.is_commit, now_ms=now_ms)
        self._write(home, transaction, transit, then)
        return self._outbox.drain()

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """The content of a DescribeTransactions response (TXN-17)."""
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            return DescribedTransaction(error=found, transactional_id=transactional_id)
        transaction = found[1]
        if transaction is None:
            return DescribedTransaction(
                error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id
            )
        return transaction.describe()

    def list_transactions(self, request: ListRequest, now_ms: int) -> Steps[TransactionList]:
        """Steps that find the ids of this broker that pass the filters (TXN-18)."""
        if self._loading:
            return TransactionList(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        known = [each for home in self._owned.values() for each in home.transactions.values()]
        listed = []
        for each in known:
            yield None
            if (
                (request.states is None or each.state in request.states)
                and (not request.producer_ids or each.producer_id in request.producer_ids)
                and (request.duration_ms < 0 or now_ms - each.start_ms > request.duration_ms)
            ):
                listed.append(ListedTransaction(each.id, each.producer_id, each.state.label))
        return TransactionList(
            error=ErrorCode.NONE,
            unknown_states=request.unknown_states,
            transactions=listed,
        )

    # What else happens

    def appended(self, number: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The append `number` was acknowledged, or failed with `error`."""
        self._outbox.report(number, error, now_ms)
        return self._outbox.drain()

    def markers_written(
        self,
        transactional_id: str,
        coordinator_epoch: int,
        partitions: Collection[TopicPartition],
        now_ms: int,
    ) -> list[Effect]:
        """Markers are replicated, or their partitions are gone; complete when none is left."""
        completion = self._completions.get(transactional_id)
        if completion is not None and completion.home.epoch == coordinator_epoch:
            unmarked = completion.transaction.unmarked
            unmarked.difference_update(partitions)
            if not unmarked:
                self._write_completion(completion)
        return self._outbox.drain()

    def next_deadline_ms(self) -> int | None:
        """When to call `tick` next; None: not before something else happens."""
        deadlines = [*self._retries.values()]
        if self._expiry_check_ms is not None:
            deadlines.append(self._expiry_check_ms)
        if self._timeouts and self._abort_check_ms is not None:
            # The first of the regular checks at which the earliest timeout has passed.
            overdue_ms = max(self._timeouts[0][0] + 1 - self._abort_check_ms, 0)
            interval_ms = self.config.abort_timed_out_interval_ms
            deadlines.append(self._abort_check_ms + -(-overdue_ms // interval_ms) * interval_ms)
        return min(deadlines, default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due: retry completions, abort what timed out, remove what expired."""
        for transactional_id in [each for each, at_ms in self._retries.items() if at_ms <= now_ms]:
            del self._retries[transactional_id]
            self._write_completion(self._completions[transactional_id])
        interval_ms = self.config.abort_timed_out_interval_ms
        if self._abort_check_ms is not None and self._abort_check_ms <= now_ms:
            self._abort_check_ms += ((now_ms - self._abort_check_ms) // interval_ms + 1) * (
                interval_ms
            )
            self._abort_timed_out(now_ms)
        if self._expiry_check_ms is not None and self._expiry_check_ms <= now_ms:
            self._expiry_check_ms = now_ms + self.config.remove_expired_interval_ms
            for home in self._owned.values():
                self._remove_expired(home, now_ms)
        return self._outbox.drain()

    def counts(self) -> TransactionCounts:
        """The numbers of the metrics."""
        states = Counter(
            each.state for home in self._owned.values() for each in home.transactions.values()
        )
        return TransactionCounts({state: states[state] for state in S}, len(self._retries))

    # Finding

    def _is_current(self, partition: int, epoch: int) -> bool:
        """Whether this is the latest news about `partition`; remembers it if so."""
        if epoch < self._epochs.get(partition, epoch):
            return False
        self._epochs[partition] = epoch
        return True

    def _find(self, transactional_id: str) -> tuple[StatePartition, Transaction | None] | ErrorCode:
        """Where an id lives and what is known about it, or why this broker cannot say."""
        if not transactional_id or not is_storable(transactional_id):
            return ErrorCode.INVALID_REQUEST
        partition = transaction_partition(transactional_id, self.partition_count)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        home = self._owned.get(partition)
        if home is None:
            return ErrorCode.NOT_COORDINATOR
        return home, home.transactions.get(transactional_id)

    def _find_producer(
        self, request: AddRequest | EndRequest
    ) -> tuple[StatePartition, Transaction] | ErrorCode:
        """The transaction of a request whose producer holds its id (TXN-4)."""
        found = self._find(request.transactional_id)
        if isinstance(found, ErrorCode):
            return found
        home, transaction = found
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        error = transaction.check_producer(request.producer_id, request.producer_epoch)
        if error is ErrorCode.PRODUCER_FENCED:
            self._note(home, transaction, What.REFUSED, request.requester)
        return error or (home, transaction)

    def _check_timeout(self, request: InitRequest) -> ErrorCode:
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not 1 <= request.timeout_ms <= self.config.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _refuse(
        self, ticket: Ticket, response: InitResponse | AddResponse | EndResponse
    ) -> list[Effect]:
        """RespondToProducer at once; nothing has changed."""
        self._outbox.respond(ticket, response)
        return self._outbox.drain()

    def _note(
        self,
        home: StatePartition,
        transaction: Transaction,
        what: What,
        requester: Requester | None = None,
        partitions: Collection[TopicPartition] | None = None,
    ) -> None:
        """For the history, if there is one: what became of the transaction, and who asked."""
        if self.config.is_noted:
            self._outbox.add(note_of(home, transaction, what, requester, partitions))

    def _holds(self, home: StatePartition, transaction: Transaction) -> bool:
        """Whether this broker still coordinates the id, under the same epoch."""
        return (
            self._owned.get(home.index) is home
            and home.transactions.get(transaction.id) is transaction
        )

    # Transitions

    def _renew(
        self,
        home: StatePartition,
        transaction: Transaction,
        ticket: Ticket,
        request: InitRequest,
        now_ms: int,
    ) -> None:
        """Give an idle id its next epoch, or a new producer id if there is none."""
        current, timeout_ms = request.current, request.timeout_ms
        transit: Transit | ErrorCode
        if transaction.needs_new_producer_id(current):
            producer_id = self._new_producer_id()
            transit = (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if producer_id is None
                else transaction.prepare_rotation(
                    producer_id, timeout_ms, has_epoch=current is not None, now_ms=now_ms
                )
            )
        else:
            transit = transaction.prepare_increment(current, timeout_ms, now_ms)
        if isinstance(transit, ErrorCode):
            if transit is ErrorCode.PRODUCER_FENCED:
                self._note(home, transaction, What.REFUSED, request.requester)
            self._outbox.respond(ticket, InitResponse(error=transit))
            return
        stored = transit.stored

        def then(error: ErrorCode, _: int) -> None:
            if not error:
                self._note(home, transaction, What.INITIALIZED, request.requester)
            self._outbox.respond(
                ticket,
                InitResponse(error=error)
                if error
                else InitResponse(
                    error=error,
                    producer_id=stored.producer_id,
                    producer_epoch=stored.producer_epoch,
                ),
            )

        self._write(home, transaction, transit, then)

    def _abort_and_fence(
        self,
        home: StatePartition,
        transaction: Transaction,
        now_ms: int,
        then: Then,
        why: What,
        requester: Requester | None = None,
    ) -> None:
        def on_written(error: ErrorCode, now_ms: int) -> None:
            if not error:
                self._note(home, transaction, why, requester)
                self._send_markers(home, transaction, now_ms)
            elif self._holds(home, transaction):
                transaction.has_failed_fence = True
            then(error, now_ms)

        self._write(home, transaction, transaction.prepare_fenced_abort(now_ms), on_written)

    def _write(
        self, home: StatePartition, transaction: Transaction, transit: Transit, then: Then
    ) -> None:
        """Append a pending transition; it takes effect when it is replicated (TXN-15)."""

        def settle(told: ErrorCode, now_ms: int) -> None:
            if told and self._holds(home, transaction):
                transaction.cancel()
            elif not told:
                transaction.complete(transit)
            then(told, now_ms)

        self._append(home, transaction, transit.stored, settle)

    def _confirm(self, home: StatePartition, transaction: Transaction, then: Then) -> None:
        """Append the present state once more, before a producer is told what it says.

        A broker that was deposed and has yet to hear of it remembers the transaction before the
        present one: it would call the present one committed, or its partitions known. What it
        appends is not replicated.
        """
        self._append(home, transaction, transaction.stored, then)

    def _append(
        self,
        home: StatePartition,
        transaction: Transaction,
        stored: StoredTransaction,
        then: Then,
    ) -> None:
        """Append a state, and say whether it is replicated and this broker still coordinates."""

        def on_appended(error: ErrorCode, now_ms: int) -> None:
            told = APPEND_ERRORS.get(error, ErrorCode.UNKNOWN_SERVER_ERROR)
            then(told if self._holds(home, transaction) else ErrorCode.NOT_COORDINATOR, now_ms)

        record = TransactionRecord(encode_key(transaction.id), encode_value(stored))
        self._outbox.append(home.index, [record], stored.timeout_ms, on_appended)

    def _send_markers(self, home: StatePartition, transaction: Transaction, now_ms: int) -> None:
        """Have the markers of a decided transaction written; its completion is pending now."""
        transit = transaction.prepare_complete(now_ms)
        completion = Completion(home, transaction, transit)
        self._completions[transaction.id] = completion
        if not transaction.unmarked:
            self._write_completion(completion)
            return
        self._outbox.add(
            SendMarkers(
                home.index,
                home.epoch,
                transaction.id,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.state is S.PREPARE_COMMIT,
                tuple(transaction.partitions),
            )
        )

    def _write_completion(self, completion: Completion) -> None:
        """Append Complete*; until the log takes it, try again."""
        home, transaction, transit = completion

        def on_appended(error: ErrorCode, now_ms: int) -> None:
            if not self._holds(home, transaction):
                return
            if error:
                self._retries[transaction.id] = now_ms + RETRY_MS
            else:
                transaction.complete(transit)
                del self._completions[transaction.id]
                self._note(home, transaction, What.COMPLETED)

        record = TransactionRecord(encode_key(transaction.id), encode_value(transit.stored))
        self._outbox.append(home.index, [record], transit.stored.timeout_ms, on_appended)

    # Time

    def _watch_timeout(self, home: StatePartition, transaction: Transaction) -> None:
        """See to it that an Ongoing transaction is looked at when its timeout has passed.

        An earlier entry of the same id is moved when it comes up, so that an id has one entry
        however many transactions it makes.
        """
        deadline_ms = transaction.deadline_ms
        if transaction.queued_ms is None or deadline_ms < transaction.queued_ms:
            transaction.queued_ms = deadline_ms
            self._sequence += 1
            heapq.heappush(self._timeouts, (deadline_ms, self._sequence, home, transaction))

    def _abort_timed_out(self, now_ms: int) -> None:
        again: list[tuple[StatePartition, Transaction]] = []
        while self._timeouts and self._timeouts[0][0] < now_ms:
            at_ms, _, home, transaction = heapq.heappop(self._timeouts)
            if at_ms != transaction.queued_ms or not self._holds(home, transaction):
                continue
            transaction.queued_ms = None
            if transaction.state is not S.ONGOING:
                continue
            again.append((home, transaction))
            if transaction.deadline_ms < now_ms and transaction.pending is None:
                self._abort_and_fence(home, transaction, now_ms, lambda *_: None, What.TIMED_OUT)
        for home, transaction in again:
            # The abort may fail, and a later deadline of the same id has yet to come.
            self._watch_timeout(home, transaction)

    def _remove_expired(self, home: StatePartition, now_ms: int) -> None:
        """Remove ids that have been idle for too long, by tombstones (TXN-11)."""
        latest_ms = now_ms - self.config.id_expiration_ms
        expired = [
            each
            for each in home.transactions.values()
            if each.state in IDLE and each.pending is None and each.last_update_ms <= latest_ms
        ]
        for start in range(0, len(expired), _TOMBSTONES_MAX):
            self._bury(home, expired[start : start + _TOMBSTONES_MAX])

    def _bury(self, home: StatePartition, expired: list[Transaction]) -> None:
        for transaction in expired:
            transaction.prepare_dead()

        def on_appended(error: ErrorCode, _: int) -> None:
            for transaction in expired:
                if not self._holds(home, transaction):
                    continue
                if error:
                    transaction.cancel()
                else:
                    self._note(home, transaction, What.EXPIRED)
                    del home.transactions[transaction.id]

        tombstones = [TransactionRecord(encode_key(each.id), None) for each in expired]
        self._outbox.append(home.index, tombstones, self.config.request_timeout_ms, on_appended)
