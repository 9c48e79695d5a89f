"""CreateTopics in the versions that kio (from version 2 on) has left behind."""

from datetime import timedelta
from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

REQUEST: Final = Declaration(
    ApiKey.CREATE_TOPICS,
    "request",
    struct(
        "CreateTopicsRequest",
        array(
            "topics",
            struct(
                "CreatableTopic",
                field("name", "string"),
                field("num_partitions", "int32"),
                field("replication_factor", "int16"),
                array(
                    "assignments",
                    struct(
                        "CreatableReplicaAssignment",
                        field("partition_index", "int32"),
                        array("broker_ids", "int32"),
                    ),
                ),
                array(
                    "configs",
                    struct(
                        "CreatableTopicConfig",
                        field("name", "string"),
                        field("value", "string", nullable=True),
                    ),
                ),
            ),
        ),
        field("timeout", "timedelta_i32", default=timedelta(minutes=1)),
        field("validate_only", "bool", "1+", default=False),
    ),
    first=0,
    last=1,
    first_flexible=5,
)

RESPONSE: Final = Declaration(
    ApiKey.CREATE_TOPICS,
    "response",
    struct(
        "CreateTopicsResponse",
        array(
            "topics",
            struct(
                "CreatableTopicResult",
                field("name", "string"),
                field("error_code", "error_code"),
                field("error_message", "string", "1+", nullable=True),
            ),
        ),
    ),
    first=0,
    last=1,
    first_flexible=5,
)
