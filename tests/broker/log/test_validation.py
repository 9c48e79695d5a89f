import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.log.errors import AppendError
from klamm.broker.log.settings import LogConfig
from klamm.broker.log.validation import (
    DECOMPRESSED_ON_LOOP_BYTES,
    AppendOrigin,
    TakesLongError,
    check_produced,
    take_long,
    validate_batch,
)
from klamm.protocol.codes import ErrorCode
from klamm.protocol.compression import Codec, compress
from klamm.protocol.records import (
    HEADER_SIZE,
    Batch,
    Record,
    build_batch,
    decode_batch_header,
    has_valid_crc,
    iterate_records,
    records_data,
)
from tests.broker.log.making import NOW, batch_of

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
STAMPED = LogConfig(message_timestamp_type="LogAppendTime")


def validated(batch: bytes, config=LogConfig(), origin=AppendOrigin.CLIENT) -> Batch:  # noqa: B008
    return validate_batch(batch, config, NOW, origin)


def refusal(batch: bytes, config=LogConfig()) -> AppendError:  # noqa: B008
    with pytest.raises(AppendError) as caught:
        validated(batch, config)
    return caught.value


def changed(batch: bytes, at: int, form: str, value: int) -> bytes:
    """The batch with another header field and a checksum that is right again."""
    content = bytearray(batch)
    struct.pack_into(form, content, at, value)
    struct.pack_into(">I", content, 17, crc32c(bytes(content[21:])))
    return bytes(content)


# -- before the partition is looked at


@pytest.mark.rule("LOG-1", "LOG-3")
@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch_of() + batch_of(), ErrorCode.INVALID_RECORD),
        (batch_of()[:-1], ErrorCode.INVALID_RECORD),
        (changed(batch_of(), 16, ">b", 1), ErrorCode.INVALID_RECORD),
        (changed(batch_of(), 8, ">i", 20), ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["null", "empty", "two batches", "cut short", "magic 1", "no room for a header"],
)
def test_exactly_one_batch_of_magic_2_is_produced(records, code):
    with pytest.raises(AppendError) as caught:
        check_produced(records, 9)
    assert caught.value.code is code


@pytest.mark.rule("LOG-5")
def test_fewer_bytes_than_a_header_are_an_invalid_record():
    for size in range(61):
        with pytest.raises(AppendError) as caught:
            check_produced(batch_of()[:size], 9)
        assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.rule("LOG-3")
def test_zstd_needs_a_client_that_may_know_it():
    batch = batch_of(codec=Codec.ZSTD)
    check_produced(batch, 7)
    with pytest.raises(AppendError) as caught:
        check_produced(batch, 6)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# -- the header


@pytest.mark.rule("LOG-4")
@pytest.mark.parametrize(
    "batch",
    [
        changed(batch_of(), 0, ">q", 1),
        changed(batch_of(3), 23, ">i", -1),
        changed(batch_of(3), 23, ">i", 1),
        changed(batch_of(3), 57, ">i", 0),
        changed(batch_of(3), 57, ">i", 4),
        batch_of(control=True),
        batch_of(producer_id=5, producer_epoch=0, base_sequence=-1),
    ],
    ids=["base offset", "last delta", "delta", "no count", "count", "control", "no sequence"],
)
def test_a_header_that_contradicts_itself_is_refused(batch):
    assert refusal(batch).code is ErrorCode.INVALID_RECORD


@pytest.mark.rule("LOG-5")
def test_a_batch_has_a_size_limit():
    batch = batch_of(10)
    assert validated(batch, LogConfig(max_message_bytes=len(batch)))
    assert refusal(batch, LogConfig(max_message_bytes=len(batch) - 1)).code is (
        ErrorCode.MESSAGE_TOO_LARGE
    )
    assert refusal(batch, LogConfig(segment_bytes=len(batch) - 1)).code is (
        ErrorCode.RECORD_LIST_TOO_LARGE
    )


@pytest.mark.rule("LOG-5")
@given(st.data())
def test_any_flipped_bit_under_the_checksum_is_corruption(data):
    batch = bytearray(batch_of(3))
    at = data.draw(st.integers(21, len(batch) - 1))
    batch[at] ^= 1 << data.draw(st.integers(0, 7))
    assert refusal(bytes(batch)).code is ErrorCode.CORRUPT_MESSAGE


# -- the records


@pytest.mark.rule("LOG-3")
@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_an_unknown_error(codec):
    assert refusal(changed(batch_of(), 21, ">h", codec)).code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.rule("LOG-3")
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_data_that_does_not_decompress_is_an_unknown_error(codec):
    assert refusal(changed(batch_of(), 21, ">h", codec)).code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.rule("LOG-6")
