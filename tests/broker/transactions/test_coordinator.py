"""What producers are told by the transaction coordinator, and what it writes."""

import pytest

from klamm.broker.transactions.coordinator import transaction_partition
from klamm.broker.transactions.effects import AppendState
from klamm.broker.transactions.records import TransactionRecord, TransactionState, encode_value
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from tests.broker.transactions.driver import ID, ORDERS, PARTITIONS, TIMEOUT_MS, Driver
from tests.support.coordinators import TOLD_BY_EVERY_COORDINATOR

S = TransactionState
HOME = transaction_partition(ID, PARTITIONS)
LAST_EPOCH = 32766


@pytest.fixture
def driver() -> Driver:
    return Driver()


def with_epoch(driver: Driver, epoch: int) -> int:
    """Bring the id to an epoch by writing it to the log; returns the producer id."""
    producer = driver.init()
    stored = driver.stored()[-1]
    append = driver.log[HOME].pop()
    record = TransactionRecord(
        append.records[0].key, encode_value(stored._replace(producer_epoch=epoch))
    )
    driver.log[HOME].append(AppendState(append.number, HOME, (record,), 1))
    driver.fail_over()
    return producer.producer_id


class TestInitProducerId:
    pytestmark = pytest.mark.rule("TXN-3")

    def test_a_new_id_gets_a_fresh_producer_id_and_epoch_zero(self, driver):
        found = driver.init()
        assert (found.error, found.producer_id, found.producer_epoch) == (0, 4000, 0)
        assert driver.state() == "Empty"
        (stored,) = driver.stored()
        assert (stored.state, stored.timeout_ms, stored.start_ms) == (S.EMPTY, TIMEOUT_MS, -1)

    def test_a_new_id_ignores_what_is_given(self, driver):
        found = driver.init(current=(77, 5))
        assert (found.producer_id, found.producer_epoch) == (4000, 0)

    def test_the_next_producer_gets_the_next_epoch(self, driver):
        driver.init()
        found = driver.init()
        assert (found.producer_id, found.producer_epoch) == (4000, 1)

    @pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
    def test_a_timeout_out_of_range_is_refused(self, driver, timeout_ms):
        assert driver.init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert driver.describe().error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    @pytest.mark.parametrize("transactional_id", ["", "x" * 32768])
    def test_an_id_that_cannot_be_stored_is_refused(self, driver, transactional_id):
        assert driver.init(transactional_id).error is ErrorCode.INVALID_REQUEST

    def test_a_pending_transition_is_waited_for(self, driver):
        driver.append_error = None
        driver.begin_init()
        assert driver.init().error is ErrorCode.CONCURRENT_TRANSACTIONS

    def test_no_block_of_producer_ids_yet(self, driver):
        driver.producer_ids = iter([None, 5000])
        assert driver.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert driver.init().producer_id == 5000

    def test_a_producer_that_knows_its_epoch_gets_the_next_one(self, driver):
        driver.init()
        assert driver.init(current=(4000, 0)).producer_epoch == 1

    def test_asking_again_for_the_same_bump_gives_the_same_response_and_is_logged(self, driver):
        driver.init()
        driver.init(current=(4000, 0))
        assert driver.init(current=(4000, 0)).producer_epoch == 1
        assert len(driver.stored()) == 3

    def test_a_failover_forgets_the_remembered_epoch(self, driver):
        driver.init()
        driver.init(current=(4000, 0))
        driver.fail_over()
        assert driver.init(current=(4000, 0)).error is ErrorCode.PRODUCER_FENCED

    @pytest.mark.parametrize("current", [(4000, 7), (4001, 0), (3999, LAST_EPOCH)])
    def test_another_producer_or_epoch_is_fenced(self, driver, current):
        driver.init()
        driver.init()
        found = driver.init(current=current)
        assert (found.error, found.producer_id, found.producer_epoch) == (90, -1, -1)

    def test_an_ongoing_transaction_is_fenced_and_aborted(self, driver):
        producer = driver.init()
        driver.add(producer)
        assert driver.init(timeout_ms=5).error is ErrorCode.CONCURRENT_TRANSACTIONS
        states = [(each.state, each.producer_epoch) for each in driver.stored()]
        assert states[2:] == [(S.PREPARE_ABORT, 1), (S.COMPLETE_ABORT, 1)]
        assert {each.timeout_ms for each in driver.stored()} == {TIMEOUT_MS}
        found = driver.init(timeout_ms=5)
        assert found.producer_epoch == 2
        assert driver.stored()[-1].timeout_ms == 5

    def test_a_fence_remembers_no_epoch_but_its_own_is_accepted(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.init()
        assert driver.init(current=(4000, 0)).error is ErrorCode.PRODUCER_FENCED
        assert driver.init(current=(4000, 1)).producer_epoch == 2

    def test_a_fence_that_was_not_written_does_not_bump_twice(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        assert driver.init().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert driver.init().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (driver.state(), driver.describe().producer_epoch) == ("Ongoing", 1)
        driver.append_error = ErrorCode.NONE
        assert driver.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert driver.stored()[-1].producer_epoch == 1

    def test_while_markers_are_written_the_producer_waits(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        driver.end(producer)
        assert driver.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
        driver.write_markers()
        assert driver.init().producer_epoch == 1

    def test_an_exhausted_epoch_gets_a_new_producer_id(self, driver):
        with_epoch(driver, LAST_EPOCH)
        found = driver.init()
        assert (found.producer_id, found.producer_epoch) == (4001, 0)

    def test_who_knows_the_exhausted_epoch_may_ask_again(self, driver):
        old = with_epoch(driver, LAST_EPOCH)
        for _ in range(2):
            found = driver.init(current=(old, LAST_EPOCH))
            assert (found.producer_id, found.producer_epoch) == (4001, 0)
        assert driver.init(current=(old, 3)).error is ErrorCode.PRODUCER_FENCED

    def test_another_epoch_beside_an_exhausted_one_is_kafkas_quirk(self, driver):
        old = with_epoch(driver, LAST_EPOCH)
        assert driver.init(current=(old, 3)).error is ErrorCode.UNKNOWN_SERVER_ERROR

    def test_the_last_epoch_but_one_is_still_bumped(self, driver):
        with_epoch(driver, LAST_EPOCH - 1)
        assert driver.init().producer_epoch == LAST_EPOCH

    def test_a_transaction_at_the_last_epoch_can_be_fenced(self, driver):
        old = with_epoch(driver, LAST_EPOCH - 1)
        driver.add(driver.init())
        driver.init()
        assert driver.stored()[-1].producer_epoch == LAST_EPOCH + 1
        assert driver.init().producer_id not in (old, -1)


class TestAddPartitions:
    pytestmark = pytest.mark.rule("TXN-4")

    def test_the_first_partitions_begin_the_transaction(self, driver):
        producer = driver.init()
        driver.tick(5)
        assert driver.add(producer) is ErrorCode.NONE
        stored = driver.stored()[-1]
        assert (stored.state, stored.partitions, stored.start_ms) == (
            S.ONGOING,
            ORDERS,
            driver.now_ms,
        )

    def test_more_partitions_keep_the_start(self, driver):
        producer = driver.init()
        driver.add(producer, ORDERS[:1])
        began_ms = driver.now_ms
        driver.tick(5)
        driver.add(producer)
        stored = driver.stored()[-1]
        assert (stored.partitions, stored.start_ms) == (ORDERS, began_ms)
        assert stored.last_update_ms == began_ms + 5

    @pytest.mark.rule("TXN-4")
    def test_a_deposed_coordinator_does_not_say_that_partitions_are_in_already(self, driver):
        producer = driver.init()
        driver.add(producer)
        before = driver.stored()
        assert driver.add(producer, ORDERS[1:]) is ErrorCode.NONE
        assert driver.stored() == [*before, before[-1]], "its followers have to have it"
        driver.append_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert driver.add(producer, ORDERS[1:]) is ErrorCode.NOT_COORDINATOR
        driver.append_error = ErrorCode.NONE
        assert driver.end(producer) is ErrorCode.NONE, "and the transaction can go on"

    def test_the_same_partitions_begin_the_next_transaction(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.end(producer)
        driver.tick(9)
        assert driver.add(producer) is ErrorCode.NONE
        assert driver.stored()[-1].start_ms == driver.now_ms

    def test_an_unknown_id_or_producer_is_no_mapping(self, driver):
        driver.init()
        assert driver.add((4000, 0), transactional_id="pay-2") == 49
        assert driver.add((4001, 0)) == 49

    @pytest.mark.parametrize("epoch", [0, 2])
    def test_another_epoch_is_fenced(self, driver, epoch):
        driver.init()
        driver.init()
        assert driver.add((4000, epoch)) is ErrorCode.PRODUCER_FENCED
        assert driver.end((4000, epoch)) is ErrorCode.PRODUCER_FENCED

    def test_an_empty_id_is_an_invalid_request(self, driver):
        assert driver.add((4000, 0), transactional_id="") is ErrorCode.INVALID_REQUEST
        assert driver.end((4000, 0), transactional_id="") is ErrorCode.INVALID_REQUEST

    @pytest.mark.rule("TXN-15")
    def test_one_transition_at_a_time(self, driver):
        producer = driver.init()
        driver.append_error = None
        ticket = driver.begin_add(producer)
        assert driver.add(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert driver.end(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert driver.state() == "Empty"
        driver.acknowledge()
        assert driver.responses[ticket].error is ErrorCode.NONE
        assert driver.state() == "Ongoing"

    def test_while_the_outcome_is_written_nothing_can_be_added(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        driver.end(producer)
        assert driver.add(producer) is ErrorCode.CONCURRENT_TRANSACTIONS


class TestEndTransaction:
    pytestmark = pytest.mark.rule("TXN-6")

    @pytest.mark.parametrize("is_commit", [True, False])
    def test_the_outcome_is_written_then_marked_then_completed(self, driver, is_commit):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        assert driver.end(producer, is_commit) is ErrorCode.NONE
        prepared = S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT
        complete = S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT
        assert driver.stored()[-1].state is prepared
        assert driver.stored()[-1].partitions == ORDERS
        (sent,) = driver.markers
        assert (sent.producer_id, sent.producer_epoch, sent.is_commit) == (4000, 0, is_commit)
        assert (sent.partitions, sent.coordinator_epoch) == (ORDERS, driver.epoch)
        driver.write_markers()
        stored = driver.stored()[-1]
        assert (stored.state, stored.partitions) == (complete, ())
        assert stored.start_ms == driver.stored()[-2].start_ms

    def test_nothing_is_sent_before_the_decision_is_replicated(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.append_error = None
        ticket = driver.begin_end(producer)
        assert not driver.markers
        assert ticket not in driver.responses
        driver.acknowledge()
        assert driver.responses[ticket].error is ErrorCode.NONE
        assert driver.markers

    def test_any_end_meanwhile_has_to_wait(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        driver.end(producer)
        assert driver.end(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert driver.end(producer, False) is ErrorCode.CONCURRENT_TRANSACTIONS

    @pytest.mark.parametrize("is_commit", [True, False])
    def test_the_same_outcome_again_is_fine_and_the_opposite_is_not(self, driver, is_commit):
        producer = driver.init()
        driver.add(producer)
        driver.end(producer, is_commit)
        assert driver.end(producer, is_commit) is ErrorCode.NONE
        assert driver.end(producer, not is_commit) is ErrorCode.INVALID_TXN_STATE

    @pytest.mark.rule("TXN-6")
    def test_a_deposed_coordinator_does_not_call_a_transaction_finished(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.end(producer)
        before = driver.stored()
        assert driver.end(producer) is ErrorCode.NONE
        assert driver.stored() == [*before, before[-1]], "its followers have to have it"
        driver.append_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert driver.end(producer) is ErrorCode.NOT_COORDINATOR
        driver.append_error = ErrorCode.NONE
        assert driver.add(producer) is ErrorCode.NONE, "and the id can go on"

    def test_an_empty_id_has_nothing_to_end(self, driver):
        producer = driver.init()
        assert driver.end(producer) is ErrorCode.INVALID_TXN_STATE
        assert driver.end(producer, False) is ErrorCode.INVALID_TXN_STATE

    def test_the_completion_waits_for_every_marker(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        driver.end(producer)
        done = driver.coordinator.markers_written(ID, driver.epoch, ORDERS[:1], driver.now_ms)
        assert not done
        assert driver.describe().partitions == ORDERS[1:]
        assert driver.state() == "PrepareCommit"

    def test_markers_of_another_epoch_count_for_nothing(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        driver.end(producer)
        old = driver.unsent[0]
        driver.fail_over()
        driver.carry_out(
            driver.coordinator.markers_written(ID, old.coordinator_epoch, ORDERS, driver.now_ms)
        )
        assert driver.state() == "PrepareCommit"

    def test_a_completion_that_the_log_refuses_is_written_again(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        driver.end(producer)
        driver.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        driver.write_markers()
        assert driver.coordinator.counts().append_retries == 1
        assert driver.end(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
        driver.append_error = ErrorCode.NONE
        driver.tick(1_000)
        assert driver.state() == "CompleteCommit"
        assert driver.add(producer) is ErrorCode.NONE


@pytest.mark.rule("TXN-15")
@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        *TOLD_BY_EVERY_COORDINATOR,
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_the_log_refuses_changes_nothing(driver, refusal, told):
    producer = driver.init()
    driver.append_error = refusal
    assert driver.add(producer) is told
    assert driver.state() == "Empty"
    driver.append_error = ErrorCode.NONE
    assert driver.add(producer) is ErrorCode.NONE
    driver.append_error = refusal
    assert driver.end(producer) is told
    assert driver.state() == "Ongoing"
    assert not driver.markers


@pytest.mark.rule("TXN-15")
def test_an_append_waits_no_longer_than_the_transactions_timeout(driver):
    driver.append_error = None
    driver.begin_init(timeout_ms=1)
    assert driver.unacknowledged[0].timeout_ms == 1


class TestLoading:
    pytestmark = pytest.mark.rule("TXN-14")

    def test_requests_meanwhile_are_told_to_wait(self):
        driver = Driver(owned=())
        assert driver.init().error is ErrorCode.NOT_COORDINATOR
        assert driver.coordinator.begin_load(HOME, 3) is not None
        assert driver.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert driver.describe().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    @pytest.mark.parametrize("is_commit", [True, False])
    def test_markers_of_a_decided_transaction_are_sent_again(self, driver, is_commit):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        driver.end(producer, is_commit)
        driver.fail_over()
        again = driver.unsent[0]
        assert (again.partitions, again.is_commit) == (ORDERS, is_commit)
        assert again.coordinator_epoch == driver.epoch == 1
        driver.write_markers()
        assert driver.state() == ("CompleteCommit" if is_commit else "CompleteAbort")

    def test_an_ongoing_transaction_goes_on(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.fail_over()
        assert driver.verify(producer) == dict.fromkeys(ORDERS, ErrorCode.NONE)
        assert driver.end(producer) is ErrorCode.NONE

    def test_a_leader_that_stays_keeps_its_epoch(self, driver):
        driver.epoch = 7
        assert driver.coordinator.begin_load(HOME, 7) is None
        driver.add(driver.init())
        driver.init()
        assert driver.markers[0].coordinator_epoch == 0

    def test_a_coordinator_that_loses_the_partition_drops_ids_and_markers(self, driver):
        driver.writes_markers = False
        producer = driver.init()
        driver.add(producer)
        driver.end(producer)
        driver.carry_out(driver.coordinator.unload(HOME, 1))
        assert not driver.unsent
        assert driver.end(producer) is ErrorCode.NOT_COORDINATOR
        assert driver.listed() == []

    def test_old_news_about_a_partition_is_ignored(self, driver):
        driver.carry_out(driver.coordinator.unload(HOME, 5))
        assert driver.coordinator.begin_load(HOME, 4) is None
        replay = driver.coordinator.begin_load(HOME, 6)
        assert not driver.coordinator.unload(HOME, 5)
        assert not replay.is_abandoned

    def test_a_load_that_is_overtaken_is_abandoned(self):
        driver = Driver(owned=())
        first = driver.coordinator.begin_load(HOME, 1)
        second = driver.coordinator.begin_load(HOME, 2)
        assert first.is_abandoned
        assert driver.coordinator.finish_load(HOME, first, driver.now_ms) == (None, [])
        driver.coordinator.unload(HOME, None)
        assert second.is_abandoned

    def test_a_response_after_the_loss_says_so(self, driver):
        driver.append_error = None
        ticket = driver.begin_init()
        driver.carry_out(driver.coordinator.unload(HOME, 1))
        driver.acknowledge()
        assert driver.responses[ticket].error is ErrorCode.NOT_COORDINATOR

    def test_records_that_cannot_be_read_are_counted(self, driver):
        driver.init()
        replay = Driver(owned=()).coordinator.begin_load(HOME, 0)
        replay.read([(b"\0\0\0\1a", b"\0\7"), (None, b""), (b"\0\5", b"")])
        replay.read(driver.log[HOME][0].records)
        replay.finish()
        assert (list(replay.transactions), replay.ignored) == ([ID], 3)


class TestTime:
    pytestmark = pytest.mark.rule("TXN-11")

    def test_a_transaction_older_than_its_timeout_is_fenced_and_aborted(self, driver):
        producer = driver.init()
        driver.add(producer, ORDERS[:1])
        driver.tick(TIMEOUT_MS - 1)
        driver.add(producer)  # work does not prolong it
        driver.tick(10_001)
        assert driver.state() == "CompleteAbort"
        assert driver.end(producer) is ErrorCode.PRODUCER_FENCED
        assert driver.stored()[-1].producer_epoch == 1

    def test_the_check_comes_every_ten_seconds(self, driver):
        driver.tick(3_000)
        driver.add(driver.init(timeout_ms=1_000))
        driver.tick(6_999)
        assert driver.state() == "Ongoing"
        driver.tick(1)
        assert driver.state() == "CompleteAbort"

    def test_idle_ids_cost_nothing(self, driver):
        hourly_ms = driver.coordinator.next_deadline_ms()
        for number in range(100):
            driver.init(f"pay-{number}")
        assert driver.coordinator.next_deadline_ms() == hourly_ms

    def test_an_id_has_one_deadline_however_many_transactions_it_makes(self, driver):
        producer = driver.init()
        for _ in range(50):
            driver.add(producer)
            driver.end(producer)
        assert len(driver.coordinator._timeouts) == 1
        driver.tick(TIMEOUT_MS - 5_000)
        driver.add(producer)
        driver.tick(20_000)
        assert driver.state() == "Ongoing"
        driver.tick(TIMEOUT_MS)
        assert driver.state() == "CompleteAbort"

    def test_a_shorter_timeout_counts_at_once(self, driver):
        driver.add(driver.init(timeout_ms=600_000))
        driver.init()
        driver.add(driver.init(timeout_ms=5_000))
        driver.tick(20_000)
        assert driver.state() == "CompleteAbort"

    def test_a_pending_transaction_is_left_alone_until_the_next_check(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.append_error = None
        driver.begin_end(producer)
        driver.tick(TIMEOUT_MS + 20_000)
        assert len(driver.unacknowledged) == 1
        driver.acknowledge(ErrorCode.NOT_ENOUGH_REPLICAS)
        driver.append_error = ErrorCode.NONE
        driver.tick(10_000)
        assert driver.state() == "CompleteAbort"

    def test_an_abort_that_fails_is_tried_again(self, driver):
        driver.add(driver.init())
        driver.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        driver.tick(TIMEOUT_MS + 30_000)
        assert driver.state() == "Ongoing"
        driver.append_error = ErrorCode.NONE
        driver.tick(10_000)
        assert driver.state() == "CompleteAbort"
        assert driver.stored()[-1].producer_epoch == 1

    def test_timeouts_are_found_after_a_failover(self, driver):
        driver.add(driver.init())
        driver.fail_over()
        driver.tick(TIMEOUT_MS + 10_001)
        assert driver.state() == "CompleteAbort"

    def test_an_idle_id_expires_by_a_tombstone(self, driver):
        driver.init()
        driver.tick(driver.config.id_expiration_ms + driver.config.remove_expired_interval_ms)
        assert driver.stored()[-1] is None
        assert driver.describe().error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        driver.fail_over()
        assert driver.listed() == []
        assert driver.init().producer_id == 4001

    def test_an_open_transaction_does_not_expire(self, driver):
        driver.append_error = ErrorCode.NONE
        driver.writes_markers = False
        producer = driver.init()
        driver.add(producer)
        driver.end(producer)
        driver.tick(2 * driver.config.id_expiration_ms)
        assert driver.state() == "PrepareCommit"

    def test_a_tombstone_that_is_refused_keeps_the_id(self, driver):
        driver.init()
        driver.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
        driver.tick(driver.config.id_expiration_ms + driver.config.remove_expired_interval_ms)
        driver.append_error = ErrorCode.NONE
        assert driver.init().producer_epoch == 1


class TestVerification:
    pytestmark = pytest.mark.rule("TXN-12")

    def test_partitions_are_in_the_transaction_or_not(self, driver):
        producer = driver.init()
        driver.add(producer, ORDERS[:1])
        assert driver.verify(producer) == {
            ORDERS[0]: ErrorCode.NONE,
            ORDERS[1]: ErrorCode.TRANSACTION_ABORTABLE,
        }

    def test_verifying_writes_nothing_and_does_not_look_at_pending(self, driver):
        producer = driver.init()
        driver.add(producer, ORDERS[:1])
        driver.append_error = None
        driver.begin_add(producer)
        assert driver.verify(producer, ORDERS[:1]) == {ORDERS[0]: ErrorCode.NONE}

    def test_after_the_end_no_partition_is_in_the_transaction(self, driver):
        producer = driver.init()
        driver.add(producer)
        driver.writes_markers = False
        driver.end(producer)
        assert driver.verify(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
        driver.write_markers()
        assert driver.verify(producer) == dict.fromkeys(ORDERS, ErrorCode.TRANSACTION_ABORTABLE)

    def test_strangers_are_refused(self, driver):
        producer = driver.init()
        assert driver.verify((1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert driver.verify((4000, 5)) is ErrorCode.PRODUCER_FENCED
        assert driver.verify(producer, transactional_id="") is ErrorCode.INVALID_REQUEST


@pytest.mark.rule("TXN-17")
def test_descriptions(driver):
    assert driver.describe("nobody").error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert driver.describe("").error is ErrorCode.INVALID_REQUEST
    producer = driver.init()
    assert driver.describe().start_ms == -1
    driver.add(producer)
    began_ms = driver.now_ms
    found = driver.describe()
    assert (found.state, found.partitions, found.timeout_ms) == ("Ongoing", ORDERS, TIMEOUT_MS)
    driver.end(producer)
    found = driver.describe()
    assert (found.state, found.partitions, found.start_ms) == ("CompleteCommit", (), began_ms)


@pytest.mark.rule("TXN-18")
def test_listings_pass_filters(driver):
    driver.init("a")
    ongoing = driver.init("b")
    driver.add(ongoing, transactional_id="b")
    driver.tick(1_000)
    assert set(driver.listed()) == {"a", "b"}
    assert driver.listed(states=["Ongoing"]) == ["b"]
    assert driver.listed(states=["ongoing"]) == []
    assert driver.listed(producer_ids=frozenset({4000})) == ["a"]
    assert set(driver.listed(duration_ms=999)) == {"a", "b"}
    assert driver.listed(duration_ms=1_000) == ["a"]


@pytest.mark.rule("TXN-18")
def test_listings_name_unknown_states_and_wait_for_loading(driver):
    found = driver.list_transactions(states=["Nonsense", "Empty", "Nonsense"])
    assert found.unknown_states == ("Nonsense",)
    driver.coordinator.unload(HOME, 1)
    driver.coordinator.begin_load(HOME, 2)
    found = driver.list_transactions()
    assert found.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.rule("TXN-1")
def test_an_id_lives_where_its_hash_says():
    assert [transaction_partition(each, 50) for each in ("pay-1", "", "a", "ab")] == [
        abs(_java_hash(each)) % 50 for each in ("pay-1", "", "a", "ab")
    ]


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def test_a_partition_may_be_of_any_topic(driver):
    producer = driver.init()
    offsets = TopicPartition("__consumer_offsets", 3)
    assert driver.add(producer, [offsets]) is ErrorCode.NONE
    driver.end(producer)
    assert driver.markers[0].partitions == (offsets,)


@pytest.mark.rule("TXN-11")
def test_idle_ids_ask_for_no_tick_but_that_of_their_expiry(driver):
    began_ms = driver.now_ms
    for number in range(100):
        transactional_id = f"idle-{number}"
        producer = driver.init(transactional_id)
        driver.add(producer, transactional_id=transactional_id)
        driver.end(producer, transactional_id=transactional_id)
    driver.tick(2 * TIMEOUT_MS)
    expiry_ms = driver.config.remove_expired_interval_ms
    assert driver.coordinator.next_deadline_ms() == began_ms + expiry_ms
