"""The console's only import of `klamm.history`: sources of the history, and its names.

A source is followed in a thread: spools by looking at their files, a topic by a consumer. Batches
are handed over as they come, duplicates included.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from klamm.errors import KlammError
from klamm.history.arrow import SCHEMA, decode_stream
from klamm.history.broker_story import read_broker_rows, requests_about
from klamm.history.spool import read_file, spool_files
from klamm.history.story import (
    event_sentence,
    split_name,
    story_rows,
    with_requests,
)

__all__ = [
    "SCHEMA",
    "event_sentence",
    "follow_spools",
    "follow_topic",
    "read_broker_rows",
    "story_rows",
    "tell_requests",
]

log = logging.getLogger("klamm.console")

_LOOK_INTERVAL_S: Final = 0.1
_POLL_S: Final = 0.2

#: Takes the batches that are there; the second argument says whether these are all of them.
OnBatches = Callable[[list[pa.RecordBatch], bool], None]


def tell_requests(
    story: list[dict[str, Any]], rows: Sequence[Mapping[str, Any]], name: str
) -> list[dict[str, Any]]:
    """The story of TOPIC-PARTITION with the administrative requests about its topic."""
    return with_requests(story, requests_about(map(dict, rows), split_name(name)[0]))


def follow_spools(spools: Sequence[Path], on_batches: OnBatches, stopping: threading.Event) -> None:
    """Hand over all that the spools hold, and then what is written to them, until stopped."""
    done: dict[Path, int] = {}
    while True:
        batches = []
        for directory in spools:
            for path in spool_files(directory):
                # A file that did not grow has nothing new, and most have not.
                try:
                    size = path.stat().st_size
                except FileNotFoundError:
                    continue  # the retention took it
                at = done.get(path, 0)
                if size <= at:
                    continue
                for read in _read_on(path, at):
                    batches.append(read.batch)
                    done[path] = read.end
        on_batches(batches, True)
        if stopping.wait(_LOOK_INTERVAL_S):
            return


def _read_on(path: Path, at: int) -> Iterator[Any]:
    try:
        yield from read_file(path, at)
    except (KlammError, OSError) as error:
        log.warning("%s cannot be read: %s", path, error)


def follow_topic(
    client: Mapping[str, Any], topic: str, on_batches: OnBatches, stopping: threading.Event
) -> None:
    """The same with a topic; it may be created later."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            **client,
            "group.id": "klamm-console",  # librdkafka wants one; no group is joined
            "client.id": "klamm-console",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    assigned: set[int] = set()
    ends: dict[int, int] = {}
    try:
        while not stopping.is_set():
            if not assigned:
                try:
                    known = consumer.list_topics(topic, timeout=5).topics[topic]
                    found = [] if known.error is not None else list(known.partitions)
                    for partition in found:
                        at = TopicPartition(topic, partition)
                        _, ends[partition] = consumer.get_watermark_offsets(at, timeout=5)
                except KafkaException:
                    found = []
                if not found:
                    on_batches([], True)
                    stopping.wait(1.0)
                    continue
                assigned = set(found)
                consumer.assign([TopicPartition(topic, number, 0) for number in found])
            messages = consumer.consume(500, timeout=_POLL_S)
            batches = []
            for message in messages:
                if message.error() is not None:
                    continue
                partition, offset = message.partition(), message.offset()
                batches += _decode(message.value(), f"{topic}-{partition} at {offset}")
                if offset is not None and offset + 1 >= ends.get(partition or 0, 0):
                    ends.pop(partition or 0, None)
            ends = {number: end for number, end in ends.items() if end > 0}
            on_batches(batches, not ends)
    finally:
        consumer.close()


def _decode(value: bytes | None, source: str) -> list[pa.RecordBatch]:
    try:
        return decode_stream(value, source)
    except KlammError as error:
        log.warning("skipped: %s", error)
        return []
