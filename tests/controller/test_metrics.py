"""The controller's metrics: what they show of a controller, and how they are written."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from klamm.controller.metrics import TIMER_OF
from klamm.core.cluster import ClusterState
from klamm.core.context import Context
from klamm.core.events import (
    AutoRebalance,
    BrokerChange,
    ControllerState,
    Event,
    QueuedEvent,
    UpdateMetadataResponseReceived,
)
from klamm.metrics.meters import Histogram, Meter, Timer
from klamm.metrics.prometheus import prometheus_name
from klamm.zookeeper import znodes
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import open_store
from tests.support.candidate import Node, running
from tests.support.recorded_controller import Clock, RecordedController

CONTROLLER = "kafka_controller_KafkaController_"
CHANNELS = "kafka_controller_ControllerChannelManager_"
QUEUE = "kafka_controller_ControllerEventManager_"


def run(scenario: Callable[[Node], Awaitable[None]], directory: Path) -> None:
    async def main() -> None:
        async with running(directory) as node:
            await scenario(node)

    asyncio.run(main())


def handle(node: Node, event: Event, took_s: float = 0.0, waited_s: float = 0.0) -> None:
    """One event as the loop reports it, without the loop."""
    now = node.world.monotonic()
    node.metrics.begin(QueuedEvent(event, now - waited_s, "a test"), 1, now)
    node.world.at += took_s
    node.metrics.end("done", node.controller.context)


@pytest.mark.rule("MET-1")
def test_a_node_that_is_not_controller_shows_zeros(tmp_path: Path):
    async def scenario(node: Node) -> None:
        shown = {k: v for k, v in node.samples().items() if k.startswith(CONTROLLER)}
        assert len(shown) == 13
        assert shown.pop(f"{CONTROLLER}ZkMigrationState") == 4
        assert set(shown.values()) == {0.0}

    run(scenario, tmp_path)


@pytest.mark.rule("MET-1", "EVT-9")
def test_gauges_follow_the_role_of_the_controller(tmp_path: Path):
    async def scenario(node: Node) -> None:
        topic = znodes.TopicAssignment(None, {0: [7], 1: [7]})
        await node.store.create(znodes.topic_path("orders"), znodes.encode_topic(topic))
        await node.controller.enter_election()
        await node.until(lambda: node[f"{CONTROLLER}GlobalTopicCount"] == 1)
        assert node[f"{CONTROLLER}ActiveControllerCount"] == 1
        node.zookeeper.expire(node.store)
        await node.until(lambda: node[f"{CONTROLLER}ActiveControllerCount"] == 0)
        await node.until(lambda: node[f"{CONTROLLER}GlobalTopicCount"] == 0)

    run(scenario, tmp_path)


@pytest.mark.rule("EVT-9")
def test_gauges_are_recomputed_after_a_failed_event_too(tmp_path: Path):
    async def scenario(node: Node) -> None:
        controller = RecordedController(tmp_path / "history")
        controller.fail_over()
        controller.create_topic("orders", {0: [1, 2]})
        node.metrics.begin(QueuedEvent(BrokerChange(), 0.0, "a test"), 1, 0.0)
        node.metrics.end("failed: for whatever reason", controller.ctx)
        assert node[f"{CONTROLLER}ActiveBrokerCount"] == 3
        controller.history.spool.close()

    run(scenario, tmp_path)


@pytest.mark.rule("EVT-10")
def test_the_state_gauge_shows_the_state_of_the_event_being_handled(tmp_path: Path):
    async def scenario(node: Node) -> None:
        seen: list[float] = []

        class Spy:
            def begin(self, queued: QueuedEvent, epoch: int, at: float) -> None:
                seen.append(node[f"{CONTROLLER}ControllerState"])

            def end(self, outcome: str, context: Context | None) -> None:
                seen.append(node[f"{CONTROLLER}ControllerState"])

        node.controller.observe(Spy())
        node.controller.queue.put(BrokerChange(), cause="a test")
        await node.until(lambda: len(seen) == 2)
        assert seen == [ControllerState.BROKER_CHANGE] * 2
        await node.until(lambda: node[f"{CONTROLLER}ControllerState"] == 0)

    run(scenario, tmp_path)


@pytest.mark.rule("EVT-11")
def test_the_time_that_events_waited_is_forgotten_after_five_quiet_minutes(tmp_path: Path):
    async def scenario(node: Node) -> None:
        for waited_s in (0.002, 0.004):
            handle(node, BrokerChange(), waited_s=waited_s)
        assert node[f"{QUEUE}EventQueueTimeMs_count"] == 2
        assert node[f'{QUEUE}EventQueueTimeMs{{quantile="0.5"}}'] == pytest.approx(3)
        node.world.at += 299
        assert node[f"{QUEUE}EventQueueTimeMs_count"] == 2
        node.world.at += 1
        assert node[f"{QUEUE}EventQueueTimeMs_count"] == 0
        assert math.isnan(node[f'{QUEUE}EventQueueTimeMs{{quantile="0.5"}}'])
        handle(node, BrokerChange(), waited_s=0.005)
        assert node[f"{QUEUE}EventQueueTimeMs_sum"] == pytest.approx(5)

    run(scenario, tmp_path)


def test_the_queue_shows_how_many_events_wait(tmp_path: Path):
    async def scenario(node: Node) -> None:
        for _ in range(3):
            node.controller.queue.put(BrokerChange(), cause="a test")
        assert node[f"{QUEUE}EventQueueSize"] == 3
        await node.until(lambda: node[f"{QUEUE}EventQueueSize"] == 0)

    run(scenario, tmp_path)


@pytest.mark.rule("MET-2")
def test_every_state_but_two_has_a_timer():
    without = set(ControllerState) - TIMER_OF.keys()
    assert without == {ControllerState.IDLE, ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED}
    specified = re.search(r"X = (.*?) \|", Path("docs/spec/controller.md").read_text())
    assert specified is not None
    names = re.sub(r" \(.*?\)", "", specified[1]).split(", ")
    assert list(TIMER_OF.values()) == names


@pytest.mark.rule("MET-2")
def test_an_event_is_timed_under_the_name_of_its_state(tmp_path: Path):
    async def scenario(node: Node) -> None:
        handle(node, BrokerChange(), took_s=0.25)
        handle(node, AutoRebalance(), took_s=0.5)
        handle(node, UpdateMetadataResponseReceived(1, 0), took_s=9.0)
        shown = node.samples()
        timers = "kafka_controller_ControllerStats_"
        counted = {
            name: value
            for name, value in shown.items()
            if name.startswith(timers) and name.endswith("Ms_sum") and value
        }
        assert counted == {
            f"{timers}LeaderElectionRateAndTimeMs_sum": pytest.approx(250),
            f"{timers}AutoLeaderBalanceRateAndTimeMs_sum": pytest.approx(500),
        }

    run(scenario, tmp_path)


@pytest.mark.rule("LEAD-7")
def test_unclean_elections_are_counted_once_each(tmp_path: Path):
    async def scenario(node: Node) -> None:
        name = "kafka_controller_ControllerStats_UncleanLeaderElectionsPerSec_total"
        first, second = Context(ClusterState()), Context(ClusterState())
        steps = ((first, 2, 2), (first, 2, 2), (first, 5, 5), (second, 1, 6))
        for context, total, expected in steps:
            context.unclean_elections = total
            node.metrics.end("done", context)
            assert node[name] == expected

    run(scenario, tmp_path)


@pytest.mark.rule("MET-5")
def test_a_brokers_channel_metrics_live_as_long_as_its_channel(tmp_path: Path):
    async def scenario(node: Node) -> None:
        writers: list[asyncio.StreamWriter] = []
        # Brokers that take a request and never answer it.
        server = await asyncio.start_server(lambda _, w: writers.append(w), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await node.register(2, port)
        size = f'{CHANNELS}QueueSize{{broker_id="2"}}'
        times = f'{CHANNELS}RequestRateAndQueueTimeMs_count{{broker_id="2"}}'
        assert size not in node.samples()
        await node.controller.enter_election()
        await node.until(lambda: bool(writers))
        await node.register(3, port)
        # Hearing of broker 3 is one request more for broker 2, behind the one it sits on.
        await node.until(lambda: node.samples().get(size) == 1)
        assert node[times] == 1
        assert node[f"{CHANNELS}TotalQueueSize"] >= 1
        await node.store.delete(znodes.broker_path(2))
        await node.until(lambda: size not in node.samples())
        assert times not in node.samples()
        assert f'{CHANNELS}QueueSize{{broker_id="3"}}' in node.samples()
        server.close()
        for writer in writers:
            writer.close()
            await writer.wait_closed()

    run(scenario, tmp_path)


def test_the_connection_with_zookeeper_is_followed(tmp_path: Path):
    async def scenario(node: Node) -> None:
        listener = "kafka_server_SessionExpireListener_"
        state = f'{listener}SessionState{{state="CONNECTED"}}'
        await node.until(lambda: node[state] == 1)
        node.zookeeper.disconnect(node.store)
        await node.until(lambda: node[state] == 0)
        assert node[f"{listener}ZooKeeperDisconnectsPerSec_total"] == 1
        node.zookeeper.reconnect(node.store)
        await node.until(lambda: node[state] == 1)
        node.zookeeper.expire(node.store)
        await node.until(lambda: node[f"{listener}ZooKeeperExpiresPerSec_total"] == 1)
        await node.until(lambda: node[f"{listener}ZooKeeperSyncConnectsPerSec_total"] == 3)

    run(scenario, tmp_path)


@pytest.mark.real
def test_the_latency_of_zookeeper_is_measured_with_each_response(
    tmp_path: Path, zookeeper_server: ZooKeeperServer
):
    async def scenario(node: Node) -> None:
        store = await open_store(zookeeper_server.address)
        store.on_response = node.metrics.zookeeper_responded
        await store.exists("/")
        await store.exists("/nowhere")
        await store.close()
        name = "kafka_server_ZooKeeperClientMetrics_ZooKeeperRequestLatencyMs"
        assert node[f"{name}_count"] == 2
        assert node[f"{name}_sum"] > 0

    run(scenario, tmp_path)


# The page


def test_every_metric_is_described_before_its_samples(tmp_path: Path):
    async def scenario(node: Node) -> None:
        kinds: dict[str, str] = {}
        for line in node.metrics.render().splitlines():
            if match := re.fullmatch(r"# TYPE (\S+) (gauge|counter|summary)", line):
                assert match[1] not in kinds
                kinds[match[1]] = match[2]
            elif not line.startswith("# HELP "):
                sample = re.fullmatch(r'([a-zA-Z_]+)(\{[a-z_]+="[^"]*"(,.*)?\})? (\S+)', line)
                assert sample is not None, line
                family = sample[1]
                assert family in kinds or re.sub("_(sum|count)$", "", family) in kinds

    run(scenario, tmp_path)


def test_names_follow_kafkas():
    jmx_name = "kafka.controller:type=KafkaController,name=ActiveControllerCount"
    assert prometheus_name(jmx_name) == "kafka_controller_KafkaController_ActiveControllerCount"


def test_the_documentation_names_every_metric(tmp_path: Path):
    text = Path("docs/metrics.md").read_text()

    async def scenario(node: Node) -> None:
        for line in node.metrics.render().splitlines():
            if line.startswith("# TYPE ") and "RateAndTimeMs" not in line:
                assert f"`{line.split()[2]}" in text

    run(scenario, tmp_path)


# Meters


def test_a_rate_decays_by_the_length_of_its_window():
    clock = Clock()
    meter = Meter(clock.monotonic)
    meter.mark(50)
    clock.at += 5
    assert meter.rates() == [10.0, 10.0, 10.0]
    clock.at += 60
    one, five, fifteen = meter.rates()
    assert one == pytest.approx(10 * math.exp(-1))
    assert five == pytest.approx(10 * math.exp(-1 / 5))
    assert fifteen == pytest.approx(10 * math.exp(-1 / 15))


def test_a_steady_rate_is_found_whether_or_not_anybody_looks():
    clock = Clock()
    watched, unwatched = Meter(clock.monotonic), Meter(clock.monotonic)
    for _ in range(600):
        for meter in (watched, unwatched):
            meter.mark(3)
        clock.at += 1
        watched.rates()
    assert watched.rates() == pytest.approx(unwatched.rates())
    assert watched.rates() == pytest.approx([3.0, 3.0, 3.0])
    assert watched.mean_rate() == pytest.approx(3.0)


def test_a_meter_that_just_began_has_no_rate_yet():
    meter = Meter(Clock().monotonic)
    meter.mark()
    assert meter.rates() == [0.0, 0.0, 0.0]
    assert meter.mean_rate() == 0.0


def test_quantiles_are_those_of_the_recent_observations():
    histogram = Histogram()
    for value in range(5000):
        histogram.observe(value)
    assert histogram.count == 5000
    median = histogram.quantiles()[0]
    assert median == pytest.approx(4999 - 1028 / 2, abs=1)


def test_a_timer_counts_milliseconds():
    timer = Timer(Clock().monotonic)
    timer.observe(0.25)
    assert (timer.meter.count, timer.durations_ms.sum) == (1, 250.0)
