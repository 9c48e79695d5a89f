"""Whatever producers, time and the log do, in whatever order, each transaction has one outcome."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from klamm.broker.transactions.effects import SendMarkers
from klamm.broker.transactions.messages import EndResponse, InitResponse
from klamm.broker.transactions.records import PREPARED, TransactionState
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from tests.broker.transactions.driver import TIMEOUT_MS, Driver

S = TransactionState
IDS = ("pay-1", "pay-2")
PLACES = tuple(TopicPartition("t", number) for number in range(3))
CHECK_MS = 10_000
#: Errors after which a record is not in the log, and one after which it is.
REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)

ids = st.sampled_from(IDS)
places = st.lists(st.sampled_from(PLACES), min_size=1, max_size=3, unique=True)


class Transactions(RuleBasedStateMachine):
    """Producers of two ids, zombies among them, on a coordinator whose appends may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(append_error=None, writes_markers=False)
        self.producers: dict[str, list[InitResponse]] = {each: [] for each in IDS}
        self.inits: dict[int, str] = {}
        self.ends: dict[int, tuple[str, tuple[int, int], bool]] = {}
        #: The outcome that markers gave to each transaction, named by id and its start.
        self.outcomes: dict[tuple[str, int, int], bool] = {}
        self.seen_markers = 0
        self.faulty = True
        #: Then the log may know more than the memory of the coordinator.
        self.has_timed_out = False

    @initialize(faulty=st.booleans())
    def choose_log(self, faulty: bool) -> None:
        self.faulty = faulty

    # Producers

    @rule(id=ids, knows=st.booleans())
    def init(self, id: str, knows: bool) -> None:
        known = self.producers[id]
        current = None
        if knows and known:
            current = known[-1].producer_id, known[-1].producer_epoch
        self.inits[self.driver.begin_init(id, TIMEOUT_MS, current)] = id

    @rule(id=ids, partitions=places, zombie=st.booleans())
    def add(self, id: str, partitions: list[TopicPartition], zombie: bool) -> None:
        if producer := self.producer(id, zombie):
            self.driver.begin_add(producer, partitions, id)

    @rule(id=ids, is_commit=st.booleans(), zombie=st.booleans())
    def end(self, id: str, is_commit: bool, zombie: bool) -> None:
        if producer := self.producer(id, zombie):
            found = self.driver.describe(id)
            start = found.producer_id, found.start_ms
            self.ends[self.driver.begin_end(producer, is_commit, id)] = (id, start, is_commit)

    def producer(self, id: str, zombie: bool) -> InitResponse | None:
        known = self.producers[id]
        return known[0 if zombie else -1] if known else None

    # The log, markers and time

    @precondition(lambda self: self.driver.unacknowledged)
    @rule(refusal=st.sampled_from((ErrorCode.NONE, ErrorCode.NONE, *REFUSALS)))
    def acknowledge(self, refusal: ErrorCode) -> None:
        append = self.driver.unacknowledged[0]
        if refusal and self.faulty:
            # Only the last record of a log can be refused without a trace.
            if self.driver.log[append.partition][-1] is append:
                self.driver.log[append.partition].pop()
                self.driver.acknowledge(refusal)
            return
        self.driver.acknowledge()

    @precondition(lambda self: self.driver.unacknowledged and self.faulty)
    @rule()
    def time_out(self) -> None:
        """The record is in the log, and its writer does not know."""
        self.has_timed_out = True
        self.driver.acknowledge(ErrorCode.REQUEST_TIMED_OUT)

    @precondition(lambda self: self.driver.unsent)
    @rule()
    def write_markers(self) -> None:
        self.driver.write_markers()

    @rule(ms=st.sampled_from((1, 500, CHECK_MS, TIMEOUT_MS)))
    def pass_time(self, ms: int) -> None:
        self.driver.tick(ms)

    @rule()
    def fail_over(self) -> None:
        self.driver.fail_over()

    # What has to hold

    @invariant()
    def producers_are_told_apart(self) -> None:
        for ticket in [each for each in self.inits if each in self.driver.responses]:
            id, response = self.inits.pop(ticket), self.driver.responses[ticket]
            if not response.error:
                self.producers[id].append(response)

    @invariant()
    def a_transaction_has_one_outcome(self) -> None:
        """Markers of a transaction, sent again or not, all say what its producer was told."""
        for sent in self.driver.markers[self.seen_markers :]:
            key = self.transaction_of(sent)
            assert self.outcomes.setdefault(key, sent.is_commit) is sent.is_commit
        self.seen_markers = len(self.driver.markers)
        for ticket in [each for each in self.ends if each in self.driver.responses]:
            id, (producer_id, start_ms), is_commit = self.ends.pop(ticket)
            response: EndResponse = self.driver.responses[ticket]
            if response.error is ErrorCode.NONE:
                outcome = self.outcomes.get((id, producer_id, start_ms))
                assert outcome is is_commit

    @invariant()
    def markers_follow_their_decision_in_the_log(self) -> None:
        for sent in self.driver.unsent:
            stored = [each for each in self.driver.stored(sent.transactional_id) if each]
            assert any(
                each.state in PREPARED and each.producer_epoch == sent.producer_epoch
                for each in stored
            )

    def transaction_of(self, sent: SendMarkers) -> tuple[str, int, int]:
        found = self.driver.describe(sent.transactional_id)
        return sent.transactional_id, sent.producer_id, found.start_ms

    def teardown(self) -> None:
        """When faults stop, every transaction ends within its timeout and a check."""
        driver = self.driver
        while driver.unacknowledged:
            driver.acknowledge()
        driver.append_error = ErrorCode.NONE
        driver.writes_markers = True
        while driver.unsent:
            driver.write_markers()
        driver.tick(TIMEOUT_MS + CHECK_MS)
        for id in IDS:
            assert driver.state(id) in ("", "Empty", "CompleteCommit", "CompleteAbort")
        if not self.has_timed_out:
            self.check_that_the_log_says_the_same()

    def check_that_the_log_says_the_same(self) -> None:
        driver = self.driver
        before = [driver.describe(id) for id in IDS]
        driver.fail_over()
        for old in before:
            new = driver.describe(old.transactional_id)
            if new.error:
                assert old.error or old.producer_epoch == -1, "never written"
            else:
                assert new == old


Transactions.TestCase.settings = settings(max_examples=80, stateful_step_count=50)
test_transactions = Transactions.TestCase
