"""Error codes in responses, and the response to a request that failed as a whole (FRM-7).

Some responses have a top-level error code. The others get one for each topic, partition, group or
resource that the request names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.encoding import Values
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode

_NO_OFFSETS: Final = MappingProxyType(
    {"timestamp": -1, "offset": -1, "low_watermark": -1, "base_offset": -1, "log_append_time": -1}
)


#: From this version on, a JoinGroup that failed has no protocol name, where it had an empty one.
_FIRST_WITHOUT_PROTOCOL: Final = 7
#: From this version on, OffsetFetch has an error for the group.
_FIRST_WITH_GROUP_ERROR: Final = 2
#: From this version on, a Fetch that failed names no partitions.
_FIRST_FETCH_BY_ID: Final = 13


def failure(header: RequestHeader, body: Any, code: ErrorCode) -> Values | None:
    """The values of the response to a failed request; None if the request expects no response."""
    if header.api_key == ApiKey.FETCH and header.api_version >= _FIRST_FETCH_BY_ID:
        return {"error_code": code, "responses": []}
    make = _MAKERS.get(header.api_key)
    if make is not None:
        return make(body, code)
    if header.api_key == ApiKey.JOIN_GROUP and header.api_version >= _FIRST_WITHOUT_PROTOCOL:
        return {**_TOP_LEVEL[ApiKey.JOIN_GROUP], "error_code": code, "protocol_name": None}
    return {**_TOP_LEVEL.get(header.api_key, {}), "error_code": code, "error_message": code.message}


def whole_failure(header: RequestHeader, body: Any, code: ErrorCode) -> Values | None:
    """The response of a broker that does not even look at what the request asks for.

    The partitions of a reassignment are told as well, where a controller has one error for all.
    """
    failed = {"error_code": code, "error_message": code.message}
    if header.api_key == ApiKey.LIST_PARTITION_REASSIGNMENTS:
        topics = [
            {
                "name": topic.name,
                "partitions": [{"partition_index": each} for each in topic.partition_indexes],
            }
            for topic in body.topics or ()
        ]
        return {**failed, "topics": topics}
    if header.api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        responses = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, **failed} for each in topic.partitions
                ],
            }
            for topic in body.topics
        ]
        return {**failed, "responses": responses}
    if header.api_key == ApiKey.OFFSET_FETCH and header.api_version < _FIRST_WITH_GROUP_ERROR:
        return _offsets_of_partitions(body, code)
    return failure(header, body, code)


def _offsets_of_partitions(body: Any, code: ErrorCode) -> Values:
    """The first version of OffsetFetch has no place for an error but the partitions."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each,
                        "committed_offset": -1,
                        "metadata": "",
                        "error_code": code,
                    }
                    for each in topic.partition_indexes
                ],
            }
            for topic in body.topics
        ]
    }


def failure_of_items(header: RequestHeader, body: Any, code: ErrorCode) -> Values | None:
    """The same, with the error at each topic or partition that the request names, and only there.

    None if the request expects no response.
    """
    make = _ITEM_MAKERS.get(header.api_key)
    values = failure(header, body, code) if make is None else make(body, code)
    return None if values is None else {**values, "error_code": ErrorCode.NONE}


def error_codes(values: Values) -> Iterator[int]:
    """All error codes in the values of a response of any API."""
    for name, value in values.items():
        if name in ("error_code", "partition_error_code"):
            yield value
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            for each in value:
                yield from error_codes(each)


