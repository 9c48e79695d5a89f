"""The metrics of a node over HTTP, in Prometheus' text format, under Kafka's names (section 13).

docs/metrics.md lists them.
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from klamm.broker.data_plane import DataPlane
from klamm.broker.delayed.purgatory import PurgatorySize
from klamm.broker.groups.coordinator import GroupCounts
from klamm.broker.log.log import Log
from klamm.broker.meters import TopicMeters
from klamm.broker.replication.fetcher_manager import ReplicaFetcherManager
from klamm.broker.replication.partition import Partition, Role
from klamm.errors import ConfigError, UnavailableError
from klamm.metrics.meters import Histogram
from klamm.metrics.prometheus import Page
from klamm.metrics.requests import RequestMeters
from klamm.node.broker_server import BrokerServer
from klamm.node.controller_link import ControllerLink
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

log = logging.getLogger("klamm.node.metrics")

_REQUEST_TIMEOUT_S: Final = 10


class MetricsEndpoint:
    """An HTTP server for the metrics page, which is rendered for each request."""

    def __init__(self, candidate: ControllerLink) -> None:
        self._candidate = candidate
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._broker: BrokerServer

    def open(self, host: str | None, port: int) -> int:
        """Take a port on one address of the machine, or (None) on all; return its number.

        Requests wait there until `serve` is called.
        """
        try:
            self._socket = _bound(host, port)
        except OSError as error:
            where = "" if host is None else f" on klamm.metrics.host={host}"
            raise ConfigError(
                f"klamm.metrics.port={port} cannot be opened{where}: {error}"
            ) from error
        return int(self._socket.getsockname()[1])

    async def serve(self, broker: BrokerServer) -> None:
        """Serve the metrics of this broker, if a port is open."""
        self._broker = broker
        if self._socket is not None:
            self._server = await asyncio.start_server(self._serve, sock=self._socket)

    async def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        elif self._socket is not None:
            self._socket.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                method, path = request.split(b" ", 2)[:2]
                if method == b"GET" and path.split(b"?")[0] in (b"/", b"/metrics"):
                    status, body = b"200 OK", (await self._page()).encode()
                else:
                    status, body = b"404 Not Found", b"there is only /metrics\n"
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
                )
                await writer.drain()
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
            log.debug("a reader of metrics went away: %r", error)
        finally:
            writer.close()

    async def _page(self) -> str:
        """The broker's metrics, followed by the controller process's if that is running."""
        candidates = ""
        errors = self._broker.meters.requests.errors()
        with contextlib.suppress(UnavailableError):
            # Forwarded requests are counted by the controller's process.
            answered = await self._candidate.request({"errors": True}) or []
            errors += Counter({(name, code): count for name, code, count in answered})
            candidates = str(await self._candidate.request({"metrics": True}) or "")
        page = Page()
        render_broker(page, self._broker, errors)
        if self._broker.data is not None:
            await render_data(page, self._broker.data)
        return page.text() + candidates


_TOPIC_METRICS: Final = {
    "MessagesInPerSec": "messages_in",
    "BytesInPerSec": "bytes_in",
    "BytesOutPerSec": "bytes_out",
    "BytesRejectedPerSec": "bytes_rejected",
    "ReplicationBytesInPerSec": "replication_bytes_in",
    "ReplicationBytesOutPerSec": "replication_bytes_out",
    "ReassignmentBytesInPerSec": "reassignment_bytes_in",
    "ReassignmentBytesOutPerSec": "reassignment_bytes_out",
    "TotalProduceRequestsPerSec": "produce_requests",
    "TotalFetchRequestsPerSec": "fetch_requests",
    "FailedProduceRequestsPerSec": "failed_produce_requests",
    "FailedFetchRequestsPerSec": "failed_fetch_requests",
    "InvalidMessageCrcRecordsPerSec": "invalid_checksums",
    "NoKeyCompactedTopicRecordsPerSec": "missing_keys",
    "InvalidMagicNumberRecordsPerSec": "invalid_magic_numbers",
    "InvalidOffsetOrSequenceRecordsPerSec": "invalid_offsets_or_sequences",
}
#: Partitions that are described before others get their turn.
_PORTION: Final = 500

_PURGATORY: Final = "kafka.server:type=DelayedOperationPurgatory"
#: The requests that wait in the candidate's process, by what Kafka calls the waiting.
_RELAYED: Final = {
    "ElectLeader": (ApiKey.ELECT_LEADERS,),
    "topic": (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS),
}


def render_broker(page: Page, broker: BrokerServer, errors: Mapping[tuple[str, int], int]) -> None:
    """The metrics of every node; `errors` counts error codes of responses, by API and code."""
    page.gauge("kafka.server:type=KafkaServer,name=BrokerState", broker.state)
    page.gauges(
        "kafka.server:type=KafkaServer,name=ClusterId",
        [(f'cluster_id="{broker.identity.cluster_id}"', 1)],
    )
    _render_requests(page, broker.meters.requests, errors)
    _render_waiting(page, broker)
    total = broker.meters.total()
    for name, field in _TOPIC_METRICS.items():
        page.counters(
            f"kafka.server:type=BrokerTopicMetrics,name={name}",
            [("", getattr(total, field)), *_by_topic(broker.meters.topics, field)],
        )


async def render_data(page: Page, data: DataPlane) -> None:
    """The metrics of a node with log directories."""
    replicas = list(data.replicas)
    _render_replicas(page, data, replicas)
    _render_fetchers(page, data.replicas.fetchers)
    sessions = "kafka.server:type=FetchSessionCache"
    page.gauge(f"{sessions},name=NumIncrementalFetchSessions", len(data.sessions))
    page.gauge(
        f"{sessions},name=NumIncrementalFetchPartitionsCached", data.sessions.partition_count
    )
    _render_disks(page, data)
    _render_groups(page, data.groups.coordinator.census())
    _render_transactions(page, data)
    await _render_partitions(page, replicas)


# Requests


def _render_requests(
    page: Page, requests: RequestMeters, errors: Mapping[tuple[str, int], int]
) -> None:
    metrics = "kafka.network:type=RequestMetrics"
    meters = requests.used()
    page.counters(
        f"{metrics},name=RequestsPerSec",
        [
            (f'request="{meter.name}",version="{version}"', count)
            for meter in meters
            for version, count in sorted(meter.versions.items())
        ],
    )
    by_measure: dict[str, list[tuple[str, Histogram]]] = {}
    for meter in meters:
        for measure, histogram in meter.measures():
            by_measure.setdefault(measure, []).append((f'request="{meter.name}"', histogram))
    for measure, histograms in by_measure.items():
        page.histograms(f"{metrics},name={measure}", histograms)
    page.counters(
        f"{metrics},name=ErrorsPerSec",
        [
            (f'request="{name}",error="{ErrorCode.of(code).name}"', count)
            for (name, code), count in sorted(errors.items())
        ],
    )


def _render_waiting(page: Page, broker: BrokerServer) -> None:
    """Requests and deadlines that wait for something to happen."""
    waiting = {
        kind: PurgatorySize(count := sum(broker.forwarding.under_way[key] for key in keys), count)
        for kind, keys in _RELAYED.items()
    }
    if broker.data is not None:
        census = broker.data.groups.coordinator.census()
        waiting |= broker.data.purgatories.sizes()
        waiting["Heartbeat"] = PurgatorySize(census.heartbeats, census.heartbeats)
        waiting["Rebalance"] = PurgatorySize(census.rebalances, census.rebalances)
    labelled = [(f'delayedOperation="{kind}"', each) for kind, each in sorted(waiting.items())]
    page.gauges(
        f"{_PURGATORY},name=PurgatorySize", [(kind, each.watched) for kind, each in labelled]
    )
    page.gauges(
        f"{_PURGATORY},name=NumDelayedOperations",
        [(kind, each.requests) for kind, each in labelled],
    )


def _by_topic(topics: dict[str, TopicMeters], field: str) -> Iterator[tuple[str, int]]:
    for topic, meters in sorted(topics.items()):
        if topic:  # deleted topics are counted in the total only
            yield f'topic="{topic}"', getattr(meters, field)


# Data


def _render_replicas(page: Page, data: DataPlane, replicas: list[Partition]) -> None:
    manager = "kafka.server:type=ReplicaManager"
    for name, count in (
        ("UnderReplicatedPartitions", sum(each.is_under_replicated for each in replicas)),
        ("UnderMinIsrPartitionCount", sum(each.is_under_min_isr for each in replicas)),
        ("AtMinIsrPartitionCount", sum(each.is_at_min_isr for each in replicas)),
        ("PartitionCount", len(replicas)),
        ("LeaderCount", sum(each.role is Role.LEADER for each in replicas)),
        ("OfflineReplicaCount", data.replicas.offline_count),
        (
            "ReassigningPartitions",
            sum(each.is_reassigning and each.role is Role.LEADER for each in replicas),
        ),
        ("ProducerIdCount", sum(len(log.producers) for log in _logs(replicas))),
        ("PartitionsWithLateTransactionsCount", data.replicas.late_transaction_count),
    ):
        page.gauge(f"{manager},name={name}", count)
    meters = data.meters
    for name, count in (
        ("IsrShrinksPerSec", meters.isr_shrinks),
        ("IsrExpandsPerSec", meters.isr_expands),
        ("FailedIsrUpdatesPerSec", meters.failed_isr_updates),
    ):
        page.counters(f"{manager},name={name}", [("", count)])


def _render_fetchers(page: Page, fetchers: ReplicaFetcherManager) -> None:
    lags = list(fetchers.lags())
    manager = "kafka.server:type=ReplicaFetcherManager"
    for name, value in (
        ("MaxLag", max((lag for _, _, lag in lags), default=0)),
        ("MinFetchRate", fetchers.min_fetch_rate()),
        ("FailedPartitionsCount", fetchers.failed_count),
        ("DeadThreadCount", fetchers.dead_count),
    ):
        page.gauges(f"{manager},name={name}", [('clientId="Replica"', value)])
    page.gauges(
        "kafka.server:type=FetcherLagMetrics,name=ConsumerLag",
        [
            (f'clientId="{fetcher}",topic="{name.topic}",partition="{name.partition}"', lag)
            for fetcher, name, lag in lags
        ],
    )


def _render_disks(page: Page, data: DataPlane) -> None:
    directories = data.logs.directories
    manager = "kafka.log:type=LogManager"
    page.gauge(
        f"{manager},name=OfflineLogDirectoryCount",
        sum(not each.is_online for each in directories),
    )
    page.gauges(
        f"{manager},name=LogDirectoryOffline",
        [(f'logDirectory="{each.path}"', not each.is_online) for each in directories],
    )
    cleaner = "kafka.log:type=LogCleanerManager"
    uncleanable = data.logs.uncleanable().items()
    page.gauges(
        f"{cleaner},name=uncleanable-partitions-count",
        [(f'logDirectory="{path}"', len(logs)) for path, logs in uncleanable],
    )
    page.gauges(
        f"{cleaner},name=uncleanable-bytes",
        [(f'logDirectory="{path}"', sum(log.size for log in logs)) for path, logs in uncleanable],
    )
    page.timers(
        "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs", [("", data.flusher.flushes)]
    )


def _render_groups(page: Page, census: GroupCounts) -> None:
    manager = "kafka.coordinator.group:type=GroupMetadataManager"
    page.gauge(f"{manager},name=NumGroups", sum(census.groups.values()))
    page.gauge(f"{manager},name=NumOffsets", census.offsets)
    for state, count in census.groups.items():
        page.gauge(f"{manager},name=NumGroups{state.value}", count)


def _render_transactions(page: Page, data: DataPlane) -> None:
    channels = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager"
    service, verifier = data.transactions, data.verifier
    page.gauge(f"{channels},name=UnknownDestinationQueueSize", service.markers.unknown_destinations)
    page.gauge(
        f"{channels},name=LogAppendRetryQueueSize", service.coordinator.counts().append_retries
    )
    coordinator = "kafka.server:type=transaction-coordinator-metrics"
    times_ms = service.load_times_ms
    page.gauge(f"{coordinator},name=partition-load-time-max", max(times_ms, default=0))
    average_ms = sum(times_ms) / len(times_ms) if times_ms else 0
    page.gauge(f"{coordinator},name=partition-load-time-avg", average_ms)
    manager = "kafka.server:type=AddPartitionsToTxnManager"
    page.histogram(f"{manager},name=VerificationTimeMs", verifier.times.durations_ms)
    page.meter(f"{manager},name=VerificationFailureRate", verifier.failures)


async def _render_partitions(page: Page, replicas: list[Partition]) -> None:
    """Metrics of each partition (BMET-7, BMET-8), with pauses in between."""
    columns: dict[str, list[tuple[str, float]]] = {}
    for number, each in enumerate(replicas):
        if number % _PORTION == 0:
            await asyncio.sleep(0)
        label = f'topic="{each.name.topic}",partition="{each.name.partition}"'
        for jmx_name, value in _partition_values(each):
            columns.setdefault(jmx_name, []).append((label, value))
    for jmx_name, values in columns.items():
        page.gauges(jmx_name, values)


def _partition_values(partition: Partition) -> Iterator[tuple[str, float]]:
    of_partition = "kafka.cluster:type=Partition"
    is_leader = partition.role is Role.LEADER
    yield f"{of_partition},name=UnderReplicated", partition.is_under_replicated
    yield f"{of_partition},name=UnderMinIsr", partition.is_under_min_isr
    yield f"{of_partition},name=AtMinIsr", partition.is_at_min_isr
    yield f"{of_partition},name=InSyncReplicasCount", len(partition.isr) if is_leader else 0
    yield f"{of_partition},name=ReplicasCount", len(partition.replicas) if is_leader else 0
    replica = partition.log
    if isinstance(replica, Log):
        lag = replica.high_watermark - replica.last_stable_offset
        yield f"{of_partition},name=LastStableOffsetLag", lag
        yield "kafka.log:type=Log,name=Size", replica.size
        yield "kafka.log:type=Log,name=LogStartOffset", replica.start_offset
        yield "kafka.log:type=Log,name=LogEndOffset", replica.end_offset
        yield "kafka.log:type=Log,name=NumLogSegments", len(replica.segments)


def _logs(replicas: list[Partition]) -> Iterator[Log]:
    return (each.log for each in replicas if isinstance(each.log, Log))


def _bound(host: str | None, port: int) -> socket.socket:
    """A listening socket; without a host on all addresses, of both families if there are two."""
    if host is None:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return socket.create_server((str(address[0]), port), family=family)
