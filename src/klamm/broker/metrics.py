"""The metrics of a broker and of its candidate, over HTTP (section 13)."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from klamm.broker.broker import Broker
from klamm.broker.candidate import Candidate
from klamm.broker.data_plane import DataPlane
from klamm.broker.log.log import Log
from klamm.broker.meters import TopicMeters
from klamm.broker.parking import count_waiting
from klamm.broker.partition import Partition, Role
from klamm.controller.prometheus import Page
from klamm.errors import ConfigError, UnavailableError

log = logging.getLogger("klamm.broker.metrics")

_TOPIC_METRICS: Final = {
    "MessagesInPerSec": "messages_in",
    "BytesInPerSec": "bytes_in",
    "BytesOutPerSec": "bytes_out",
    "BytesRejectedPerSec": "bytes_rejected",
    "ReplicationBytesInPerSec": "replication_bytes_in",
    "ReplicationBytesOutPerSec": "replication_bytes_out",
    "TotalProduceRequestsPerSec": "produce_requests",
    "TotalFetchRequestsPerSec": "fetch_requests",
    "FailedProduceRequestsPerSec": "failed_produce_requests",
    "FailedFetchRequestsPerSec": "failed_fetch_requests",
}
#: Partitions that are described before others get their turn.
_PORTION: Final = 500
_REQUEST_TIMEOUT_S: Final = 10


class MetricsEndpoint:
    """A web server with one page, which is made when it is asked for."""

    def __init__(self, broker: Broker, candidate: Candidate) -> None:
        self._broker = broker
        self._candidate = candidate
        self._server: asyncio.Server | None = None

    async def listen(self, port: int) -> None:
        """Serve on all addresses of the machine."""
        try:
            self._server = await asyncio.start_server(self._serve, port=port)
        except OSError as error:
            raise ConfigError(f"klamm.metrics.port={port} cannot be opened: {error}") from error

    async def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

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
        page = Page()
        _render_broker(page, self._broker)
        if self._broker.data is not None:
            await _render_data(page, self._broker.data)
        with contextlib.suppress(UnavailableError):
            return page.text() + str(await self._candidate.ask({"metrics": True}) or "")
        return page.text()


def _render_broker(page: Page, broker: Broker) -> None:
    page.gauge("kafka.server:type=KafkaServer,name=BrokerState", broker.state)
    page.gauges(
        "kafka.server:type=KafkaServer,name=ClusterId",
        [(f'cluster_id="{broker.identity.cluster_id}"', 1)],
    )
    page.counters(
        "kafka.network:type=RequestMetrics,name=RequestsPerSec",
        [
            (f'request="{name}",version="{version}"', count)
            for (name, version), count in sorted(broker.meters.requests.items())
        ],
    )
    total = broker.meters.total()
    for name, field in _TOPIC_METRICS.items():
        page.counters(
            f"kafka.server:type=BrokerTopicMetrics,name={name}",
            [("", getattr(total, field)), *_by_topic(broker.meters.topics, field)],
        )


def _by_topic(topics: dict[str, TopicMeters], field: str) -> Iterator[tuple[str, int]]:
    for topic, meters in sorted(topics.items()):
        if topic:  # what is left of topics that are gone is in the total alone
            yield f'topic="{topic}"', getattr(meters, field)


async def _render_data(page: Page, data: DataPlane) -> None:
    replicas = list(data.replicas)
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
    ):
        page.gauge(f"{manager},name={name}", count)
    meters = data.meters
    for name, count in (
        ("IsrShrinksPerSec", meters.isr_shrinks),
        ("IsrExpandsPerSec", meters.isr_expands),
        ("FailedIsrUpdatesPerSec", meters.failed_isr_updates),
    ):
        page.counters(f"{manager},name={name}", [("", count)])
    page.gauges(
        "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize",
        [(f'delayedOperation="{kind}"', n) for kind, n in count_waiting(data.parking).items()],
    )
    page.gauge(
        "kafka.server:type=ReplicaFetcherManager,name=MaxLag",
        max((lag for _, lag in data.fetchers.lags()), default=0),
    )
    sessions = "kafka.server:type=FetchSessionCache"
    page.gauge(f"{sessions},name=NumIncrementalFetchSessions", len(data.sessions))
    page.gauge(
        f"{sessions},name=NumIncrementalFetchPartitionsCached", data.sessions.partition_count
    )
    page.gauge(
        "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
        data.logs.offline_directory_count,
    )
    _render_groups(page, data)
    await _render_partitions(page, replicas)


def _render_groups(page: Page, data: DataPlane) -> None:
    census = data.groups.coordinator.census()
    manager = "kafka.coordinator.group:type=GroupMetadataManager"
    page.gauge(f"{manager},name=NumGroups", sum(census.groups.values()))
    page.gauge(f"{manager},name=NumOffsets", census.offsets)
    for state, count in census.groups.items():
        page.gauge(f"{manager},name=NumGroups{state.value}", count)


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