def test_the_records_fill_the_batch_exactly():
    batch = batch_of(3)
    longer = changed(batch + b"\0", 8, ">i", len(batch) - 12 + 1)
    assert refusal(longer).code is ErrorCode.INVALID_RECORD
    more = changed(changed(batch, 57, ">i", 4), 23, ">i", 3)
    assert refusal(more).code is ErrorCode.INVALID_RECORD
    fewer = changed(changed(batch, 57, ">i", 2), 23, ">i", 1)
    assert refusal(fewer).code is ErrorCode.INVALID_RECORD


@pytest.mark.rule("LOG-6", "LOG-7", "CMP-2")
def test_a_compacted_topic_wants_keys():
    batch = batch_of(keys=[b"a", None, b"b", None])
    assert validated(batch)
    error = refusal(batch, COMPACTED)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1, 3]
    assert "2 record errors" in error.message


@pytest.mark.rule("LOG-6")
@pytest.mark.parametrize(
    ("at", "coded"),
    [(4, 0x40), (8, 0x02), (14, 0x02), (14, 0x01), (14, 0x7F)],
    ids=["key", "value", "headers", "negative headers", "many headers"],
)
def test_a_record_that_cannot_be_read_is_refused(at: int, coded: int):
    # The chain of lengths is right, and so is the checksum; what is between them is not.
    assert (
        refusal(changed(batch_of(), HEADER_SIZE + at, ">b", coded)).code is ErrorCode.INVALID_RECORD
    )


@pytest.mark.rule("LOG-6")
def test_a_timestamp_is_a_number_of_64_bits():
    late = changed(batch_of(), 27, ">q", (1 << 63) - 1)
    late = changed(late, HEADER_SIZE + 2, ">b", 2)
    assert refusal(late).code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.rule("LOG-7")
def test_no_more_than_ten_thousand_records_are_named():
    error = refusal(batch_of(keys=[None] * 10_001), COMPACTED)
    assert len(error.record_errors) == 10_000


@pytest.mark.rule("LOG-6")
def test_a_million_records_in_a_few_bytes_are_not_numbered_anew():
    count = (1 << 20) + 1
    # All claim to be the first of their batch, which is what makes them so small.
    body = compress(Codec.ZSTD, batch_of(value=b"")[HEADER_SIZE:] * count)
    header = batch_of(codec=Codec.ZSTD)[:HEADER_SIZE]
    bomb = changed(header + body, 8, ">i", HEADER_SIZE - 12 + len(body))
    bomb = changed(changed(bomb, 57, ">i", count), 23, ">i", count - 1)
    assert len(bomb) < 10_000
    assert take_long([bomb])
    assert refusal(bomb).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        pytest.param([batch_of(100)] * 10, False, id="usual"),
        pytest.param([batch_of(100)] * 60, True, id="many records together"),
        pytest.param([batch_of(value=b"")] * 1001, True, id="many batches"),
        pytest.param([batch_of(5, value=bytes(1 << 20))], True, id="many bytes"),
        pytest.param([batch_of(5, codec=Codec.LZ4)] * 4, False, id="a few compressed"),
        pytest.param([batch_of(5, codec=Codec.LZ4)] * 5, True, id="many compressed"),
        pytest.param([None, b"", b"short"], False, id="no batches at all"),
    ],
)
def test_a_request_is_judged_by_all_of_its_batches(batches, expected):
    assert take_long(batches) is expected


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_decompresses_to_too_much_for_the_event_loop_says_so(codec):
    large = batch_of(value=bytes(2 << 20), codec=codec)
    config = LogConfig(max_message_bytes=10 << 20)
    with pytest.raises(TakesLongError):
        validate_batch(large, config, NOW, AppendOrigin.CLIENT, DECOMPRESSED_ON_LOOP_BYTES)
    assert validate_batch(large, config, NOW, AppendOrigin.CLIENT)


@pytest.mark.rule("LOG-6")
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_records_that_are_not_numbered_in_turn_are_refused(codec):
    body = compress(codec, batch_of(value=b"")[HEADER_SIZE:] * 2)
    header = batch_of(codec=codec)[:HEADER_SIZE]
    twins = changed(header + body, 8, ">i", HEADER_SIZE - 12 + len(body))
    twins = changed(changed(twins, 57, ">i", 2), 23, ">i", 1)
    assert refusal(twins).code is ErrorCode.INVALID_RECORD


@pytest.mark.rule("LOG-3")
@pytest.mark.parametrize("field", ["key", "value", "headers"])
@pytest.mark.parametrize("count", [1, 9, 1000])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_batch_whose_last_record_contradicts_its_own_lengths_is_refused(field, count, codec):
    good = bytes(records_data(build_batch([Record(b"k", b"v", 0)] * count)))
    # The last record ends with: key length, key, value length, value, number of headers.
    bad = bytearray(good)
    bad[{"key": -5, "value": -3, "headers": -1}[field]] += 2
    body = compress(codec, bytes(bad))
    header = batch_of(count, codec=codec)[:HEADER_SIZE]
    batch = changed(header + body, 8, ">i", HEADER_SIZE - 12 + len(body))
    assert refusal(batch).code is ErrorCode.INVALID_RECORD


