"""DescribeTransactions, whose times kio cannot read: -1 is that of an id without transactions."""

from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

REQUEST: Final = Declaration(
    ApiKey.DESCRIBE_TRANSACTIONS,
    "request",
    struct("DescribeTransactionsRequest", array("transactional_ids", "string")),
    first=0,
    last=0,
    first_flexible=0,
)

RESPONSE: Final = Declaration(
    ApiKey.DESCRIBE_TRANSACTIONS,
    "response",
    struct(
        "DescribeTransactionsResponse",
        field("throttle_time", "timedelta_i32"),
        array(
            "transaction_states",
            struct(
                "DescribedTransaction",
                field("error_code", "error_code"),
                field("transactional_id", "string"),
                field("transaction_state", "string"),
                field("transaction_timeout", "timedelta_i32"),
                field("transaction_start_time_ms", "int64"),
                field("producer_id", "int64"),
                field("producer_epoch", "int16"),
                array(
                    "topics",
                    struct(
                        "TransactionTopic",
                        field("topic", "string"),
                        array("partitions", "int32"),
                    ),
                ),
            ),
        ),
    ),
    first=0,
    last=0,
    first_flexible=0,
)
