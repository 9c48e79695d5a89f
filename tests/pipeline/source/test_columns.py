"""Record batches as columns: the same records that reading them one by one gives."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.pipeline.source.columns import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    Decoder,
    FetchedRecords,
    is_old_format,
    offset_after,
)
from klamm.pipeline.source.options import COLUMN_TYPES
from klamm.protocol.compression import Codec
from klamm.protocol.fast.fetch import AbortedTransaction
from klamm.protocol.records import Batch, Record, build_batch, iterate_records, thin_batch

ALL = 1 << 60
COLUMNS = tuple(COLUMN_TYPES)
NOW = 1_735_689_600_000

small = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
records = st.builds(Record, small, small, st.integers(NOW - 10**6, NOW + 10**10), headers)


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Batches one after another, some with gaps between and in them."""
    batches, offset = [], draw(st.integers(0, 10**12))
    for content in draw(st.lists(st.lists(records, min_size=1, max_size=40), max_size=4)):
        placed = []
        for record in content:
            offset += draw(st.sampled_from((0, 0, 0, 1, 200)))
            placed.append(record._replace(offset=offset))
            offset += 1
        codec = draw(st.sampled_from(Codec))
        by_broker = draw(st.booleans())
        base = placed[0].offset
        batches.append(
            build_batch(placed, base_offset=base, codec=codec, log_append_time=by_broker)
        )
    return batches


def wire(batches: list[Batch]) -> memoryview:
    return memoryview(b"".join(batch.data for batch in batches))


def decode(content: memoryview, start: int = 0, until: int = ALL, **options) -> list[dict]:
    decoder = Decoder(COLUMNS, read_committed=options.get("read_committed", False))
    decoded = decoder.decode(
        [FetchedRecords("t", 7, content, start, until, options.get("aborted", ()))]
    )
    return [row for rows in decoded for row in rows.to_pylist()]


def one_by_one(batches: list[Batch], start: int, until: int) -> list[dict]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 7,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": LOG_APPEND_TIME if batch.header.has_log_append_time else CREATE_TIME,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for batch in batches
        for record in iterate_records(batch)
        if start <= record.offset < until
    ]


def in_milliseconds(rows: list[dict]) -> list[dict]:
    return [row | {"timestamp": round(row["timestamp"].timestamp() * 1000)} for row in rows]


@settings(max_examples=40)
@given(logs(), st.data())
def test_columns_hold_what_the_records_hold(batches: list[Batch], data: st.DataObject):
    last = batches[-1].header.last_offset if batches else 0
    first = batches[0].header.base_offset if batches else 0
    start = data.draw(st.integers(first, last + 1))
    until = data.draw(st.integers(start, last + 2))
    rows = in_milliseconds(decode(wire(batches), start, until))
    assert rows == one_by_one(batches, start, until)


@settings(max_examples=40)
@given(logs(), st.integers(0, 200))
def test_a_response_that_is_cut_short_gives_its_whole_batches(batches: list[Batch], missing: int):
    content = wire(batches)
    cut = content[: max(len(content) - missing, 0)]
    whole, size = [], 0
    for batch in batches:
        size += len(batch.data)
        if size <= len(cut):
            whole.append(batch)
    assert in_milliseconds(decode(cut)) == one_by_one(whole, 0, ALL)
    assert offset_after(cut, 3) == max([3, *(batch.header.last_offset + 1 for batch in whole)])


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), logs()), max_size=5), st.data()
)
def test_responses_about_several_partitions_become_rows_together(logs, data):
    columns = data.draw(st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1))
    fetched, expected = [], []
    for topic, partition, batches in logs:
        start = data.draw(st.integers(0, 3)) + (batches[0].header.base_offset if batches else 0)
        fetched.append(FetchedRecords(topic, partition, wire(batches), start, ALL))
        rows = one_by_one(batches, start, ALL)
        expected += [row | {"topic": topic, "partition": partition} for row in rows]
    decoded = Decoder(columns, read_committed=False).decode(fetched)
    found = [row for rows in decoded for row in rows.to_pylist()]
    if "timestamp" in columns:
        found = in_milliseconds(found)
    assert found == [{name: row[name] for name in columns} for row in expected]


