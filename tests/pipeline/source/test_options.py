"""Options: defaults as Spark's, and a clear word about each that is wrong."""

import pytest

from klamm.errors import ConfigError
from klamm.names import TopicPartition
from klamm.pipeline.source.offsets import EARLIEST, LATEST
from klamm.pipeline.source.options import (
    AtTimestamp,
    Everywhere,
    Offsets,
    Selection,
    Timestamps,
    read_options,
    write_options,
)

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
A0 = TopicPartition("a", 0)

#: Options, None taking one away, and what is said about them.
WRONG_FOR_A_BATCH = [
    ({"subscribe": "a", "assign": '{"a":[0]}'}, "Only one of the following options"),
    ({"subscribe": None}, "One of the following options must be specified"),
    ({"subscribe": " , "}, "No topics to subscribe to .* option 'subscribe' is ','"),
    ({"subscribe": None, "assign": "a"}, "No topicpartitions to assign .* is 'a'"),
    ({"subscribe": None, "assign": '{"a":1}'}, r"assign: Expected e\.g\."),
    ({"subscribe": None, "subscribePattern": " "}, "Pattern to subscribe is empty"),
    ({"subscribe": None, "subscribePattern": "(a"}, "is not a pattern"),
    ({"kafka.bootstrap.servers": None}, "'kafka.bootstrap.servers' must be specified"),
    ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
    ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest"),
    ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
    ({"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets for a-0 can't be earliest"),
    ({"startingOffsets": "first"}, r"startingOffsets: Expected e\.g\. .* got first"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp must be a number"),
    ({"startingOffsetsByTimestampStrategy": "skip"}, "must be 'error' or 'latest'"),
    ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false, not 'no'"),
    ({"minPartitions": "0"}, "minPartitions must be positive"),
    ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
    ({"minPartitions": "many"}, "minPartitions must be positive, not 'many'"),
    ({"startingOffset": "earliest"}, "Unknown option .*; did you mean 'startingOffsets'"),
    ({"bootstrap.servers": "h:1"}, "did you mean 'kafka.bootstrap.servers'"),
    ({"topic": "a"}, "Unknown option 'topic'"),
]
WRONG_FOR_A_STREAM = [
    ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
    ({"endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
    ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
    ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive"),
    ({"minOffsetsPerTrigger": "x"}, "minOffsetsPerTrigger must be positive"),
    (
        {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
        r"minOffsetsPerTrigger \(5\) is higher than the maxOffsetsPerTrigger \(4\)",
    ),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a duration such as 15m"),
]


def batch(**options):
    return read_options(GIVEN | options, streaming=False)


def stream(**options):
    return read_options(GIVEN | options, streaming=True)


def test_the_defaults_are_sparks():
    options = batch()
    assert options.selection == Selection(topics=("orders",))
    assert (options.starting, options.ending) == (Everywhere(EARLIEST), Everywhere(LATEST))
    assert stream().starting == Everywhere(LATEST)
    assert options.fail_on_data_loss
    assert "headers" not in options.columns
    assert not options.is_read_committed
    assert options.no_match == "error"
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert (options.min_offsets_per_trigger, options.max_offsets_per_trigger) == (None, None)
    assert options.max_trigger_delay_s == 900
    assert options.kafka["group.id"].startswith("spark-kafka-source-")


def test_names_are_the_same_in_any_case():
    options = batch(STARTINGOFFSETS="Earliest", FailOnDataLoss="FALSE", minpartitions="3")
    assert (options.fail_on_data_loss, options.min_partitions) == (False, 3)


def test_every_way_to_say_what_is_read():
    bare = {"kafka.bootstrap.servers": "h:1"}
    for given, selection in (
        ({"subscribe": " a , b,a"}, Selection(topics=("a", "b"))),
        ({"subscribePattern": "a.*"}, Selection(pattern="a.*")),
        ({"assign": '{"a":[0]}'}, Selection(partitions=frozenset({A0}))),
    ):
        assert read_options(bare | given, streaming=False).selection == selection


def test_every_way_to_say_where_reading_begins_and_ends():
    text = '{"a":{"0":5}}'
    assert batch(startingOffsets=text).starting == Offsets("startingOffsets", {A0: 5})
    assert batch(endingOffsets=text).ending == Offsets("endingOffsets", {A0: 5})
    by_time = batch(startingOffsetsByTimestamp=text, endingOffsetsByTimestamp=text)
    assert by_time.starting == Timestamps("startingOffsetsByTimestamp", {A0: 5})
    assert by_time.ending == Timestamps("endingOffsetsByTimestamp", {A0: 5})
    at = batch(startingTimestamp="7", endingTimestamp="9")
    assert (at.starting, at.ending) == (AtTimestamp(7), AtTimestamp(9))
    assert stream(startingOffsets="earliest").starting == Everywhere(EARLIEST)


def test_one_time_goes_before_times_and_times_before_offsets():
    text = '{"a":{"0":5}}'
    both = {"startingOffsets": "latest", "startingOffsetsByTimestamp": text}
    assert isinstance(stream(**both).starting, Timestamps)
    assert stream(**both, startingTimestamp="1").starting == AtTimestamp(1)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("2 s", 2), ("500ms", 0.5), ("1h", 3600), ("250", 0.25)]
)
def test_a_delay_has_a_unit(text, seconds):
    assert stream(maxTriggerDelay=text).max_trigger_delay_s == seconds


def test_what_only_streams_have_is_warned_of_or_refused_in_a_batch(caplog):
    for name in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger", "maxTriggerDelay"):
        caplog.clear()
        batch(**{name: "10"})
        assert caplog.messages == [f"{name} option ignored in batch queries"]
        stream(**{name: "10"})
        assert len(caplog.messages) == 1
    with pytest.raises(ConfigError, match="commitOffsets is for streams"):
        batch(commitOffsets="g")
    assert stream(commitOffsets="g").commit_group == "g"


def test_how_long_partitions_are_remembered_is_never_or_positive():
    name = "partition.metadata.cache.ttl.ms"
    assert stream(**{name: "-1"}).topics_ttl_s is None
    assert stream(**{name: "500"}).topics_ttl_s == 0.5
    for wrong in ("0", "-2", "soon"):
        with pytest.raises(ConfigError, match=name):
            stream(**{name: wrong})


@pytest.mark.parametrize(("given", "message"), WRONG_FOR_A_BATCH)
def test_what_is_wrong_with_a_batch_query_is_said(given, message):
    options = {key: value for key, value in (GIVEN | given).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        read_options(options, streaming=False)


@pytest.mark.parametrize(("given", "message"), WRONG_FOR_A_STREAM)
def test_what_is_wrong_with_a_streaming_query_is_said(given, message):
    with pytest.raises(ConfigError, match=message):
        stream(**given)


def test_a_write_has_a_topic_and_kafkas_options():
    options = write_options({"kafka.bootstrap.servers": "h:1", "topic": "orders"})
    assert options.topic == "orders"
    with pytest.raises(ConfigError, match="Unknown option 'topics'; did you mean 'topic'"):
        write_options({"kafka.bootstrap.servers": "h:1", "topics": "orders"})
    with pytest.raises(ConfigError, match="must be specified for configuring Kafka producer"):
        write_options({"topic": "orders"})
