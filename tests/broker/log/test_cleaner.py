from hashlib import blake2b

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.broker.log.cleaner import clean, find_dirt
from klamm.broker.log.settings import LogConfig
from klamm.protocol.compression import Codec
from klamm.protocol.records import Record, build_batch, iterate_batches
from tests.broker.log.making import NOW, Home, UnsyncedFiles, batch_of, roll, stored_records

FILES = UnsyncedFiles()
POLICY = frozenset({"compact"})
HOUR = 3_600_000


def config(**changes) -> LogConfig:
    return LogConfig(
        cleanup_policy=POLICY,
        **{"min_cleanable_dirty_ratio": 0.0, "delete_retention_ms": HOUR} | changes,
    )


def append(log, *pairs, epoch=0, now_ms=NOW, **fields):
    records = [Record(key, value, now_ms) for key, value in pairs]
    batch = build_batch(records, **fields)
    log.append_as_leader(batch.data, leader_epoch=epoch, now_ms=now_ms)
    log.advance_high_watermark(log.end_offset)


def cleaned(log, since=None, *, now_ms=NOW, max_keys=1000) -> int:
    dirty = find_dirt(log, since, now_ms)
    assert dirty is not None
    return clean(dirty, FILES, now_ms, max_keys)


def pairs(log):
    return [(record.offset, record.key, record.value) for record in stored_records(log)]


def stored_batches(log):
    return [
        batch for segment in log.segments for batch in iterate_batches(segment.path.read_bytes())
    ]


@pytest.fixture
def log(home):
    home.config = config()
    return home.open()


def test_a_key_that_equals_the_digest_of_another_is_another_key(log):
    long = b"long" * 100
    digests = [blake2b(long, digest_size=size).digest() for size in range(1, 65)]
    append(log, (long, b"1"), *((digest, b"2") for digest in digests))
    roll(log)
    cleaned(log)
    assert [key for _, key, _ in pairs(log)] == [long, *digests]


@pytest.mark.rule("CMP-3")
def test_the_last_record_of_each_key_stays_where_it_was(log):
    append(log, (b"a", b"1"), (b"b", b"1"))
    append(log, (b"a", b"2"))
    append(log, (b"c", b"1"), (b"a", b"3"))
    roll(log)
    append(log, (b"b", b"active"))
    assert cleaned(log) == 5
    assert pairs(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3"), (5, b"b", b"active")]


@pytest.mark.rule("CMP-3", "CMP-5")
@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_is_thinned_keeps_its_header(log, codec):
    fields = {"producer_id": 4, "producer_epoch": 1, "base_sequence": 0, "codec": codec}
    append(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), epoch=3, **fields)
    before = stored_batches(log)[0].header
    append(log, (b"c", b"2"))
    roll(log)
    cleaned(log)
    after = stored_batches(log)[0].header
    for name in (
        "base_offset",
        "last_offset",
        "leader_epoch",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "codec",
    ):
        assert getattr(after, name) == getattr(before, name)
    assert after.record_count == 2
    assert pairs(log)[:2] == [(1, b"b", b"1"), (2, b"a", b"2")]


@pytest.mark.rule("CMP-3")
def test_a_batch_in_which_nothing_is_superseded_is_copied(log):
    append(log, (b"a", b"1"), (b"b", b"1"))
    before = log.segments[0].path.read_bytes()
    roll(log)
    cleaned(log)
    assert log.segments[0].path.read_bytes() == before


@pytest.mark.rule("CMP-3")
def test_the_last_batch_of_a_producer_stays_even_if_empty(log):
    producer = {"producer_id": 4, "producer_epoch": 1}
    append(log, (b"a", b"1"), base_sequence=0, **producer)
    append(log, (b"a", b"2"), base_sequence=1, **producer)
    append(log, (b"a", b"3"))
    roll(log)
    cleaned(log)
    headers = [batch.header for batch in stored_batches(log)]
    assert [(header.base_offset, header.record_count) for header in headers] == [(1, 0), (2, 1)]
    assert headers[0].base_sequence == 1
    assert cleaned(log, 0) == 3
    assert len(stored_batches(log)) == 2


