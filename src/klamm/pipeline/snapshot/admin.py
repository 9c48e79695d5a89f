"""A snapshot of any Kafka cluster, read from its brokers through the admin protocol.

Topics and partitions are selects from the cluster's tables (`klamm.pipeline.source.tables`). Of a
large cluster, tasks ask the brokers and write what they say, and the driver has the numbers of one
Metadata response. Of a little one the driver reads the same tables itself, while Spark starts.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from klamm.client.admin import Admin
from klamm.config.client_properties import ClientSecurity
from klamm.config.security import OAUTHBEARER
from klamm.names import counted
from klamm.net.librdkafka import librdkafka_settings
from klamm.pipeline import arrow
from klamm.pipeline.snapshot.snapshot import ROWS_PER_FILE, Snapshot, now
from klamm.pipeline.source.tables.reader import (
    BrokerShare,
    read_here,
    read_table,
    shares,
    table_options,
)

_CLIENT_ID: Final = "klamm-snapshot"
#: Up to this many partitions the driver reads the cluster itself, which takes a second or two.
LITTLE_MAX: Final = 20_000
_UNKNOWN: Final = -1
_TOPICS: Final = {"table": "topics"}
_PARTITIONS: Final = {"table": "partitions"}
_LOGDIRS: Final = {"table": "logdirs"}
_SIZES: Final = ("topic", "partition", "bytes", "is_future")


def snapshot_from_brokers(
    bootstrap_servers: str,
    session: Callable[[], SparkSession],
    *,
    with_sizes: bool = True,
    tell: Callable[[str], None] = lambda text: None,
    client_properties: Mapping[str, str] | None = None,
    little_max: int = LITTLE_MAX,
) -> Snapshot:
    """Read a cluster's metadata, settings and sizes from its brokers.

    With more than `little_max` partitions, `session` is asked for a session, and topics and
    partitions are data frames, whose tasks read them when they are written. Elections use the
    effective settings of a topic, including defaults of brokers. The table of topics has only the
    settings of the topic itself. `client_properties` are Kafka's own, for a secured cluster.
    """
    properties = client_properties or {}
    security = ClientSecurity.from_properties(properties)
    with Admin(bootstrap_servers, client_id=_CLIENT_ID, security=security) as admin:
        taken_at = now()
        view = admin.metadata_columns(is_patient=True)
    tell(f"{counted(len(view.brokers), 'broker')}, {counted(len(view.topics), 'topic')}")
    kafka = {
        **_security_options(properties, security),
        "bootstrap.servers": bootstrap_servers,
        "client.id": _CLIENT_ID,
    }
    options = {f"kafka.{key}": str(value) for key, value in kafka.items()}
    by_topic = shares((topic.name, topic.partitions) for topic in view.topics)
    by_broker = [BrokerShare(broker.node_id) for broker in view.brokers] if with_sizes else []
    count = len(view.partition_index)
    is_large = count > little_max
    read = partial(read_table, session()) if is_large else read_here
    join = partial(_join_frames, files=1 + count // ROWS_PER_FILE) if is_large else _join_tables
    of_partitions = [name for name in arrow.PARTITIONS.names if name != "bytes"]
    partitions = read(table_options(options | _PARTITIONS, of_partitions), by_topic)
    logdirs = read(table_options(options | _LOGDIRS, _SIZES), by_broker)
    brokers = [
        {"id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack}
        for each in sorted(view.brokers, key=lambda broker: broker.node_id)
    ]
    return Snapshot(
        cluster_id=view.cluster_id,
        source=f"brokers {bootstrap_servers}",
        taken_at=taken_at,
        brokers=pa.Table.from_pylist(brokers, arrow.BROKERS),
        topics=read(table_options(options | _TOPICS, arrow.TOPICS.names), by_topic),
        partitions=join(partitions, logdirs),
        is_large=is_large,
    )


def _security_options(properties: Mapping[str, str], security: ClientSecurity) -> Mapping[str, str]:
    """Security as options of the tables; certificates travel to the tasks as text."""
    if security.sasl is not None and security.sasl.mechanism == OAUTHBEARER:
        return {
            key: value
            for key, value in properties.items()
            if key.startswith(("sasl.", "ssl.", "security."))
        }
    return librdkafka_settings(security)


# The largest replica of a partition counts, since others may be catching up. A future replica is
# being copied between two log directories.


def _join_frames(partitions: DataFrame, logdirs: DataFrame, *, files: int) -> DataFrame:
    sizes = logdirs.where("topic is not null and not is_future")
    largest = sizes.groupBy("topic", "partition").agg(F.max("bytes").alias("bytes"))
    joined = partitions.join(largest, ["topic", "partition"], "left")
    return (
        joined.withColumn("leader_epoch", F.coalesce("leader_epoch", F.lit(_UNKNOWN)))
        .select(*arrow.PARTITIONS.names)
        .repartition(files, "topic")
        .sortWithinPartitions("topic", "partition")
    )


def _join_tables(partitions: pa.Table, logdirs: pa.Table) -> pa.Table:
    largest: dict[tuple[str, int], int] = {}
    for row in logdirs.to_pylist():
        if row["topic"] is not None and not row["is_future"]:
            name = row["topic"], row["partition"]
            largest[name] = max(largest.get(name, 0), row["bytes"])
    names = zip(
        partitions.column("topic").to_pylist(),
        partitions.column("partition").to_pylist(),
        strict=True,
    )
    sizes = pa.array([largest.get(name) for name in names], pa.int64())
    epochs = pc.fill_null(partitions.column("leader_epoch"), _UNKNOWN)
    at = partitions.schema.get_field_index("leader_epoch")
    known = partitions.set_column(at, "leader_epoch", epochs).append_column("bytes", sizes)
    return known.select(arrow.PARTITIONS.names).sort_by(
        [("topic", "ascending"), ("partition", "ascending")]
    )
