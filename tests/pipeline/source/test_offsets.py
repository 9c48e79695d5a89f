"""Offsets as JSON."""

import json

import pytest

from klamm.errors import ConfigError
from klamm.names import TopicPartition
from klamm.pipeline.source.offsets import (
    RESERVED_KEY,
    Position,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def as_spark_reads_it(text: str) -> dict[TopicPartition, int]:
    """What Spark's own connector makes of a checkpoint: a map of maps, flattened."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, numbers in json.loads(text).items()
        for number, offset in numbers.items()
    }


def test_a_position_is_sparks_form_and_sparks_own_connector_reads_it():
    offsets = {B0: 3, A1: 2, A0: 1}
    content = Position(offsets, {"a": "id-a"}, began_at={A0: 0}).to_json()
    text = json.dumps(content)
    assert text.startswith('{"a": {"0": 1, "1": 2}, "b": {"0": 3}')
    assert as_spark_reads_it(text) == offsets
    (kept,) = content.keys() - {"a", "b"}
    assert kept.startswith(RESERVED_KEY)


def test_a_position_of_an_earlier_klamm_is_read():
    content = {"a": {"0": 5}, RESERVED_KEY: {"topicIds": {"a": "x"}, "beganAt": {"a": {"0": 2}}}}
    assert Position.from_json(content) == Position({A0: 5}, {"a": "x"}, began_at={A0: 2})


def test_a_position_is_read_as_it_was_written():
    for position in (
        Position({A0: 1, B0: 0}, {"a": "x", "b": "y"}),
        Position({A0: 5}, {"a": "x"}, began_at={A0: 2}),
        Position({}, {}),
    ):
        assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_sparks_own_form_is_read():
    position = Position.from_json(json.loads('{"a":{"0":23,"1":345},"b":{"0":0}}'))
    assert position == Position({A0: 23, A1: 345, B0: 0})


def test_options_hold_offsets_timestamps_and_partitions():
    assert parse_offsets("startingOffsets", '{"a":{"0":23,"1":-1},"b":{"0":-2}}') == {
        A0: 23,
        A1: -1,
        B0: -2,
    }
    assert parse_timestamps("startingOffsetsByTimestamp", '{"a":{"0":1000}}') == {A0: 1000}
    assert parse_partitions("assign", '{"a":[0,1],"b":[0]}') == {A0, A1, B0}


@pytest.mark.parametrize("text", ["{", "[]", '{"a":0}', '{"a":{"0":"x"}}', '{"a":{"x":1}}', '"a"'])
def test_what_is_no_offsets_is_answered_with_an_example(text):
    with pytest.raises(ConfigError, match=r"Expected e\.g\. \{\"topicA\""):
        parse_offsets("startingOffsets", text)


@pytest.mark.parametrize("text", ['{"a":{"0":-3}}', '{"a":{"0":1.5}}', '{"a":{"0":true}}'])
def test_a_number_that_is_no_offset_is_refused(text):
    with pytest.raises(ConfigError, match="startingOffsets"):
        parse_offsets("startingOffsets", text)


def test_a_negative_time_is_refused():
    with pytest.raises(ConfigError, match="a-0 is negative"):
        parse_timestamps("startingOffsetsByTimestamp", '{"a":{"0":-1}}')


@pytest.mark.parametrize("text", ['{"a":0}', '{"a":["0"]}', "{"])
def test_what_is_no_partitions_is_answered_with_an_example(text):
    with pytest.raises(ConfigError, match=r"assign: Expected e\.g\."):
        parse_partitions("assign", text)
