import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.log.checkpoints import (
    DirectoryLock,
    MetaProperties,
    OffsetCheckpoint,
    claim_directory,
    decode_topic_id,
    encode_topic_id,
    put_clean_shutdown_mark,
    read_topic_id,
    take_clean_shutdown_mark,
    write_topic_id,
)
from klamm.broker.log.files import REAL_FILES
from klamm.errors import ConfigError
from klamm.names import TopicPartition

IDENTITY = MetaProperties(3, "kbpFQGZDQKWgxhX9TIRZ6g")


@pytest.mark.rule("LOG-22")
def test_offsets_are_written_in_kafkas_format(tmp_path):
    path = tmp_path / "replication-offset-checkpoint"
    checkpoint = OffsetCheckpoint(path, REAL_FILES)
    offsets = {TopicPartition("a.b-c", 0): 17, TopicPartition("t", 12): 0}
    checkpoint.write(offsets)
    assert path.read_text() == "0\n2\na.b-c 0 17\nt 12 0\n"
    assert checkpoint.read() == offsets
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.rule("LOG-22")
@pytest.mark.parametrize(
    "content", [b"", b"0\n1\n", b"0\n1\na 0\n", b"7\n0\n", b"0\nx\n", b"\xff\xfe"]
)
def test_a_damaged_checkpoint_says_nothing(tmp_path, content):
    path = tmp_path / "c"
    path.write_bytes(content)
    assert OffsetCheckpoint(path, REAL_FILES).read() == {}
    assert OffsetCheckpoint(tmp_path / "none", REAL_FILES).read() == {}


@pytest.mark.rule("LIFE-3")
def test_a_new_directory_is_claimed_and_then_recognized(tmp_path):
    claim_directory(tmp_path, IDENTITY, REAL_FILES)
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert set(lines) == {"version=0", "broker.id=3", f"cluster.id={IDENTITY.cluster_id}"}
    claim_directory(tmp_path, IDENTITY, REAL_FILES)


@pytest.mark.rule("LIFE-3")
def test_what_kafka_wrote_is_recognized(tmp_path):
    (tmp_path / "meta.properties").write_text(
        "#\n#Sun Nov 16 04:10:00 UTC 2025\nbroker.id=3\n"
        f"cluster.id={IDENTITY.cluster_id}\nversion=0\n"
    )
    claim_directory(tmp_path, IDENTITY, REAL_FILES)


@pytest.mark.rule("LIFE-3")
@pytest.mark.parametrize("line", ["broker.id=4", "cluster.id=other", "version=1"])
def test_the_directory_of_someone_else_is_refused(tmp_path, line):
    (tmp_path / "meta.properties").write_text(line + "\n")
    with pytest.raises(ConfigError, match=line.split("=")[0]):
        claim_directory(tmp_path, IDENTITY, REAL_FILES)


@pytest.mark.rule("LIFE-3")
def test_a_directory_that_another_process_holds_is_refused(tmp_path):
    lock = DirectoryLock(tmp_path)
    attempt = (
        "import pathlib; from klamm.broker.log.checkpoints import DirectoryLock;"
        f"DirectoryLock(pathlib.Path({str(tmp_path)!r})).release()"
    )
    held = subprocess.run([sys.executable, "-c", attempt], capture_output=True, check=False)
    assert b"in use by another process" in held.stderr
    lock.release()
    assert subprocess.run([sys.executable, "-c", attempt], check=False).returncode == 0


@pytest.mark.rule("LOG-23")
def test_the_mark_of_a_clean_stop_counts_once(tmp_path):
    assert not take_clean_shutdown_mark(tmp_path, REAL_FILES)
    put_clean_shutdown_mark(tmp_path, REAL_FILES)
    content = (tmp_path / ".kafka_cleanshutdown").read_text()
    assert content == '{"version":0,"brokerEpoch":-1}'
    assert take_clean_shutdown_mark(tmp_path, REAL_FILES)
    assert not take_clean_shutdown_mark(tmp_path, REAL_FILES)


@pytest.mark.rule("LOG-20")
def test_the_topic_id_is_kept_as_text(tmp_path):
    topic_id = uuid.UUID(bytes=bytes(range(16)))
    assert read_topic_id(tmp_path) is None
    write_topic_id(tmp_path, topic_id, REAL_FILES)
    text = (tmp_path / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert read_topic_id(tmp_path) == topic_id


@given(st.uuids())
def test_topic_ids_have_22_characters(topic_id):
    text = encode_topic_id(topic_id)
    assert len(text) == 22
    assert decode_topic_id(text) == topic_id
