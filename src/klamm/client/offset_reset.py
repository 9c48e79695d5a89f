"""Resetting the offsets of a group: the targets that an operator can name, as offsets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from klamm.client import groups, topics
from klamm.client.admin import Admin
from klamm.errors import ConfigError
from klamm.names import EARLIEST, LATEST, TopicPartition

#: From the first, last and committed offset (-1: none) of a partition to the new offset.
OffsetTarget: TypeAlias = Callable[[int, int, int], int]


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A change of one committed offset; -1 is unknown."""

    topic: str
    partition: int
    offset: int
    new_offset: int


def to_earliest(first: int, last: int, committed: int) -> int:
    """Reset to the first offset."""
    return first


def to_latest(first: int, last: int, committed: int) -> int:
    """Reset to the end."""
    return last


def to_current(first: int, last: int, committed: int) -> int:
    """Keep the committed offset; without one, take the end."""
    return committed if committed >= 0 else last


def to_offset(offset: int) -> OffsetTarget:
    """Reset to this offset."""
    return lambda first, last, committed: offset


def shift_by(distance: int) -> OffsetTarget:
    """Reset to the committed offset plus a distance."""
    return lambda first, last, committed: to_current(first, last, committed) + distance


def plan_reset(
    admin: Admin, group: str, chosen: Sequence[str], goal: OffsetTarget | int
) -> list[OffsetReset]:
    """The changes that a reset makes, for topics (`orders`, `orders:0,2`) or all committed ones.

    A number as the goal is a time in milliseconds. Offsets stay between first and last.
    """
    committed = groups.committed_offsets(admin, group)
    names = _chosen(admin, chosen) if chosen else sorted(committed)
    if not names:
        groups.describe(admin, group)  # raises if there is no such group
        raise ConfigError(f"Group {group} has committed nothing; name a topic to reset.")
    first = groups.offsets_at(admin, names, EARLIEST)
    last = groups.offsets_at(admin, names, LATEST)
    if isinstance(goal, int):
        aimed = groups.offsets_at(admin, names, goal)
    else:
        aimed = {n: goal(first[n], last[n], committed.get(n, -1)) for n in names if n in first}
    return [
        OffsetReset(*name, committed.get(name, -1), min(max(aimed[name], first[name]), last[name]))
        for name in names
        if name in aimed and name in last
    ]


def apply_reset(admin: Admin, group: str, resets: Sequence[OffsetReset]) -> None:
    """Commit the new offsets."""
    offsets: Mapping[TopicPartition, int] = {
        TopicPartition(r.topic, r.partition): r.new_offset for r in resets
    }
    groups.commit_offsets(admin, group, offsets)


def _chosen(admin: Admin, chosen: Sequence[str]) -> list[TopicPartition]:
    names: list[TopicPartition] = []
    for text in chosen:
        topic, colon, numbers = text.partition(":")
        (found,) = topics.describe(admin, [topic]).topics
        known = [each.partition for each in found.partitions]
        wanted = known
        if colon:
            try:
                wanted = [int(number) for number in numbers.split(",")]
            except ValueError:
                raise ConfigError(f"{text} is not TOPIC or TOPIC:PARTITION,...") from None
        for number in wanted:
            if number not in known:
                raise ConfigError(f"Topic {topic} has partitions 0 to {known[-1]}, not {number}.")
            names.append(TopicPartition(topic, number))
    return names
