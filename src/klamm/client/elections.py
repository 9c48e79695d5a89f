"""Leader elections that an operator requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from klamm.client.admin import Admin, check, partitions_by_topic
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode


class ElectionType(IntEnum):
    """The kind of election, with the numbers of the protocol."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """The result for one partition: elected, not needed, or the error."""

    topic: str
    partition: int
    outcome: str  # "elected", or the name of Kafka's error
    message: str | None

    @property
    def failed(self) -> bool:
        """Whether the election failed; ELECTION_NOT_NEEDED is no failure."""
        return self.outcome not in ("elected", ErrorCode.ELECTION_NOT_NEEDED.name)


def elect(
    admin: Admin, election: ElectionType, partitions: Sequence[tuple[str, int]] | None
) -> list[ElectionResult]:
    """Elect leaders for some partitions, or (None) for all that need it."""
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
    response = admin.ask_controller(ApiKey.ELECT_LEADERS, asked)
    check(getattr(response, "error_code", ErrorCode.NONE))
    return sorted(
        (
            ElectionResult(
                topic.topic,
                each.partition_id,
                ErrorCode.of(each.error_code).name if each.error_code else "elected",
                each.error_message,
            )
            for topic in response.replica_election_results
            for each in topic.partition_result
        ),
        key=lambda outcome: (outcome.topic, outcome.partition),
    )