@pytest.mark.rule("CMP-3")
def test_a_deletion_stays_for_its_time_after_the_first_pass(log):
    append(log, (b"a", b"1"), (b"b", b"1"))
    append(log, (b"a", None), (b"c", b"1"))
    roll(log)
    end = cleaned(log)
    assert pairs(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    marked = stored_batches(log)[1].header
    assert marked.has_delete_horizon
    assert marked.base_timestamp == NOW + HOUR
    assert [record.timestamp for record in stored_records(log)] == [NOW] * 3

    append(log, (b"x", b"1"))
    roll(log)
    end = cleaned(log, end, now_ms=NOW + HOUR - 1)
    assert (2, b"a", None) in pairs(log)
    append(log, (b"y", b"1"))
    roll(log)
    cleaned(log, end, now_ms=NOW + HOUR)
    assert [key for _, key, _ in pairs(log)] == [b"b", b"c", b"x", b"y"]


@pytest.mark.rule("CMP-3", "TXN-9")
def test_aborted_records_supersede_nothing_and_go(log):
    producer = {"producer_id": 4, "producer_epoch": 1, "transactional": True}
    append(log, (b"a", b"committed"))
    log.append_as_follower(
        batch_of(1, keys=[b"a"], value=b"aborted", offset=1, base_sequence=0, **producer)
        + batch_of(keys=[b"\0\0\0\0"], value=b"\0\0\0\0\0\0", offset=2, control=True, **producer),
        now_ms=NOW,
    )
    log.advance_high_watermark(3)
    roll(log)
    cleaned(log)
    assert pairs(log)[0] == (0, b"a", b"committed")
    headers = [batch.header for batch in stored_batches(log)]
    assert [header.is_control for header in headers] == [False, False, True]
    assert headers[1].record_count == 0
    assert log.aborted_transactions(0, 3) == [(4, 1, 2, 3)]


@pytest.mark.rule("CMP-3")
def test_only_what_is_committed_sealed_and_old_enough_is_touched(home):
    home.config = config(min_compaction_lag_ms=1000)
    log = home.open()
    for age_ms in (5000, 3000, 500):
        append(log, (b"a", b"1"), now_ms=NOW - age_ms)
        roll(log)
    assert find_dirt(log, None, NOW).dirty_to == 2
    log.high_watermark = 1
    assert find_dirt(log, None, NOW).dirty_to == 1
    log.high_watermark = 0
    assert find_dirt(log, None, NOW) is None


@pytest.mark.rule("CMP-4")
def test_a_log_is_due_when_enough_of_it_is_dirty(home):
    home.config = config(min_cleanable_dirty_ratio=0.5)
    log = home.open()
    for _ in range(3):
        append(log, (b"a", b"1"))
        roll(log)
    assert find_dirt(log, None, NOW).ratio == 1.0
    assert find_dirt(log, 1, NOW).ratio == pytest.approx(2 / 3)
    assert find_dirt(log, 2, NOW) is None
    assert find_dirt(log, 3, NOW) is None
    assert find_dirt(log, 99, NOW).dirty_from == 0


@pytest.mark.rule("CMP-4")
def test_a_log_is_due_when_its_dirt_is_too_old(home):
    home.config = config(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    log = home.open()
    append(log, (b"a", b"1"))
    roll(log)
    append(log, (b"a", b"1"))
    roll(log)
    assert find_dirt(log, 1, NOW + 1000) is None
    assert find_dirt(log, 1, NOW + 1001) is not None


@pytest.mark.rule("CMP-1")
def test_a_topic_that_is_not_compacted_is_left_alone(home):
    log = home.open()
    append(log, (b"a", b"1"))
    roll(log)
    assert find_dirt(log, None, NOW) is None


@pytest.mark.rule("CMP-4")
def test_small_neighbours_become_one_segment(log):
    for i in range(6):
        append(log, (b"%d" % (i % 2), b"%d" % i))
        roll(log)
    cleaned(log)
    assert [segment.base_offset for segment in log.segments] == [0, 6]
    assert pairs(log) == [(4, b"0", b"4"), (5, b"1", b"5")]


def test_a_pass_with_little_memory_goes_as_far_as_it_can(log):
    for i in range(6):
        append(log, (b"%d" % i, b"1"), (b"again", b"%d" % i))
        roll(log)
    assert cleaned(log, max_keys=5) == 6
    assert [key for _, key, _ in pairs(log)].count(b"again") == 4
    assert cleaned(log, 6, max_keys=1000) == 12
    assert [key for _, key, _ in pairs(log)].count(b"again") == 1


def test_a_pass_that_a_truncation_overtook_changes_nothing(log):
    append(log, (b"a", b"1"))
    append(log, (b"a", b"2"))
    roll(log)
    dirty = find_dirt(log, None, NOW)
    segments = log.segments

    class Overtaking(UnsyncedFiles):
        def pwritev(self, fd, buffers, position):
            if log.segments == segments:
                log.truncate_fully_and_start_at(0, now_ms=NOW)
            return super().pwritev(fd, buffers, position)

    assert clean(dirty, Overtaking(), NOW) == 0
    assert log.end_offset == 0


keys = st.sampled_from([b"a", b"b", b"c", b"a long key that is replaced by its digest"])
steps = st.lists(
    st.one_of(
        st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), min_size=1, max_size=4),
        st.just("roll"),
        st.just("clean"),
        st.just("restart"),
    ),
    max_size=25,
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
@pytest.mark.rule("CMP-1", "CMP-3")
def test_compaction_never_changes_what_the_last_records_say(tmp_path_factory, steps):
    home = Home(tmp_path_factory.mktemp("compaction") / "orders-0", config())
    log = home.open()
    latest: dict[bytes, bytes | None] = {}
    written: list[tuple[int, bytes | None, bytes | None]] = []
    since = None
    for step in steps:
        if step == "roll":
            roll(log)
        elif step == "clean":
            dirty = find_dirt(log, since, NOW)
            since = clean(dirty, FILES, NOW) if dirty else since
        elif step == "restart":
            log = home.open(high_watermark=log.high_watermark)
        else:
            written += [(log.end_offset + i, *pair) for i, pair in enumerate(step)]
            append(log, *step)
            latest.update(step)
        left = pairs(log)
        assert {key: value for _, key, value in left} == latest
        assert [entry for entry in written if entry in left] == left
        assert log.end_offset == len(written)
