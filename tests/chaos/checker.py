"""Whether clients saw what a cluster promises: a function of their recorded histories, no more.

The promises hold for records that were acknowledged by all of at least two in-sync replicas, while
nothing but processes and connections is lost and no unclean election is allowed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.chaos.recording import GroupOffset, History, Kept, Name, Read, Write
from tests.chaos.silence import Excuses, Span, silences, uncovered_s

Where = tuple[str, int, int]
Record = tuple[str, int]
WrittenAs = tuple[int, int] | None
_EXAMPLES_MAX: Final = 5
#: Faults after which a broker may be deposed without hearing of it, while clients reach it.
_PARTED: Final = frozenset({"part brokers", "isolate", "pause"})
#: How long it takes at most until it has heard, once it is reached or goes on again.
_HEARD_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken; `at` is when a client could tell, if that is known."""

    kind: str
    where: str
    text: str
    at: float | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Promises:
    """How long a silence may last: after a fault, lasting ones apart; and out of the blue."""

    writes_resume_s: float = 25.0
    groups_resume_s: float = 45.0
    grace_s: float = 6.0


def check(history: History, promises: Promises) -> list[Violation]:
    """Everything that is wrong, each kind of it as often as it is found."""
    rules: tuple[Callable[[History], Iterable[Violation]], ...] = (
        lost,
        misplaced,
        duplicated,
        reordered,
        epochs_gone_back,
        uncommitted_reads,
        out_of_step,
        skipped,
        offsets_gone_back,
        topics_astray,
        unsettled,
        lambda history: unavailable(history, promises),
        lambda history: stuck_groups(history, promises),
    )
    return [found for rule in rules for found in rule(history)]


# What the cluster holds


def lost(history: History) -> Iterator[Violation]:
    """An acknowledged record is kept."""
    kept = {(row.producer, row.number) for row in history.kept}
    for write in history.writes:
        if write.error is None and (write.producer, write.number) not in kept:
            yield Violation(
                "lost",
                _name(write),
                f"{_record(write)} was acknowledged at offset {write.offset} and is gone",
                write.done_at,
            )


def misplaced(history: History) -> Iterator[Violation]:
    """A record is kept in its partition, and at the offset that was acknowledged."""
    kept: dict[Record, set[Where]] = defaultdict(set)
    for row in history.kept:
        kept[row.producer, row.number].add(_where(row))
    for write in history.writes:
        places = kept.get((write.producer, write.number))
        if write.error is not None or not places:
            continue
        if write.offset is None:
            is_there = any(place[:2] == (write.topic, write.partition) for place in places)
        else:
            is_there = (write.topic, write.partition, write.offset) in places
        if not is_there:
            yield Violation(
                "misplaced",
                _name(write),
                f"{_record(write)} was acknowledged at offset {write.offset} and is at "
                f"{sorted(places)}",
                write.done_at,
            )


def duplicated(history: History) -> Iterator[Violation]:
    """A record of an idempotent producer is kept once under each epoch of its producer.

    It is there under several only if the client itself began a new epoch before it had heard of
    the record: then it sends again, under new numbers, what it has no acknowledgement of, and no
    broker can tell that it is the same (librdkafka does so, see docs/chaos.md). So what was
    acknowledged is the last copy, and whatever the producer wrote to that partition after an
    earlier copy, under the same epoch, was sent again as well.
    """
    idempotent = {write.producer for write in history.writes if write.is_idempotent}
    acknowledged = {(write.producer, write.number): write.offset for write in history.writes}
    copies: dict[Record, list[Kept]] = defaultdict(list)
    for row in sorted(history.kept, key=_where):
        if row.producer in idempotent:
            copies[row.producer, row.number].append(row)
    #: How far a producer got in a partition under an epoch, without what was sent again later.
    settled: dict[tuple[str, WrittenAs], int] = {}
    for *_, last in copies.values():
        settled[_name(last), last.written_as] = max(
            last.offset, settled.get((_name(last), last.written_as), -1)
        )
    for record, rows in copies.items():
        *earlier, last = rows
        was_sent_again = (
            acknowledged.get(record) in (None, last.offset)
            and all(_is_of_later_epoch(after, before) for before, after in pairwise(rows))
            and all(row.offset > settled.get((_name(row), row.written_as), -1) for row in earlier)
        )
        if earlier and not was_sent_again:
            places = ", ".join(f"{_name(row)} at {row.offset}" for row in rows)
            yield Violation("duplicated", _name(last), f"{_record(last)}: {places}")


