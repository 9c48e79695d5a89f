"""Offsets that are committed as part of a transaction count from its marker on."""

import struct
from dataclasses import replace

import pytest

from klamm.broker.groups.messages import (
    OffsetCommitRequest,
    OffsetToCommit,
    TransactionalProducer,
)
from klamm.broker.groups.replay import ReplayBatch
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import GROUP, Driver, partition_of

pytestmark = pytest.mark.rule("TXN-10")

ONE = TopicPartition("t", 0)
PRODUCER = 4000
HOME = partition_of(GROUP)
COMMIT = struct.pack(">hh", 0, 1)


class TransactionalDriver(Driver):
    """A driver whose log knows which batches are part of a transaction."""

    def replay(self, partition: int) -> None:
        batches = (
            ReplayBatch(append.records)
            if append.producer is None
            else ReplayBatch(append.records, append.producer.producer_id, is_transactional=True)
            for append in self.log[partition]
        )
        assert self.coordinator.load(partition, self.epoch, batches)

    def commit_in_transaction(self, offset: int, producer_id: int = PRODUCER, **who) -> int:
        ticket = next(self._tickets)
        request = OffsetCommitRequest(
            group_id=who.pop("group", GROUP),
            offsets={ONE: OffsetToCommit(offset)},
            producer=TransactionalProducer(producer_id, 0),
            **who,
        )
        self.carry_out(self.coordinator.commit_offsets(ticket, request, self.now_ms))
        return ticket

    def error_of(self, ticket: int) -> ErrorCode:
        (error,) = self.responses_of(ticket).values()
        return error

    def responses_of(self, ticket: int):
        found = self.responses
        return found[ticket].errors

    def end(self, *, is_commit: bool, producer_id: int = PRODUCER) -> None:
        self.coordinator.end_transaction(HOME, producer_id, is_commit=is_commit)

    def offset(self) -> int:
        return self.fetch(("t", 0))[ONE].offset

    def is_stable(self) -> bool:
        return not self.fetch(("t", 0), require_stable=True)[ONE].error


@pytest.fixture
def driver() -> TransactionalDriver:
    return TransactionalDriver()


def test_offsets_are_pending_until_the_commit(driver):
    assert driver.error_of(driver.commit_in_transaction(5)) is ErrorCode.NONE
    assert (driver.offset(), driver.is_stable()) == (-1, False)
    driver.end(is_commit=True)
    assert (driver.offset(), driver.is_stable()) == (5, True)


def test_offsets_of_an_aborted_transaction_are_forgotten(driver):
    driver.commit({("t", 0): 3})
    driver.commit_in_transaction(5)
    driver.end(is_commit=False)
    assert (driver.offset(), driver.is_stable()) == (3, True)


def test_the_records_are_written_in_a_transactional_batch(driver):
    driver.commit_in_transaction(5)
    assert driver.appends[-1].producer == (PRODUCER, 0, None)


def test_a_later_plain_commit_survives_the_marker(driver):
    driver.commit_in_transaction(5)
    driver.commit({("t", 0): 7})
    driver.end(is_commit=True)
    assert driver.offset() == 7
    driver.commit_in_transaction(9)
    driver.end(is_commit=True)
    assert driver.offset() == 9


def test_the_marker_of_another_producer_changes_nothing(driver):
    driver.commit_in_transaction(5)
    driver.end(is_commit=True, producer_id=1)
    assert (driver.offset(), driver.is_stable()) == (-1, False)


def test_an_append_that_fails_is_no_part_of_the_transaction(driver):
    driver.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    ticket = driver.commit_in_transaction(5)
    assert driver.error_of(ticket) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.append_error = ErrorCode.NONE
    driver.end(is_commit=True)
    assert (driver.offset(), driver.is_stable()) == (-1, True)


