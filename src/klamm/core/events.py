"""The controller's events, and the response that each request's event gets.

An event only says what changed: the procedures read the state that they decide from again. The
event of a request carries its fields; its response is sent with the `Respond` effect. Kafka's error
codes appear here as plain integers, since the core does not know the wire protocol.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from klamm.names import TopicPartition


class ControllerState(IntEnum):
    """Value of the ControllerState gauge while an event is handled (EVT-10)."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    ALTER_PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UNCLEAN_LEADER_ELECTION_ENABLE = 13
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE_RECEIVED = 16
    UPDATE_FEATURES = 17


class ControllerError(IntEnum):
    """An error of Kafka's protocol that a decision can end in; numbers and names are Kafka's."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    BROKER_NOT_AVAILABLE = 8
    STALE_CONTROLLER_EPOCH = 11
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REPLICA_ASSIGNMENT = 39
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    STALE_BROKER_EPOCH = 77
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    INELIGIBLE_REPLICA = 107


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    state: ClassVar[ControllerState] = ControllerState.IDLE


# Noticed in ZooKeeper


@dataclass(frozen=True, slots=True)
class BrokerChange(Event):
    """Children of `/brokers/ids` changed."""

    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerModifications(Event):
    """The registration of a broker changed."""

    broker: int
    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class TopicChange(Event):
    """Children of `/brokers/topics` changed."""

    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class PartitionModifications(Event):
    """A topic's znode changed."""

    topic: str
    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class TopicDeletion(Event):
    """Children of `/admin/delete_topics` changed."""

    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class ZkReassignment(Event):
    """`/admin/reassign_partitions` appeared, or may have."""

    state = ControllerState.ALTER_PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True)
class ReassignmentIsrChange(Event):
    """The `state` znode of a partition being reassigned changed (only without AlterPartition)."""

    topic: str
    partition: int
    state = ControllerState.ALTER_PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True)
class ZkPreferredElection(Event):
    """`/admin/preferred_replica_election` appeared, or may have."""

    state = ControllerState.MANUAL_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class IsrChangeNotification(Event):
    """Children of `/isr_change_notification` changed."""

    state = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True)
class LogDirEventNotification(Event):
    """Children of `/log_dir_event_notification` changed."""

    state = ControllerState.LOG_DIR_CHANGE


# Timers and configuration


@dataclass(frozen=True, slots=True)
class AutoRebalance(Event):
    """The check of the balance of leaders is due."""

    state = ControllerState.AUTO_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class UncleanElectionEnabled(Event):
    """The broker-wide default of unclean election was switched on."""

    state = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE


@dataclass(frozen=True, slots=True)
class TopicUncleanElectionEnabled(Event):
    """A topic's override of unclean election was switched on."""

    topic: str
    state = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE


# Responses of brokers


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponseReceived(Event):
    """A broker's response: a top-level error, and the errors of partitions that have one.

    `answered` contains the partitions of the response, with and without an error. It is used only
    for partitions that had an error before, so it need not be a list of all.
    """

    broker: int
    error: int
    errors: Mapping[TopicPartition, int]
    answered: Container[TopicPartition]
    state = ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED


@dataclass(frozen=True, slots=True)
class StopReplicaResponseReceived(Event):
    """A broker's response about partitions to delete: errors by partition, 0 for none."""

    broker: int
    error: int
    errors: Mapping[TopicPartition, int]
    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponseReceived(Event):
    """A broker's response to an UpdateMetadata."""

    broker: int
    error: int
    state = ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED


ResponseReceived = (
    LeaderAndIsrResponseReceived | StopReplicaResponseReceived | UpdateMetadataResponseReceived
)

# Requests. Each docstring describes the response.


@dataclass(frozen=True, slots=True)
class ControlledShutdown(Event):
    """A broker wants to shut down. Response: `(error, remaining partitions)`."""

    broker: int
    broker_epoch: int
    state = ControllerState.CONTROLLED_SHUTDOWN


@dataclass(frozen=True, slots=True)
class PartitionProposal:
    """A leader's proposal for one partition; the topic is given by name or by id."""

    topic: str | None
    topic_id: str | None
    partition: int
    leader_epoch: int
    isr: tuple[int, ...]
    recovery: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class ProposalResult:
    """The result of one proposal: an error, or the partition's state."""

    proposal: PartitionProposal
    error: int
    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    recovery: int = 0
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True)
class AlterPartition(Event):
    """A leader proposes ISRs. Response: `(top-level error, list[ProposalResult])`."""

    broker: int
    broker_epoch: int
    version: int
    proposals: Sequence[PartitionProposal]
    state = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True)
class ApiReassignment(Event):
    """Reassign partitions; None cancels. Response: `(top-level error, dict of errors)`.

    An error is a pair of code and message; without a message it is the code's own.
    """

    targets: Mapping[TopicPartition, Sequence[int] | None]
    state = ControllerState.ALTER_PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True)
class ListReassignments(Event):
    """List reassignments, of the given or all partitions. Response: `(error, dict of
    Assignment)`.
    """

    partitions: Sequence[TopicPartition] | None
    state = ControllerState.LIST_PARTITION_REASSIGNMENT


class RequestedElection(IntEnum):
    """The two kinds of election that an administrator can request."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders(Event):
    """Elect leaders. Response: `dict` from partition to `(error, message, new leader or -1)`.

    None as partitions means all that are known; those that need no election are then left out.
    Without a message it is the error's own.
    """

    kind: RequestedElection
    partitions: Sequence[TopicPartition] | None
    state = ControllerState.MANUAL_LEADER_BALANCE


class UpgradeType(IntEnum):
    """The allowed direction of a change of a feature's level."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """The level that a feature shall have; below 1, the feature is deleted.

    `kind` is None if the request has an unknown one.
    """

    feature: str
    level: int
    kind: UpgradeType | None


@dataclass(frozen=True, slots=True)
class UpdateFeatures(Event):
    """Change the finalized features. Response: `(top-level error, dict of errors by feature)`.

    An error is a pair of code and message; without a message it is the code's own.
    """

    updates: Sequence[FeatureUpdate]
    validate_only: bool = False
    state = ControllerState.UPDATE_FEATURES


@dataclass(frozen=True, slots=True, eq=False)
class QueuedEvent:
    """A queued event: when it was added, its cause, and the callback for its response, if any."""

    event: Any
    enqueued_at: float
    cause: str
    respond: Callable[[Any], None] | None = None
