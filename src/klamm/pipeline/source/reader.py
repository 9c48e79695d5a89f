"""The readers of Spark's batches and streams: they plan the offsets and tasks of each batch."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from klamm.errors import KlammError, UnavailableError
from klamm.names import TopicPartition
from klamm.pipeline.source import reaching
from klamm.pipeline.source.cluster import SourceCluster, Topics, UnknownPartitionError, is_other
from klamm.pipeline.source.kafka_options import tell_path
from klamm.pipeline.source.limits import ending_offsets, starting_offsets
from klamm.pipeline.source.messages import plainly, report_loss
from klamm.pipeline.source.offsets import RESERVED_KEY, Offsets, Position, listed, nested
from klamm.pipeline.source.options import ReadOptions
from klamm.pipeline.source.ranges import OffsetRange, behind, bundle, limit, split
from klamm.pipeline.source.spark_versions import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:  # Spark 4.0 has no filters
    from pyspark.sql.datasource import Filter

    from klamm.pipeline.source.pushdown import Narrowing

_LOG: Final = logging.getLogger(__name__)


class TopicReader(DataSourceReader):
    """Reads the offsets between a start and an end once, as a batch."""

    #: What Spark's filters leave to read.
    _narrowing: "Narrowing | None" = None

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @plainly()
    def partitions(self) -> list[InputPartition]:
        """The tasks; offsets are read once, so that all tasks agree on the end."""
        options = self._options
        tell_path(options.kafka)
        cluster = SourceCluster(options)
        topics = cluster.topics(options.selection)
        start = starting_offsets(cluster, topics.partitions, options)
        end = ending_offsets(cluster, topics.partitions, options)
        if self._narrowing is not None:
            start, end = self._narrowing.cut(cluster, start, end)
        earliest = cluster.earliest(end)
        for partition in sorted(end):
            if start[partition] < min(earliest[partition], end[partition]):
                report_loss(
                    f"{partition} begins at {earliest[partition]}, and offset {start[partition]} "
                    "is asked for",
                    fail=options.fail_on_data_loss,
                )
                start[partition] = min(earliest[partition], end[partition])
        return _tasks(topics.ids, start, end, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)


class FilteringTopicReader(TopicReader):
    """A reader that takes Spark's filters; Spark accepts it only if the session allows it."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        from klamm.pipeline.source.pushdown import Narrowing

        self._narrowing = Narrowing()
        return self._narrowing.push(filters)


