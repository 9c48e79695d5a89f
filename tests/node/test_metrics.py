"""What operators see: the metrics of section 13, read over HTTP from brokers at work."""

import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from klamm.client import configs
from klamm.client.admin import Admin
from klamm.client.configs import ConfigResource
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Record, build_batch
from klamm.zookeeper.server import ZooKeeperServer
from tests.node.metrics_page import read_metrics
from tests.support.cluster import RealCluster
from tests.support.raw import Raw, batch, fetch_values, produce_values
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

SPECIFICATION = Path(__file__).parents[2] / "docs" / "spec" / "broker.md"
REQUESTS = "kafka_network_RequestMetrics"
TOPICS = "kafka_server_BrokerTopicMetrics"
PURGATORY = "kafka_server_DelayedOperationPurgatory"
FETCHERS = "kafka_server_ReplicaFetcherManager"


class Observed(RealCluster):
    """Two brokers with a page of metrics each."""

    def __init__(self, zookeeper: ZooKeeperServer, directory: Path) -> None:
        super().__init__(zookeeper, directory, brokers=2)
        for broker in self.brokers.values():
            broker.config["klamm.metrics.port"] = "0"
        self.metrics_ports: dict[int, int] = {}

    def metrics_port(self, broker: int) -> int:
        """The port that a broker has taken, as it is described."""
        if broker not in self.metrics_ports:
            with Admin(f"127.0.0.1:{self[broker].port}") as admin:
                described = configs.describe(admin, ConfigResource.broker(broker))
            (port,) = [each.value for each in described if each.name == "klamm.metrics.port"]
            self.metrics_ports[broker] = int(port or 0)
        return self.metrics_ports[broker]

    def page(self, broker: int) -> dict[str, float]:
        return read_metrics(self.metrics_port(broker))

    def count(self, broker: int, name: str, **labels: object) -> float:
        """One sample; 0 as long as there is none."""
        shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
        return self.page(broker).get(f"{name}{{{shown}}}" if shown else name, 0.0)


@pytest.fixture(scope="module")
def observed(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Observed]:
    cluster = Observed(zookeeper_server, tmp_path_factory.mktemp("observed"))
    with cluster:
        yield cluster


def specified(rule: str) -> set[str]:
    """The metrics that a rule of section 13 lists, as they are named here."""
    _, _, text = SPECIFICATION.read_text(encoding="utf-8").partition(f"- **{rule}** ")
    text = re.sub(r"\([^)]*\)", "", text.partition("\n- ")[0])
    listed = re.findall(r"`([\w.]+):type=(\w+),name=(\w*)`([^`;]*)", text)
    return {
        f"{group}_{kind}_{name}".replace(".", "_")
        for group, kind, one, many in listed
        for name in ([one] if one else re.findall(r"\w+", many))
    }


@pytest.mark.rule(
    "BMET-1",
    "BMET-2",
    "BMET-3",
    "BMET-5",
    "BMET-6",
    "BMET-7",
    "BMET-8",
    "BMET-9",
    "BMET-10",
    "BMET-11",
    "LIFE-12",
)
def test_a_page_shows_what_kafka_shows(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1, 2]])
    observed.produce(topic, [b"x" * 100] * 10, acks="all")
    found = observed.page(1)
    shown = {re.sub(r"_(total|count)$", "", name.partition("{")[0]) for name in found}
    shown |= {name.partition("{")[0] for name in observed.page(2)}
    for number in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11):
        assert specified(f"BMET-{number}") - shown == set()
    assert found["kafka_server_KafkaServer_BrokerState"] == 3
    assert found["kafka_server_ReplicaManager_LeaderCount"] >= 1
    assert found["kafka_server_ReplicaManager_UnderReplicatedPartitions"] == 0
    labels = f'{{topic="{topic}",partition="0"}}'
    assert found[f"kafka_cluster_Partition_InSyncReplicasCount{labels}"] == 2
    # The candidate's are on the same page.
    active = "kafka_controller_KafkaController_ActiveControllerCount"
    assert {observed.count(each, active) for each in (1, 2)} == {0, 1}
    port = observed.metrics_port(1)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=10)


# Topics


