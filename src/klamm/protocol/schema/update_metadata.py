"""UpdateMetadata: the controller sends every broker the brokers and partitions of the cluster."""

from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

_PARTITION_STATE: Final = struct(
    "UpdateMetadataPartitionState",
    field("topic_name", "string", "0-4"),
    field("partition_index", "int32"),
    field("controller_epoch", "int32"),
    field("leader", "int32"),
    field("leader_epoch", "int32"),
    array("isr", "int32"),
    field("zk_version", "int32"),
    array("replicas", "int32"),
    array("offline_replicas", "int32", "4+"),
)

_TOPIC_STATE: Final = struct(
    "UpdateMetadataTopicState",
    field("topic_name", "string", "5+"),
    field("topic_id", "uuid", "7+"),
    array("partition_states", _PARTITION_STATE, "5+"),
)

_ENDPOINT: Final = struct(
    "UpdateMetadataEndpoint",
    field("port", "int32"),
    field("host", "string"),
    field("listener", "string", "3+"),
    field("security_protocol", "int16"),
)

_BROKER: Final = struct(
    "UpdateMetadataBroker",
    field("id", "int32"),
    field("v0_host", "string", "0"),
    field("v0_port", "int32", "0"),
    array("endpoints", _ENDPOINT, "1+"),
    field("rack", "string", "2+", nullable=True),
)

REQUEST: Final = Declaration(
    ApiKey.UPDATE_METADATA,
    "request",
    struct(
        "UpdateMetadataRequest",
        field("controller_id", "int32"),
        field("is_kraft_controller", "bool", "8+", default=False),
        field("type", "int8", "8+", tag=0, default=0),
        field("controller_epoch", "int32"),
        field("broker_epoch", "int64", "5+", default=-1),
        array("ungrouped_partition_states", _PARTITION_STATE, "0-4"),
        array("topic_states", _TOPIC_STATE, "5+"),
        array("live_brokers", _BROKER),
    ),
    first=0,
    last=8,
    first_flexible=6,
)

RESPONSE: Final = Declaration(
    ApiKey.UPDATE_METADATA,
    "response",
    struct("UpdateMetadataResponse", field("error_code", "error_code")),
    first=0,
    last=8,
    first_flexible=6,
)
