"""What each API needs: the table of SEC-9, which the guard obeys and the documents are made from.

A row names its API by Kafka's name. An API without a row is not served once there is an
authorizer. `needs` are checked in order; each says what is needed on what, where in the request
the names of the resources are, and what the response is without the permission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from klamm.protocol.acls import AclOperation, ResourceType
from klamm.protocol.codes import ErrorCode

_O = AclOperation
_T = ResourceType


class Scope(Enum):
    """The part of a request that a denial concerns, and so the place of its error."""

    #: The whole request fails with the code.
    WHOLE = "the whole request"
    #: Each item of a list fails on its own; the others are served.
    EACH = "each item"
    #: What is not allowed is left out of the response.
    FILTERED = "left out"
    #: The handler asks for each name, because it alone knows the names.
    HANDLER = "in the handler"


@dataclass(frozen=True, slots=True)
class Need:
    """One permission; any of `operations` is enough, on any of the resources named."""

    operations: tuple[AclOperation, ...]
    resource: ResourceType
    denied: ErrorCode
    scope: Scope = Scope.WHOLE
    #: Where the names are: a field of the request or, for EACH, a list and the field of its items
    #: (empty if the items are names). Unused for the cluster.
    names: str = ""
    item: str = ""
    #: The list of the response in which the items that were denied are shown.
    results: str = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One row of the table."""

    needs: tuple[Need, ...] = ()
    #: The row has rules beyond its needs, in the guard's function of this API.
    is_special: bool = False
    note: str = ""