def _each_partition(
    topics_name: str, topic_name: str, partition_name: str, response_name: str, response_index: str
) -> Callable[[Any, ErrorCode], Values]:
    """A response with an error for each partition of the request."""

    def make(body: Any, code: ErrorCode) -> Values:
        return {
            response_name: [
                {
                    "name": getattr(topic, topic_name),
                    "topic": getattr(topic, topic_name),
                    "partitions": [
                        {
                            response_index: getattr(each, partition_name),
                            "error_code": code,
                            **_NO_OFFSETS,
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in getattr(body, topics_name)
            ]
        }

    return make


def _produce(body: Any, code: ErrorCode) -> Values | None:
    if body.acks == 0:
        return None
    return {
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [
                    {"index": each.partition, "error_code": code, **_NO_OFFSETS}
                    for each in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


def _fetch(body: Any, code: ErrorCode) -> Values:
    return {
        "error_code": code,
        "responses": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "error_code": code,
                        "high_watermark": -1,
                        "aborted_transactions": [],
                    }
                    for each in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


def _metadata(body: Any, code: ErrorCode) -> Values:
    return {
        "brokers": [],
        "topics": [
            {
                "error_code": code,
                "name": topic.name
                or "",  # requested by id, which not all versions can name in a response
                "topic_id": getattr(topic, "topic_id", None),
                "is_internal": False,
                "partitions": [],
            }
            for topic in body.topics or ()
        ],
    }


def _offset_fetch(body: Any, code: ErrorCode) -> Values:
    groups = getattr(body, "groups", None)
    if groups is None:
        return {"topics": [], "error_code": code}
    return {
        "groups": [
            {"group_id": group.group_id, "topics": [], "error_code": code} for group in groups
        ]
    }


def _find_coordinator(body: Any, code: ErrorCode) -> Values:
    failed = {"error_code": code, "error_message": code.message}
    nobody = {"node_id": -1, "host": "", "port": -1, **failed}
    keys: Iterable[str] = getattr(body, "coordinator_keys", ())
    return {**nobody, "coordinators": [{**nobody, "key": key} for key in keys]}


def _describe_groups(body: Any, code: ErrorCode) -> Values:
    return {
        "groups": [
            {
                "error_code": code,
                "group_id": group,
                "group_state": "",
                "protocol_type": "",
                "protocol_data": "",
                "members": [],
            }
            for group in body.groups
        ]
    }


def _delete_groups(body: Any, code: ErrorCode) -> Values:
    return {"results": [{"group_id": group, "error_code": code} for group in body.groups_names]}


def _create_topics(body: Any, code: ErrorCode) -> Values:
    return {
        "topics": [
            {
                "name": topic.name,
                "error_code": code,
                "error_message": code.message,
                "num_partitions": -1,
                "replication_factor": -1,
                "configs": [],
            }
            for topic in body.topics
        ]
    }


def _delete_topics(body: Any, code: ErrorCode) -> Values:
    by_name: Iterable[str] = getattr(body, "topic_names", ())
    wanted: list[Values] = [{"name": name} for name in by_name]
    # From version 6 on topics can be named by their ids.
    wanted += [
        {"name": each.name, "topic_id": each.topic_id} for each in getattr(body, "topics", ())
    ]
    return {"responses": [{**topic, "error_code": code, "error_message": None} for topic in wanted]}


def _create_partitions(body: Any, code: ErrorCode) -> Values:
    failed = {"error_code": code, "error_message": code.message}
    return {"results": [{"name": topic.name, **failed} for topic in body.topics]}


def _elect_leaders(body: Any, code: ErrorCode) -> Values:
    return {
        "error_code": code,
        "replica_election_results": [
            {
                "topic": topic.topic,
                "partition_result": [
                    {"partition_id": each, "error_code": code, "error_message": None}
                    for each in topic.partitions
                ],
            }
            for topic in body.topic_partitions or ()
        ],
    }


def _add_partitions_to_txn(body: Any, code: ErrorCode) -> Values:
    def results(topics: Any) -> list[Values]:
        return [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": each, "partition_error_code": code}
                    for each in topic.partitions
                ],
            }
            for topic in topics
        ]

    if not hasattr(body, "transactions"):
        return {"results_by_topic_v3_and_below": results(body.v3_and_below_topics)}
    return {"error_code": code, "results_by_transaction": []}


def _leader_and_isr(body: Any, code: ErrorCode) -> Values:
    return {
        "error_code": code,
        "topics": [
            {
                "topic_id": topic.topic_id,
                "partition_errors": [
                    {"partition_index": each.partition_index, "error_code": code}
                    for each in topic.partition_states
                ],
            }
            for topic in body.topic_states
        ],
    }


def _stop_replica(body: Any, code: ErrorCode) -> Values:
    return {
        "error_code": code,
        "partition_errors": [
            {
                "topic_name": topic.topic_name,
                "partition_index": each.partition_index,
                "error_code": code,
            }
            for topic in body.topic_states
            for each in topic.partition_states
        ],
    }


def _write_txn_markers(body: Any, code: ErrorCode) -> Values:
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": each, "error_code": code}
                            for each in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in body.markers
        ]
    }


def _describe_transactions(body: Any, code: ErrorCode) -> Values:
    unknown = {
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time_ms": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }
    return {
        "transaction_states": [
            {"error_code": code, "transactional_id": each, **unknown}
            for each in body.transactional_ids
        ]
    }


def _describe_producers(body: Any, code: ErrorCode) -> Values:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each,
                        "error_code": code,
                        "error_message": code.message,
                        "active_producers": [],
                    }
                    for each in topic.partition_indexes
                ],
            }
            for topic in body.topics
        ]
    }


def _resources(response_name: str) -> Callable[[Any, ErrorCode], Values]:
    def make(body: Any, code: ErrorCode) -> Values:
        return {
            response_name: [
                {
                    "error_code": code,
                    "error_message": code.message,
                    "resource_type": each.resource_type,
                    "resource_name": each.resource_name,
                    "configs": [],
                }
                for each in body.resources
            ]
        }

    return make


def _create_acls(body: Any, code: ErrorCode) -> Values:
    failed = {"error_code": code, "error_message": code.message}
    return {"results": [failed for _ in body.creations]}


