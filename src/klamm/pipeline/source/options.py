"""The options of format("klamm"), which are those of Spark's `kafka` format, by name and meaning.

Whatever is wrong with them is said in the words of Spark's own messages where there are some. Spark
hands over the names in lower case, so that is how they are looked up.
"""

import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from klamm.errors import ConfigError
from klamm.names import TopicPartition
from klamm.pipeline.source.kafka_options import consumer_config, producer_config
from klamm.pipeline.source.offsets import (
    EARLIEST,
    LATEST,
    listed,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
)
from klamm.pipeline.source.spark_versions import HAS_FILTERS, HAS_LIMITS, require

KAFKA_PREFIX: Final = "kafka."

_LOG: Final = logging.getLogger(__name__)

#: The columns of Spark's `kafka` format; headers are there if an option asks for them.
COLUMN_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}

_STRATEGIES: Final = ("assign", "subscribe", "subscribePattern")
_STARTING: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_READ: Final = (
    *_STRATEGIES,
    *_STARTING,
    *_ENDING,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "partition.metadata.cache.ttl.ms",
    "commitOffsets",
    "pushFilters",
)
#: Options of streams alone.
_TRIGGER: Final = ("minOffsetsPerTrigger", "maxOffsetsPerTrigger", "maxTriggerDelay")
#: Spark itself adds the last ones to a sink's options.
_WRITE: Final = ("topic", "includeHeaders", "checkpointLocation", "queryName", "path")

_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")
_UNITS_S: Final = {
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "millisecond", "milliseconds", ""), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}

#: The start or the end of the ranges to read, as the options give it.
Limit: TypeAlias = "Everywhere | Offsets | Timestamps | AtTimestamp"


@dataclass(frozen=True, slots=True)
class Everywhere:
    """EARLIEST or LATEST, for every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset for each partition that is read."""

    option: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Timestamps:
    """A time for each partition that is read."""

    option: str
    timestamps: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """One time for every partition."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics and partitions are read; one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that must exist; empty for a pattern."""
        return self.topics or tuple(sorted({each.topic for each in self.partitions}))

    def covers(self, topic: str) -> bool:
        """Whether a topic of this name is read, if it exists."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.named_topics


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything about reading that the user can say."""

    selection: Selection
    starting: Limit
    ending: Limit
    no_match: Literal["error", "latest"]
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    #: The columns that are wanted, in their order.
    columns: tuple[str, ...]
    offset_retries: int
    offset_retry_pause_s: float
    poll_timeout_s: float
    #: How long a stream uses a list of partitions; None: it reads the list each time.
    topics_ttl_s: float | None
    #: The group that offsets are committed to, for tools that show lag.
    commit_group: str | None
    #: Whether Spark's filters are taken; Spark wants a setting of the session as well.
    push_filters: bool
    #: For librdkafka.
    kafka: Mapping[str, str] = field(repr=False)

    @property
    def is_read_committed(self) -> bool:
        return self.kafka["isolation.level"] == "read_committed"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Everything about writing that the user can say."""

    topic: str | None
    #: For librdkafka.
    kafka: Mapping[str, str] = field(repr=False)


class _Given:
    """The user's options, taken out one by one under their documented names."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self.options = {key.lower(): value for key, value in options.items()}
        self._known = tuple(known)
        self._refuse_unknown()

    def _refuse_unknown(self) -> None:
        known = {name.lower(): name for name in self._known}
        for key in self.options:
            if key in known or key.startswith(KAFKA_PREFIX):
                continue
            candidates = [*known, f"{KAFKA_PREFIX}bootstrap.servers", f"{KAFKA_PREFIX}group.id"]
            nearest = difflib.get_close_matches(key, candidates, n=1, cutoff=0.5)
            hint = f"; did you mean '{known.get(nearest[0], nearest[0])}'?" if nearest else ""
            raise ConfigError(f"Unknown option '{key}'{hint}")

    def get(self, name: str) -> str | None:
        value = self.options.get(name.lower())
        return None if value is None else value.strip()

    def kafka(self) -> dict[str, str]:
        return {
            key.removeprefix(KAFKA_PREFIX): value
            for key, value in self.options.items()
            if key.startswith(KAFKA_PREFIX)
        }

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        match None if value is None else value.lower():
            case None:
                return default
            case "true":
                return True
            case "false":
                return False
        raise ConfigError(f"{name} must be true or false, not '{value}'")

    def number(self, name: str, *, minimum: int = 1) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?\d+", value) or int(value) < minimum:
            kind = "positive" if minimum == 1 else "a number that is not negative"
            raise ConfigError(f"{name} must be {kind}, not '{value}'")
        return int(value)

    def duration_s(self, name: str, default_s: float) -> float:
        value = self.get(name)
        if value is None:
            return default_s
        found = _DURATION.fullmatch(value.lower())
        if found is None or found[2] not in _UNITS_S:
            raise ConfigError(f"{name} must be a duration such as 15m, 30s or 500ms, not '{value}'")
        return int(found[1]) * _UNITS_S[found[2]]


