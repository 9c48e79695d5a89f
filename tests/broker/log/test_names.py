import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.log.names import (
    marked,
    parse_mark,
    parse_replica,
    parse_segment_file,
    segment_name,
)
from klamm.names import TopicPartition

topics = st.text("abcXYZ019._-", min_size=1, max_size=249)


@given(topics, st.integers(0, 10**6))
@pytest.mark.rule("LOG-14")
def test_a_directory_names_its_partition(topic, partition):
    name = TopicPartition(topic, partition)
    assert parse_replica(str(name)) == name
    assert parse_mark(str(name)) is None


@given(topics, st.integers(0, 10**6))
@pytest.mark.rule("LOG-14", "STOP-2")
def test_a_removed_replica_is_marked_within_the_limit_of_names(topic, partition):
    name = marked(TopicPartition(topic, partition), "delete")
    assert len(name) <= 255
    assert parse_mark(name) == "delete"
    assert parse_replica(name) is None


@pytest.mark.rule("LOG-14")
def test_other_marks_and_foreign_names_are_told_apart():
    digits = "0" * 32
    assert parse_mark(f"t-1.{digits}-future") == "future"
    assert parse_mark(f"t-1.{digits}-stray") == "stray"
    assert parse_replica("lost+found") is None
    assert parse_replica("t-") is None
    assert parse_replica("-1") is None


@pytest.mark.rule("LOG-15")
def test_a_file_names_its_segment():
    assert segment_name(42) == "00000000000000000042"
    assert parse_segment_file("00000000000000000042.log") == (42, ".log")
    assert parse_segment_file("00000000000000000042.index.swap") == (42, ".index.swap")
    assert parse_segment_file("leader-epoch-checkpoint") is None
    assert parse_segment_file("partition.metadata") is None
