"""The validation of batches before an append, and the changes that the leader makes to them.

Validation reads the header, the checksum and the records of a batch as bytes, and rewrites the
header only. A batch is encoded again only where a rule requires it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from klamm.broker.log.errors import AppendError, Flaw
from klamm.broker.log.files import Buffer
from klamm.broker.log.producers import NO_PRODUCER
from klamm.broker.log.settings import LogConfig
from klamm.errors import RemoteProtocolError
from klamm.protocol.codes import ErrorCode
from klamm.protocol.compression import DECOMPRESSED_BYTES_MAX, Codec, CompressionError
from klamm.protocol.fast.produce import RecordError
from klamm.protocol.records import (
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    Batch,
    BatchHeader,
    Record,
    build_batch,
    decode_batch_header,
    has_valid_crc,
    iterate_batches,
    iterate_records,
    records_data,
    scan_records,
    with_timestamps,
)

NO_TIMESTAMP: Final = -1
_INT64_END: Final = 1 << 63
#: From this version of Produce on a client may know zstd.
_FIRST_PRODUCE_WITH_ZSTD: Final = 7
#: Kafka's message shows no more than these, and the response no more than those.
_ERRORS_SHOWN: Final = 3
_ERRORS_MAX: Final = 10_000
#: Beyond any of these, validating a request takes longer than other clients should have to wait:
#: walking a record takes half a microsecond, and writing it anew ten.
_MANY_RECORDS: Final = 5_000
_MANY_BYTES: Final = 4 << 20
_MANY_BATCHES: Final = 1_000
_MANY_COMPRESSED: Final = 4
#: What a compressed batch may become on the event loop.
DECOMPRESSED_ON_LOOP_BYTES: Final = 1 << 20
_CODEC_AT: Final = 22
_CODEC_BITS: Final = 0x07
#: To be numbered or compressed anew, each record becomes an object.
_REWRITTEN_MAX: Final = 1 << 20
#: The size of the smallest message that Kafka ever had, without what counts its size.
_SIZE_MIN: Final = 14
_MAGIC_AT: Final = 16
_INT32: Final = struct.Struct(">i")

_CODEC_OF: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class AppendOrigin(Enum):
    """The origin of a batch that a leader appends."""

    CLIENT = "client"
    #: A coordinator on this broker: it numbers nothing, and may write control batches.
    COORDINATOR = "coordinator"


class ReplicatedBatch(NamedTuple):
    """A batch among those that came from the leader, and where it begins."""

    position: int
    batch: Batch


def check_produced(records: Buffer | None, produce_version: int) -> None:
    """Raise an AppendError unless a produce request has one readable batch for the partition.

    The records have passed `is_garbage`, by which the whole request is judged.
    """
    if records is None or len(records) < HEADER_SIZE:
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {produce_version} must have at least one record batch "
            "per partition",
        )
    header = decode_batch_header(memoryview(records))
    if header.magic != MAGIC:
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {produce_version} are only allowed to contain record "
            f"batches with magic version {MAGIC}",
            flaw=Flaw.MAGIC,
        )
    if header.size < HEADER_SIZE:
        raise AppendError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record size {header.batch_length} is less than the minimum record overhead "
            f"({HEADER_SIZE - LENGTH_END})",
        )
    if header.size != len(records):
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {produce_version} are only allowed to contain exactly "
            "one record batch per partition",
        )
    if header.codec == Codec.ZSTD and produce_version < _FIRST_PRODUCE_WITH_ZSTD:
        raise AppendError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {produce_version} are not allowed to use ZStandard "
            "compression",
        )


def is_garbage(records: Buffer | None) -> bool:
    """Whether these are not even the first bytes of a batch: they have no size, or no magic.

    Kafka looks at that before anything else, and refuses the whole request because of it.
    """
    if records is None or len(records) < LENGTH_END:
        return False
    (size,) = _INT32.unpack_from(records, LENGTH_END - _INT32.size)
    return bool(size < _SIZE_MIN or (len(records) > _MAGIC_AT and records[_MAGIC_AT] > MAGIC))


class TakesLongError(Exception):
    """A batch decompresses to more than the event loop has time for."""


def take_long(batches: Collection[Buffer | None]) -> bool:
    """Whether the batches of one request are better validated in another thread.

    What compressed batches hold is known only when they are decompressed: a few are tried on the
    event loop, with `DECOMPRESSED_ON_LOOP_BYTES` as their limit.
    """
    if len(batches) > _MANY_BATCHES:
        return True
    records = size = compressed = 0
    for batch in batches:
        if batch is not None and len(batch) >= HEADER_SIZE:
            records += _INT32.unpack_from(batch, HEADER_SIZE - _INT32.size)[0]
            size += len(batch)
            compressed += is_compressed(batch)
    return records > _MANY_RECORDS or size > _MANY_BYTES or compressed > _MANY_COMPRESSED


def is_compressed(batch: Buffer) -> bool:
    """Whether the records of a batch, of which there is at least the header, are compressed."""
    return bool(batch[_CODEC_AT] & _CODEC_BITS)


def validate_batch(
    records: Buffer,
    config: LogConfig,
    now_ms: int,
    origin: AppendOrigin,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Batch:
    """The batch as it is to be stored, apart from offset and epoch; AppendError if it is refused.

    What `records` hold has passed `check_produced`, or was made by this broker. With a lower limit
    than the default, a batch that cannot be decompressed within it raises TakesLongError.
    """
    view = memoryview(records)
    header = decode_batch_header(view)
    batch = Batch(header, view)
    if origin is AppendOrigin.CLIENT and header.base_offset != 0:
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"The baseOffset of the record batch should be 0, but it is {header.base_offset}",
            flaw=Flaw.OFFSET_OR_SEQUENCE,
        )
    _check_size(header, config)
    if not has_valid_crc(batch):
        raise AppendError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record is corrupt (stored crc = {header.crc})",
            flaw=Flaw.CHECKSUM,
        )
    if origin is AppendOrigin.CLIENT:
        _check_client_header(header)
    elif header.is_control:
        return batch
    try:
        return _with_checked_records(batch, config, now_ms, decompressed_bytes_max)
    except CompressionError as error:
        if decompressed_bytes_max < DECOMPRESSED_BYTES_MAX:
            raise TakesLongError from error
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    except RemoteProtocolError as error:
        raise AppendError(ErrorCode.INVALID_RECORD, str(error)) from error


def _check_size(header: BatchHeader, config: LogConfig) -> None:
    if header.size > config.max_message_bytes:
        raise AppendError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size is {header.size} bytes which exceeds the maximum configured "
            f"value of {config.max_message_bytes}.",
        )
    if header.size > config.segment_bytes:
        raise AppendError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Message batch size is {header.size} bytes, which exceeds the maximum configured "
            f"segment size of {config.segment_bytes}.",
        )


def _check_client_header(header: BatchHeader) -> None:
    count = header.record_count
    problem = ""
    if header.last_offset_delta < 0:
        problem = f"Batch has an invalid offset range: [0, {header.last_offset_delta}]"
    elif count <= 0:
        problem = f"Invalid reported count for record batch: {count}"
    elif count != header.last_offset_delta + 1:
        problem = (
            f"Inconsistent batch offset range [0, {header.last_offset_delta}] and count of "
            f"records {count}"
        )
    elif header.is_control:
        problem = "Clients are not allowed to write control records"
    elif header.producer_id != NO_PRODUCER and header.base_sequence < 0:
        problem = (
            f"Invalid sequence number {header.base_sequence} in record batch with producerId "
            f"{header.producer_id}"
        )
    if problem:
        raise AppendError(ErrorCode.INVALID_RECORD, problem, flaw=Flaw.OFFSET_OR_SEQUENCE)


def _with_checked_records(
    batch: Batch, config: LogConfig, now_ms: int, decompressed_bytes_max: int
) -> Batch:
    """Walk the records, refuse them or correct what the header says about them."""
    header = batch.header
    data = records_data(batch, decompressed_bytes_max)
    scan = scan_records(data, header.record_count, find_null_key=config.compacts)
    if header.has_log_append_time:
        oldest = newest = header.max_timestamp
    else:
        oldest = header.base_timestamp + scan.min_timestamp_delta
        newest = header.base_timestamp + scan.max_timestamp_delta
        if not -_INT64_END <= oldest <= newest < _INT64_END:
            raise AppendError(ErrorCode.INVALID_TIMESTAMP, f"No time is {oldest} or {newest}")
    stamps = config.stamps_on_append
    is_suspect = (
        scan.null_key_index >= 0
        or (header.has_log_append_time and (stamps or newest == NO_TIMESTAMP))
        or (
            not stamps
            and (
                now_ms - oldest > config.message_timestamp_before_max_ms
                or newest - now_ms > config.message_timestamp_after_max_ms
            )
        )
    )
    if is_suspect:
        _refuse_bad_records(batch, config, now_ms)
    target = _CODEC_OF.get(config.compression_type, header.codec)
    if not scan.is_dense and (target != Codec.NONE or header.codec != Codec.NONE):
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            "The records inside the compressed record batch do not have incremental offsets",
            flaw=Flaw.OFFSET_OR_SEQUENCE,
        )
    if target != header.codec or not scan.is_dense:
        batch = _encode_again(batch, Codec(target), config)
        _check_size(batch.header, config)
    max_timestamp = now_ms if stamps else newest
    if header.has_log_append_time != stamps or batch.header.max_timestamp != max_timestamp:
        return with_timestamps(batch, log_append_time=stamps, max_timestamp=max_timestamp)
    return batch


def _refuse_bad_records(batch: Batch, config: LogConfig, now_ms: int) -> None:
    """Raise with the list of all records that may not be stored, if there are any."""
    found = (
        (index, *problem)
        for index, record in enumerate(iterate_records(batch))
        if (problem := _problem_of(record, batch.header, config, now_ms))
    )
    bad = list(islice(found, _ERRORS_MAX))
    if not bad:
        return
    errors = tuple(RecordError(index, message) for index, _, message in bad)
    if any(code is ErrorCode.INVALID_TIMESTAMP for _, code, _ in bad):
        raise AppendError(
            ErrorCode.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            errors,
        )
    shown = ", ".join(
        f"RecordError(batchIndex={index}, message='{message}')"
        for index, message in errors[:_ERRORS_SHOWN]
    )
    raise AppendError(
        ErrorCode.INVALID_RECORD,
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]",
        errors,
        flaw=Flaw.NO_KEY,
        flawed_records=len(errors),
    )


def _problem_of(
    record: Record, header: BatchHeader, config: LogConfig, now_ms: int
) -> tuple[ErrorCode, str] | None:
    if config.compacts and record.key is None:
        return ErrorCode.INVALID_RECORD, "Compacted topic cannot accept message without key"
    if not config.stamps_on_append and record.timestamp != NO_TIMESTAMP:
        age_ms = now_ms - record.timestamp
        before_ms = config.message_timestamp_before_max_ms
        after_ms = config.message_timestamp_after_max_ms
        if age_ms > before_ms or -age_ms > after_ms:
            return (
                ErrorCode.INVALID_TIMESTAMP,
                f"Timestamp {record.timestamp} of message with offset {record.offset} is out of "
                f"range. The timestamp should be within [{now_ms - before_ms}, "
                f"{now_ms + after_ms}]",
            )
    elif header.has_log_append_time:
        return (
            ErrorCode.INVALID_TIMESTAMP,
            "Invalid timestamp type in message. Producer should not set timestamp type to "
            "LogAppendTime.",
        )
    return None


def _encode_again(batch: Batch, codec: Codec, config: LogConfig) -> Batch:
    """The same records, compressed with `codec` at the topic's level, numbered without gaps."""
    header = batch.header
    if header.record_count > _REWRITTEN_MAX:
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"A batch of {header.record_count} records is too large to be written anew",
        )
    return build_batch(
        [record._replace(offset=-1) for record in iterate_records(batch)],
        codec=codec,
        level=config.compression_levels.get(codec),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        log_append_time=header.has_log_append_time,
        transactional=header.is_transactional,
    )


def validate_replicated(view: memoryview) -> Iterator[ReplicatedBatch]:
    """The whole batches in `view`, checked as far as a follower has to."""
    position, expected = 0, None
    try:
        for batch in iterate_batches(view, may_end_early=True):
            header = batch.header
            if not has_valid_crc(batch):
                raise AppendError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"the checksum of the leader's batch at offset {header.base_offset} is wrong",
                )
            if header.last_offset_delta < 0 or header.base_offset < (expected or 0):
                raise AppendError(
                    ErrorCode.INVALID_RECORD,
                    f"the leader's batch at offset {header.base_offset} does not follow the one "
                    f"that ends before {expected}",
                )
            expected = header.last_offset + 1
            yield ReplicatedBatch(position, batch)
            position += header.size
    except RemoteProtocolError as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
