"""StopReplica: the controller tells a broker to stop fetching, and perhaps to delete the data."""

from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

_PARTITION_STATE: Final = struct(
    "StopReplicaPartitionState",
    field("partition_index", "int32"),
    field("leader_epoch", "int32", default=-1),
    field("delete_partition", "bool"),
)

REQUEST: Final = Declaration(
    ApiKey.STOP_REPLICA,
    "request",
    struct(
        "StopReplicaRequest",
        field("controller_id", "int32"),
        field("is_kraft_controller", "bool", "4+", default=False),
        field("controller_epoch", "int32"),
        field("broker_epoch", "int64", "1+", default=-1),
        field("delete_partitions", "bool", "0-2"),
        array(
            "ungrouped_partitions",
            struct(
                "StopReplicaPartitionV0",
                field("topic_name", "string"),
                field("partition_index", "int32"),
            ),
            "0",
        ),
        array(
            "topics",
            struct(
                "StopReplicaTopicV1",
                field("name", "string"),
                array("partition_indexes", "int32"),
            ),
            "1-2",
        ),
        array(
            "topic_states",
            struct(
                "StopReplicaTopicState",
                field("topic_name", "string"),
                array("partition_states", _PARTITION_STATE),
            ),
            "3+",
        ),
    ),
    first=0,
    last=4,
    first_flexible=2,
)

RESPONSE: Final = Declaration(
    ApiKey.STOP_REPLICA,
    "response",
    struct(
        "StopReplicaResponse",
        field("error_code", "error_code"),
        array(
            "partition_errors",
            struct(
                "StopReplicaPartitionError",
                field("topic_name", "string"),
                field("partition_index", "int32"),
                field("error_code", "error_code"),
            ),
        ),
    ),
    first=0,
    last=4,
    first_flexible=2,
)