def _cluster(*operations: AclOperation) -> Requirement:
    need = Need(operations, _T.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return Requirement((need,))


def _group(operation: AclOperation) -> Need:
    return Need((operation,), _T.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, names="group_id")


def _topics(
    operation: AclOperation, names: str = "topics", item: str = "name", results: str = "topics"
) -> Need:
    return Need(
        (operation,),
        _T.TOPIC,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        Scope.EACH,
        names,
        item,
        results,
    )


def _transaction(operation: AclOperation) -> Need:
    return Need(
        (operation,),
        _T.TRANSACTIONAL_ID,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        names="transactional_id",
    )


def _by_handler(operation: AclOperation, resource: ResourceType, denied: ErrorCode) -> Need:
    return Need((operation,), resource, denied, Scope.HANDLER)


def _filtered(operation: AclOperation, resource: ResourceType) -> Need:
    return Need((operation,), resource, ErrorCode.NONE, Scope.FILTERED)


_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_NOTHING: Final = Requirement()
_CLUSTER_ACTION: Final = _cluster(_O.CLUSTER_ACTION)

REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    "Produce": Requirement(
        (
            _by_handler(_O.WRITE, _T.TRANSACTIONAL_ID, _ID_DENIED),
            _by_handler(_O.WRITE, _T.TOPIC, _TOPIC_DENIED),
        ),
        is_special=True,
        note="Write on the transactional id first if any batch is transactional; null is denied",
    ),
    "Fetch": Requirement(
        (
            _by_handler(_O.READ, _T.TOPIC, _TOPIC_DENIED),
            _by_handler(_O.CLUSTER_ACTION, _T.CLUSTER, _TOPIC_DENIED),
        ),
        note="consumers need Read, followers (replica id >= 0) ClusterAction",
    ),
    "ListOffsets": Requirement((_topics(_O.DESCRIBE),)),
    "Metadata": Requirement(
        (
            _by_handler(_O.DESCRIBE, _T.TOPIC, _TOPIC_DENIED),
            Need((_O.CREATE,), _T.TOPIC, _TOPIC_DENIED, Scope.HANDLER),
        ),
        note="all topics: filtered; Create on the topic or the cluster where a topic is created",
    ),
    "LeaderAndIsr": _CLUSTER_ACTION,
    "StopReplica": _CLUSTER_ACTION,
    "UpdateMetadata": _CLUSTER_ACTION,
    "ControlledShutdown": _CLUSTER_ACTION,
    "OffsetCommit": Requirement((_group(_O.READ), _topics(_O.READ))),
    "OffsetFetch": Requirement(
        (
            Need((_O.DESCRIBE,), _T.GROUP, _GROUP_DENIED, Scope.EACH),
            Need((_O.DESCRIBE,), _T.TOPIC, _TOPIC_DENIED, Scope.EACH),
        ),
        is_special=True,
        note="topics that are not named are filtered",
    ),
    "FindCoordinator": Requirement(
        (
            Need((_O.DESCRIBE,), _T.GROUP, _GROUP_DENIED, Scope.EACH),
            Need((_O.DESCRIBE,), _T.TRANSACTIONAL_ID, _ID_DENIED, Scope.EACH),
        ),
        is_special=True,
        note="by the type of the key",
    ),
    "JoinGroup": Requirement((_group(_O.READ),)),
    "Heartbeat": Requirement((_group(_O.READ),)),
    "LeaveGroup": Requirement((_group(_O.READ),)),
    "SyncGroup": Requirement((_group(_O.READ),), is_special=True),
    "DescribeGroups": Requirement(
        (
            Need(
                *((_O.DESCRIBE,), _T.GROUP, _GROUP_DENIED, Scope.EACH),
                names="groups",
                results="groups",
            ),
        )
    ),
    "ListGroups": Requirement(
        (_filtered(_O.DESCRIBE, _T.GROUP),),
        is_special=True,
        note="Describe on the cluster shows all groups",
    ),
    "SaslHandshake": _NOTHING,
    "ApiVersions": _NOTHING,
    "CreateTopics": Requirement(
        (Need((_O.CREATE,), _T.TOPIC, _TOPIC_DENIED, Scope.EACH),),
        is_special=True,
        note="Create on the cluster is enough; without DescribeConfigs the configs are not shown",
    ),
    "DeleteTopics": Requirement(
        (Need((_O.DELETE,), _T.TOPIC, _TOPIC_DENIED, Scope.EACH),),
        is_special=True,
        note="by id also Describe; without it the name is not told",
    ),
    "DeleteRecords": Requirement((_topics(_O.DELETE),)),
    "InitProducerId": Requirement(
        (
            Need((_O.WRITE,), _T.TRANSACTIONAL_ID, _ID_DENIED),
            Need((_O.IDEMPOTENT_WRITE,), _T.CLUSTER, _CLUSTER_DENIED),
        ),
        is_special=True,
        note="without a transactional id, IdempotentWrite or Write on any topic",
    ),
    "OffsetForLeaderEpoch": Requirement(
        (_topics(_O.DESCRIBE, item="topic"),),
        is_special=True,
        note="ClusterAction is enough",
    ),
    "AddPartitionsToTxn": Requirement(
        (_transaction(_O.WRITE), _by_handler(_O.WRITE, _T.TOPIC, _TOPIC_DENIED)),
        is_special=True,
        note="one topic denied: the others OPERATION_NOT_ATTEMPTED; v4 and later: ClusterAction",
    ),
    "AddOffsetsToTxn": Requirement((_transaction(_O.WRITE), _group(_O.READ))),
    "EndTxn": Requirement((_transaction(_O.WRITE),)),
    "WriteTxnMarkers": _cluster(_O.ALTER, _O.CLUSTER_ACTION),
    "TxnOffsetCommit": Requirement((_transaction(_O.WRITE), _group(_O.READ), _topics(_O.READ))),
    "DescribeAcls": _cluster(_O.DESCRIBE),
    "CreateAcls": _cluster(_O.ALTER),
    "DeleteAcls": _cluster(_O.ALTER),
    "DescribeConfigs": Requirement(
        (Need((_O.DESCRIBE_CONFIGS,), _T.TOPIC, _TOPIC_DENIED, Scope.EACH),),
        is_special=True,
        note="on the cluster for brokers and loggers",
    ),
    "AlterConfigs": Requirement(
        (Need((_O.ALTER_CONFIGS,), _T.TOPIC, _TOPIC_DENIED, Scope.EACH),),
        is_special=True,
        note="on the cluster for brokers and loggers",
    ),
    "IncrementalAlterConfigs": Requirement(
        (Need((_O.ALTER_CONFIGS,), _T.TOPIC, _TOPIC_DENIED, Scope.EACH),),
        is_special=True,
        note="on the cluster for brokers and loggers",
    ),
    "AlterReplicaLogDirs": _cluster(_O.ALTER),
    "DescribeLogDirs": _cluster(_O.DESCRIBE),
    "SaslAuthenticate": _NOTHING,
    "CreatePartitions": Requirement((_topics(_O.ALTER, results="results"),), is_special=True),
    "DeleteGroups": Requirement(
        (
            Need(
                *((_O.DELETE,), _T.GROUP, _GROUP_DENIED, Scope.EACH),
                names="groups_names",
                results="results",
            ),
        )
    ),
    "ElectLeaders": _cluster(_O.ALTER),
    "AlterPartitionReassignments": _cluster(_O.ALTER),
    "ListPartitionReassignments": _cluster(_O.DESCRIBE),
    "OffsetDelete": Requirement((_group(_O.DELETE), _topics(_O.READ))),
    "DescribeClientQuotas": _cluster(_O.DESCRIBE_CONFIGS),
    "AlterClientQuotas": _cluster(_O.ALTER_CONFIGS),
    "DescribeUserScramCredentials": _cluster(_O.DESCRIBE),
    "AlterUserScramCredentials": Requirement(
        (_by_handler(_O.ALTER, _T.CLUSTER, _CLUSTER_DENIED),), note="NOT_CONTROLLER comes first"
    ),
    "AlterPartition": _CLUSTER_ACTION,
    "UpdateFeatures": _cluster(_O.ALTER),
    "DescribeCluster": _NOTHING,
    "DescribeProducers": Requirement((_topics(_O.READ),)),
    "DescribeTransactions": Requirement(
        (
            Need(
                *((_O.DESCRIBE,), _T.TRANSACTIONAL_ID, _ID_DENIED, Scope.EACH),
                names="transactional_ids",
                results="transaction_states",
            ),
            _filtered(_O.DESCRIBE, _T.TOPIC),
        ),
        is_special=True,
        note="topics without Describe are left out",
    ),
    "ListTransactions": Requirement(
        (_filtered(_O.DESCRIBE, _T.TRANSACTIONAL_ID),), is_special=True
    ),
    "AllocateProducerIds": _CLUSTER_ACTION,
}
