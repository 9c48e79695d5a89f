"""Reading a cluster through Kafka's protocol: metadata as columns, and settings of elections."""

import base64
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import numpy as np

from klamm.client.admin import Admin, check
from klamm.console.columns import ClusterColumns, ShownBroker, with_named_brokers
from klamm.errors import KlammError
from klamm.names import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.metadata import MetadataColumns

_TOPIC: Final = 2  # as a resource type of DescribeConfigs
_TOPICS_AT_A_TIME: Final = 500
_ELECTION_KEYS: Final = ("min.insync.replicas", "unclean.leader.election.enable")


def read_columns(admin: Admin, known: Mapping[int, ShownBroker]) -> ClusterColumns:
    """The whole cluster as one broker knows it; `known` are brokers that were seen before."""
    return columns_of(admin.metadata_columns(), known)


def columns_of(response: MetadataColumns, known: Mapping[int, ShownBroker]) -> ClusterColumns:
    """The columns of a Metadata response about all topics, in the order of topic and partition."""
    # A topic that is being created has no partitions yet, and an error in their place.
    places = [n for n, topic in enumerate(response.topics) if topic.partitions]
    places.sort(key=lambda n: response.topics[n].name)
    topics = [response.topics[n] for n in places]
    rank = np.zeros(len(response.topics), np.int64)
    rank[places] = np.arange(len(places))
    rows = np.lexsort(
        (response.partition_index, np.repeat(rank, [topic.partitions for topic in response.topics]))
    )
    live = [ShownBroker(b.node_id, b.host, b.port, b.rack) for b in response.brokers]
    replicas = response.replica_nodes[rows]
    return ClusterColumns(
        brokers=with_named_brokers(live, replicas, known),
        controller=response.controller_id,
        topics=tuple(topic.name for topic in topics),
        topic_ids=tuple(_topic_id(topic.topic_id) for topic in topics),
        internal=tuple(topic.is_internal for topic in topics),
        counts=np.array([topic.partitions for topic in topics], np.int32),
        partition=response.partition_index[rows],
        leader=response.leader_id[rows],
        leader_epoch=response.leader_epoch[rows],
        replicas=replicas,
        isr=response.isr_nodes[rows],
        cluster_id=response.cluster_id,
    )


def read_election_settings(admin: Admin, topics: Sequence[str]) -> dict[str, tuple[int, bool]]:
    """For each topic the least ISR, and whether an unclean leader may be elected."""
    found: dict[str, tuple[int, bool]] = {}
    for start in range(0, len(topics), _TOPICS_AT_A_TIME):
        asked = {
            "resources": [
                {
                    "resource_type": _TOPIC,
                    "resource_name": topic,
                    "configuration_keys": list(_ELECTION_KEYS),
                }
                for topic in topics[start : start + _TOPICS_AT_A_TIME]
            ],
            "include_synonyms": False,
            "include_documentation": False,
        }
        for result in admin.ask_any(ApiKey.DESCRIBE_CONFIGS, asked).results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # deleted since
            check(result.error_code, result.error_message)
            values = {each.name: each.value for each in result.configs}
            found[result.resource_name] = (
                int(values.get(_ELECTION_KEYS[0]) or 1),
                str(values.get(_ELECTION_KEYS[1])).lower() == "true",
            )
    return found


def read_sizes(admin: Admin, brokers: Sequence[int]) -> dict[TopicPartition, int]:
    """The bytes of each partition's largest replica; brokers that do not answer are left out."""
    sizes: dict[TopicPartition, int] = {}
    for broker in brokers:
        try:
            response = admin.ask_broker(broker, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
        except KlammError:
            continue
        for directory in response.results:
            for topic in directory.topics:
                for each in topic.partitions:
                    if not each.is_future_key:  # a copy between two directories of a broker
                        name = TopicPartition(topic.name, each.partition_index)
                        sizes[name] = max(sizes.get(name, 0), each.partition_size)
    return sizes


def _topic_id(value: UUID | None) -> str | None:
    """As Kafka's own tools write it."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=") if value else None
