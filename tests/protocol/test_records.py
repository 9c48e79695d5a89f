import itertools
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_request, decode_response
from klamm.protocol.codec.headers import decode_request_header
from klamm.protocol.codec.primitives import (
    decode_uvarint,
    decode_varint,
    encode_uvarint,
    encode_varint,
)
from klamm.protocol.compression import Codec, compress
from klamm.protocol.records import (
    ASSIGNED_SIZE,
    HEADER_SIZE,
    MAGIC,
    Batch,
    Record,
    Scan,
    build_batch,
    decode_batch_header,
    encode_assigned,
    encode_batch_header,
    has_valid_crc,
    iterate_batches,
    iterate_records,
    records_data,
    scan_records,
    with_timestamps,
)
from tests.support.recorded_exchanges import EXCHANGES

NOW = 1_700_000_000_000


def recorded_batches() -> list[Batch]:
    """What real producers sent and real brokers answered."""
    data = []
    for exchange in EXCHANGES:
        if exchange.key == ApiKey.PRODUCE:
            topics = decode_request(exchange.request).body.topics
        elif exchange.key == ApiKey.FETCH:
            header, _ = decode_request_header(memoryview(exchange.request))
            topics = decode_response(header, exchange.response).topics
        else:
            continue
        data += [each.records for topic in topics for each in topic.partitions if each.records]
    return list(itertools.chain.from_iterable(map(iterate_batches, data)))


RECORDED = recorded_batches()

records = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=100),
        st.none() | st.binary(max_size=300),
        st.integers(NOW - 100_000_000, NOW + 100_000_000) | st.just(-1),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        st.just(-1),
    ),
    min_size=1,
    max_size=20,
)


def raw(batch: Batch, **changes: Any) -> Batch:
    """A batch whose header was tampered with."""
    header = batch.header._replace(**changes)
    return Batch(header, memoryview(encode_batch_header(header) + batch.data[HEADER_SIZE:]))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_signed_numbers_survive(value):
    encoded = encode_varint(value)
    assert decode_varint(b"x" + encoded, 1) == (value, 1 + len(encoded))


@given(st.integers(0, (1 << 32) - 1))
@example(0x7F)
@example(0x80)
def test_unsigned_numbers_survive(value):
    encoded = encode_uvarint(value)
    assert decode_uvarint(b"x" + encoded, 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize("decode", [decode_uvarint, decode_varint])
@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11])
def test_numbers_without_end_are_refused(decode, data):
    with pytest.raises(RemoteProtocolError):
        decode(data, 0)


def test_numbers_beyond_32_bits_are_no_lengths():
    with pytest.raises(RemoteProtocolError, match="exceeds 32 bits"):
        decode_uvarint(b"\xff\xff\xff\xff\x7f", 0)


@pytest.mark.rule("LOG-1")
def test_recorded_batches_are_whole():
    assert len(RECORDED) > 10
    for batch in RECORDED:
        header = batch.header
        assert (header.magic, header.size) == (MAGIC, len(batch.data))
        assert has_valid_crc(batch)
        assert encode_batch_header(header) == batch.data[:HEADER_SIZE]
        scan = scan_records(records_data(batch), header.record_count)
        assert scan.is_dense
        assert header.base_timestamp + scan.max_timestamp_delta == header.max_timestamp
        offsets = [record.offset for record in iterate_records(batch)]
        assert offsets == [*range(header.base_offset, header.last_offset + 1)]


@pytest.mark.parametrize("codec", Codec)
@given(given_records=records, base_offset=st.integers(0, 1 << 40))
@settings(max_examples=25, deadline=None)
def test_what_is_built_is_what_is_read(codec, given_records, base_offset):
    batch = build_batch(given_records, base_offset=base_offset, codec=codec, leader_epoch=4)
    assert has_valid_crc(batch)
    assert batch.header.codec == codec
    assert batch.header.leader_epoch == 4
    assert list(iterate_records(batch)) == [
        record._replace(offset=base_offset + index) for index, record in enumerate(given_records)
    ]
    assert [each.header for each in iterate_batches(batch.data)] == [batch.header]