@pytest.mark.parametrize("codec", Codec)
def test_rows_keep_their_content_when_the_next_portion_is_decompressed(codec: Codec):
    # The third is larger than the memory that portions share, and one is not compressed.
    sizes = [1_500_000, 3_000_000, 10_000_000, 1_500_000, 3_000_000, 3_000_000, 1_500_000]
    batches, expected = [], []
    for number, size in enumerate(sizes):
        values = [bytes([65 + number]) * (size // 3) for _ in range(3)]
        placed = [Record(b"k", value, NOW, offset=3 * number + n) for n, value in enumerate(values)]
        used = Codec.NONE if number == 4 else codec
        batches.append(build_batch(placed, base_offset=3 * number, codec=used))
        expected += values
    decoder = Decoder(("value",), read_committed=False)
    decoded = list(decoder.decode([FetchedRecords("t", 0, wire(batches), 0, ALL)]))
    assert len(decoded) > 2
    assert [value for rows in decoded for value in rows["value"].to_pylist()] == expected


def test_a_worker_that_decodes_is_spared_the_import_of_pandas():
    decoding = """
import sys
from klamm.pipeline.source.columns import FetchedRecords, Decoder
from klamm.pipeline.source.options import COLUMN_TYPES
from klamm.protocol.records import Record, build_batch

content = memoryview(build_batch([Record(b"k", b"v", 1, [("h", b"1")])] * 3, base_offset=5).data)
decoder = Decoder(tuple(COLUMN_TYPES), read_committed=False)
(rows,) = decoder.decode([FetchedRecords("t", 0, content, 6, 8)])
sys.exit("pandas" in sys.modules or rows.num_rows != 2)
"""
    subprocess.run([sys.executable, "-c", decoding], check=True)


def test_offsets_without_a_record_move_the_position_and_give_no_row():
    batch = build_batch(
        [Record(b"k", b"v", NOW, offset=offset) for offset in (5, 6, 7)], base_offset=5
    )
    kept = next(iter(iterate_records(batch)))
    compacted = [thin_batch(batch.header, [kept]), thin_batch(batch.header, [])]
    for left, rows in zip(compacted, (1, 0), strict=True):
        assert len(decode(wire([left]), 5)) == rows
        assert offset_after(wire([left]), 5) == 8


def marker(offset: int, producer_id: int, *, commits: bool) -> Batch:
    key = bytes([0, 0, 0, commits])
    return build_batch(
        [Record(key, b"\0\0\0\0\0\0", NOW)],
        base_offset=offset,
        producer_id=producer_id,
        transactional=True,
        control=True,
    )


def in_transaction(offset: int, producer_id: int) -> Batch:
    return build_batch(
        [Record(None, b"%d" % producer_id, NOW)],
        base_offset=offset,
        producer_id=producer_id,
        transactional=True,
    )


def test_read_committed_leaves_out_what_was_aborted_and_only_that():
    log = [
        in_transaction(0, 1),
        in_transaction(1, 2),
        build_batch([Record(None, b"plain", NOW)], base_offset=2),
        marker(3, 1, commits=False),
        in_transaction(4, 1),
        marker(5, 1, commits=True),
        marker(6, 2, commits=True),
    ]
    aborted = [AbortedTransaction(1, 0)]
    committed = decode(wire(log), read_committed=True, aborted=aborted)
    assert [row["offset"] for row in committed] == [1, 2, 4]
    assert [row["offset"] for row in decode(wire(log))] == [0, 1, 2, 4]
    assert offset_after(wire(log), 0) == 7


def test_what_arrives_damaged_is_not_read():
    batch = build_batch([Record(b"k", b"value", NOW)])
    damaged = bytearray(batch.data)
    damaged[-2] ^= 1
    with pytest.raises(RemoteProtocolError, match="checksum"):
        decode(memoryview(damaged))


def test_messages_of_an_old_format_are_left_to_others():
    old = bytearray(build_batch([Record(b"k", b"v", NOW)]).data)
    old[16] = 1
    new = build_batch([Record(b"k", b"v", NOW)], base_offset=1).data
    assert is_old_format(memoryview(old))
    assert decode(memoryview(old)) == []
    mixed = memoryview(bytes(new) + bytes(old))
    assert not is_old_format(mixed)
    assert len(decode(mixed)) == 1
    assert offset_after(mixed, 0) == 2


@given(st.binary(min_size=1, max_size=60), st.integers(1, 5))
def test_records_that_do_not_fit_their_batch_are_an_error_of_the_peer(body: bytes, count: int):
    good = build_batch([Record(None, None, NOW)])
    header = good.header._replace(record_count=count, batch_length=49 + len(body))
    content = bytearray(good.data[:61]) + body
    content[8:12] = header.batch_length.to_bytes(4, "big")
    content[57:61] = count.to_bytes(4, "big")
    decoder = Decoder(COLUMNS, read_committed=False, check_crcs=False)
    try:
        rows = [
            row
            for rows in decoder.decode([FetchedRecords("t", 0, memoryview(content), 0, ALL)])
            for row in rows.to_pylist()
        ]
    except (RemoteProtocolError, OverflowError, UnicodeDecodeError):
        return
    assert len(rows) <= count
