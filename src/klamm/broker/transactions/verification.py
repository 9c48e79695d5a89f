"""Questions of partition leaders to transaction coordinators: is this partition in the transaction?

There is one AddPartitionsToTxn in flight to each coordinator broker. What comes meanwhile waits for
the next one, with one entry for each transactional id (TXN-12).
"""

from collections.abc import Mapping
from typing import NamedTuple

from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: Chosen by the caller to find the question that a verdict belongs to.
Ticket = int
Verdict = Mapping[TopicPartition, ErrorCode]


class Question(NamedTuple):
    """Whether the partitions are in the transaction of this producer."""

    ticket: Ticket
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class Verified(NamedTuple):
    """The error of each partition of a question."""

    ticket: Ticket
    errors: Verdict


class VerificationRequest(NamedTuple):
    """One AddPartitionsToTxn with verify_only."""

    broker: int
    questions: tuple[Question, ...]


class VerificationChannels:
    """Queues of questions, one for each coordinator broker."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, Question]] = {}  # by broker and transactional id
        self._in_flight: dict[int, tuple[Question, ...]] = {}

    def add(self, broker: int, question: Question) -> Verified | None:
        """Queue a question; returns the verdict on the one, old or new, that is turned away."""
        queue = self._queues.setdefault(broker, {})
        queued = queue.get(question.transactional_id)
        if queued is None:
            queue[question.transactional_id] = question
            return None
        if queued.producer_epoch > question.producer_epoch:
            return _same_for_all(question, ErrorCode.INVALID_PRODUCER_EPOCH)
        queue[question.transactional_id] = question
        is_repeated = queued.producer_epoch == question.producer_epoch
        return _same_for_all(
            queued,
            ErrorCode.NETWORK_EXCEPTION if is_repeated else ErrorCode.INVALID_PRODUCER_EPOCH,
        )

    def poll(self) -> list[VerificationRequest]:
        """Requests to send now."""
        requests = []
        for broker in [each for each in self._queues if each not in self._in_flight]:
            questions = self._in_flight[broker] = tuple(self._queues.pop(broker).values())
            requests.append(VerificationRequest(broker, questions))
        return requests

    def on_response(
        self, broker: int, response: Mapping[str, Verdict] | ErrorCode
    ) -> list[Verified]:
        """The verdicts on the questions in flight; an error concerns all of them.

        NONE stands for a coordinator that is too old to be asked: everything is accepted.
        """
        questions = self._in_flight.pop(broker)
        if isinstance(response, ErrorCode):
            if response is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                response = ErrorCode.INVALID_TXN_STATE
            return [_same_for_all(each, response) for each in questions]
        return [
            Verified(
                each.ticket,
                {
                    partition: for_producer(response.get(each.transactional_id, {}), partition)
                    for partition in each.partitions
                },
            )
            for each in questions
        ]


def _same_for_all(question: Question, error: ErrorCode) -> Verified:
    return Verified(question.ticket, dict.fromkeys(question.partitions, error))


def for_producer(verdict: Verdict, partition: TopicPartition) -> ErrorCode:
    """The error as a producer understands it; a partition without a verdict is asked for again."""
    error = verdict.get(partition, ErrorCode.NETWORK_EXCEPTION)
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