@given(given_records=records)
@settings(max_examples=25, deadline=None)
def test_another_implementation_reads_what_is_built(given_records):
    batch = build_batch(given_records, base_offset=7, codec=Codec.GZIP)
    theirs = DefaultRecordBatch(bytes(batch.data))
    assert theirs.validate_crc()
    assert [(each.offset, each.timestamp, each.key, each.value) for each in theirs] == [
        (7 + index, each.timestamp, each.key, each.value)
        for index, each in enumerate(given_records)
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_another_implementation_builds_is_read(codec):
    builder = DefaultRecordBatchBuilder(2, codec, True, 12, 3, 40, 1 << 20)
    for index in range(100):
        builder.append(index, NOW + index, b"key", b"value" * 50, [("h", b"x")])
    (batch,) = iterate_batches(bytes(builder.build()))
    assert has_valid_crc(batch)
    assert batch.header.is_transactional
    assert (batch.header.producer_id, batch.header.producer_epoch) == (12, 3)
    assert batch.header.base_sequence == 40
    read = list(iterate_records(batch))
    assert read[99] == Record(b"key", b"value" * 50, NOW + 99, [("h", b"x")], 99)
    assert scan_records(records_data(batch), 100).max_timestamp_delta == 99


@given(given_records=records)
@settings(max_examples=50, deadline=None)
@pytest.mark.rule("LOG-6")
def test_scanning_finds_what_reading_finds(given_records):
    batch = build_batch(given_records)
    scan = scan_records(records_data(batch), len(given_records), find_null_key=True)
    base = batch.header.base_timestamp
    timestamps = [each.timestamp for each in given_records]
    without_key = [index for index, each in enumerate(given_records) if each.key is None]
    assert base + scan.max_timestamp_delta == max(timestamps) == batch.header.max_timestamp
    assert base + scan.min_timestamp_delta == min(timestamps)
    assert scan.null_key_index == (without_key[0] if without_key else -1)
    assert scan.is_dense


def scanned_one_by_one(batch: Batch) -> Scan:
    """What `scan_records` has to find, from records that are read one after the other."""
    found = list(iterate_records(batch))
    deltas = [each.timestamp - batch.header.base_timestamp for each in found]
    without_key = (index for index, each in enumerate(found) if each.key is None)
    is_dense = [each.offset - batch.header.base_offset for each in found] == [*range(len(found))]
    return Scan(min(deltas), max(deltas), is_dense, next(without_key, -1))


#: Some records of one shape: how many, the sizes of key and value, and their timestamps in turn.
one_shape = st.tuples(
    st.integers(1, 200),
    st.none() | st.integers(0, 70),
    st.none() | st.integers(0, 70),
    st.lists(st.sampled_from([-9000, -1, 0, 1, 63, 64, 70, 9000]), min_size=1, max_size=2),
)


@given(data=st.data(), shapes=st.lists(one_shape, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
@pytest.mark.rule("LOG-6")
def test_records_of_one_shape_are_scanned_as_if_one_by_one(data, shapes):
    given_records = [
        Record(
            None if key is None else b"k" * key,
            None if value is None else b"v" * value,
            NOW + times[number % len(times)],
        )
        for count, key, value, times in shapes
        for number in range(count)
    ]
    batch = build_batch(given_records)
    count, body = len(given_records), bytearray(batch.data[HEADER_SIZE:])
    assert scan_records(body, count, find_null_key=True) == scanned_one_by_one(batch)
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        changed = scan_records(body, count, find_null_key=True)
    except RemoteProtocolError:
        changed = None
    tampered = Batch(batch.header, memoryview(bytes(batch.data[:HEADER_SIZE]) + body))
    try:
        expected = scanned_one_by_one(tampered)
    except RemoteProtocolError:
        expected = None
    assert changed == expected


@pytest.mark.rule("LOG-9")
def test_one_wrong_offset_among_records_of_one_shape_is_noticed():
    batch = build_batch([Record(b"key", b"value", NOW)] * 300)
    body = bytearray(batch.data[HEADER_SIZE:])
    assert scan_records(body, 300).is_dense
    at = body.rindex(b"key") - 3  # the first byte of the last record's offset delta
    assert body[at : at + 2] == encode_varint(299)
    body[at] ^= 2
    assert not scan_records(body, 300).is_dense


@pytest.mark.rule("LOG-9")
def test_gaps_between_offsets_are_noticed():
    thinned = [Record(b"a", b"", NOW, offset=10), Record(b"b", b"", NOW, offset=13)]
    batch = build_batch(thinned, base_offset=9, last_offset=20)
    assert not scan_records(records_data(batch), 2).is_dense
    assert [record.offset for record in iterate_records(batch)] == [10, 13]
    assert (batch.header.base_offset, batch.header.last_offset) == (9, 20)


@given(data=st.data(), given_records=records)
@settings(max_examples=100, deadline=None)
@pytest.mark.rule("LOG-6")
def test_bytes_that_are_not_these_records_are_refused_or_harmless(data, given_records):
    body = bytes(records_data(build_batch(given_records)))
    count = len(given_records)
    cut = data.draw(st.integers(0, len(body) - 1))
    for forged, wanted in [
        (body[:cut], count),
        (body + b"\0", count),
        (body, count + 1),
        (body, max(count - 1, 0)),
    ]:
        with pytest.raises(RemoteProtocolError):
            scan_records(forged, wanted)


@given(junk=st.binary(max_size=200), count=st.integers(-5, (1 << 31) - 1))
@settings(max_examples=200, deadline=None)
def test_junk_is_scanned_and_read_without_surprises(junk, count):
    good = build_batch([Record(b"k", b"v", NOW)])
    header = good.header._replace(record_count=count)
    batch = Batch(header, memoryview(encode_batch_header(header) + junk))
    for walk in (lambda: scan_records(junk, count), lambda: list(iterate_records(batch))):
        try:
            walk()
        except RemoteProtocolError:
            continue
        assert count <= len(junk)


@pytest.mark.rule("LOG-5")
def test_a_changed_byte_breaks_the_crc_unless_the_leader_may_change_it():
    batch = build_batch([Record(b"k", b"v", NOW)])
    for at in range(len(batch.data)):
        changed = bytearray(batch.data)
        changed[at] ^= 0x55
        header = decode_batch_header(bytes(changed))
        intact = has_valid_crc(Batch(header, memoryview(bytes(changed))))
        assert intact == (at < 17)


@pytest.mark.rule("LOG-8")
def test_a_batch_gets_its_place_in_the_log_without_a_new_crc():
    sent = build_batch([Record(b"k", b"v", NOW)] * 3)
    assigned = encode_assigned(sent.header, base_offset=1000, leader_epoch=7)
    assert len(assigned) == ASSIGNED_SIZE
    (stored,) = iterate_batches(assigned + sent.data[ASSIGNED_SIZE:])
    assert has_valid_crc(stored)
    assert (stored.header.base_offset, stored.header.last_offset) == (1000, 1002)
    assert stored.header.leader_epoch == 7


@pytest.mark.rule("LOG-8")
def test_other_timestamps_make_another_crc_and_leave_the_records():
    sent = build_batch([Record(b"k", b"v", NOW)], codec=Codec.ZSTD, producer_id=5)
    stored = with_timestamps(sent, log_append_time=True, max_timestamp=NOW + 5)
    assert has_valid_crc(stored)
    assert stored.header.has_log_append_time
    assert stored.header.producer_id == 5
    assert stored.data[HEADER_SIZE:] == sent.data[HEADER_SIZE:]
    assert [record.timestamp for record in iterate_records(stored)] == [NOW + 5]
    again = with_timestamps(stored, log_append_time=False, max_timestamp=NOW)
    assert again == sent


def test_markers_and_horizons_are_told_apart():
    marker = build_batch([Record(b"\0\0\0\1", b"", NOW)], control=True, transactional=True)
    assert marker.header.is_control
    assert marker.header.is_transactional
    assert not marker.header.has_delete_horizon
    assert raw(marker, attributes=0x40).header.has_delete_horizon


def test_batches_follow_each_other_and_the_last_may_be_cut():
    one, two = build_batch([Record(b"1", None, 0)]), build_batch([Record(b"2", None, 0)])
    both = bytes(one.data) + bytes(two.data)
    assert [batch.data for batch in iterate_batches(both)] == [one.data, two.data]
    for end in range(len(one.data), len(both)):
        assert list(iterate_batches(both[:end], may_end_early=True)) == [one]
        if end > len(one.data):
            with pytest.raises(RemoteProtocolError, match="cut short"):
                list(iterate_batches(both[:end]))


@pytest.mark.parametrize("changes", [{"batch_length": 48}, {"batch_length": -1}, {"magic": 1}])
@pytest.mark.rule("LOG-1")
def test_what_is_no_batch_of_magic_two_is_refused(changes):
    batch = raw(build_batch([Record(b"1", None, 0)]), **changes)
    with pytest.raises(RemoteProtocolError, match="no batch of magic 2"):
        list(iterate_batches(batch.data, may_end_early=True))


def test_a_batch_without_records_is_not_built():
    with pytest.raises(LocalProtocolError):
        build_batch([])


def test_records_that_lie_about_their_insides_are_refused():
    body = b"\0\0\0" + encode_varint(50) + b"key"
    lying = encode_varint(len(body)) + body
    header = build_batch([Record(b"k", b"v", NOW)]).header
    batch = Batch(header, memoryview(encode_batch_header(header) + compress(Codec.NONE, lying)))
    with pytest.raises(RemoteProtocolError, match="cut short"):
        list(iterate_records(batch))