@pytest.mark.parametrize("is_reported", [True, False])
def test_an_append_that_fails_leaves_the_offsets_before_it(driver, is_reported):
    driver.append_error = None
    driver.commit_in_transaction(5)
    first = driver.unacknowledged.pop()
    if is_reported:
        driver.coordinator.appended(first.number, ErrorCode.NONE, driver.now_ms)
    # An earlier epoch of the same producer, say.
    driver.append_error = ErrorCode.INVALID_PRODUCER_EPOCH
    ticket = driver.commit_in_transaction(6)
    assert driver.error_of(ticket) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert not driver.is_stable()
    driver.end(is_commit=True)
    assert (driver.offset(), driver.is_stable()) == (5, True)


def test_the_last_of_several_offsets_counts(driver):
    for offset in (5, 7, 6):
        driver.commit_in_transaction(offset)
    driver.end(is_commit=True)
    assert (driver.offset(), driver.is_stable()) == (6, True)


def test_a_marker_may_come_before_the_report_of_its_offsets(driver):
    driver.append_error = None
    ticket = driver.commit_in_transaction(5)
    driver.end(is_commit=True)
    driver.acknowledge()
    assert driver.error_of(ticket) is ErrorCode.NONE
    assert (driver.offset(), driver.is_stable()) == (5, True)


def test_open_transactions_outlive_their_coordinator(driver):
    driver.commit_in_transaction(5)
    driver.fail_over()
    assert not driver.is_stable()
    driver.end(is_commit=True)
    assert driver.offset() == 5


def test_after_a_failover_the_later_commit_still_wins(driver):
    driver.commit_in_transaction(5)
    driver.commit({("t", 0): 7})
    driver.fail_over()
    driver.end(is_commit=True)
    assert driver.offset() == 7


def test_a_marker_that_comes_while_the_log_is_read_counts(driver):
    driver.commit_in_transaction(5)
    driver.epoch += 1
    driver.coordinator = driver._new_coordinator()
    assert driver.coordinator.begin_load(HOME, driver.epoch)
    driver.end(is_commit=True)
    driver.replay(HOME)
    assert driver.coordinator.finish_load(HOME, driver.epoch, driver.now_ms) is not None
    assert driver.offset() == 5


def test_a_marker_in_the_log_ends_the_transaction(driver):
    driver.commit_in_transaction(5)
    driver.epoch += 1
    driver.coordinator = driver._new_coordinator()
    assert driver.coordinator.begin_load(HOME, driver.epoch)
    driver.replay(HOME)
    marker = ReplayBatch([(COMMIT, b"")], PRODUCER, is_transactional=True, is_control=True)
    driver.coordinator.load(HOME, driver.epoch, [marker])
    driver.coordinator.finish_load(HOME, driver.epoch, driver.now_ms)
    assert (driver.offset(), driver.is_stable()) == (5, True)


def test_members_are_checked_if_one_is_named(driver):
    (member,) = driver.form_group()
    who = {"member_id": member.member_id, "generation": member.generation}
    assert driver.error_of(driver.commit_in_transaction(5)) is ErrorCode.NONE
    assert driver.error_of(driver.commit_in_transaction(5, **who)) is ErrorCode.NONE
    for changed, error in (
        ({"generation": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert driver.error_of(driver.commit_in_transaction(5, **{**who, **changed})) is error


def test_an_empty_group_id_is_refused(driver):
    ticket = driver.commit_in_transaction(5, group="")
    assert driver.error_of(ticket) is ErrorCode.INVALID_GROUP_ID


def test_pending_offsets_keep_a_group_alive(driver):
    driver.commit({("t", 0): 3})
    driver.commit_in_transaction(5)
    driver.coordinator._expire_offsets(driver.now_ms + 10 * driver.config.offsets_retention_ms)
    assert driver.state() == "Empty"
    driver.end(is_commit=True)
    assert driver.offset() == 5


def test_deleted_partitions_lose_their_pending_offsets(driver):
    driver.commit_in_transaction(5)
    driver.delete_partitions(("t", 0))
    driver.end(is_commit=True)
    assert driver.offset() == -1


def test_a_request_keeps_its_producer():
    request = OffsetCommitRequest(group_id=GROUP, offsets={})
    assert replace(request, producer=TransactionalProducer(1, 2)).producer == (1, 2, None)
