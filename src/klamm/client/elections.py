"""Elections that an operator asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from klamm.client.admin import Admin, partitions_by_topic
from klamm.client.errors import check
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode


class ElectionType(IntEnum):
    """Whom a partition may get; the numbers are the protocol's."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """What came of it for one partition: elected, not needed, or why not."""

    topic: str
    partition: int
    outcome: str  # "elected", or the name of Kafka's error
    message: str | None

    @property
    def failed(self) -> bool:
        """That there was nothing to do is not a failure."""
        return self.outcome not in ("elected", ErrorCode.ELECTION_NOT_NEEDED.name)


def elect(
    admin: Admin, election: ElectionType, partitions: Sequence[tuple[str, int]] | None
) -> list[ElectionResult]:
    """Elect leaders for some partitions, or (None) wherever it is needed."""
    topics = None
    if partitions is not None:
        topics = [
            {"topic": topic, "partitions": numbers}
            for topic, numbers in partitions_by_topic(partitions).items()
        ]
    asked = {
        "election_type": int(election),
        "topic_partitions": topics,
        "timeout": admin.timeout_ms,
    }
    answer = admin.ask_controller(ApiKey.ELECT_LEADERS, asked)
    check(getattr(answer, "error_code", ErrorCode.NONE))
    return sorted(
        (
            ElectionResult(
                topic.topic,
                each.partition_id,
                ErrorCode.of(each.error_code).name if each.error_code else "elected",
                each.error_message,
            )
            for topic in answer.replica_election_results
            for each in topic.partition_result
        ),
        key=lambda outcome: (outcome.topic, outcome.partition),
    )
