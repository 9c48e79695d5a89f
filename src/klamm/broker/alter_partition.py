"""The line of ISR changes that wait for the controller.

One request is under way at a time; what is proposed meanwhile goes into the next one. A proposal
leaves the line only with an answer of its own: a request that was lost, refused as a whole or
answered in part is sent again, and again by whatever controller there is then, without end. A
leader that gave up would go on without knowing which ISR is in force.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from klamm.broker.isr import IsrAnswer, IsrProposal
from klamm.broker.log.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: How long to wait after an error that concerns the whole request.
RETRY_BACKOFF_MS: Final = 50


class AlterPartitionBatch(NamedTuple):
    """What goes into one AlterPartition request."""

    controller: int
    proposals: tuple[IsrProposal, ...]


class Answered(NamedTuple):
    """A proposal that is settled for the line; the partition decides what that means."""

    proposal: IsrProposal
    answer: IsrAnswer


class IsrChangeLine:
    """Proposals in the order of their arrival, and the one request that is under way."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, IsrProposal] = {}
        self._in_flight: AlterPartitionBatch | None = None
        self._not_before_ms = 0
        #: A controller that has said that it is none, or that cannot be reached.
        self._doubted: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, proposal: IsrProposal) -> None:
        """Put a proposal into the line; it replaces an older one for the same partition.

        The older one belongs to a leadership that has ended, or the partition would not have
        made another.
        """
        self._waiting[proposal.partition] = proposal

    def withdraw(self, partition: TopicPartition) -> None:
        """Forget what was proposed for a partition that is led by someone else now."""
        self._waiting.pop(partition, None)

    def next_batch(self, controller: int | None, now_ms: int) -> AlterPartitionBatch | None:
        """What to send now, and to whom; None while there is nothing to send or a reason to wait.

        `controller` is the one that the metadata cache names. One that has just failed is tried
        again after a pause; another one at once.
        """
        if controller is None or not self._waiting or self._in_flight:
            return None
        if now_ms < self._not_before_ms and (self._doubted is None or self._doubted == controller):
            return None
        self._in_flight = AlterPartitionBatch(controller, tuple(self._waiting.values()))
        return self._in_flight

    def next_attempt_ms(self) -> int | None:
        """When `next_batch` is worth another call if nothing else happens; None: not at all."""
        return self._not_before_ms if self._waiting and not self._in_flight else None

    def on_answers(
        self, answers: Mapping[TopicPartition, IsrAnswer], now_ms: int
    ) -> list[Answered]:
        """Take in a response without an error of its own.

        A partition that the controller left out stays in the line.
        """
        sent = self._land()
        if any(answer.error is ErrorCode.NOT_CONTROLLER for answer in answers.values()):
            self._doubt(sent.controller, now_ms)
            return []
        answered = [
            Answered(proposal, answers[proposal.partition])
            for proposal in sent.proposals
            if proposal.partition in answers
        ]
        self._settle(answered)
        return answered

    def on_error(self, error: ErrorCode, now_ms: int) -> None:
        """Take in a response that refuses the whole request."""
        sent = self._land()
        self._not_before_ms = now_ms + RETRY_BACKOFF_MS
        if error is ErrorCode.NOT_CONTROLLER:
            self._doubt(sent.controller, now_ms)
        else:
            self._doubted = None

    def on_disconnect(self, now_ms: int) -> None:
        """The controller may or may not have acted; only asking again will tell."""
        self._doubt(self._land().controller, now_ms)

    def _land(self) -> AlterPartitionBatch:
        assert self._in_flight, "an answer to a request that was not sent"
        sent, self._in_flight = self._in_flight, None
        return sent

    def _doubt(self, controller: int, now_ms: int) -> None:
        self._doubted = controller
        self._not_before_ms = now_ms + RETRY_BACKOFF_MS

    def _settle(self, answered: Iterable[Answered]) -> None:
        for proposal, _ in answered:
            if self._waiting.get(proposal.partition) is proposal:
                del self._waiting[proposal.partition]
