"""Which tasks read a table of the cluster: one for each broker, or for each range of topics."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from klamm.errors import ConfigError
from klamm.net.librdkafka import security_from_librdkafka
from klamm.pipeline.source.kafka_options import consumer_config
from klamm.pipeline.source.options import KAFKA_PREFIX
from klamm.pipeline.source.paths import beyond_own_client, own_settings
from klamm.pipeline.source.reaching import wait_reachable
from klamm.pipeline.source.tables.columns import TABLES
from klamm.pipeline.source.telling import plainly

if TYPE_CHECKING:
    from klamm.client.admin import Admin

#: A Metadata response about this many partitions is decoded in about a second.
_PARTITIONS_PER_TASK: Final = 50_000
_TOPICS_PER_TASK: Final = 1_000


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Which table of which cluster, and the columns that are wanted of it."""

    table: str
    columns: tuple[str, ...]
    #: For klamm's own client, in librdkafka's spelling.
    kafka: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class TopicShare(InputPartition):
    """Some topics, for one task."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class BrokerShare(InputPartition):
    """What one broker knows, for one task; None stands for whichever answers."""

    broker: int | None


def table_options(options: Mapping[str, str], columns: Sequence[str] | None = None) -> TableOptions:
    """The options of a table, checked."""
    given = {key.lower(): value.strip() for key, value in options.items()}
    table = given.pop("table")
    if table not in TABLES:
        nearest = difflib.get_close_matches(table, TABLES, n=1)
        hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
        raise ConfigError(f"There is no table '{table}': expected {', '.join(TABLES)}{hint}")
    kafka = {
        key.removeprefix(KAFKA_PREFIX): given.pop(key)
        for key in sorted(given)
        if key.startswith(KAFKA_PREFIX)
    }
    if given:
        raise ConfigError(
            f"The option '{min(given)}' does not go with 'table': expected are those that begin "
            f"with '{KAFKA_PREFIX}'"
        )
    config = consumer_config(kafka, group_id_prefix=None)
    if beyond := beyond_own_client(config):
        raise ConfigError(
            f"Kafka option '{beyond[0]}' does not go with 'table': tables are read by klamm's own "
            "client, which does not know it"
        )
    return TableOptions(table, tuple(columns or TABLES[table]), own_settings(config))


def open_admin(options: TableOptions) -> "Admin":
    """A client of the cluster; drivers start a process for each query, and few read a table."""
    from klamm.client.admin import Admin

    kafka = options.kafka
    security = security_from_librdkafka(kafka)
    assert security is not None, "the options were checked"
    return Admin(kafka["bootstrap.servers"], client_id=kafka["client.id"], security=security)


class TableReader(DataSourceReader):
    """Reads one table."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    @plainly()
    def partitions(self) -> list[InputPartition]:
        """Ask one broker which brokers and topics there are."""
        options = self._options
        wait_reachable(options.kafka["bootstrap.servers"])
        if options.table == "brokers":
            return [BrokerShare(None)]
        with open_admin(options) as admin:
            is_by_topic = options.table in ("topics", "partitions", "configs")
            view = admin.metadata(None if is_by_topic else [])
        brokers = [BrokerShare(each.node_id) for each in view.brokers]
        if not is_by_topic:
            return [*brokers]
        topics = shares((topic.name, len(topic.partitions)) for topic in view.topics)
        return [*topics, *brokers] if options.table == "configs" else [*topics]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from klamm.pipeline.source.tables.rows import read_share

        with plainly():
            yield from read_share(partition, self._options)


def shares(topics: Iterable[tuple[str, int]]) -> list[TopicShare]:
    """Topics in portions of about the same number of partitions."""
    portions: list[list[str]] = []
    room = 0
    for name, partitions in sorted(topics):
        if not portions or len(portions[-1]) == _TOPICS_PER_TASK or partitions > room:
            portions.append([])
            room = _PARTITIONS_PER_TASK
        portions[-1].append(name)
        room -= partitions
    return [TopicShare(tuple(each)) for each in portions]
