"""From what the options say about where to begin and to end, to offsets of a cluster."""

from collections.abc import Iterable, Mapping

from klamm.errors import ConfigError, KlammError
from klamm.names import TopicPartition
from klamm.pipeline.source.cluster import SourceCluster
from klamm.pipeline.source.offsets import EARLIEST, LATEST, listed
from klamm.pipeline.source.options import (
    AtTimestamp,
    Everywhere,
    Limit,
    Offsets,
    ReadOptions,
    Timestamps,
)


def starting_offsets(
    cluster: SourceCluster, partitions: frozenset[TopicPartition], options: ReadOptions
) -> dict[TopicPartition, int]:
    """Where reading begins."""
    fallback = None if options.no_match == "error" else LATEST
    return _resolve(cluster, partitions, options.starting, "starting", fallback)


def ending_offsets(
    cluster: SourceCluster, partitions: frozenset[TopicPartition], options: ReadOptions
) -> dict[TopicPartition, int]:
    """Where reading ends; a time after the last record means all there is."""
    return _resolve(cluster, partitions, options.ending, "ending", LATEST)


def _resolve(
    cluster: SourceCluster,
    partitions: frozenset[TopicPartition],
    limit: Limit,
    which: str,
    no_match: int | None,
) -> dict[TopicPartition, int]:
    match limit:
        case Everywhere(offset):
            return _special(cluster, dict.fromkeys(partitions, offset))
        case AtTimestamp(timestamp):
            return _at(cluster, dict.fromkeys(partitions, timestamp), no_match)
        case Timestamps(option, timestamps):
            _require_all(option, "timestamps", timestamps, partitions)
            return _at(cluster, timestamps, no_match)
        case Offsets(option, offsets):
            _require_all(option, "offsets", offsets, partitions)
            return _special(cluster, offsets)
    raise AssertionError(f"{which} {limit}")


def _require_all(
    option: str, what: str, given: Iterable[TopicPartition], assigned: frozenset[TopicPartition]
) -> None:
    specified = frozenset(given)
    if specified != assigned:
        raise ConfigError(
            f"If {option} contains specific {what}, you must specify all TopicPartitions. "
            "Use -1 for latest, -2 for earliest, if you don't care. "
            f"Specified: {listed(specified)} Assigned: {listed(assigned)}"
        )


def _special(
    cluster: SourceCluster, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Offsets with the real ones in the place of -1 and -2."""
    return {
        **offsets,
        **cluster.latest([each for each, offset in offsets.items() if offset == LATEST]),
        **cluster.earliest([each for each, offset in offsets.items() if offset == EARLIEST]),
    }


def _at(
    cluster: SourceCluster, timestamps: Mapping[TopicPartition, int], no_match: int | None
) -> dict[TopicPartition, int]:
    found = cluster.at_timestamps(timestamps)
    missing = [each for each, offset in found.items() if offset is None]
    if missing and no_match is None:
        requests = ", ".join(f"{each} and timestamp {timestamps[each]}" for each in sorted(missing))
        raise NoOffsetError(
            f"No offset matched from request of topic-partition {requests}. Set "
            "startingOffsetsByTimestampStrategy to latest to begin after the last record instead."
        )
    matched = {each: offset for each, offset in found.items() if offset is not None}
    return matched | cluster.latest(missing)


class NoOffsetError(KlammError):
    """There is no record as young as the time that reading was to begin at."""
