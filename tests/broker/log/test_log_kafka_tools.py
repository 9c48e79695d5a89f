"""What Apache Kafka's own tool says about our directories."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from klamm.broker.log.cleaner import clean, find_dirt
from klamm.broker.log.settings import LogConfig
from klamm.protocol.compression import Codec
from klamm.protocol.records import Record, build_batch
from tests.broker.log.making import NOW, Home, UnsyncedFiles, batch_of

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif("KAFKA_LIBS" not in os.environ, reason="KAFKA_LIBS names no Kafka jars"),
    pytest.mark.skipif(not shutil.which("java"), reason="there is no java"),
]


def dump(files: list[Path], *options: str) -> str:
    done = subprocess.run(
        [
            "java",
            "-Xmx256m",
            "-cp",
            os.environ["KAFKA_LIBS"] + "/*",
            "kafka.tools.DumpLogSegments",
            "--files",
            ",".join(map(str, files)),
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_of(home: Home, *suffixes: str) -> list[Path]:
    return [home.path / name for suffix in suffixes for name in home.names(suffix)]


@pytest.fixture(params=["stopped", "crashed"])
def written(request, home) -> Home:
    """Some segments of batches with all codecs, a producer, gaps and out-of-order timestamps."""
    home.config = LogConfig(segment_bytes=20_000, index_interval_bytes=1000)
    log = home.open()
    for i in range(100):
        codec = list(Codec)[i % 5]
        records = [
            Record(b"key-%d" % n, b"v" * 100, NOW + 37 * i % 500, (("h", b"x"), ("n", None)))
            for n in range(10)
        ]
        producer = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 10 * i}
        log.append_as_leader(
            build_batch(records, codec=codec, **producer).data, leader_epoch=i // 30, now_ms=NOW
        )
    log.append_as_follower(
        b"".join(batch_of(3, offset=1000 + 10 * i, epoch=9) for i in range(50)), now_ms=NOW
    )
    if request.param == "stopped":
        log.close()
    return home


@pytest.mark.rule("LOG-15", "LOG-16", "LOG-17", "LOG-18")
def test_kafka_finds_nothing_wrong_with_our_indexes(written):
    assert len(files_of(written, ".log")) > 2
    output = dump(files_of(written, ".index", ".timeindex"), "--verify-index-only")
    assert "Dumping" in output
    complaints = ("Mismatches", "out-of-order", "Non-consecutive", "not found", "not exist")
    assert not [line for line in output.splitlines() if any(word in line for word in complaints)]
    checked = dump(files_of(written, ".index", ".timeindex"), "--index-sanity-check")
    # After a crash the newest entries are not in the files yet.
    sane = checked.count("passed sanity check") + checked.count(".index is empty.")
    assert sane == len(files_of(written, ".index", ".timeindex"))


@pytest.mark.rule("LOG-2", "LOG-8")
def test_kafka_reads_every_record_of_ours(written):
    output = dump(files_of(written, ".log"), "--deep-iteration")
    assert "isvalid: false" not in output
    records = [line for line in output.splitlines() if line.startswith("| offset:")]
    offsets = [int(re.match(r"\| offset: (\d+)", line)[1]) for line in records]
    expected = list(range(1000)) + [1000 + 10 * i + n for i in range(50) for n in range(3)]
    assert offsets == expected


@pytest.mark.rule("LOG-19")
def test_kafka_reads_our_producer_snapshots(written):
    snapshots = files_of(written, ".snapshot")
    output = dump(snapshots)
    assert output.count("producerId: 7 producerEpoch: 1") == len(snapshots)


@pytest.mark.rule("CMP-3")
def test_kafka_reads_what_compaction_left(home):
    home.config = LogConfig(
        cleanup_policy=frozenset({"compact"}), segment_bytes=3000, index_interval_bytes=200
    )
    log = home.open()
    for i in range(60):
        value = None if i % 7 == 0 else b"%d" % i
        records = [Record(b"key-%d" % (n * i % 11), value, NOW + i) for n in range(5)]
        producer = {"producer_id": i % 3, "producer_epoch": 0, "base_sequence": 5 * (i // 3)}
        batch = build_batch(records, codec=list(Codec)[i % 5], **producer)
        log.append_as_leader(batch.data, leader_epoch=0, now_ms=NOW)
    log.advance_high_watermark(log.end_offset)
    dirty = find_dirt(log, None, NOW)
    assert dirty is not None
    clean(dirty, UnsyncedFiles(), NOW)
    log.close()
    output = dump(files_of(home, ".log"), "--deep-iteration")
    assert "isvalid: false" not in output
    assert "deleteHorizonMs: OptionalLong[" in output
    indexes = dump(files_of(home, ".index", ".timeindex"), "--verify-index-only")
    assert "Mismatches" not in indexes


@pytest.mark.rule("TXN-9")
def test_kafka_reads_our_index_of_aborted_transactions(home):
    producer = {"producer_id": 4, "producer_epoch": 1, "transactional": True}
    log = home.open()
    log.append_as_follower(
        batch_of(3, base_sequence=0, **producer)
        + batch_of(keys=[b"\0\0\0\0"], value=b"\0\0\0\0\0\0", offset=3, control=True, **producer),
        now_ms=NOW,
    )
    log.close()
    output = dump(files_of(home, ".txnindex"))
    assert "producerId: 4 firstOffset: 0 lastOffset: 3 lastStableOffset: 4" in output