def _is_of_later_epoch(after: Kept, before: Kept) -> bool:
    """Whether both are in one partition, of one producer, under different epochs of it."""
    if after.written_as is None or before.written_as is None:
        return False
    (later_id, later_epoch), (producer_id, epoch) = after.written_as, before.written_as
    return _name(after) == _name(before) and later_id == producer_id and later_epoch > epoch


def reordered(history: History) -> Iterator[Violation]:
    """The records of a producer are kept in the order of sending; the first copy of each counts."""
    newest: dict[tuple[str, Name], int] = {}
    seen: set[Record] = set()
    for row in sorted(history.kept, key=_where):
        if (row.producer, row.number) in seen:
            continue
        seen.add((row.producer, row.number))
        before = newest.get((row.producer, (row.topic, row.partition)), -1)
        if row.number < before:
            yield Violation(
                "reordered", _name(row), f"{_record(row)} at {row.offset} comes after {before}"
            )
        newest[row.producer, (row.topic, row.partition)] = max(before, row.number)


def epochs_gone_back(history: History) -> Iterator[Violation]:
    """Leader epochs grow with offsets: a later record has the same or a later leader."""
    rows = sorted((row for row in history.kept if row.epoch is not None), key=_where)
    for before, after in pairwise(rows):
        if _name(before) == _name(after) and (before.epoch or 0) > (after.epoch or 0):
            yield Violation(
                "epoch gone back",
                _name(after),
                f"epoch {before.epoch} at {before.offset}, {after.epoch} at {after.offset}",
            )


# What groups saw


def uncommitted_reads(history: History) -> Iterator[Violation]:
    """What was read is kept, at its offset: no client sees what may yet be lost."""
    kept = {_where(row): (row.producer, row.number) for row in history.kept}
    for read in history.reads:
        found = kept.get(_where(read))
        if found != (read.producer, read.number):
            instead = "nothing" if found is None else f"{found[0]} {found[1]}"
            yield Violation(
                "uncommitted read",
                _name(read),
                f"{read.group} read {_record(read)} at {read.offset}, where {instead} is kept",
                read.at,
            )


def out_of_step(history: History) -> Iterator[Violation]:
    """As long as a member owns a partition it gets one record after the other, none twice."""
    last: dict[tuple[str, int, Name], Read] = {}
    for read in history.reads:
        key = read.member, read.assignment, (read.topic, read.partition)
        before = last.get(key)
        if before is not None and read.offset != before.offset + 1:
            yield Violation(
                "out of step",
                _name(read),
                f"{read.member} of {read.group} got {read.offset} after {before.offset}",
                read.at,
            )
        last[key] = read


def skipped(history: History) -> Iterator[Violation]:
    """A group reads everything that is kept up to the last that it read."""
    read: dict[tuple[str, Name], set[int]] = defaultdict(set)
    for row in history.reads:
        read[row.group, (row.topic, row.partition)].add(row.offset)
    kept = _kept_offsets(history)
    for (group, name), offsets in read.items():
        missing = sorted(
            offset
            for offset in kept.get(name, ())
            if offset <= max(offsets) and offset not in offsets
        )
        if missing:
            yield Violation(
                "skipped",
                f"{name[0]}-{name[1]}",
                f"{group} never read {len(missing)} records: {missing[:_EXAMPLES_MAX]}",
            )


def offsets_gone_back(history: History) -> Iterator[Violation]:
    """A committed offset only grows: what is seen or committed is no less than whatever had been
    seen or committed before that was asked.

    What was seen while brokers could not reach each other, or one of them stood still, does not
    count: a coordinator that has not heard of its successor responds from its memory, as Apache
    Kafka's does. It cannot commit.
    """
    parted = [
        Span(fault.began_at, fault.ended_at + _HEARD_S)
        for fault in history.faults
        if fault.kind in _PARTED
    ]
    rows: dict[tuple[str, Name], list[GroupOffset]] = defaultdict(list)
    for row in history.offsets:
        rows[row.group, (row.topic, row.partition)].append(row)
    for (group, name), each in rows.items():
        by_end = sorted(each, key=lambda row: row.done_at)
        highest: GroupOffset | None = None
        done = 0
        for row in sorted(each, key=lambda row: row.began_at):
            while by_end[done].done_at < row.began_at:
                if highest is None or by_end[done].offset > highest.offset:
                    highest = by_end[done]
                done += 1
            asked = Span(row.began_at, row.done_at)
            may_be_old = row.member is None and uncovered_s(asked, parted) < asked.seconds
            if highest is not None and row.offset < highest.offset and not may_be_old:
                did = "committed" if row.member else "there was"
                yield Violation(
                    "offset gone back",
                    f"{name[0]}-{name[1]}",
                    f"{group}: {did} {row.offset}, {row.began_at - highest.done_at:.1f} s after "
                    f"{highest.offset}",
                    row.began_at,
                )


