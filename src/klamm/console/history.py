"""Where the history comes from, and what it is called: the console's only door to that package.

A source is followed in a thread: spools by looking at their files, a topic by a consumer. Batches
are handed over as they come, duplicates included.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa

from klamm.controller import story as sentences
from klamm.controller.history_arrow import SCHEMA, check_schema
from klamm.controller.spool import read_file, spool_files
from klamm.controller.story import DEFAULT_TOPIC, split_name
from klamm.controller.trail import Gap, read_trail
from klamm.errors import ConfigError, KlammError

__all__ = ["DEFAULT_TOPIC", "SCHEMA", "follow_spools", "follow_topic", "tell_event", "tell_story"]

log = logging.getLogger("klamm.console")

_LOOK_INTERVAL_S: Final = 0.1
_POLL_S: Final = 0.2
_TOLD_ONE_BY_ONE: Final = 3

#: Takes the batches that are there; the second argument says whether these are all of them.
OnBatches = Callable[[list[pa.RecordBatch], bool], None]


def check_spools(spools: Sequence[Path]) -> None:
    """Refuse what is no directory, before anybody waits for it."""
    for directory in spools:
        if not directory.is_dir():
            raise ConfigError(
                f"There is no spool {directory}; klamm.history.dir says where each node has its own"
            )


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
    bootstrap_servers: str, topic: str, on_batches: OnBatches, stopping: threading.Event
) -> None:
    """The same with a topic; it may be created later."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
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
        stream = pa.ipc.open_stream(value or b"")
        check_schema(stream.schema, source)
        return list(stream)
    except (pa.ArrowInvalid, KlammError) as error:
        log.warning("%s holds no history: %s", source, error)
        return []


# Sentences


def tell_event(row: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]], total: int) -> str:
    """An event in a sentence: why it came, and what was decided, one by one or counted.

    `decisions` are the first of them, `total` says how many there are.
    """
    clauses = [sentences._reason(dict(row))]
    if total <= _TOLD_ONE_BY_ONE:
        clauses += [
            sentences._decision(dict(each), f"{each['topic']}-{each['partition']}")
            for each in decisions
        ]
    else:
        clauses.append(f"{total:,} decisions about partitions")
    moves = row["moves"]
    if len(moves) <= _TOLD_ONE_BY_ONE:
        clauses += [sentences._move(each, f"{each['topic']}-{each['partition']}") for each in moves]
    else:
        clauses.append(f"{len(moves):,} moves {moves[0]['phase']}")
    for change in row["topic_changes"]:
        if change["change"] in ("created", "expanded"):
            partitions = f"{change['partitions']} partition{'s' * (change['partitions'] != 1)}"
            how = "was created with" if change["change"] == "created" else "got"
            more = " more" if change["change"] == "expanded" else ""
            clauses.append(f"topic {change['topic']} {how} {partitions}{more}")
        else:
            clauses.append(sentences._TOPIC_CHANGES[change["change"]].format(change["topic"]))
    text = "; ".join(clauses)
    if row["outcome"] != "done":
        text += f"; the event was not carried through ({row['outcome']})"
    return text[:1].upper() + text[1:] + "."


def tell_story(batches: Iterable[pa.RecordBatch], name: str) -> list[dict[str, Any]]:
    """What `klamm story NAME --json` prints."""
    topic, partition = split_name(name)
    trail = list(read_trail(batches, topic, partition))
    if not any(isinstance(e, dict) and sentences._clauses(e, name) for e in trail):
        raise KlammError(f"The history says nothing about {name}.")
    rows = [
        {"gap": asdict(entry), "text": text} if isinstance(entry, Gap) else entry | {"text": text}
        for entry, text in sentences._told(trail, name)
    ]
    shown: list[dict[str, Any]] = orjson.loads(orjson.dumps(rows, option=orjson.OPT_UTC_Z))
    return shown
