"""The controller's metrics (section 19), rendered in Prometheus' text format.

docs/metrics.md has the whole mapping from Kafka's names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from klamm.controller.channels import ControllerChannels
from klamm.controller.loop import Controller, World
from klamm.core.cluster import ClusterState
from klamm.core.columns import NO_BROKER
from klamm.core.context import Context
from klamm.core.events import ControllerState, QueuedEvent
from klamm.core.transitions import PartitionState, ReplicaState
from klamm.metrics.meters import Histogram, Meter, Timer
from klamm.metrics.prometheus import Page
from klamm.zookeeper.store import (
    SessionExpired,
    SessionResumed,
    SessionStarted,
    SessionSuspended,
    StoreEvent,
)

_NO_ROWS: Final = np.empty(0, np.int32)
#: After that long without an event the time that events waited is forgotten (EVT-11).
QUIET_S: Final = 300.0
#: The migration state of a cluster that lives in ZooKeeper and stays there.
_ZK_MIGRATION_STATE: Final = 4

#: Each state has a timer, but for Idle and UpdateMetadataResponseReceived (MET-2).
TIMER_OF: Final[Mapping[ControllerState, str]] = {
    ControllerState.CONTROLLER_CHANGE: "ControllerChange",
    ControllerState.BROKER_CHANGE: "LeaderElection",
    ControllerState.TOPIC_CHANGE: "TopicChange",
    ControllerState.TOPIC_DELETION: "TopicDeletion",
    ControllerState.ALTER_PARTITION_REASSIGNMENT: "PartitionReassignment",
    ControllerState.AUTO_LEADER_BALANCE: "AutoLeaderBalance",
    ControllerState.MANUAL_LEADER_BALANCE: "ManualLeaderBalance",
    ControllerState.CONTROLLED_SHUTDOWN: "ControlledShutdown",
    ControllerState.ISR_CHANGE: "IsrChange",
    ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED: "LeaderAndIsrResponseReceived",
    ControllerState.LOG_DIR_CHANGE: "LogDirChange",
    ControllerState.CONTROLLER_SHUTDOWN: "ControllerShutdown",
    ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE: "UncleanLeaderElectionEnable",
    ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE: "TopicUncleanLeaderElectionEnable",
    ControllerState.LIST_PARTITION_REASSIGNMENT: "ListPartitionReassignment",
    ControllerState.UPDATE_FEATURES: "UpdateFeatures",
}


@dataclass(frozen=True, slots=True)
class Gauges:
    """Gauges of type KafkaController; all are 0 on a node that is not controller (MET-1)."""

    active_controller_count: int = 0
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    topics_to_delete_count: int = 0
    replicas_to_delete_count: int = 0
    topics_ineligible_to_delete_count: int = 0
    replicas_ineligible_to_delete_count: int = 0
    active_broker_count: int = 0
    fenced_broker_count: int = 0


def gauges(cluster: ClusterState | None) -> Gauges:
    """Compute the gauges; without a cluster state, on a node that is not controller, all are 0."""
    if cluster is None:
        return Gauges()
    # This runs after every event: all columns are looked at only while partitions are offline.
    offline = _NO_ROWS
    if cluster.offline_count:
        offline = np.flatnonzero(cluster.state == PartitionState.OFFLINE).astype(np.int32)
    going = cluster.rows_of(cluster.queued_for_deletion)
    states = cluster.replica_state[going][cluster.replicas[going] != NO_BROKER]
    return Gauges(
        active_controller_count=1,
        offline_partitions_count=int(np.count_nonzero(~cluster.is_deletion_started(offline))),
        preferred_replica_imbalance_count=cluster.imbalanced_count,
        global_topic_count=len(cluster.topics),
        global_partition_count=cluster.led_count,
        topics_to_delete_count=len(cluster.queued_for_deletion),
        replicas_to_delete_count=int(np.count_nonzero(states != ReplicaState.DELETION_SUCCESSFUL)),
        topics_ineligible_to_delete_count=len(cluster.ineligible_for_deletion),
        replicas_ineligible_to_delete_count=int(
            np.count_nonzero(states == ReplicaState.DELETION_INELIGIBLE)
        ),
        active_broker_count=len(cluster.brokers),
    )


class SessionState(Enum):
    """The states of the ZooKeeper connection, by the names of ZooKeeper's client."""

    CONNECTING = "CONNECTING"
    CONNECTED = "CONNECTED"
    CLOSED = "CLOSED"


