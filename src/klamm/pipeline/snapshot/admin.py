"""A snapshot of any Kafka cluster, read from its brokers through the admin protocol."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from klamm.client.admin import Admin
from klamm.client.errors import check
from klamm.client.topics import describe
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import ProtocolError, UnavailableError
from klamm.net.blocking import BlockingConnection
from klamm.net.secure import SecureClient
from klamm.pipeline import arrow
from klamm.pipeline.snapshot.parts import (
    AssignmentColumns,
    ElectionSettings,
    StateColumns,
    chunked,
    lists_to_arrow,
    partition_table,
    topic_table,
)
from klamm.pipeline.snapshot.snapshot import Snapshot, now
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import KafkaError

_TOPIC: Final = 2  # as a resource type of DescribeConfigs
_SET_BY_TOPIC: Final = 1  # as the source of a setting
_TOPICS_AT_A_TIME: Final = 500
_BROKERS_AT_A_TIME: Final = 64
_SIZES_TIMEOUT_S: Final = 60.0


def snapshot_from_brokers(
    bootstrap_servers: str,
    *,
    with_sizes: bool = True,
    tell: Callable[[str], None] = lambda text: None,
    security: ClientSecurity = PLAINTEXT,
) -> Snapshot:
    """Ask one broker for metadata and settings, and each broker for the sizes of its logs.

    Elections use the effective settings of a topic, including defaults of brokers. The
    table of topics has only the settings of the topic itself.
    """
    with Admin(bootstrap_servers, client_id="klamm-snapshot", security=security) as admin:
        taken_at = now()
        view = describe(admin)
        tell(f"{len(view.brokers)} brokers, {len(view.topics):,} topics")
        settings, overrides = _read_configs(admin, [topic.topic for topic in view.topics])
    sizes = {}
    if with_sizes:
        sizes = read_sizes(((broker.host, broker.port) for broker in view.brokers), security)
        tell(f"the sizes of {len(sizes):,} partitions")
    partitions = list(view.partitions())
    assignments = AssignmentColumns(
        [topic.topic for topic in view.topics],
        [topic.topic_id for topic in view.topics],
        np.array([len(topic.partitions) for topic in view.topics], np.int32),
        np.array([each.partition for each in partitions], np.int32),
        chunked([lists_to_arrow([each.replicas for each in partitions])]),
    )
    states = StateColumns(
        np.array([each.leader for each in partitions], np.int32),
        np.array([each.leader_epoch for each in partitions], np.int32),
        chunked([lists_to_arrow([each.isr for each in partitions])]),
    )
    brokers = [
        {"id": each.id, "host": each.host, "port": each.port, "rack": each.rack}
        for each in view.brokers
    ]
    return Snapshot(
        cluster_id=view.cluster_id,
        source=f"brokers {bootstrap_servers}",
        taken_at=taken_at,
        brokers=pa.Table.from_pylist(brokers, arrow.BROKERS),
        topics=topic_table(assignments, overrides),
        partitions=partition_table(assignments, states, settings, sizes),
    )


def _read_configs(
    admin: Admin, topics: Sequence[str]
) -> tuple[dict[str, ElectionSettings], dict[str, dict[str, str]]]:
    """For each topic its effective election settings, and its own settings."""
    settings, overrides = {}, {}
    for start in range(0, len(topics), _TOPICS_AT_A_TIME):
        asked: Mapping[str, Any] = {
            "resources": [
                {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}
                for topic in topics[start : start + _TOPICS_AT_A_TIME]
            ],
            "include_synonyms": False,
            "include_documentation": False,
        }
        for result in admin.ask_any(ApiKey.DESCRIBE_CONFIGS, asked).results:
            check(result.error_code, result.error_message)
            values = {each.name: each.value for each in result.configs if each.value is not None}
            settings[result.resource_name] = ElectionSettings.of(values)
            overrides[result.resource_name] = {
                each.name: each.value
                for each in result.configs
                if each.config_source == _SET_BY_TOPIC and each.value is not None
            }
    return settings, overrides


def read_sizes(
    addresses: Iterable[tuple[str, int]], security: ClientSecurity = PLAINTEXT
) -> dict[tuple[str, int], int]:
    """The bytes of every partition that a broker at one of these addresses has a replica of.

    The largest replica counts, since others may be catching up. The sizes of a broker that does not
    answer, or refuses, stay unknown: the snapshot is useful without them.
    """
    sizes: dict[tuple[str, int], int] = {}
    with ThreadPoolExecutor(_BROKERS_AT_A_TIME) as pool:
        for answer in pool.map(partial(_describe_log_dirs, SecureClient(security)), addresses):
            for directory in () if answer is None else answer.results:
                for topic in directory.topics:
                    for each in topic.partitions:
                        # A future replica is being copied between two log directories.
                        if each.is_future_key:
                            continue
                        name = (topic.name, each.partition_index)
                        sizes[name] = max(sizes.get(name, 0), each.partition_size)
    return sizes


def _describe_log_dirs(secure: SecureClient, address: tuple[str, int]) -> Any:
    connection = BlockingConnection(*address, "klamm-snapshot", secure)
    try:
        return connection.send(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, _SIZES_TIMEOUT_S)
    except (UnavailableError, ProtocolError, KafkaError):
        return None
    finally:
        connection.close()