def read_options(
    options: Mapping[str, str], *, streaming: bool, columns: Sequence[str] | None = None
) -> ReadOptions:
    """The options of a read, checked; everything that can be refused without a cluster is.

    `columns` are those that are wanted, if not all are.
    """
    given = _Given(options, _READ)
    selection = _selection(given)
    if streaming:
        for name in _ENDING:
            if given.get(name) is not None:
                what = "timestamp" if "imestamp" in name else "offset"
                raise ConfigError(f"ending {what} not valid in streaming queries: remove {name}")
    strategy = (given.get("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(
            f"startingOffsetsByTimestampStrategy must be 'error' or 'latest', not '{strategy}'"
        )
    if given.flag("pushFilters", False):
        require(HAS_FILTERS, "pushFilters", "4.1")
        if streaming:
            raise ConfigError("pushFilters is for batches; Spark pushes no filters into streams")
    starting = _limit(given, _STARTING, Everywhere(LATEST if streaming else EARLIEST))
    ending = _limit(given, _ENDING, Everywhere(LATEST))
    if not streaming:
        _check_batch_limit("starting", "latest", LATEST, starting)
        _check_batch_limit("ending", "earliest", EARLIEST, ending)
        for name in _TRIGGER:
            if given.get(name) is not None:
                _LOG.warning("%s option ignored in batch queries", name)
        if given.get("commitOffsets") is not None:
            raise ConfigError("commitOffsets is for streams; a batch has no position to commit")
    else:
        for name in _TRIGGER:
            if given.get(name) is not None:
                require(HAS_LIMITS, name, "4.2")
    least, most = given.number("minOffsetsPerTrigger"), given.number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"The value of minOffsetsPerTrigger ({least}) is higher than the maxOffsetsPerTrigger "
            f"({most})"
        )
    return ReadOptions(
        selection=selection,
        starting=starting,
        ending=ending,
        no_match="error" if strategy == "error" else "latest",
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        min_partitions=given.number("minPartitions"),
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=given.duration_s("maxTriggerDelay", 15 * 60.0),
        columns=tuple(columns or column_types(options)),
        offset_retries=_or(given.number("fetchOffset.numRetries", minimum=0), 3),
        offset_retry_pause_s=_or(given.number("fetchOffset.retryIntervalMs", minimum=0), 10) / 1e3,
        poll_timeout_s=_or(given.number("kafkaConsumer.pollTimeoutMs"), 120_000) / 1e3,
        topics_ttl_s=_topics_ttl_s(given),
        commit_group=_commit_group(given),
        push_filters=given.flag("pushFilters", False),
        kafka=consumer_config(given.kafka(), group_id_prefix=given.get("groupIdPrefix")),
    )


def column_types(options: Mapping[str, str]) -> dict[str, str]:
    """The columns of a read, with their types as Spark writes them."""
    types = dict(COLUMN_TYPES)
    if not _Given(options, _READ).flag("includeHeaders", False):
        del types["headers"]
    return types


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write, checked."""
    given = _Given(options, _WRITE)
    return WriteOptions(topic=given.get("topic"), kafka=producer_config(given.kafka()))


def _topics_ttl_s(given: _Given) -> float | None:
    name = "partition.metadata.cache.ttl.ms"
    if given.get(name) in (None, "-1"):
        return None
    if given.get(name) == "0":
        raise ConfigError(f"{name} must be -1, for never, or positive, not '0'")
    return _or(given.number(name), 0) / 1e3


def _commit_group(given: _Given) -> str | None:
    group = given.get("commitOffsets")
    if group == "":
        raise ConfigError("commitOffsets is empty; expected is the name of a group")
    return group


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _selection(given: _Given) -> Selection:
    chosen = [name for name in _STRATEGIES if given.get(name) is not None]
    if len(chosen) != 1:
        beginning = (
            "Only one of the following options can be specified"
            if chosen
            else "One of the following options must be specified"
        )
        raise ConfigError(
            f"{beginning} for the source: {', '.join(_STRATEGIES)}. See the docs for more details."
        )
    (name,) = chosen
    value = given.get(name) or ""
    match name:
        case "assign":
            partitions = parse_partitions(name, value) if value.startswith("{") else None
            if not partitions:
                raise ConfigError(
                    "No topicpartitions to assign as specified value for option 'assign' is "
                    f"'{value}'"
                )
            return Selection(partitions=partitions)
        case "subscribe":
            topics = tuple(dict.fromkeys(each.strip() for each in value.split(",") if each.strip()))
            if not topics:
                raise ConfigError(
                    "No topics to subscribe to as specified value for option 'subscribe' is "
                    f"'{value}'"
                )
            return Selection(topics=topics)
    if not value:
        raise ConfigError(
            "Pattern to subscribe is empty as specified value for option 'subscribePattern' is "
            f"'{value}'"
        )
    try:
        re.compile(value)
    except re.error as error:
        raise ConfigError(f"subscribePattern '{value}' is not a pattern: {error}") from None
    return Selection(pattern=value)


def _limit(given: _Given, names: tuple[str, str, str], default: Limit) -> Limit:
    """One time goes before times, and times before offsets, as in Spark."""
    timestamp_name, timestamps_name, offsets_name = names
    timestamp = given.number(timestamp_name, minimum=0)
    if timestamp is not None:
        return AtTimestamp(timestamp)
    if (timestamps := given.get(timestamps_name)) is not None:
        return Timestamps(timestamps_name, parse_timestamps(timestamps_name, timestamps))
    match given.get(offsets_name):
        case None:
            return default
        case value if value.lower() == "latest":
            return Everywhere(LATEST)
        case value if value.lower() == "earliest":
            return Everywhere(EARLIEST)
        case value:
            return Offsets(offsets_name, parse_offsets(offsets_name, value))


def _check_batch_limit(which: str, word: str, special: int, limit: Limit) -> None:
    refused = f"can't be {word} for batch queries on Kafka"
    if limit == Everywhere(special):
        raise ConfigError(f"{which} offset {refused}")
    if isinstance(limit, Offsets):
        wrong = [each for each, offset in limit.offsets.items() if offset == special]
        if wrong:
            raise ConfigError(f"{limit.option} for {listed(wrong)} {refused}")
