"""The metadata log over the network: from the leader of a KRaft quorum, as a follower reads it.

Any controller of the quorum says who leads it. Only committed records are read, those below the
high watermark. A log whose beginning was removed begins with the snapshot at its start.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import ConfigError, KlammError, RemoteProtocolError, UnavailableError
from klamm.history.kraft.replay import MetadataSnapshot
from klamm.names import CLUSTER_METADATA
from klamm.net.blocking import BlockingConnection
from klamm.net.secure import SecureClient
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError
from klamm.protocol.fast.fetch import FetchPartitionResponse, LeaderHint, SnapshotId
from klamm.protocol.records import Batch, has_valid_crc, iterate_batches

#: The id that the metadata log has in every cluster.
METADATA_TOPIC_ID: Final = uuid.UUID(int=1)
_CLIENT_ID: Final = "klamm-history"
_FIRST_WITH_ENDPOINT_TYPE: Final = 1  # version of DescribeCluster
_CONTROLLERS: Final = 2  # a type of endpoints in DescribeCluster
_NO_REPLICA: Final = -1
_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.2
_FETCH_BYTES: Final = 8 << 20
#: Errors after which the leader is looked for again.
_LEADER_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


class MetadataQuorum:
    """Reads the log once from its beginning, and then what was committed since."""

    def __init__(
        self,
        controllers: Sequence[tuple[str, int]],
        security: ClientSecurity = PLAINTEXT,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`timeout_s` bounds the search for a leader."""
        self._controllers = list(controllers)
        self._secure = SecureClient(security)
        self._timeout_s = timeout_s
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self._leader: LeaderHint | None = None
        self._leader_address = self._controllers[0]
        self._cluster_id: str | None = None
        self._next: SnapshotId | None = None

    def check(self) -> None:
        """Find the leader; ConfigError if an address is not that of a KRaft controller."""
        self._find_leader()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def cluster_id(self) -> str | None:
        """The cluster's id; None if the controllers are older than Kafka 3.7 and do not tell."""
        return self._cluster_id

    def leader(self) -> LeaderHint | None:
        """The leader of the quorum and its epoch."""
        return self._leader

    def read(self) -> Iterator[MetadataSnapshot | Batch]:
        """What was committed since the last time."""
        if self._next is None:
            self._next = SnapshotId(0, 0)
        while True:
            offset, epoch = self._next
            fetched = self._fetch(offset, epoch)
            if fetched.snapshot_id is not None:
                snapshot = self._snapshot_at(fetched.log_start_offset, fetched.snapshot_id)
                if snapshot is None:
                    self._next = SnapshotId(1, fetched.snapshot_id.epoch)
                    continue
                self._next = snapshot.id
                yield snapshot
                continue
            if fetched.diverging_epoch is not None:
                raise KlammError(
                    f"The metadata log at {self._address} has no offset {offset} of epoch {epoch}: "
                    "it is not the log that was read so far"
                )
            before = offset
            for batch in self._committed(fetched):
                if batch.header.last_offset >= offset:
                    yield batch
                    offset = batch.header.last_offset + 1
                    self._next = SnapshotId(offset, batch.header.leader_epoch)
            if offset == before:
                return

    @property
    def _address(self) -> str:
        return _text(self._leader_address)

    def _committed(self, fetched: FetchPartitionResponse) -> Iterator[Batch]:
        assert not hasattr(fetched.records, "size"), "a response that was received has bytes"
        for batch in iterate_batches(fetched.records or b"", may_end_early=True):
            if batch.header.last_offset >= fetched.high_watermark:
                return
            if not has_valid_crc(batch):
                raise RemoteProtocolError(
                    f"the checksum of the batch at offset {batch.header.base_offset} of "
                    f"{CLUSTER_METADATA} from {self._address} does not match"
                )
            yield batch

    # Fetching

    def _fetch(self, offset: int, epoch: int) -> FetchPartitionResponse:
        def request(leader: LeaderHint) -> Any:
            return {
                "replica_id": _NO_REPLICA,
                "replica_state": {"replica_id": _NO_REPLICA, "replica_epoch": -1},
                "max_wait": 0,
                "min_bytes": 0,
                "max_bytes": _FETCH_BYTES,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "topics": [
                    {
                        "topic": CLUSTER_METADATA,
                        "topic_id": METADATA_TOPIC_ID,
                        "partitions": [
                            {
                                "partition": 0,
                                "current_leader_epoch": leader.leader_epoch,
                                "fetch_offset": offset,
                                "last_fetched_epoch": epoch,
                                "log_start_offset": -1,
                                "partition_max_bytes": _FETCH_BYTES,
                            }
                        ],
                    }
                ],
                "forgotten_topics_data": [],
                "rack_id": "",
            }

        fetched = self._ask_leader(ApiKey.FETCH, request)
        assert isinstance(fetched, FetchPartitionResponse)
        return fetched

    def _snapshot_at(self, log_start: int, latest: SnapshotId) -> MetadataSnapshot | None:
        """The snapshot that the log begins with; None if nothing is before the log.

        A leader names only the latest snapshot. The one at the start of the log has the epoch of
        the record before it, which is not told, but cannot be later.
        """
        if log_start == 0:
            return None
        for epoch in range(latest.epoch, -1, -1):
            id = SnapshotId(log_start, epoch)
            content = self._fetch_snapshot(id)
            if content is not None:
                return MetadataSnapshot(id, iterate_batches(content))
        content = self._fetch_snapshot(latest)
        if content is None:
            raise UnavailableError(
                f"{self._address} has removed the snapshot at offset {latest.end_offset} while it "
                "was read; try again"
            )
        return MetadataSnapshot(latest, iterate_batches(content))

    def _fetch_snapshot(self, id: SnapshotId) -> bytes | None:
        """The bytes of a snapshot; None if there is none with this id."""
        content = bytearray()
        while True:
            position = len(content)

            def request(leader: LeaderHint, position: int = position) -> Any:
                return {
                    "replica_id": _NO_REPLICA,
                    "max_bytes": _FETCH_BYTES,
                    "topics": [
                        {
                            "name": CLUSTER_METADATA,
                            "partitions": [
                                {
                                    "partition": 0,
                                    "current_leader_epoch": leader.leader_epoch,
                                    "snapshot_id": id._asdict(),
                                    "position": position,
                                }
                            ],
                        }
                    ],
                }

            try:
                fetched = self._ask_leader(ApiKey.FETCH_SNAPSHOT, request)
            except KafkaError as error:
                if error.code is ErrorCode.SNAPSHOT_NOT_FOUND:
                    return None
                raise
            content += fetched.unaligned_records
            if len(content) >= fetched.size:
                return bytes(content)

    def _ask_leader(self, api: ApiKey, request: Any) -> Any:
        """The partition in the leader's response; the leader is looked for until there is one."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            if self._leader is None:
                self._find_leader()
            assert self._leader is not None
            try:
                connection = self._connection(self._leader_address)
                response = connection.send(api, request(self._leader), self._timeout_s)
                _check(response.error_code)
                topics = response.topics
                (partition,) = topics[0].partitions
                _check(partition.error_code)
                return partition
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
            except KafkaError as error:
                if error.code not in _LEADER_ERRORS or time.monotonic() > deadline:
                    raise _refused(self._leader_address, error) from error
            self._leader = None
            time.sleep(_PAUSE_S)

    # Finding the leader

    def _find_leader(self) -> None:
        """Ask one controller after the other, until one of them is the leader."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            asked: dict[tuple[str, int], str] = {}
            waiting = [self._leader_address, *self._controllers]
            while waiting:
                address = waiting.pop(0)
                if address in asked:
                    continue
                try:
                    # The leader, if this controller knows it, is asked next.
                    waiting[:0] = self._peers_of(address)
                    leader = self._describe(address)
                except UnavailableError as error:
                    asked[address] = str(error)
                    continue
                if leader is not None:
                    self._leader, self._leader_address = leader, address
                    return
                asked[address] = f"{_text(address)} is not the leader"
            has_follower = any(each.endswith("is not the leader") for each in asked.values())
            if not has_follower or time.monotonic() > deadline:
                raise UnavailableError(
                    f"No leader of the KRaft quorum is found ({', '.join(asked.values())}): "
                    "--kraft takes the address of a controller (controller.listener.names), or "
                    "those of all controllers, separated by commas"
                )
            time.sleep(_PAUSE_S)

    def _peers_of(self, address: tuple[str, int]) -> list[tuple[str, int]]:
        """The controllers that this one knows, the leader first; none before Kafka 3.7.

        Raises ConfigError if it is no controller: only controllers serve snapshots.
        """
        connection = self._connection(address)
        try:
            connection.version(ApiKey.FETCH_SNAPSHOT, self._timeout_s)
        except KafkaError as error:
            raise _no_controller(address) from error
        if connection.version(ApiKey.DESCRIBE_CLUSTER, self._timeout_s) < _FIRST_WITH_ENDPOINT_TYPE:
            return []
        cluster = connection.send(
            ApiKey.DESCRIBE_CLUSTER,
            {"include_cluster_authorized_operations": False, "endpoint_type": _CONTROLLERS},
            self._timeout_s,
        )
        if cluster.error_code:
            return []
        self._cluster_id = cluster.cluster_id
        peers = sorted(cluster.brokers, key=lambda each: each.broker_id != cluster.controller_id)
        return [(each.host, each.port) for each in peers if (each.host, each.port) != address]

    def _describe(self, address: tuple[str, int]) -> LeaderHint | None:
        """The leader and its epoch if it is this controller, else None."""
        quorum = self._connection(address).send(
            ApiKey.DESCRIBE_QUORUM,
            {"topics": [{"topic_name": CLUSTER_METADATA, "partitions": [{"partition_index": 0}]}]},
            self._timeout_s,
        )
        code = ErrorCode.of(quorum.error_code)
        if code is ErrorCode.NONE:
            (partition,) = quorum.topics[0].partitions
            code = ErrorCode.of(partition.error_code)
            if code is ErrorCode.NONE:
                return LeaderHint(partition.leader_id, partition.leader_epoch)
        if code in _LEADER_ERRORS:
            return None
        raise _refused(address, KafkaError(code))

    def _connection(self, address: tuple[str, int]) -> BlockingConnection:
        if address not in self._connections:
            self._connections[address] = BlockingConnection(*address, _CLIENT_ID, self._secure)
        return self._connections[address]


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _check(code: int) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(code))


def _no_controller(address: tuple[str, int]) -> ConfigError:
    return ConfigError(
        f"{_text(address)} is not a KRaft controller: it does not serve FetchSnapshot. --kraft "
        "takes the address of a listener in controller.listener.names, not that of a broker"
    )


def _refused(address: tuple[str, int], error: KafkaError) -> KlammError:
    if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return ConfigError(
            f"{_text(address)} refuses the metadata log ({error}): it takes Describe and "
            "ClusterAction on the cluster; name a principal that has them with --command-config"
        )
    return error
