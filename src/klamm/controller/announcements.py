"""From a batch to requests: what brokers are told, taken from the columns at the moment of telling.

The body of an UpdateMetadata is encoded once and shared by all brokers. Versions follow from the
inter-broker protocol alone; nothing is negotiated (CHAN-32).
"""

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from klamm.config.ibp import Ibp
from klamm.controller.channels import Channels, Outgoing
from klamm.core.cluster import LEADER_DURING_DELETE, Cluster, TopicPartition
from klamm.core.columns import I32, unpad
from klamm.core.effects import Announce, ToReplicas
from klamm.core.events import (
    Event,
    LeaderAndIsrAnswered,
    StopReplicaAnswered,
    UpdateMetadataAnswered,
)
from klamm.protocol.apis import ApiKey
from klamm.protocol.frames import decode_response, encode_request
from klamm.protocol.headers import RequestHeader
from klamm.zookeeper import znodes

#: Newest first: inter-broker protocol, then LeaderAndIsr, UpdateMetadata, StopReplica (16.6).
_VERSIONS: Final = (
    (Ibp("3.4", 0), 7, 8, 4),
    (Ibp("3.2", 0), 6, 7, 3),
    (Ibp("2.8", 1), 5, 7, 3),
    (Ibp("2.6", 0), 4, 6, 3),
    (Ibp("2.4", 1), 4, 6, 2),
    (Ibp("2.4", 0), 3, 5, 1),
    (Ibp("2.2", 0), 2, 5, 1),
    (Ibp("1.0", 0), 1, 4, 0),
    (Ibp("0.10.2", 0), 0, 3, 0),
    (Ibp("0.10.0", 0), 0, 2, 0),
    (Ibp("0.9.0", 0), 0, 1, 0),
    (Ibp("0.8.0", 0), 0, 0, 0),
)


