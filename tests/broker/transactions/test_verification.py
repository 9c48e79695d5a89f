"""Leaders ask coordinators about transactions, one request at a time."""

import pytest

from klamm.broker.transactions.verification import Question, VerificationChannels
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

pytestmark = pytest.mark.rule("TXN-12")

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def question(ticket: int, id: str = "x", epoch: int = 0, *partitions: TopicPartition) -> Question:
    return Question(ticket, id, 1, epoch, partitions or (A,))


@pytest.fixture
def channels() -> VerificationChannels:
    return VerificationChannels()


def test_questions_wait_for_the_request_in_flight(channels):
    channels.add(9, question(1))
    (request,) = channels.poll()
    assert (request.broker, [each.ticket for each in request.questions]) == (9, [1])
    channels.add(9, question(2, "y"))
    channels.add(9, question(3, "z"))
    assert channels.poll() == []
    assert channels.on_response(9, {"x": {A: ErrorCode.NONE}}) == [(1, {A: ErrorCode.NONE})]
    (request,) = channels.poll()
    assert [each.ticket for each in request.questions] == [2, 3]


def test_the_same_epoch_again_turns_the_older_away(channels):
    channels.add(9, question(1))
    assert channels.add(9, question(2)) == (1, {A: ErrorCode.NETWORK_EXCEPTION})
    assert [each.ticket for each in channels.poll()[0].questions] == [2]


def test_a_lower_epoch_is_turned_away(channels):
    channels.add(9, question(1, epoch=3))
    assert channels.add(9, question(2, epoch=2)) == (2, {A: ErrorCode.INVALID_PRODUCER_EPOCH})
    assert channels.add(9, question(3, epoch=4)) == (1, {A: ErrorCode.INVALID_PRODUCER_EPOCH})
    assert [each.ticket for each in channels.poll()[0].questions] == [3]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_what_the_coordinator_says_is_told_partition_by_partition(channels, said, told):
    channels.add(9, question(1, "x", 0, A, B))
    channels.poll()
    verdicts = channels.on_response(9, {"x": {A: said}})
    assert verdicts == [(1, {A: told, B: ErrorCode.NETWORK_EXCEPTION})]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NETWORK_EXCEPTION),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NONE, ErrorCode.NONE),
    ],
)
def test_an_error_of_the_whole_request_concerns_every_question(channels, error, told):
    channels.add(9, question(1))
    channels.add(9, question(2, "y"))
    channels.poll()
    assert channels.on_response(9, error) == [(1, {A: told}), (2, {A: told})]
