"""The handler of Produce (section 6.7)."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from klamm.broker.delayed.operations import DelayedProduce
from klamm.broker.fetch.reader import leader_hint
from klamm.broker.handlers.dispatch import (
    NO_QUOTAS,
    NO_RESPONSE,
    ByteQuotas,
    Call,
    EncodedResponse,
    Handler,
    Result,
    in_slices,
)
from klamm.broker.handlers.fetch import node_endpoints
from klamm.broker.log.errors import AppendError
from klamm.broker.log.producers import VerificationStateEntry
from klamm.broker.log.validation import (
    DECOMPRESSED_ON_LOOP_BYTES,
    TakesLongError,
    check_produced,
    is_compressed,
    is_garbage,
    take_long,
)
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.meters import BrokerMeters
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.replication.partition import Partition
from klamm.broker.transactions.verifier import Errors, TransactionVerifier
from klamm.names import ACKS_ALL, TopicPartition, is_internal
from klamm.net.server import CloseConnection
from klamm.protocol.acls import AclOperation, ResourceType
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode
from klamm.protocol.compression import DECOMPRESSED_BYTES_MAX
from klamm.protocol.fast.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
    encode_produce_response,
)
from klamm.protocol.records import HEADER_SIZE, Batch, decode_batch_header
from klamm.slices import Delayed, Steps, aside, discard, each

#: The response about more partitions than this is encoded beside the event loop.
_MANY: Final = 1000
_NO_ACKS: Final = 0
_LEADER_ACKS: Final = 1
_ADMIN_CLIENT: Final = "__admin_client"
_FIRST_WITH_LEADER_HINTS: Final = 10
#: Where the attributes of a batch end, and the transactional bit in their last byte.
_ATTRIBUTES_END: Final = 23
_TRANSACTIONAL_BIT: Final = 0x10
#: Where the producer id of a batch begins, and what a first byte of a negative one is at least.
_PRODUCER_ID_AT: Final = 43
_NEGATIVE: Final = 0x80
_FIRST_WITH_ABORTABLE: Final = 11
#: The coordinator could not be asked: the producer should try again.
_UNKNOWN_FOR_NOW: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)

#: The records of a request by partition, as they were sent.
Sent: TypeAlias = dict[TopicPartition, memoryview | None]
#: The records of a partition: as sent, already validated, or already refused.
Records: TypeAlias = memoryview | Batch | AppendError | None
Required: TypeAlias = dict[TopicPartition, int]


class VerifiedBatches(NamedTuple):
    """The verifications of batches that begin a transaction, and what came of them."""

    entries: Mapping[TopicPartition, VerificationStateEntry]
    errors: Errors


NOT_VERIFIED: Final = VerifiedBatches({}, {})


class ProduceHandlers:
    """Appends the batches of Produce requests, and responds when enough replicas have them."""

    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        meters: BrokerMeters,
        verifier: TransactionVerifier,
        quotas: ByteQuotas = NO_QUOTAS,
    ) -> None:
        self._quotas = quotas
        self._replicas = replicas
        self._metadata = metadata
        self._meters = meters
        self._verifier = verifier
        self._validating = asyncio.Lock()

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {ApiKey.PRODUCE: self._produce}

    @in_slices
    def _produce(self, call: Call) -> Steps[Result | Awaitable[Result]]:
        # Of several entries for a partition, Kafka takes the last.
        sent: Sent = {}
        for topic in call.body.topics:
            for index, records in topic.partitions:
                sent[TopicPartition(topic.name, index)] = records
                yield None
        has_transactional = False
        for records in sent.values():
            if is_garbage(records):
                return self._refuse_all(call, sent, ErrorCode.CORRUPT_MESSAGE)
            has_transactional = has_transactional or is_transactional(records)
            yield None
        verified = NOT_VERIFIED
        if has_transactional:
            result = self._verify(call, sent)
            if isinstance(result, ErrorCode):
                return self._refuse_all(call, sent, result)
            verified = result if isinstance(result, VerifiedBatches) else (yield result)
        return (yield from self._validate_and_append(call, sent, verified))

    def _verify(
        self, call: Call, sent: Sent
    ) -> VerifiedBatches | ErrorCode | Awaitable[VerifiedBatches]:
        """Ask the coordinator about batches that begin a transaction on their partition (TXN-12).

        Returns an error if the whole request is refused.
        """
        transactional_id = call.body.transactional_id
        if transactional_id is None:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        headers = {
            name: decode_batch_header(records)
            for name, records in sent.items()
            if records is not None and is_transactional(records)
        }
        producers = {(each.producer_id, each.producer_epoch) for each in headers.values()}
        if len(producers) > 1:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        ((producer_id, epoch),) = producers
        knows = self._metadata.snapshot.knows
        begun = {
            name: self._replicas.begin_verification(name, producer_id, epoch, each.base_sequence)
            for name, each in headers.items()
            if knows(name) and _may_write(call, name.topic)
        }
        entries = {name: each for name, each in begun.items() if each is not None}
        if not entries:
            return NOT_VERIFIED
        errors = self._verifier.verify(transactional_id, producer_id, epoch, tuple(entries))
        if isinstance(errors, Mapping):
            return VerifiedBatches(entries, errors)
        return _verified_later(entries, errors)

    def _validate_and_append(
        self, call: Call, sent: Sent, verified: VerifiedBatches
    ) -> Steps[Result | Awaitable[Result]]:
        if take_long(sent.values()):
            return (yield from self._validate_aside(call, sent, verified))
        validated: dict[TopicPartition, Records] = {}
        for name, records in sent.items():
            if records is not None and len(records) >= HEADER_SIZE and is_compressed(records):
                try:
                    validated[name] = self._validate(
                        call, name, records, DECOMPRESSED_ON_LOOP_BYTES
                    )
                except TakesLongError:
                    return (yield from self._validate_aside(call, sent, verified))
        sound = {**sent, **validated} if validated else sent
        return (yield from self._append_all(call, sound, verified))

    def _refuse_all(
        self, call: Call, sent: Iterable[TopicPartition], error: ErrorCode
    ) -> Result | Awaitable[Result]:
        """Refuse the whole request because of something in it (PROD-1, TXN-12)."""
        topics = _by_topic((name, ProducePartitionResponse(name.partition, error)) for name in sent)
        if call.body.acks == _NO_ACKS:
            self._check_unacknowledged(topics)
        return self._respond(call, topics)

    def _validate_aside(
        self, call: Call, sent: Sent, verified: VerifiedBatches
    ) -> Steps[Result | Awaitable[Result]]:
        """Serve other clients while another thread validates."""
        validated = yield self._validate_all(call, sent)
        discard(dismantle, sent)
        return (yield from self._append_all(call, validated, verified))

    async def _validate_all(self, call: Call, sent: Sent) -> dict[TopicPartition, Records]:
        """Validate in another thread; one such request at a time."""

        def validate() -> dict[TopicPartition, Records]:
            return {
                name: None if records is None else self._validate(call, name, records)
                for name, records in sent.items()
            }

        async with self._validating:
            return await aside(validate)

    def _validate(
        self,
        call: Call,
        name: TopicPartition,
        records: memoryview,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> Records:
        if not _may_write(call, name.topic):
            return records  # refused below, without the work
        try:
            check_produced(records, call.header.api_version)
            return self._replicas.validate(name, records, decompressed_bytes_max)
        except AppendError as failure:
            return failure.again()

    def _append_all(
        self, call: Call, sent: Mapping[TopicPartition, Records], verified: VerifiedBatches
    ) -> Steps[Result | Awaitable[Result]]:
        request: ProduceRequest = call.body
        required: Required = {}
        by_topic: dict[str, list[ProducePartitionResponse]] = {}
        for name, records in sent.items():
            entry = self._append_or_refuse(call, name, records, required, verified)
            by_topic.setdefault(name.topic, []).append(entry)
            yield None
        discard(dismantle, sent)
        topics = yield from each(lambda found: ProduceTopicResponse(*found), by_topic.items())
        if request.acks == _NO_ACKS:
            self._check_unacknowledged(topics)
            self._quotas.produce_ms(call)
            return NO_RESPONSE
        if required:
            operation = self._replicas.delay_produce(required, request.timeout_ms)
            respond = partial(self._respond_committed, call, topics, operation)
            # A partition with one replica commits what it appends.
            return respond() if operation.finished is None else Delayed(operation.finished, respond)
        return self._respond(call, topics)

    def _respond_committed(
        self, call: Call, topics: list[ProduceTopicResponse], operation: DelayedProduce
    ) -> Result | Awaitable[Result]:
        return self._respond(call, _with_errors(topics, operation.errors))

    def _append_or_refuse(
        self,
        call: Call,
        name: TopicPartition,
        records: Records,
        required: Required,
        verified: VerifiedBatches,
    ) -> ProducePartitionResponse:
        if not _may_write(call, name.topic):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return ProducePartitionResponse(name.partition, denied)
        try:
            return self._append(call, name, records, required, verified)
        except AppendError as error:
            return self._refused(name, error, call.header.api_version)

    def _append(
        self,
        call: Call,
        name: TopicPartition,
        records: Records,
        required: Required,
        verified: VerifiedBatches,
    ) -> ProducePartitionResponse:
        """Make the checks of PROD-1 and PROD-2 in their order, and append.

        With acks=all, `required` gets the offset that has to be committed before the response.
        """
        acks = call.body.acks
        if not self._metadata.snapshot.knows(name):
            raise AppendError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._meters.topic(name.topic).produce_requests += 1
        sound = self._check_records(name, records, call.header.api_version)
        if acks not in (_NO_ACKS, _LEADER_ACKS, ACKS_ALL):
            raise AppendError(ErrorCode.INVALID_REQUIRED_ACKS)
        if is_internal(name.topic) and call.header.client_id != _ADMIN_CLIENT:
            raise AppendError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name.topic}"
            )
        if code := verified.errors.get(name, ErrorCode.NONE):
            raise _unverified(code, call.header.api_version)
        result = self._replicas.append(
            name, sound, acks_all=acks == ACKS_ALL, verification=verified.entries.get(name)
        )
        if acks == ACKS_ALL:
            required[name] = result.last_offset + 1
        return ProducePartitionResponse(
            name.partition,
            ErrorCode.NONE,
            result.first_offset,
            result.log_append_time,
            result.log_start_offset,
        )

    def _check_records(
        self, name: TopicPartition, records: Records, version: int
    ) -> memoryview | Batch:
        """Return the records if they are one whole batch; raise and count an AppendError if not."""
        try:
            if isinstance(records, AppendError):
                raise records.again()
            if not isinstance(records, Batch):
                check_produced(records, version)
                assert records is not None, "checked just now"
        except AppendError as error:
            size = len(records) if isinstance(records, memoryview) else 0
            self._meters.on_append_error(name.topic, size, error)
            raise
        return records

    def _refused(
        self, name: TopicPartition, error: AppendError, version: int
    ) -> ProducePartitionResponse:
        """The response for a batch that was refused: the one place where errors become codes."""
        hint = None
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= _FIRST_WITH_LEADER_HINTS:
            partition = self._replicas.find(name)
            known = partition if isinstance(partition, Partition) else None
            hint = leader_hint(self._metadata, name, known)
        return ProducePartitionResponse(
            name.partition,
            error.code,
            record_errors=error.record_errors,
            error_message=error.message,
            current_leader=hint,
        )

    @staticmethod
    def _check_unacknowledged(topics: list[ProduceTopicResponse]) -> None:
        """Close the connection of a request with acks=0 that has failed: it gets no response."""
        for topic in topics:
            for entry in topic.partitions:
                if entry.error_code:
                    code = ErrorCode.of(entry.error_code)
                    raise CloseConnection(
                        f"{topic.name}-{entry.partition}: {code.name}, and acks is 0"
                    )

    def _respond(
        self, call: Call, topics: list[ProduceTopicResponse]
    ) -> Result | Awaitable[Result]:
        throttle_ms = self._quotas.produce_ms(call)
        if len(topics) > _MANY or sum(len(topic.partitions) for topic in topics) > _MANY:
            return aside(self._encode_large, call, topics, throttle_ms)
        return self._encode(call, topics, throttle_ms)

    def _encode(
        self, call: Call, topics: list[ProduceTopicResponse], throttle_ms: int
    ) -> EncodedResponse:
        hinted, codes = set(), []
        for topic in topics:
            for entry in topic.partitions:
                codes.append(entry.error_code)
                if entry.current_leader is not None:
                    hinted.add(entry.current_leader.leader_id)
        endpoints = (
            node_endpoints(self._metadata.snapshot, hinted, call.connection.listener)
            if hinted
            else ()
        )
        response = ProduceResponse(topics, throttle_ms, endpoints)
        return EncodedResponse([encode_produce_response(call.header, response)], codes)

    def _encode_large(
        self, call: Call, topics: list[ProduceTopicResponse], throttle_ms: int
    ) -> EncodedResponse:
        encoded = self._encode(call, topics, throttle_ms)
        dismantle(topics)
        return encoded


def _by_topic(
    entries: Iterable[tuple[TopicPartition, ProducePartitionResponse]],
) -> list[ProduceTopicResponse]:
    topics: dict[str, list[ProducePartitionResponse]] = {}
    for name, entry in entries:
        topics.setdefault(name.topic, []).append(entry)
    return [ProduceTopicResponse(topic, partitions) for topic, partitions in topics.items()]


def _may_write(call: Call, topic: str) -> bool:
    access = call.access
    return access is None or access.may(AclOperation.WRITE, ResourceType.TOPIC, topic)


def is_transactional(records: memoryview | None) -> bool:
    """Whether a batch, if it is one, says that it is part of a producer's transaction."""
    return (
        records is not None
        and len(records) >= HEADER_SIZE
        and bool(records[_ATTRIBUTES_END - 1] & _TRANSACTIONAL_BIT)
        and bool(records[_PRODUCER_ID_AT] < _NEGATIVE)
    )


async def _verified_later(
    entries: Mapping[TopicPartition, VerificationStateEntry], errors: Awaitable[Errors]
) -> VerifiedBatches:
    return VerifiedBatches(entries, await errors)


def _unverified(code: ErrorCode, version: int) -> AppendError:
    """The error of a batch that the coordinator refused or could not verify."""
    if code in _UNKNOWN_FOR_NOW:
        return AppendError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. Underlying error: "
            f"{code.name}",
        )
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        return AppendError(
            ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction"
        )
    return AppendError(code)


def _with_errors(
    topics: list[ProduceTopicResponse], errors: Mapping[TopicPartition, ErrorCode]
) -> list[ProduceTopicResponse]:
    """The response with the errors of the delayed produce (PROD-7, PROD-8).

    As in Kafka, offsets stay beside an error: the records are appended and may yet be committed.
    """
    if not any(errors.values()):
        return topics
    return [
        ProduceTopicResponse(
            topic.name,
            [
                entry._replace(error_code=error)
                if (error := errors.get(TopicPartition(topic.name, entry.partition)))
                else entry
                for entry in topic.partitions
            ],
        )
        for topic in topics
    ]