class Announcer:
    """Encodes batches and hands them to the channels."""

    def __init__(self, broker_id: int, channels: Channels, ibp: Ibp, listener: str) -> None:
        self._broker_id = broker_id
        self._channels = channels
        self._listener = listener
        _, self._leader_and_isr, self._update_metadata, self._stop_replica = next(
            row for row in _VERSIONS if ibp >= row[0]
        )
        self._told = 0
        self._heard = 0
        self._own_waiters: list[tuple[int, asyncio.Future[None]]] = []

    async def own_broker_is_told(self) -> None:
        """Wait until this node's own broker has answered all metadata announced until now."""
        if self._heard < self._told:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._own_waiters.append((self._told, waiter))
            await waiter

    def forget(self) -> None:
        """A term of office has ended, and its channels with it: nobody is going to answer."""
        self._heard = self._told
        self._release_waiters()

    def _own_broker_answered(self) -> None:
        self._heard += 1
        self._release_waiters()

    def _release_waiters(self) -> None:
        still = []
        for told, waiter in self._own_waiters:
            if waiter.done():
                continue
            if told <= self._heard:
                waiter.set_result(None)
            else:
                still.append((told, waiter))
        self._own_waiters = still

    def announce(self, cluster: Cluster, batch: Announce) -> None:
        """Queue the requests of a batch, each kind before the next (CHAN-12)."""
        for broker, entries in batch.leader_and_isr.items():
            self._send_leader_and_isr(cluster, broker, entries)
        if batch.metadata_brokers:
            self._send_update_metadata(cluster, batch.metadata_rows, batch.metadata_brokers)
        for broker, entries in batch.stop_replica.items():
            self._send_stop_replica(cluster, broker, entries)

    def _send_leader_and_isr(self, cluster: Cluster, broker: int, entries: ToReplicas) -> None:
        version = self._leader_and_isr
        is_new = dict(zip(entries.rows.tolist(), entries.flag.tolist(), strict=True))
        topics, flat = [], []
        for topic, rows in cluster.topics_by_row(entries.rows):
            states = [self._state(cluster, row) | {"is_new": is_new[row]} for row in rows.tolist()]
            flat += [{"topic_name": topic.name, **state} for state in states]
            topics.append(
                {
                    "topic_name": topic.name,
                    "topic_id": _uuid(topic.id),
                    "partition_states": states,
                }
            )
        leaders = np.unique(cluster.leader[entries.rows]).tolist()
        body = self._head(cluster, broker) | {
            "topic_states": topics,
            "ungrouped_partition_states": flat,
            "live_leaders": [
                {"broker_id": e[0], "host_name": e[1], "port": e[2]}
                for e in self._endpoints(cluster, leaders)
            ],
        }
        names = {_uuid(t.id): t.name for t, _ in cluster.topics_by_row(entries.rows)}
        answered = [cluster.name(row) for row in entries.rows.tolist()]

        def event(header: RequestHeader, frame: bytes) -> Event:
            answer = decode_response(header, frame)
            errors: dict[TopicPartition, int] = {}
            if version >= 5:
                for t in answer.topics:
                    for p in t.partition_errors:
                        if t.topic_id in names:
                            errors[names[t.topic_id], p.partition_index] = int(p.error_code)
            else:
                for p in answer.partition_errors:
                    errors[p.topic_name, p.partition_index] = int(p.error_code)
            return LeaderAndIsrAnswered(broker, int(answer.error_code), errors, answered)

        self._send(broker, ApiKey.LEADER_AND_ISR, version, body, event)

    def _state(self, cluster: Cluster, row: int) -> dict[str, Any]:
        return {
            "partition_index": int(cluster.partition[row]),
            "controller_epoch": int(cluster.decided_in[row]),
            "leader": int(cluster.leader[row]),
            "leader_epoch": int(cluster.leader_epoch[row]),
            "isr": unpad(cluster.isr[row]),
            "partition_epoch": int(cluster.partition_epoch[row]),
            "zk_version": int(cluster.partition_epoch[row]),
            "replicas": unpad(cluster.replicas[row]),
            "adding_replicas": cluster.adding.get(row, ()),
            "removing_replicas": cluster.removing.get(row, ()),
            "leader_recovery_state": int(cluster.recovery[row]),
        }

    def _head(self, cluster: Cluster, broker: int) -> dict[str, Any]:
        return {
            "controller_id": self._broker_id,
            "controller_epoch": cluster.controller_epoch,
            "broker_epoch": cluster.brokers[broker].epoch,
            "is_kraft_controller": False,
            "type": 0,
        }

    def _endpoints(
        self, cluster: Cluster, brokers: Sequence[int]
    ) -> Iterator[tuple[int, str, int]]:
        for broker in brokers:
            known = cluster.brokers.get(broker)
            for endpoint in known.endpoints if known else ():
                if endpoint.listener == self._listener:
                    yield broker, endpoint.host, endpoint.port

    def _send_update_metadata(self, cluster: Cluster, rows: I32, brokers: Sequence[int]) -> None:
        rows = rows[cluster.has_leadership[rows]]
        queued = dict(zip(rows.tolist(), cluster.is_queued(rows).tolist(), strict=True))
        online = dict(zip(rows.tolist(), cluster.online(rows), strict=True))
        topics = []
        for topic, of_topic in cluster.topics_by_row(rows):
            states = []
            for row in of_topic.tolist():
                state = self._state(cluster, row)
                replicas = cluster.replicas[row]
                state["offline_replicas"] = unpad(replicas[~online[row] & (replicas >= 0)])
                if queued[row]:
                    state |= {"leader": LEADER_DURING_DELETE, "leader_epoch": 0, "zk_version": 0}
                states.append(state)
            topics.append(
                {"topic_name": topic.name, "topic_id": _uuid(topic.id), "partition_states": states}
            )
        live = [
            {
                "id": b.id,
                "endpoints": [
                    {
                        "port": e.port,
                        "host": e.host,
                        "listener": e.listener,
                        "security_protocol": e.security_protocol,
                    }
                    for e in b.endpoints
                ],
                "rack": b.rack,
            }
            for b in cluster.brokers.values()
        ]
        for broker in brokers:
            body = self._head(cluster, broker) | {"topic_states": topics, "live_brokers": live}

            def event(header: RequestHeader, frame: bytes, broker: int = broker) -> Event:
                return UpdateMetadataAnswered(
                    broker, int(decode_response(header, frame).error_code)
                )

            done = None
            if broker == self._broker_id:
                self._told += 1
                done = self._own_broker_answered
            self._send(broker, ApiKey.UPDATE_METADATA, self._update_metadata, body, event, done)

    def _send_stop_replica(self, cluster: Cluster, broker: int, entries: ToReplicas) -> None:
        flags = dict(zip(entries.rows.tolist(), entries.flag.tolist(), strict=True))
        epochs = dict(zip(entries.rows.tolist(), entries.leader_epoch.tolist(), strict=True))
        topics = [
            {
                "topic_name": topic.name,
                "partition_states": [
                    {
                        "partition_index": int(cluster.partition[row]),
                        "leader_epoch": epochs[row],
                        "delete_partition": flags[row],
                    }
                    for row in rows.tolist()
                ],
            }
            for topic, rows in cluster.topics_by_row(entries.rows)
        ]
        deleted = {cluster.name(row) for row, flag in flags.items() if flag}

        def event(header: RequestHeader, frame: bytes) -> Event | None:
            answer = decode_response(header, frame)
            errors = {
                (str(p.topic_name), int(p.partition_index)): int(p.error_code)
                for p in answer.partition_errors
                if (p.topic_name, p.partition_index) in deleted
            }
            return StopReplicaAnswered(broker, int(answer.error_code), errors) if errors else None

        body = self._head(cluster, broker) | {"topic_states": topics}
        self._send(broker, ApiKey.STOP_REPLICA, self._stop_replica, body, event)

    def _send(
        self,
        broker: int,
        key: ApiKey,
        version: int,
        body: Mapping[str, Any],
        event: Any,
        done: Any = None,
    ) -> None:
        header = RequestHeader(key, version, 0, str(self._broker_id))
        frame = encode_request(header, body)
        self._channels.send(
            broker,
            Outgoing(
                key.name,
                lambda correlation: [frame[:8], correlation.to_bytes(4, "big"), frame[12:]],
                lambda answer: event(header, b"\0\0\0\0" + answer),
                done,
            ),
        )


def _uuid(topic_id: str | None) -> uuid.UUID | None:
    return None if topic_id is None else znodes.decode_topic_id("cluster", topic_id)
