"""Which requests klamm understands, in which versions, and how they are framed.

The table is the specification's (broker.md 1.1 and 1.2, without delegation tokens).
What is not in it is neither advertised nor decoded. A second table has the requests that klamm only
sends, to the controllers of a KRaft quorum.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class ApiKey(enum.IntEnum):
    """The number that opens a request; the names are Kafka's."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67


#: Stands for "in no version" in a field that holds a first version.
NEVER: Final = 1 << 15


class Api(NamedTuple):
    """One row of the table; all version bounds are inclusive."""

    key: ApiKey
    name: str
    min_version: int  # in ApiVersions responses
    max_version: int
    first_flexible: int  # of requests and responses
    first_decoded: int  # versions from min_version up to here are refused

    def decodes(self, version: int) -> bool:
        """Whether a request of this version is read rather than refused."""
        return self.first_decoded <= version <= self.max_version


def _api(
    key: ApiKey,
    name: str,
    versions: tuple[int, int],
    first_flexible: int,
    first_decoded: int | None = None,
) -> Api:
    low, high = versions
    return Api(
        key, name, low, high, first_flexible, low if first_decoded is None else first_decoded
    )


_K = ApiKey

_TABLE: Final = (
    # Old librdkafka compresses only where Produce 0 is on offer (API-6), so it is advertised; it
    # never sends it, so it need not be read.
    _api(_K.PRODUCE, "Produce", (0, 11), 9, first_decoded=3),
    _api(_K.FETCH, "Fetch", (4, 17), 12),
    _api(_K.LIST_OFFSETS, "ListOffsets", (1, 9), 6),
    _api(_K.METADATA, "Metadata", (0, 12), 9),
    _api(_K.LEADER_AND_ISR, "LeaderAndIsr", (5, 7), 4),
    _api(_K.STOP_REPLICA, "StopReplica", (3, 4), 2),
    _api(_K.UPDATE_METADATA, "UpdateMetadata", (7, 8), 6),
    _api(_K.CONTROLLED_SHUTDOWN, "ControlledShutdown", (0, 3), 3),
    _api(_K.OFFSET_COMMIT, "OffsetCommit", (2, 9), 8),
    _api(_K.OFFSET_FETCH, "OffsetFetch", (1, 9), 6),
    _api(_K.FIND_COORDINATOR, "FindCoordinator", (0, 6), 3),
    _api(_K.JOIN_GROUP, "JoinGroup", (0, 9), 6),
    _api(_K.HEARTBEAT, "Heartbeat", (0, 4), 4),
    _api(_K.LEAVE_GROUP, "LeaveGroup", (0, 5), 4),
    _api(_K.SYNC_GROUP, "SyncGroup", (0, 5), 4),
    _api(_K.DESCRIBE_GROUPS, "DescribeGroups", (0, 5), 5),
    _api(_K.LIST_GROUPS, "ListGroups", (0, 5), 3),
    _api(_K.SASL_HANDSHAKE, "SaslHandshake", (0, 1), NEVER),
    _api(_K.API_VERSIONS, "ApiVersions", (0, 4), 3),
    _api(_K.CREATE_TOPICS, "CreateTopics", (0, 7), 5),
    _api(_K.DELETE_TOPICS, "DeleteTopics", (0, 6), 4),
    _api(_K.DELETE_RECORDS, "DeleteRecords", (0, 2), 2),
    _api(_K.INIT_PRODUCER_ID, "InitProducerId", (0, 5), 2),
    _api(_K.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", (2, 4), 4),
    _api(_K.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", (0, 5), 3),
    _api(_K.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", (0, 4), 3),
    _api(_K.END_TXN, "EndTxn", (0, 4), 3),
    _api(_K.WRITE_TXN_MARKERS, "WriteTxnMarkers", (0, 1), 1),
    _api(_K.TXN_OFFSET_COMMIT, "TxnOffsetCommit", (0, 4), 3),
    _api(_K.DESCRIBE_ACLS, "DescribeAcls", (1, 3), 2),
    _api(_K.CREATE_ACLS, "CreateAcls", (1, 3), 2),
    _api(_K.DELETE_ACLS, "DeleteAcls", (1, 3), 2),
    _api(_K.DESCRIBE_CONFIGS, "DescribeConfigs", (1, 4), 4),
    _api(_K.ALTER_CONFIGS, "AlterConfigs", (0, 2), 2),
    _api(_K.DESCRIBE_LOG_DIRS, "DescribeLogDirs", (1, 4), 2),
    _api(_K.SASL_AUTHENTICATE, "SaslAuthenticate", (0, 2), 2),
    _api(_K.CREATE_PARTITIONS, "CreatePartitions", (0, 3), 2),
    _api(_K.DELETE_GROUPS, "DeleteGroups", (0, 2), 2),
    _api(_K.ELECT_LEADERS, "ElectLeaders", (0, 2), 2),
    _api(_K.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", (0, 1), 1),
    _api(_K.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", (0, 0), 0),
    _api(_K.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", (0, 0), 0),
    _api(_K.OFFSET_DELETE, "OffsetDelete", (0, 0), NEVER),
    _api(_K.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", (0, 1), 1),
    _api(_K.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", (0, 1), 1),
    _api(_K.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", (0, 0), 0),
    _api(_K.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", (0, 0), 0),
    _api(_K.ALTER_PARTITION, "AlterPartition", (0, 3), 0),
    _api(_K.UPDATE_FEATURES, "UpdateFeatures", (0, 1), 0),
    _api(_K.DESCRIBE_CLUSTER, "DescribeCluster", (0, 1), 0),
    _api(_K.DESCRIBE_PRODUCERS, "DescribeProducers", (0, 0), 0),
    _api(_K.DESCRIBE_TRANSACTIONS, "DescribeTransactions", (0, 0), 0),
    _api(_K.LIST_TRANSACTIONS, "ListTransactions", (0, 1), 0),
    _api(_K.ALLOCATE_PRODUCER_IDS, "AllocateProducerIds", (0, 0), 0),
)

#: Sent to KRaft controllers, and never served.
_QUORUM_TABLE: Final = (
    _api(_K.DESCRIBE_QUORUM, "DescribeQuorum", (0, 2), 0),
    _api(_K.FETCH_SNAPSHOT, "FetchSnapshot", (0, 1), 0),
)

#: Served but not advertised in ApiVersions.
UNADVERTISED: Final = frozenset({ApiKey.UPDATE_FEATURES})

#: By key, in ascending order; ApiVersions responses have these without the unadvertised ones.
APIS: Final[Mapping[int, Api]] = MappingProxyType({int(api.key): api for api in _TABLE})
#: The same, and the requests that klamm only sends.
KNOWN_APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {**APIS, **{int(api.key): api for api in _QUORUM_TABLE}}
)


def is_flexible(key: int, version: int) -> bool:
    """Whether this version writes compact lengths and tagged fields."""
    return version >= KNOWN_APIS[key].first_flexible


def request_header_version(key: int, version: int) -> int:
    """0: no client id; 1: with client id; 2: and tagged fields."""
    if key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
        return 0
    return 2 if is_flexible(key, version) else 1


def response_header_version(key: int, version: int) -> int:
    """0: correlation id alone; 1: and tagged fields."""
    # A client asks for ApiVersions before it knows what the broker speaks, so that response keeps
    # the oldest header in every version.
    if key == ApiKey.API_VERSIONS:
        return 0
    return 1 if is_flexible(key, version) else 0