class ControllerMetrics:
    """The metrics of section 19, for one candidate."""

    def __init__(self, controller: Controller, channels: ControllerChannels, world: World) -> None:
        clock = world.monotonic
        self._controller = controller
        self._channels = channels
        self._clock = clock
        self._gauges = Gauges()
        self._began = 0.0
        self._timer: Timer | None = None
        self._timers = {state: Timer(clock) for state in TIMER_OF}
        self._queue_time_ms = Histogram()
        self._last_event_at = clock()
        self._unclean_elections = Meter(clock)
        self._counted: tuple[Context | None, int] = (None, 0)
        self._session_state = SessionState.CONNECTING
        self._expires, self._disconnects, self._connects = (Meter(clock) for _ in range(3))
        self._zookeeper_latency_ms = Histogram()
        controller.observe(self)
        controller.observe_session(self.session_event)

    # What the controller tells

    def begin(self, queued: QueuedEvent, epoch: int, at: float) -> None:
        """An event leaves the queue."""
        self._forget_when_quiet()
        self._began = self._last_event_at = self._clock()
        self._queue_time_ms.observe((self._began - queued.enqueued_at) * 1000)
        self._timer = self._timers.get(queued.event.state)

    def end(self, outcome: str, context: Context | None) -> None:
        """An event has ended, with success or without (EVT-9)."""
        if self._timer is not None:
            self._timer.observe(self._clock() - self._began)
        self._gauges = gauges(None if context is None else context.cluster)
        if context is not None:
            known, counted = self._counted
            new = context.unclean_elections - (counted if known is context else 0)
            self._unclean_elections.mark(new)
            self._counted = (context, context.unclean_elections)

    def session_event(self, event: StoreEvent) -> None:
        """Something happened to the connection with ZooKeeper."""
        match event:
            case SessionStarted() | SessionResumed():
                self._session_state = SessionState.CONNECTED
                self._connects.mark()
            case SessionSuspended():
                self._session_state = SessionState.CONNECTING
                self._disconnects.mark()
            case SessionExpired():
                self._session_state = SessionState.CLOSED
                self._expires.mark()

    def zookeeper_responded(self, seconds: float) -> None:
        """A request to ZooKeeper took that long."""
        self._zookeeper_latency_ms.observe(seconds * 1000)

    def _forget_when_quiet(self) -> None:
        if self._clock() - self._last_event_at >= QUIET_S:
            self._queue_time_ms.clear()

    # Rendering

    def render(self) -> str:
        """All metrics in Prometheus' text format, version 0.0.4."""
        self._forget_when_quiet()
        page = Page()
        self._render_controller(page)
        page.meter(
            "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
            self._unclean_elections,
        )
        for state, timer in self._timers.items():
            name = f"{TIMER_OF[state]}RateAndTimeMs"
            page.timers(f"kafka.controller:type=ControllerStats,name={name}", [("", timer)])
        manager = "kafka.controller:type=ControllerEventManager"
        page.gauge(f"{manager},name=EventQueueSize", len(self._controller.queue))
        page.histogram(f"{manager},name=EventQueueTimeMs", self._queue_time_ms)
        self._render_channels(page)
        self._render_session(page)
        return page.text()

    def _render_controller(self, page: Page) -> None:
        counts = self._gauges
        for name, value in (
            ("ActiveControllerCount", int(self._controller.is_active)),
            ("OfflinePartitionsCount", counts.offline_partitions_count),
            ("PreferredReplicaImbalanceCount", counts.preferred_replica_imbalance_count),
            ("ControllerState", int(self._controller.state)),
            ("GlobalTopicCount", counts.global_topic_count),
            ("GlobalPartitionCount", counts.global_partition_count),
            ("TopicsToDeleteCount", counts.topics_to_delete_count),
            ("ReplicasToDeleteCount", counts.replicas_to_delete_count),
            ("TopicsIneligibleToDeleteCount", counts.topics_ineligible_to_delete_count),
            ("ReplicasIneligibleToDeleteCount", counts.replicas_ineligible_to_delete_count),
            ("ActiveBrokerCount", counts.active_broker_count),
            ("FencedBrokerCount", counts.fenced_broker_count),
            ("ZkMigrationState", _ZK_MIGRATION_STATE),
        ):
            page.gauge(f"kafka.controller:type=KafkaController,name={name}", value)

    def _render_channels(self, page: Page) -> None:
        """Render the metrics of the open channels; they disappear with their channel (MET-5)."""
        manager = "kafka.controller:type=ControllerChannelManager"
        channels = [(f'broker_id="{channel.broker.id}"', channel) for channel in self._channels]
        waiting = [(label, channel.queue_size) for label, channel in channels]
        page.gauge(f"{manager},name=TotalQueueSize", sum(size for _, size in waiting))
        page.gauges(f"{manager},name=QueueSize", waiting)
        times = [(label, channel.queue_time) for label, channel in channels]
        page.timers(f"{manager},name=RequestRateAndQueueTimeMs", times)

    def _render_session(self, page: Page) -> None:
        listener = "kafka.server:type=SessionExpireListener"
        states = [(f'state="{s.value}"', int(s is self._session_state)) for s in SessionState]
        page.gauges(f"{listener},name=SessionState", states)
        page.meter(f"{listener},name=ZooKeeperExpiresPerSec", self._expires)
        page.meter(f"{listener},name=ZooKeeperDisconnectsPerSec", self._disconnects)
        page.meter(f"{listener},name=ZooKeeperSyncConnectsPerSec", self._connects)
        client = "kafka.server:type=ZooKeeperClientMetrics"
        page.histogram(f"{client},name=ZooKeeperRequestLatencyMs", self._zookeeper_latency_ms)