# What administrators were told


def topics_astray(history: History) -> Iterator[Violation]:
    """A topic is, in the end, what the last call that was answered has made of it.

    A call that failed may have been carried out or not, or may have been carried out later.
    """
    answered: dict[str, int] = {}
    failed: dict[str, set[int]] = defaultdict(set)
    for asked in history.asked:
        partitions = 0 if asked.call == "delete" else asked.partitions
        if asked.error is None:
            answered[asked.topic] = partitions
        else:
            failed[asked.topic].add(partitions)
    for ending in history.endings:
        for topic in sorted(answered.keys() | failed.keys()):
            possible = {answered.get(topic, 0)} | failed[topic]
            found = ending.topics.get(topic, 0)
            if found not in possible:
                expected = " or ".join(map(str, sorted(possible)))
                yield Violation(
                    "topic astray", topic, f"has {found} partitions instead of {expected}"
                )


def unsettled(history: History) -> Iterator[Violation]:
    """When the faults stop, the cluster becomes whole within the stated time."""
    for ending in history.endings:
        for wrong in ending.wrong:
            yield Violation("unsettled", f"after {ending.seconds:.0f} s", wrong)


# How long it took


def unavailable(history: History, promises: Promises) -> Iterator[Violation]:
    """A producer gets acknowledgements from each partition, but for what faults excuse."""
    excuses = _excuses(history, promises.writes_resume_s, promises)
    for (producer, name), waits in write_waits(history).items():
        for silence in silences(waits):
            if too_long_s := excuses.too_long_s(silence):
                yield Violation(
                    "unavailable",
                    f"{name[0]}-{name[1]}",
                    f"{producer} heard nothing for {silence}, {too_long_s:.1f} s too long",
                    silence.began_at,
                )


def write_waits(history: History) -> dict[tuple[str, Name], list[Span]]:
    """From sent to acknowledged, by producer and partition."""
    waits: dict[tuple[str, Name], list[Span]] = defaultdict(list)
    for write in history.writes:
        if write.error is None:
            key = write.producer, (write.topic, write.partition)
            waits[key].append(Span(write.sent_at, write.done_at))
    return waits


def stuck_groups(history: History, promises: Promises) -> Iterator[Violation]:
    """Groups read on, but for what faults excuse, and in the end have read everything."""
    excuses = _excuses(history, promises.groups_resume_s, promises)
    acknowledged = {
        (write.producer, write.number): write.done_at
        for write in history.writes
        if write.error is None
    }
    kept = _kept_offsets(history)
    for group in sorted({read.group for read in history.reads}):
        waits: dict[Name, list[Span]] = defaultdict(list)
        highest: dict[Name, int] = {}
        for read in history.reads:
            name = read.topic, read.partition
            if read.group != group or read.offset <= highest.get(name, -1):
                continue
            highest[name] = read.offset
            began_at = min(acknowledged.get((read.producer, read.number), read.at), read.at)
            waits[name].append(Span(began_at, read.at))
        for name, offsets in kept.items():
            unread = max(offsets) - highest.get(name, -1)
            if unread:
                yield Violation(
                    "stuck group", f"{name[0]}-{name[1]}", f"{group} left {unread} records unread"
                )
            for silence in silences(waits[name]):
                if too_long_s := excuses.too_long_s(silence):
                    yield Violation(
                        "stuck group",
                        f"{name[0]}-{name[1]}",
                        f"{group} read nothing for {silence}, {too_long_s:.1f} s too long",
                        silence.began_at,
                    )


def _excuses(history: History, bound_s: float, promises: Promises) -> Excuses:
    return Excuses(history.faults, history.stalls, bound_s, promises.grace_s)


def _kept_offsets(history: History) -> dict[Name, list[int]]:
    kept: dict[Name, list[int]] = defaultdict(list)
    for row in history.kept:
        kept[row.topic, row.partition].append(row.offset)
    return kept


def _where(row: Kept | Read) -> Where:
    return row.topic, row.partition, row.offset


def _name(row: Kept | Read | Write) -> str:
    return f"{row.topic}-{row.partition}"


def _record(row: Kept | Read | Write) -> str:
    return f"{row.producer} {row.number}"