def _delete_acls(body: Any, code: ErrorCode) -> Values:
    failed = {"error_code": code, "error_message": code.message, "matching_acls": []}
    return {"filter_results": [failed for _ in body.filters]}


def _describe_user_scram_credentials(body: Any, code: ErrorCode) -> Values:
    failed = {"error_code": code, "error_message": None}
    # Kafka does not repeat the names.
    results: list[Values] = [
        {**failed, "user": "", "credential_infos": []} for _ in body.users or ()
    ]
    return {**failed, "results": results}


def _alter_user_scram_credentials(body: Any, code: ErrorCode) -> Values:
    failed = {"error_code": code, "error_message": None}
    users = dict.fromkeys(each.name for each in (*body.deletions, *body.upsertions))
    return {"results": [{**failed, "user": user} for user in users]}


def _describe_client_quotas(body: Any, code: ErrorCode) -> Values:
    return {"error_code": code, "error_message": None, "entries": None}


def _alter_client_quotas(body: Any, code: ErrorCode) -> Values:
    failed = {"error_code": code, "error_message": code.message}
    return {
        "entries": [
            {
                **failed,
                "entity": [
                    {"entity_type": each.entity_type, "entity_name": each.entity_name}
                    for each in entry.entity
                ],
            }
            for entry in body.entries
        ]
    }


_MAKERS: Final[Mapping[int, Callable[[Any, ErrorCode], Values | None]]] = MappingProxyType(
    {
        ApiKey.PRODUCE: _produce,
        ApiKey.FETCH: _fetch,
        ApiKey.LIST_OFFSETS: _each_partition(
            "topics", "name", "partition_index", "topics", "partition_index"
        ),
        ApiKey.METADATA: _metadata,
        ApiKey.LEADER_AND_ISR: _leader_and_isr,
        ApiKey.STOP_REPLICA: _stop_replica,
        ApiKey.OFFSET_COMMIT: _each_partition(
            "topics", "name", "partition_index", "topics", "partition_index"
        ),
        ApiKey.OFFSET_FETCH: _offset_fetch,
        ApiKey.FIND_COORDINATOR: _find_coordinator,
        ApiKey.DESCRIBE_GROUPS: _describe_groups,
        ApiKey.DELETE_GROUPS: _delete_groups,
        ApiKey.DELETE_RECORDS: _each_partition(
            "topics", "name", "partition_index", "topics", "partition_index"
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: _each_partition(
            "topics", "topic", "partition", "topics", "partition"
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
        ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
        ApiKey.TXN_OFFSET_COMMIT: _each_partition(
            "topics", "name", "partition_index", "topics", "partition_index"
        ),
        ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
        ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
        ApiKey.CREATE_TOPICS: _create_topics,
        ApiKey.DELETE_TOPICS: _delete_topics,
        ApiKey.CREATE_PARTITIONS: _create_partitions,
        ApiKey.ELECT_LEADERS: _elect_leaders,
        ApiKey.DESCRIBE_CONFIGS: _resources("results"),
        ApiKey.ALTER_CONFIGS: _resources("responses"),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _resources("responses"),
        ApiKey.CREATE_ACLS: _create_acls,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: _describe_client_quotas,
        ApiKey.DELETE_ACLS: _delete_acls,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_user_scram_credentials,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_user_scram_credentials,
        ApiKey.ALTER_CLIENT_QUOTAS: _alter_client_quotas,
    }
)
#: APIs whose failure as a whole has no place for single partitions, though their responses have.
_ITEM_MAKERS: Final[Mapping[int, Callable[[Any, ErrorCode], Values | None]]] = MappingProxyType(
    {
        ApiKey.OFFSET_DELETE: _each_partition(
            "topics", "name", "partition_index", "topics", "partition_index"
        ),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: _each_partition(
            "topics", "name", "partition_index", "responses", "partition_index"
        ),
    }
)
#: What else has to stand beside an error at the top.
_TOP_LEVEL: Final[Mapping[int, Values]] = MappingProxyType(
    {
        ApiKey.JOIN_GROUP: {
            "generation_id": -1,
            "protocol_type": None,
            "protocol_name": "",
            "leader": "",
            "member_id": "",
            "members": [],
        },
        ApiKey.SYNC_GROUP: {"assignment": b""},
        ApiKey.SASL_HANDSHAKE: {"mechanisms": []},
        ApiKey.SASL_AUTHENTICATE: {"auth_bytes": b""},
        ApiKey.INIT_PRODUCER_ID: {"producer_id": -1, "producer_epoch": -1},
        ApiKey.ALLOCATE_PRODUCER_IDS: {"producer_id_start": 0, "producer_id_len": 0},
        ApiKey.DESCRIBE_CLUSTER: {"cluster_id": "", "controller_id": -1, "brokers": []},
    }
)
