"""WriteTxnMarkers in the version that kio (from version 1 on) has left behind."""

from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

REQUEST: Final = Declaration(
    ApiKey.WRITE_TXN_MARKERS,
    "request",
    struct(
        "WriteTxnMarkersRequest",
        array(
            "markers",
            struct(
                "WritableTxnMarker",
                field("producer_id", "int64"),
                field("producer_epoch", "int16"),
                field("transaction_result", "bool"),
                array(
                    "topics",
                    struct(
                        "WritableTxnMarkerTopic",
                        field("name", "string"),
                        array("partition_indexes", "int32"),
                    ),
                ),
                field("coordinator_epoch", "int32"),
            ),
        ),
    ),
    first=0,
    last=0,
    first_flexible=1,
)

RESPONSE: Final = Declaration(
    ApiKey.WRITE_TXN_MARKERS,
    "response",
    struct(
        "WriteTxnMarkersResponse",
        array(
            "markers",
            struct(
                "WritableTxnMarkerResult",
                field("producer_id", "int64"),
                array(
                    "topics",
                    struct(
                        "WritableTxnMarkerTopicResult",
                        field("name", "string"),
                        array(
                            "partitions",
                            struct(
                                "WritableTxnMarkerPartitionResult",
                                field("partition_index", "int32"),
                                field("error_code", "error_code"),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
    first=0,
    last=0,
    first_flexible=1,
)