@pytest.mark.rule("BMET-2")
def test_a_topic_counts_what_goes_in_and_out(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1, 2]])
    records = batch(b"a" * 100, b"b" * 100)
    with Raw(observed[1].port) as raw:
        assert raw.produce(topic, records).error_code == 0
        raw.fetch(raw.topic_id(topic), 0)
    found = observed.page(1)
    for name, count in (
        ("MessagesIn", 2),
        ("BytesIn", len(records)),
        ("BytesOut", len(records)),
        ("BytesRejected", 0),
        ("ReplicationBytesOut", len(records)),
        ("ReassignmentBytesOut", 0),
        ("TotalProduceRequests", 1),
        ("FailedProduceRequests", 0),
        ("FailedFetchRequests", 0),
    ):
        assert found[f'{TOPICS}_{name}PerSec_total{{topic="{topic}"}}'] == count, name
        assert found[f"{TOPICS}_{name}PerSec_total"] >= count
    assert found[f'{TOPICS}_TotalFetchRequestsPerSec_total{{topic="{topic}"}}'] > 1
    replicated = observed.count(2, f"{TOPICS}_ReplicationBytesInPerSec_total", topic=topic)
    assert replicated == len(records)


@pytest.mark.rule("BMET-2")
def test_refused_records_are_counted_by_what_is_wrong_with_them(
    observed: Observed, topic: str
) -> None:
    config = {"cleanup.policy": "compact", "max.message.bytes": "1000"}
    observed.create(topic, assignment=[[1]], config=config)
    torn = bytearray(batch(b"x"))
    torn[-1] ^= 1
    old = bytearray(batch(b"x"))
    old[16] = 1
    keyless = bytes(build_batch([Record(None, b"x", -1), Record(None, b"y", -1)]).data)
    unnumbered = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=-1)
    large = batch(b"x" * 2000)
    with Raw(observed[1].port) as raw:
        for records, error in (
            (bytes(torn), ErrorCode.CORRUPT_MESSAGE),
            (bytes(old), ErrorCode.INVALID_RECORD),
            (keyless, ErrorCode.INVALID_RECORD),
            (unnumbered, ErrorCode.INVALID_RECORD),
            (large, ErrorCode.MESSAGE_TOO_LARGE),
        ):
            assert raw.produce(topic, records).error_code == error
    found = observed.page(1)
    for name, count in (
        ("InvalidMessageCrcRecords", 1),
        ("InvalidMagicNumberRecords", 1),
        ("NoKeyCompactedTopicRecords", 2),
        ("InvalidOffsetOrSequenceRecords", 1),
        ("BytesRejected", len(large)),
        ("TotalProduceRequests", 5),
        # A torn or large batch is no failure of the broker's.
        ("FailedProduceRequests", 3),
        ("MessagesIn", 0),
    ):
        assert found[f'{TOPICS}_{name}PerSec_total{{topic="{topic}"}}'] == count, name


@pytest.mark.rule("BMET-2")
def test_a_topic_that_nobody_has_is_not_counted(observed: Observed) -> None:
    with Raw(observed[1].port) as raw:
        response = raw.produce("no-such-topic", batch(b"x"))
        assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raw.fetch(None, 0, topic="no-such-topic", version=12)
    assert not any("no-such-topic" in name for name in observed.page(1))


@pytest.mark.rule("BMET-2")
def test_what_a_reassignment_moves_is_counted(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1]])
    records = batch(b"x" * 1000)
    with Raw(observed[1].port) as raw:
        assert raw.produce(topic, records).error_code == 0
    with Raw(observed[observed.controller_id()].port) as raw:
        moved = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [2]}]}]
        raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, timeout=10_000, topics=moved)
    observed.wait_leader(topic, other_than=1)
    moved_bytes = f"{TOPICS}_ReassignmentBytes{{}}PerSec_total"
    assert observed.count(2, moved_bytes.format("In"), topic=topic) == len(records)
    assert observed.count(1, moved_bytes.format("Out")) >= len(records)


@pytest.mark.rule("BMET-2")
def test_a_log_that_cannot_be_read_is_a_failure(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1]])
    with Raw(observed[1].port) as raw:
        for _ in range(3):
            assert raw.produce(topic, batch(b"x" * 100)).error_code == 0
        segment = observed[1].log_dir / f"{topic}-0" / f"{0:020}.log"
        segment.write_bytes(b"\xff" * segment.stat().st_size)
        (response,) = raw.fetch(raw.topic_id(topic), 1).topics
        assert response.partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert observed.count(1, f"{TOPICS}_FailedFetchRequestsPerSec_total", topic=topic) == 1


