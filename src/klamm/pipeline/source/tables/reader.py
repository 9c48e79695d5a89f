"""Which tasks read a table of the cluster: one for each broker, or for each range of topics."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition

from klamm.config.client_properties import ClientSecurity
from klamm.config.security import OAUTHBEARER
from klamm.errors import ConfigError
from klamm.net.librdkafka import security_from_librdkafka
from klamm.pipeline.source.kafka_options import beyond_own_client, consumer_config, own_settings
from klamm.pipeline.source.messages import plainly
from klamm.pipeline.source.options import KAFKA_PREFIX
from klamm.pipeline.source.reaching import wait_reachable
from klamm.pipeline.source.tables.columns import ARROW_TYPES, ON_DEMAND, TABLES

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
    security: ClientSecurity = field(repr=False)


@dataclass(frozen=True)
class TopicShare(InputPartition):
    """Some topics, for one task."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class BrokerShare(InputPartition):
    """The rows that one broker has, for one task; None stands for any broker that responds."""

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
    security, kafka = _with_tokens(kafka)
    config = consumer_config(kafka, group_id_prefix=None)
    if beyond := beyond_own_client(config):
        raise ConfigError(
            f"Kafka option '{beyond[0]}' does not go with 'table': tables are read by klamm's own "
            "client, which does not know it"
        )
    security = security or security_from_librdkafka(config)
    assert security is not None, "the options were checked"
    columns = tuple(columns or (name for name in TABLES[table] if name not in ON_DEMAND))
    return TableOptions(table, columns, own_settings(config), security)


def _with_tokens(kafka: Mapping[str, str]) -> tuple[ClientSecurity | None, dict[str, str]]:
    """The settings of OAUTHBEARER in Java's names, and the others; None for other security."""
    if kafka.get("sasl.mechanism", "").strip() != OAUTHBEARER:
        return None, dict(kafka)
    rest = {
        key: value
        for key, value in kafka.items()
        if not key.startswith(("sasl.", "ssl.", "security."))
    }
    return ClientSecurity.from_properties(kafka), rest


def open_admin(options: TableOptions) -> "Admin":
    """A client of the cluster, imported late because few queries read a table."""
    from klamm.client.admin import Admin

    kafka = options.kafka
    return Admin(
        kafka["bootstrap.servers"], client_id=kafka["client.id"], security=options.security
    )


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
            if options.table not in ("topics", "partitions", "configs"):
                return [BrokerShare(each.node_id) for each in admin.metadata([]).brokers]
            found = admin.metadata_columns(is_patient=True)
        topics = shares((topic.name, topic.partitions) for topic in found.topics)
        if options.table != "configs":
            return [*topics]
        return [*topics, *(BrokerShare(broker.node_id) for broker in found.brokers)]

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


def read_here(options: TableOptions, tasks: Sequence[InputPartition]) -> pa.Table:
    """A table, or a part of it, read by this process."""
    types = TABLES[options.table]
    schema = pa.schema([(name, ARROW_TYPES[types[name]]) for name in options.columns])
    reader = TableReader(options)
    return pa.Table.from_batches([batch for task in tasks for batch in reader.read(task)], schema)


def read_table(
    spark: SparkSession, options: TableOptions, tasks: Sequence[InputPartition]
) -> DataFrame:
    """A table, or a part of it, as `spark.read` gives it, without what Spark's planning costs.

    Spark starts two Python processes to plan a read of a Python source; here its tasks are given.
    """
    types = TABLES[options.table]
    ddl = ", ".join(f"{name} {types[name]}" for name in options.columns)
    numbers = spark.range(0, len(tasks), 1, max(len(tasks), 1))
    return numbers.mapInArrow(partial(_read_numbered, options, list(tasks)), ddl)


def _read_numbered(
    options: TableOptions, tasks: Sequence[InputPartition], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    reader = TableReader(options)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from reader.read(tasks[number])
