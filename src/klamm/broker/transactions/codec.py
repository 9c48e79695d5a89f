"""The messages of transactions, translated to what the coordinator is asked and back.

Functions only, so that all of it can be tested without a broker. Bodies of responses are made for
all versions at once; the encoder takes from them what a version carries.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from klamm.broker.transactions.marker_writer import WritableMarker
from klamm.broker.transactions.messages import (
    AddRequest,
    DescribedTransaction,
    EndRequest,
    InitRequest,
    InitResponse,
    ListRequest,
    ProducerIdAndEpoch,
    Requester,
    TransactionList,
)
from klamm.broker.transactions.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionState,
    by_topic,
)
from klamm.names import TopicPartition, is_internal
from klamm.protocol.codec.encoding import Values
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode

_MILLISECOND: Final = timedelta(milliseconds=1)
_STATES: Final = {state.label: state for state in TransactionState}
#: The first versions that know PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH.
_FIRST_INIT_WITH_FENCED: Final = 4
_FIRST_WITH_FENCED: Final = 2
#: The first version of AddPartitionsToTxn that holds several transactions.
FIRST_BATCH: Final = 4
#: The first version of TxnOffsetCommit that knows TRANSACTION_ABORTABLE.
_FIRST_OFFSETS_WITH_ABORTABLE: Final = 4
#: The first version of TxnOffsetCommit that knows COORDINATOR_LOAD_IN_PROGRESS.
_FIRST_OFFSETS_WITH_LOADING: Final = 2

#: Whether the metadata cache knows a partition.
Exists = Callable[[TopicPartition], bool]


# InitProducerId


def has_both_or_none(body: Any) -> bool:
    """Whether producer id and epoch are both given, or neither."""
    has_id = getattr(body, "producer_id", NO_PRODUCER_ID) != NO_PRODUCER_ID
    return has_id == (getattr(body, "producer_epoch", NO_PRODUCER_EPOCH) != NO_PRODUCER_EPOCH)


def init_request(body: Any, requester: Requester | None = None) -> InitRequest:
    """InitProducerId with a transactional id."""
    producer_id = getattr(body, "producer_id", NO_PRODUCER_ID)
    return InitRequest(
        transactional_id=body.transactional_id,
        timeout_ms=body.transaction_timeout // _MILLISECOND,
        current=None
        if producer_id == NO_PRODUCER_ID
        else ProducerIdAndEpoch(producer_id, body.producer_epoch),
        requester=requester,
    )


def init_body(header: RequestHeader, response: InitResponse) -> Values:
    """The body of an InitProducerId response."""
    error = _fenced(response.error, header.api_version, _FIRST_INIT_WITH_FENCED)
    return {
        "error_code": error,
        "producer_id": response.producer_id,
        "producer_epoch": response.producer_epoch,
    }


# AddPartitionsToTxn, AddOffsetsToTxn, EndTxn


def anything(_: str) -> bool:
    """Allow to write to any topic."""
    return True


class Addition(NamedTuple):
    """One transaction of an AddPartitionsToTxn."""

    request: AddRequest
    verify_only: bool
    #: Why nothing is added, by partition; empty if the coordinator is asked.
    refused: Mapping[TopicPartition, ErrorCode]


def additions(
    header: RequestHeader,
    body: Any,
    exists: Exists,
    requester: Requester | None = None,
    may_write: Callable[[str], bool] = anything,
) -> list[Addition]:
    """The transactions of an AddPartitionsToTxn: one from a producer, many from a broker.

    `may_write` says whether a producer may write to a topic; brokers may.
    """
    if header.api_version < FIRST_BATCH:
        request = AddRequest(
            transactional_id=body.v3_and_below_transactional_id,
            producer_id=body.v3_and_below_producer_id,
            producer_epoch=body.v3_and_below_producer_epoch,
            partitions=_partitions(body.v3_and_below_topics),
            requester=requester,
        )
        refused = _refused(
            request.partitions,
            lambda each: (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED
                if is_internal(each.topic) or not may_write(each.topic)
                else _unknown(each, exists)
            ),
        )
        return [Addition(request, False, refused)]
    found = []
    for each in body.transactions:
        partitions = _partitions(each.topics)
        request = AddRequest(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            partitions=partitions,
            requester=requester,
        )
        refused = _refused(partitions, lambda each: _unknown(each, exists))
        found.append(Addition(request, each.verify_only, refused))
    return found


def additions_body(
    header: RequestHeader, results: Iterable[tuple[str, Mapping[TopicPartition, ErrorCode]]]
) -> Values:
    """The errors of each transaction, by partition."""
    shown = [(id, _addition_results(header, errors)) for id, errors in results]
    if header.api_version < FIRST_BATCH:
        return {"results_by_topic_v3_and_below": shown[0][1]}
    return {
        "error_code": ErrorCode.NONE,
        "results_by_transaction": [
            {"transactional_id": id, "topic_results": topics} for id, topics in shown
        ],
    }


def _addition_results(
    header: RequestHeader, errors: Mapping[TopicPartition, ErrorCode]
) -> list[Values]:
    topics: dict[str, list[Values]] = {}
    for (topic, partition), error in errors.items():
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "partition_error_code": _fenced(error, header.api_version, _FIRST_WITH_FENCED),
            }
        )
    return [
        {"name": topic, "results_by_partition": partitions} for topic, partitions in topics.items()
    ]


def _partitions(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    named = (TopicPartition(topic.name, each) for topic in topics for each in topic.partitions)
    return tuple(dict.fromkeys(named))


def _unknown(partition: TopicPartition, exists: Exists) -> ErrorCode:
    return ErrorCode.NONE if exists(partition) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _refused(
    partitions: Iterable[TopicPartition], check: Callable[[TopicPartition], ErrorCode]
) -> dict[TopicPartition, ErrorCode]:
    """If one partition cannot be added, none is (TXN-5)."""
    errors = {each: check(each) for each in partitions}
    if not any(errors.values()):
        return {}
    return {each: error or ErrorCode.OPERATION_NOT_ATTEMPTED for each, error in errors.items()}


def add_offsets_request(
    body: Any, offsets_partition: TopicPartition, requester: Requester | None = None
) -> AddRequest:
    """The AddOffsetsToTxn as an addition of a partition of `__consumer_offsets`."""
    return AddRequest(
        transactional_id=body.transactional_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        partitions=(offsets_partition,),
        requester=requester,
    )


def end_request(body: Any, requester: Requester | None = None) -> EndRequest:
    """Read an EndTxn."""
    return EndRequest(
        transactional_id=body.transactional_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        is_commit=body.committed,
        requester=requester,
    )


def error_body(header: RequestHeader, error: ErrorCode) -> Values:
    """The response to AddOffsetsToTxn or EndTxn."""
    return {"error_code": _fenced(error, header.api_version, _FIRST_WITH_FENCED)}


def _fenced(error: ErrorCode, version: int, first_with_fenced: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and version < first_with_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# TxnOffsetCommit


def offset_commit_error(header: RequestHeader, error: ErrorCode) -> ErrorCode:
    """The error of a TxnOffsetCommit as its version knows it (TXN-10, TXN-12)."""
    version = header.api_version
    if error is ErrorCode.NETWORK_EXCEPTION:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_OFFSETS_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _FIRST_OFFSETS_WITH_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error


# WriteTxnMarkers


def markers(body: Any) -> list[WritableMarker]:
    """Read the markers of a WriteTxnMarkers."""
    return [
        WritableMarker(
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.transaction_result,
            # As in Kafka, a partition gets one marker, however often it is named.
            tuple(
                dict.fromkeys(
                    TopicPartition(topic.name, index)
                    for topic in each.topics
                    for index in topic.partition_indexes
                )
            ),
        )
        for each in body.markers
    ]


def markers_body(results: Mapping[int, Mapping[TopicPartition, ErrorCode]]) -> Values:
    """The body of a WriteTxnMarkers response."""
    return {
        "markers": [
            {
                "producer_id": producer_id,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {
                                "partition_index": index,
                                "error_code": errors[TopicPartition(topic, index)],
                            }
                            for index in indexes
                        ],
                    }
                    for topic, indexes in by_topic(errors).items()
                ],
            }
            for producer_id, errors in results.items()
        ]
    }


# DescribeTransactions, ListTransactions


def descriptions_body(found: Iterable[DescribedTransaction]) -> Values:
    """The body of a DescribeTransactions response."""
    return {
        "transaction_states": [
            {
                "error_code": each.error,
                "transactional_id": each.transactional_id,
                "transaction_state": each.state,
                "transaction_timeout": each.timeout_ms,
                "transaction_start_time_ms": each.start_ms,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "topics": [
                    {"topic": topic, "partitions": partitions}
                    for topic, partitions in by_topic(each.partitions).items()
                ],
            }
            for each in found
        ]
    }


def list_request(body: Any) -> ListRequest:
    """Read a ListTransactions; names of unknown states are kept apart."""
    states: set[TransactionState] = set()
    unknown: dict[str, None] = {}
    for name in body.state_filters:
        if name in _STATES:
            states.add(_STATES[name])
        else:
            unknown[name] = None
    return ListRequest(
        states=frozenset(states) if states or unknown else None,
        unknown_states=tuple(unknown),
        producer_ids=frozenset(body.producer_id_filters),
        duration_ms=getattr(body, "duration_filter", -1),
    )


def list_body(found: TransactionList) -> Values:
    """The body of a ListTransactions response."""
    return {
        "error_code": found.error,
        "unknown_state_filters": found.unknown_states,
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": each.state,
            }
            for each in found.transactions
        ],
    }