# Requests


@pytest.mark.rule("BMET-3")
def test_requests_are_counted_by_name_and_version(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1, 2]])
    labels = {"request": "Produce", "version": 9}
    before = observed.count(1, f"{REQUESTS}_RequestsPerSec_total", **labels)
    with Raw(observed[1].port) as raw:
        for _ in range(3):
            assert raw.produce(topic, batch(b"x"), version=9).error_code == 0
        # Without an acknowledgement there is no response, but a request all the same.
        raw.send(ApiKey.PRODUCE, 9, **produce_values(topic, batch(b"x"), acks=0))
        raw.metadata()
        raw.fetch(raw.topic_id(topic), 0, version=12, topic=topic)
    assert observed.count(1, f"{REQUESTS}_RequestsPerSec_total", **labels) == before + 4
    found = observed.page(1)
    by_name = {
        name: found[f'{REQUESTS}_TotalTimeMs_count{{request="{name}"}}']
        for name in ("Fetch", "FetchConsumer", "FetchFollower")
    }
    assert by_name["FetchConsumer"] >= 1
    assert by_name["FetchFollower"] >= 1
    assert by_name["Fetch"] == by_name["FetchConsumer"] + by_name["FetchFollower"]


@pytest.mark.rule("BMET-3")
def test_waiting_for_records_is_remote_time(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1]])
    with Raw(observed[1].port) as raw:
        raw.fetch(raw.topic_id(topic), 0, max_wait_ms=400)
    found = observed.page(1)
    fetches = f'{REQUESTS}_{{}}_sum{{{{request="FetchConsumer"}}}}'
    assert found[fetches.format("RemoteTimeMs")] >= 390
    assert found[fetches.format("TotalTimeMs")] >= found[fetches.format("RemoteTimeMs")]
    assert found[fetches.format("RequestBytes")] > 50


@pytest.mark.rule("BMET-3")
def test_responses_are_counted_by_their_errors(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1]])
    errors = f"{REQUESTS}_ErrorsPerSec_total"

    def count(request: str, error: str) -> float:
        asked = observed.controller_id() if request == "CreateTopics" else 1
        return observed.count(asked, errors, request=request, error=error)

    expected = (
        ("Produce", "NONE"),
        ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("Fetch", "OFFSET_OUT_OF_RANGE"),
        ("ListOffsets", "UNKNOWN_TOPIC_OR_PARTITION"),
        # Answered in the candidate's process.
        ("CreateTopics", "TOPIC_ALREADY_EXISTS"),
    )
    before = {each: count(*each) for each in expected}
    with Raw(observed[1].port) as raw:
        raw.produce(topic, batch(b"x"))
        raw.produce("no-such-topic", batch(b"x"))
        raw.fetch(raw.topic_id(topic), 99)
        raw.list_offset("no-such-topic", -1)
    with Raw(observed[observed.controller_id()].port) as raw:
        again = {"name": topic, "num_partitions": 1, "replication_factor": 1}
        raw.ask(ApiKey.CREATE_TOPICS, topics=[again], timeout=10_000, validate_only=False)
    assert {each: count(*each) - before[each] for each in expected} == dict.fromkeys(expected, 1)


# Waiting


@pytest.mark.rule("BMET-5")
def test_requests_that_wait_are_counted(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1], [1]])

    def waiting(name: str) -> float:
        return observed.count(1, f"{PURGATORY}_{name}", delayedOperation="Fetch")

    with ExitStack() as stack:
        crowd = [stack.enter_context(Raw(observed[1].port)) for _ in range(5)]
        values = fetch_values(crowd[0].topic_id(topic), 0, max_wait_ms=20_000)
        (asked,) = values["topics"]
        asked["partitions"].append({**asked["partitions"][0], "partition": 1})
        for raw in crowd:
            raw.send(ApiKey.FETCH, 13, **values)
        wait_until(lambda: waiting("NumDelayedOperations") >= 5, "the fetches are parked")
        assert waiting("PurgatorySize") >= 10, "each waits for two partitions"
        with Raw(observed[1].port) as producer:
            assert producer.produce(topic, batch(b"x")).error_code == 0
        for raw in crowd:
            raw.receive()
        # There may be one of the other broker, which follows.
        assert waiting("NumDelayedOperations") <= 1


