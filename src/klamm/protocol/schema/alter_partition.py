"""AlterPartition before topic ids, which kio (from version 2 on) has left behind."""

from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

REQUEST: Final = Declaration(
    ApiKey.ALTER_PARTITION,
    "request",
    struct(
        "AlterPartitionRequest",
        field("broker_id", "int32"),
        field("broker_epoch", "int64", default=-1),
        array(
            "topics",
            struct(
                "TopicData",
                field("topic_name", "string"),
                array(
                    "partitions",
                    struct(
                        "PartitionData",
                        field("partition_index", "int32"),
                        field("leader_epoch", "int32"),
                        array("new_isr", "int32"),
                        field("leader_recovery_state", "int8", "1+", default=0),
                        field("partition_epoch", "int32"),
                    ),
                ),
            ),
        ),
    ),
    first=0,
    last=1,
    first_flexible=0,
)

RESPONSE: Final = Declaration(
    ApiKey.ALTER_PARTITION,
    "response",
    struct(
        "AlterPartitionResponse",
        field("throttle_time", "timedelta_i32"),
        field("error_code", "error_code"),
        array(
            "topics",
            struct(
                "TopicData",
                field("topic_name", "string"),
                array(
                    "partitions",
                    struct(
                        "PartitionData",
                        field("partition_index", "int32"),
                        field("error_code", "error_code"),
                        field("leader_id", "int32"),
                        field("leader_epoch", "int32"),
                        array("isr", "int32"),
                        field("leader_recovery_state", "int8", "1+", default=0),
                        field("partition_epoch", "int32"),
                    ),
                ),
            ),
        ),
    ),
    first=0,
    last=1,
    first_flexible=0,
)
