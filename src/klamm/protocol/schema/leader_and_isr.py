"""LeaderAndIsr: the controller sends a broker the partitions that it leads and follows."""

from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

_PARTITION_STATE: Final = struct(
    "LeaderAndIsrPartitionState",
    field("topic_name", "string", "0-1"),
    field("partition_index", "int32"),
    field("controller_epoch", "int32"),
    field("leader", "int32"),
    field("leader_epoch", "int32"),
    array("isr", "int32"),
    field("partition_epoch", "int32"),  # the ZooKeeper version of the partition's state
    array("replicas", "int32"),
    array("adding_replicas", "int32", "3+"),
    array("removing_replicas", "int32", "3+"),
    field("is_new", "bool", "1+", default=False),
    field("leader_recovery_state", "int8", "6+", default=0),
)

_TOPIC_STATE: Final = struct(
    "LeaderAndIsrTopicState",
    field("topic_name", "string", "2+"),
    field("topic_id", "uuid", "5+"),
    array("partition_states", _PARTITION_STATE, "2+"),
)

_LIVE_LEADER: Final = struct(
    "LeaderAndIsrLiveLeader",
    field("broker_id", "int32"),
    field("host_name", "string"),
    field("port", "int32"),
)

_PARTITION_ERROR: Final = struct(
    "LeaderAndIsrPartitionError",
    field("topic_name", "string", "0-4"),
    field("partition_index", "int32"),
    field("error_code", "error_code"),
)

_TOPIC_ERROR: Final = struct(
    "LeaderAndIsrTopicError",
    field("topic_id", "uuid", "5+"),
    array("partition_errors", _PARTITION_ERROR, "5+"),
)

REQUEST: Final = Declaration(
    ApiKey.LEADER_AND_ISR,
    "request",
    struct(
        "LeaderAndIsrRequest",
        field("controller_id", "int32"),
        field("is_kraft_controller", "bool", "7+", default=False),
        field("controller_epoch", "int32"),
        field("broker_epoch", "int64", "2+", default=-1),
        field("type", "int8", "5+", default=0),
        array("ungrouped_partition_states", _PARTITION_STATE, "0-1"),
        array("topic_states", _TOPIC_STATE, "2+"),
        array("live_leaders", _LIVE_LEADER),
    ),
    first=0,
    last=7,
    first_flexible=4,
)

RESPONSE: Final = Declaration(
    ApiKey.LEADER_AND_ISR,
    "response",
    struct(
        "LeaderAndIsrResponse",
        field("error_code", "error_code"),
        array("partition_errors", _PARTITION_ERROR, "0-4"),
        array("topics", _TOPIC_ERROR, "5+"),
    ),
    first=0,
    last=7,
    first_flexible=4,
)
