"""DeleteTopics in the version that kio (from version 1 on) has left behind."""

from typing import Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.schema.declare import Declaration, array, field, struct

REQUEST: Final = Declaration(
    ApiKey.DELETE_TOPICS,
    "request",
    struct(
        "DeleteTopicsRequest",
        array("topic_names", "string"),
        field("timeout", "timedelta_i32"),
    ),
    first=0,
    last=0,
    first_flexible=4,
)

RESPONSE: Final = Declaration(
    ApiKey.DELETE_TOPICS,
    "response",
    struct(
        "DeleteTopicsResponse",
        array(
            "responses",
            struct(
                "DeletableTopicResult",
                field("name", "string"),
                field("error_code", "error_code"),
            ),
        ),
    ),
    first=0,
    last=0,
    first_flexible=4,
)
