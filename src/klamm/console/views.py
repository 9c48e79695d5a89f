"""The responses of the API, in the words of the command line's `--json`."""

from dataclasses import asdict
from typing import Any

import numpy as np

from klamm.client import brokers, configs, groups, topics
from klamm.client.admin import Admin
from klamm.client.configs import ConfigResource
from klamm.console.columns import ClusterColumns
from klamm.core.columns import unpad
from klamm.protocol.codes import ErrorCode, KafkaError


def topic_rows(columns: ClusterColumns) -> list[dict[str, Any]]:
    """As `klamm topics list --json`."""
    if not columns.topics:
        return []
    starts = columns.first_row[:-1]
    lacking = np.add.reduceat(columns.is_under_replicated, starts, dtype=np.int64)
    leaderless = np.add.reduceat(columns.is_leaderless, starts, dtype=np.int64)
    factor = np.maximum.reduceat((columns.replicas >= 0).sum(axis=1), starts)
    return [
        {
            "topic": topic,
            "topic_id": columns.topic_ids[n],
            "internal": columns.internal[n],
            "partitions": int(columns.counts[n]),
            "replication_factor": int(factor[n]),
            "under_replicated": int(lacking[n]),
            "unavailable": int(leaderless[n]),
        }
        for n, topic in enumerate(columns.topics)
    ]


def topic_details(admin: Admin, name: str) -> list[dict[str, Any]]:
    """As `klamm topics describe NAME --json`."""
    found = topics.describe(admin, [name]).topics
    return [
        asdict(topic)
        | {
            "configs": {
                each.name: each.value
                for each in configs.describe(admin, ConfigResource.topic(topic.topic))
                if each.source == "topic"
            }
        }
        for topic in found
    ]


def partition_rows(columns: ClusterColumns) -> list[dict[str, Any]]:
    """The partitions of `klamm topics describe --json`, all in one list."""
    live = set(columns.live.tolist())
    topic = columns.topic_of
    rows = []
    for row in range(len(columns)):
        replicas = unpad(columns.replicas[row])
        rows.append(
            {
                "topic": columns.topics[topic[row]],
                "partition": int(columns.partition[row]),
                "leader": int(columns.leader[row]),
                "leader_epoch": int(columns.leader_epoch[row]),
                "replicas": replicas,
                "isr": unpad(columns.isr[row]),
                "offline": [each for each in replicas if each not in live],
            }
        )
    return rows


def broker_rows(columns: ClusterColumns) -> list[dict[str, Any]]:
    """As `klamm brokers list --json`: the brokers that are alive."""
    leader, first = columns.leader, columns.replicas[:, 0]
    return [
        {
            "id": each.id,
            "host": each.host,
            "port": each.port,
            "rack": each.rack,
            "controller": each.id == columns.controller,
            "leaders": int((leader == each.id).sum()),
            "replicas": int((columns.replicas == each.id).sum()),
            "preferred": int((first == each.id).sum()),
        }
        for each in columns.brokers
        if each.live
    ]


def broker_details(admin: Admin, columns: ClusterColumns, broker: int) -> dict[str, Any]:
    """As `klamm brokers describe ID --json`, with the sources of settings."""
    row = next((each for each in broker_rows(columns) if each["id"] == broker), None)
    if row is None:
        alive = ", ".join(map(str, columns.live.tolist()))
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {broker}; alive are {alive}."
        )
    given = [
        each
        for each in configs.describe(admin, ConfigResource.broker(broker))
        if each.source != configs.DEFAULT and not each.sensitive
    ]
    return row | {
        "log_dirs": [asdict(each) for each in brokers.log_dirs(admin, broker)],
        "configs": {each.name: each.value for each in given},
    }


def setting_rows(admin: Admin, resource: ConfigResource) -> list[dict[str, Any]]:
    """As `klamm configs describe --json`; a sensitive value is never told."""
    return [
        asdict(each) | ({"value": None} if each.sensitive else {})
        for each in configs.describe(admin, resource)
    ]


def group_rows(admin: Admin) -> list[dict[str, Any]]:
    """As `klamm groups list --json`."""
    return [asdict(each) for each in groups.list_groups(admin)]


def group_details(admin: Admin, name: str) -> dict[str, Any]:
    """As `klamm groups describe GROUP --json`."""
    found = groups.describe(admin, name)
    positions = [asdict(each) | {"lag": each.lag} for each in found.positions]
    return asdict(found) | {"positions": positions}