class RefusedStreamReader(DataSourceStreamReader):
    """Says what is wrong with the options of a stream when Spark first asks for something.

    Spark 4 loses an error that is raised while it makes a stream's reader.
    """

    def __init__(self, error: KlammError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        with plainly():
            raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        self.initialOffset()
        return ReadAllAvailable()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with plainly():
            raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plainly():
            raise self._error


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream; Spark stores its position in the checkpoint."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster: SourceCluster | None = None
        self._has_told = False
        #: Where to stop, for Trigger.AvailableNow.
        self._target: Position | None = None
        #: The end that was planned last, as Spark was told.
        self._planned: dict[str, Any] | None = None
        self._latest: Position | None = None
        self._position: Position | None = None
        self._last_batch_at: float | None = None
        #: Which topics there were at the last look, and when that was.
        self._cached: Topics | None = None
        self._cached_at = 0.0

    @plainly()
    def initialOffset(self) -> dict[str, Any]:
        """The start of a new query; a restarted query resumes from its checkpoint."""
        topics = self._reached.topics(self._options.selection)
        offsets = starting_offsets(self._reached, topics.partitions, self._options)
        # Spark logs this as the end of the first batch if there is nothing to read yet.
        return Position(offsets, topics.ids, began_at=offsets).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)  # the minimum, which goes with it, is known here
        return ReadMinRows(least) if least is not None else ReadAllAvailable()

    @plainly()
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the present end of the topics."""
        self._target = self._reached.latest_after(self._options.selection, Position({}))

    @plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` if the batch has to wait for more records."""
        position = self._position = Position.from_json(start)
        if self._target is None:
            latest = self._look(position)
        else:
            if not _reaches(self._target, position):
                # The target was read without knowing the position of the stream.
                self._target = self._look(position)
            latest = self._target
        self._latest = latest
        begins = self._begins(position, Topics(frozenset(latest.offsets), latest.topic_ids))
        count = sum(max(latest.offsets[each] - begins[each], 0) for each in latest.offsets)
        # Partitions that are gone, or not the same any more, make a batch too: it reports them.
        is_news = not latest.offsets == begins == position.offsets
        if not is_news or self._is_too_early(count, limit):
            return start
        end = _limited(begins, latest.offsets, limit)
        began_at = position.began_at if position.is_initial else None
        self._last_batch_at = time.monotonic()
        self._position = Position(end, latest.topic_ids, began_at)
        self._planned = self._position.to_json()
        return self._planned

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the topics as last seen, with how far the stream is behind it."""
        if self._latest is None or self._position is None:
            return None
        report: dict[str, Any] = dict(nested(self._latest.offsets))
        lags = behind(self._position.offsets, self._latest.offsets)
        if lags:
            report[RESERVED_KEY] = {
                "minOffsetsBehindLatest": min(lags),
                "maxOffsetsBehindLatest": max(lags),
                "avgOffsetsBehindLatest": sum(lags) / len(lags),
            }
        return report

    @plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; the same two positions mean the same records, always."""
        if not self._has_told:
            tell_path(self._options.kafka)
            self._has_told = True
        if start == end:
            return []
        ends = Position.from_json(end)
        begins = Position.from_json(start)
        if ends.began_at is not None and ends.began_at != begins.offsets:
            # The first batch again after a restart: where it began was not looked up anew.
            begins = Position(ends.began_at, ends.topic_ids)
        self._report_gone(begins, ends)
        starts = self._begins(begins, Topics(frozenset(ends.offsets), ends.topic_ids))
        if end == self._planned:  # and looked at for that a moment ago
            now = Topics(frozenset(ends.offsets), ends.topic_ids)
        else:
            now = self._reached.topics_after(self._options.selection, ends)
        readable = {}
        for partition, offset in ends.offsets.items():
            if is_other(ends.topic_ids, now.ids, partition.topic):
                self._lose(f"{partition.topic} was deleted and created again")
            elif partition not in now.partitions:
                self._lose(f"{partition} is gone")
            elif offset < starts[partition]:
                self._lose(f"{partition}'s offset was changed from {starts[partition]} to {offset}")
            else:
                readable[partition] = offset
        return _tasks(ends.topic_ids, starts, readable, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit offsets for tools that show lag; Spark resumes from its own checkpoint."""
        group = self._options.commit_group
        if group is None:
            return
        try:
            self._reached.commit(group, Position.from_json(end).offsets)
        except UnavailableError as error:
            _LOG.warning("Offsets of group %s were not committed: %s", group, error)

    @property
    def _reached(self) -> SourceCluster:
        # Made on first use: the reader travels to the tasks, and a connection cannot.
        if self._cluster is None:
            self._cluster = SourceCluster(self._options)
        return self._cluster

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None}

    def _look(self, known: Position) -> Position:
        """The ends of the topics; which topics there are may be remembered for a while."""
        ttl_s, now = self._options.topics_ttl_s, time.monotonic()
        cached = self._cached
        if cached is not None and ttl_s is not None and now - self._cached_at < ttl_s:
            try:
                return Position(self._reached.latest(cached.partitions, known.offsets), cached.ids)
            except UnknownPartitionError:
                self._cached = None
        latest = self._reached.latest_after(self._options.selection, known)
        self._cached, self._cached_at = Topics(frozenset(latest.offsets), latest.topic_ids), now
        return latest

    def _begins(self, position: Position, topics: Topics) -> dict[TopicPartition, int]:
        """Where a batch begins in each partition: where the last one ended, or at the beginning.

        New partitions are read from their first record on, and so is a topic that was deleted and
        created again, because an offset of the old one means nothing in the new one.
        """
        known, new = {}, []
        for partition in sorted(topics.partitions):
            offset = position.offsets.get(partition)
            if offset is None or is_other(position.topic_ids, topics.ids, partition.topic):
                new.append(partition)
            else:
                known[partition] = offset
        return known | self._reached.earliest(new)

    def _report_gone(self, begins: Position, ends: Position) -> None:
        if gone := begins.offsets.keys() - ends.offsets.keys():
            self._lose(f"{listed(gone)} are gone")
        recreated = sorted(
            topic for topic in ends.topic_ids if is_other(begins.topic_ids, ends.topic_ids, topic)
        )
        if recreated:
            self._lose(f"{', '.join(recreated)} was deleted and created again")
        added = ends.offsets.keys() - begins.offsets.keys()
        starts = self._reached.earliest(added)
        if late := sorted(each for each in added if starts[each] > 0):
            self._lose(f"Added partitions {listed(late)} start from later offsets than 0")

    def _lose(self, what: str) -> None:
        report_loss(what, fail=self._options.fail_on_data_loss)

    def _is_too_early(self, count: int, limit: ReadLimit) -> bool:
        """Whether fewer offsets than the minimum are available and the maximum delay still runs."""
        least = self._options.min_offsets_per_trigger
        if least is None or count >= least or self._target or isinstance(limit, ReadAllAvailable):
            return False
        if self._last_batch_at is None:
            return False
        return time.monotonic() - self._last_batch_at < self._options.max_trigger_delay_s


class UnlimitedStreamReader(TopicStreamReader):
    """For Spark before 4.2, which does not say where the stream stands when it asks how far to go.

    It is where the last batch ended. After a restart that is not known, and the topics that are
    named have to exist; until the first batch is planned, there is nothing to compare them with.
    """

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        if self._position is None:
            with plainly():
                selection = self._options.selection
                topics = self._reached.topics(selection, unknown_for_s=reaching.GONE_AFTER_S)
                self._position = Position(self._reached.latest(topics.partitions), topics.ids)
                self._latest = self._position
                return self._position.to_json()
        return super().latestOffset(self._position.to_json(), ReadAllAvailable())

    def initialOffset(self) -> dict[str, Any]:
        initial = super().initialOffset()
        self._position = Position.from_json(initial)
        return initial

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = super().partitions(start, end)
        self._position = Position.from_json(end)
        return tasks


class _RefusedUnlimited(RefusedStreamReader):
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return self.initialOffset()


def stream_reader(options: ReadOptions) -> TopicStreamReader:
    """The stream reader with the interface of this version of Spark."""
    return TopicStreamReader(options) if HAS_LIMITS else UnlimitedStreamReader(options)


def refused_stream_reader(error: KlammError) -> RefusedStreamReader:
    """The same for invalid options: a reader that raises `error` when it is used."""
    return RefusedStreamReader(error) if HAS_LIMITS else _RefusedUnlimited(error)


def _limited(begins: Offsets, latest: Offsets, most: ReadLimit) -> dict[TopicPartition, int]:
    if isinstance(most, ReadMaxRows):
        return limit(begins, latest, most.max_rows)
    return dict(latest)


def _reaches(target: Position, position: Position) -> bool:
    """Whether the topics still have all partitions and offsets that the stream has read."""
    return all(
        target.offsets.get(each, -1) >= offset
        and not is_other(position.topic_ids, target.topic_ids, each.topic)
        for each, offset in position.offsets.items()
    )


def _tasks(
    ids: Mapping[str, str], start: Offsets, end: Offsets, options: ReadOptions
) -> list[InputPartition]:
    ranges = split(
        (
            OffsetRange(each.topic, each.partition, start[each], end[each], ids.get(each.topic))
            for each in sorted(end)
        ),
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [
        *bundle(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
    ]


def _read(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    # Drivers start a process for each query, and would spend half of its start on importing this.
    from klamm.pipeline.source.tasks import read_partition

    with plainly():
        yield from read_partition(partition, options)
