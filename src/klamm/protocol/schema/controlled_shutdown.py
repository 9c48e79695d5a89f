"""ControlledShutdown: a broker asks the controller to elect other leaders before it stops."""

from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

REQUEST: Final = Declaration(
    ApiKey.CONTROLLED_SHUTDOWN,
    "request",
    struct(
        "ControlledShutdownRequest",
        field("broker_id", "int32"),
        field("broker_epoch", "int64", "2+", default=-1),
    ),
    first=0,
    last=3,
    first_flexible=3,
)

RESPONSE: Final = Declaration(
    ApiKey.CONTROLLED_SHUTDOWN,
    "response",
    struct(
        "ControlledShutdownResponse",
        field("error_code", "error_code"),
        array(
            "remaining_partitions",
            struct(
                "RemainingPartition",
                field("topic_name", "string"),
                field("partition_index", "int32"),
            ),
        ),
    ),
    first=0,
    last=3,
    first_flexible=3,
)