@pytest.mark.rule("BMET-5", "BMET-6")
def test_what_waits_for_a_follower_is_counted(observed: Observed, topic: str) -> None:
    observed.create(topic, assignment=[[1, 2]])

    def waiting() -> float:
        name = f"{PURGATORY}_NumDelayedOperations"
        return observed.count(1, name, delayedOperation="Produce")

    with Raw(observed[1].port) as raw:
        assert raw.produce(topic, batch(b"x")).error_code == 0
        observed[2].signal(signal.SIGSTOP)
        try:
            raw.send(ApiKey.PRODUCE, **produce_values(topic, batch(b"y")))
            wait_until(lambda: waiting() == 1, "the produce waits for the follower")
        finally:
            observed[2].signal(signal.SIGCONT)
        raw.receive()
    assert waiting() == 0
    labels = f'{{clientId="ReplicaFetcherThread-0-1",topic="{topic}",partition="0"}}'
    wait_until(
        lambda: observed.page(2).get(f"kafka_server_FetcherLagMetrics_ConsumerLag{labels}") == 0,
        "the follower has caught up",
    )
    found = observed.page(2)
    for name in ("MaxLag", "FailedPartitionsCount", "DeadThreadCount"):
        assert found[f'{FETCHERS}_{name}{{clientId="Replica"}}'] == 0
    wait_until(
        lambda: observed.count(2, f"{FETCHERS}_MinFetchRate", clientId="Replica") > 0,
        "the rate of fetches is known after some seconds",
    )


@pytest.mark.rule("BMET-5")
def test_members_that_have_to_be_heard_of_are_counted(observed: Observed, topic: str) -> None:
    group = topic[:60]
    with Raw(observed[1].port) as raw:
        found = wait_until(
            lambda: [
                each
                for each in raw.ask(
                    ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=[group]
                ).coordinators
                if not each.error_code
            ],
            "the group has a coordinator",
        )
    broker = int(found[0].node_id)

    def waiting(kind: str) -> float:
        return observed.count(broker, f"{PURGATORY}_NumDelayedOperations", delayedOperation=kind)

    def join(raw: Raw, member: str) -> None:
        raw.send(
            ApiKey.JOIN_GROUP,
            1,
            group_id=group,
            session_timeout=20_000,
            rebalance_timeout=20_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )

    heartbeats = waiting("Heartbeat")
    with Raw(observed[broker].port) as first, Raw(observed[broker].port) as second:
        join(first, "")
        first.receive()
        assert waiting("Heartbeat") == heartbeats + 1
        join(second, "")
        wait_until(lambda: waiting("Rebalance") == 1, "the second waits for the first")
        assert waiting("Heartbeat") == heartbeats + 2


# Logs


@pytest.mark.rule("BMET-8")
def test_a_log_shows_its_size_and_its_flushes(observed: Observed, topic: str) -> None:
    flushes = "kafka_log_LogFlushStats_LogFlushRateAndTimeMs_count"
    before = observed.count(1, flushes)
    records = batch(b"x" * 800)
    observed.create(topic, assignment=[[1]], config={"segment.bytes": "1500"})
    with Raw(observed[1].port) as raw:
        for _ in range(3):
            assert raw.produce(topic, records).error_code == 0
    of_log = {"topic": topic, "partition": 0}
    assert observed.count(1, "kafka_log_Log_Size", **of_log) == 3 * len(records)
    assert observed.count(1, "kafka_log_Log_LogStartOffset", **of_log) == 0
    assert observed.count(1, "kafka_log_Log_LogEndOffset", **of_log) == 3
    assert observed.count(1, "kafka_log_Log_NumLogSegments", **of_log) == 3
    wait_until(lambda: observed.count(1, flushes) >= before + 2, "full segments are flushed")
    directory = observed[1].log_dir
    offline = "kafka_log_LogManager_LogDirectoryOffline"
    assert f'{offline}{{logDirectory="{directory}"}}' in observed.page(1)