@pytest.mark.rule("LOG-6", "LOG-7")
def test_a_timestamp_out_of_bounds_is_refused():
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    for timestamp in (NOW - 1000, NOW, NOW + 500, -1):
        assert validated(batch_of(timestamp=timestamp), config)
    for timestamp in (NOW - 1001, NOW + 501):
        error = refusal(batch_of(2, timestamp=timestamp), config)
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in error.record_errors] == [0, 1]


@pytest.mark.rule("LOG-7")
def test_a_bad_timestamp_outweighs_a_missing_key():
    config = LogConfig(cleanup_policy=frozenset({"compact"}), message_timestamp_before_max_ms=1000)
    records = [Record(None, b"", NOW), Record(b"k", b"", NOW - 2000)]
    error = refusal(bytes(build_batch(records).data), config)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [0, 1]


@pytest.mark.rule("LOG-6")
def test_a_producer_may_not_claim_the_brokers_time():
    batch = batch_of(log_append_time=True)
    assert refusal(batch, STAMPED).code is ErrorCode.INVALID_TIMESTAMP
    without = batch_of(log_append_time=True, timestamp=-1)
    assert refusal(without).code is ErrorCode.INVALID_TIMESTAMP
    corrected = validated(batch)
    assert not corrected.header.has_log_append_time
    assert corrected.header.max_timestamp == NOW


# -- what is rewritten


@pytest.mark.rule("LOG-8")
@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_is_right_keeps_every_byte(codec):
    batch = batch_of(5, codec=codec)
    assert bytes(validated(batch).data) == batch


@pytest.mark.rule("LOG-8")
@pytest.mark.parametrize("codec", list(Codec))
def test_a_wrong_maximum_is_corrected_and_the_records_stay(codec):
    batch = changed(batch_of(5, codec=codec), 35, ">q", NOW + 99)
    stored = validated(batch)
    assert stored.header.max_timestamp == NOW
    assert has_valid_crc(stored)
    assert stored.data[61:] == batch[61:]
    assert decode_batch_header(stored.data) == stored.header


@pytest.mark.rule("LOG-8")
def test_the_brokers_time_goes_into_the_header_only():
    batch = batch_of(5, timestamp=NOW - 7, codec=Codec.LZ4)
    stored = validated(batch, STAMPED)
    assert stored.header.has_log_append_time
    assert stored.header.max_timestamp == NOW
    assert has_valid_crc(stored)
    assert stored.data[61:] == batch[61:]
    assert [record.timestamp for record in iterate_records(stored)] == [NOW] * 5


@pytest.mark.parametrize(
    ("codec", "least", "most"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 19)]
)
def test_a_batch_is_compressed_at_the_level_that_the_topic_wants(codec, least, most):
    text = b"".join(b"%d: the offset is %d\n" % (i, i * i % 977) for i in range(2000))
    batch = batch_of(5, value=text)
    sizes = []
    for level in (least, most):
        settings = {"compression_type": codec, f"compression_{codec}_level": level}
        stored = validated(batch, LogConfig(**settings))
        assert [record.value for record in iterate_records(stored)] == [text] * 5
        sizes.append(stored.header.size)
    assert sizes[1] < sizes[0]


@pytest.mark.rule("LOG-9")
@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize(
    ("target", "codec"),
    [("uncompressed", Codec.NONE), ("gzip", Codec.GZIP), ("zstd", Codec.ZSTD)],
)
def test_a_batch_is_compressed_as_the_topic_wants(source, target, codec):
    batch = batch_of(
        5, codec=source, producer_id=3, producer_epoch=2, base_sequence=9, transactional=True
    )
    stored = validated(batch, LogConfig(compression_type=target))
    assert stored.header.codec == codec
    assert has_valid_crc(stored)
    before = decode_batch_header(batch)
    kept = ("producer_id", "producer_epoch", "base_sequence", "is_transactional", "record_count")
    assert all(getattr(stored.header, name) == getattr(before, name) for name in kept)
    assert list(iterate_records(stored)) == list(iterate_records(Batch(before, memoryview(batch))))
    if source == codec:
        assert bytes(stored.data) == batch


@pytest.mark.rule("LOG-9")
def test_offsets_inside_of_a_batch_are_made_dense():
    records = [Record(b"k", b"v", NOW, (), offset) for offset in (0, 2, 7)]
    batch = bytes(build_batch(records, last_offset=2).data)
    stored = validated(batch)
    assert [record.offset for record in iterate_records(stored)] == [0, 1, 2]
    assert stored.header.last_offset_delta == 2


@pytest.mark.rule("LOG-9", "LOG-5")
def test_a_batch_that_grows_by_decompression_is_measured_again():
    batch = batch_of(1, value=b"x" * 5000, codec=Codec.GZIP)
    config = LogConfig(compression_type="uncompressed", max_message_bytes=1000)
    assert refusal(batch, config).code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_coordinator_may_write_control_batches():
    assert validated(batch_of(control=True), origin=AppendOrigin.COORDINATOR)
