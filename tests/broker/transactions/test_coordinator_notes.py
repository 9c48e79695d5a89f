"""What the transaction coordinator notes for the history."""

from klamm.broker.transactions.transaction import TransactionConfig
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from tests.broker.transactions.driver import ID, ORDERS, TIMEOUT_MS, Driver

DAY_MS = 86_400_000


def noting() -> Driver:
    return Driver(TransactionConfig(is_noted=True))


def whats(driver: Driver) -> list[str]:
    return [str(note.what) for note in driver.notes]


def test_a_transaction_is_noted_from_its_producer_to_its_end():
    driver = noting()
    producer = driver.init()
    driver.add(producer, ORDERS[:1])
    driver.add(producer, ORDERS)
    driver.end(producer)
    assert whats(driver) == ["initialized", "began", "added", "decided", "completed"]
    assert {note.transactional_id for note in driver.notes} == {ID}
    assert [note.state for note in driver.notes] == [
        "Empty",
        "Ongoing",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    assert driver.notes[1].partitions == ORDERS[:1]
    assert driver.notes[3].partitions == ORDERS


def test_what_the_log_refuses_is_not_noted():
    driver = noting()
    producer = driver.init()
    driver.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    driver.add(producer)
    assert whats(driver) == ["initialized"]


def test_a_new_producer_and_the_fenced_one_are_told_apart():
    driver = noting()
    zombie = driver.init()
    driver.add(zombie)
    driver.init()
    producer = driver.init()
    driver.end(zombie)
    assert whats(driver)[2:] == ["fenced", "completed", "initialized", "refused"]
    assert driver.notes[-1].producer_epoch == producer.producer_epoch


def test_a_timeout_a_new_coordinator_and_an_expired_id_are_noted():
    driver = noting()
    driver.add(driver.init(), [TopicPartition("orders", 0)])
    driver.fail_over()
    driver.tick(2 * TIMEOUT_MS)
    driver.tick(8 * DAY_MS)
    assert whats(driver)[2:] == ["loaded", "timed_out", "completed", "expired"]
    assert [note.coordinator_epoch for note in driver.notes] == [0, 0, 1, 1, 1, 1]


def test_without_a_history_nothing_is_noted():
    driver = Driver()
    producer = driver.init()
    driver.add(producer)
    driver.end(producer)
    assert driver.notes == []
