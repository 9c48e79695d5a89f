"""Rows 11 to 14: topics that create themselves, administration, and configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewPartitions, NewTopic

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from tests.real.clients import CLIENTS, Client, Record
from tests.support.cluster import RealCluster
from tests.support.raw import Raw, batch
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.real

clients = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


@clients
@pytest.mark.rule("META-6")
def test_a_topic_is_created_by_use(cluster: RealCluster, topic: str, client: Client) -> None:
    client.produce(cluster.bootstrap, topic, [Record(None, b"x")])
    assert client.read(cluster.bootstrap, topic, 1)[0].value == b"x"
    assert cluster.znode(f"/brokers/topics/{topic}")["partitions"].keys() == {"0"}


@pytest.mark.rule("META-6", "META-5")
def test_creation_by_use_can_be_declined_and_switched_off(
    cluster: RealCluster, topic: str, start_cluster: Callable[..., RealCluster]
) -> None:
    with Raw(cluster[1].port) as raw:
        declined = raw.metadata(topic, may_create=False).topics[0]
        assert declined.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        created = raw.metadata(topic, may_create=True).topics[0]
        assert created.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        wait_until(lambda: raw.metadata(topic).topics[0].partitions, "the topic appears")
    other = start_cluster(
        brokers=1,
        settings={"auto.create.topics.enable": "false", "default.replication.factor": "2"},
    )
    with Raw(other[1].port) as raw:
        off = raw.metadata(topic, may_create=True).topics[0]
        assert off.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.rule("META-6")
def test_too_few_brokers_for_a_topic_that_creates_itself(
    start_cluster: Callable[..., RealCluster],
) -> None:
    cluster = start_cluster(brokers=1, settings={"default.replication.factor": "2"})
    with Raw(cluster[1].port) as raw:
        refused = raw.metadata("wanted", may_create=True).topics[0]
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.rule("BADM-2", "BADM-3", "BADM-4", "BADM-5", "BADM-6", "STOP-3", "META-8", "UMD-3")
def test_topics_are_created_grown_deleted_and_created_again(
    cluster: RealCluster, topic: str
) -> None:
    admin = cluster.admin
    admin.create_topics([NewTopic(topic, 1, 3)], validate_only=True)[topic].result(PATIENCE_S)
    assert cluster.znode(f"/brokers/topics/{topic}") is None
    cluster.create(topic)
    with Raw(cluster[1].port) as raw:
        first_id = raw.topic_id(topic)
    for new, error in (
        (NewTopic(topic, 1, 3), "TOPIC_ALREADY_EXISTS"),
        (NewTopic("x" * 300, 1, 3), "TOPIC_EXCEPTION"),
        (NewTopic(f"{topic}-wide", 1, 4), "INVALID_REPLICATION_FACTOR"),
        (NewTopic(f"{topic}-none", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic(f"{topic}-odd", 1, 1, config={"no.such": "1"}), "INVALID_CONFIG"),
    ):
        with pytest.raises(KafkaException, match=error):
            admin.create_topics([new])[new.topic].result(PATIENCE_S)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    with Raw(cluster[1].port) as raw:
        wait_until(lambda: len(raw.metadata(topic).topics[0].partitions) == 3, "three partitions")
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
    cluster.produce(topic, [b"old"])
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    for broker in cluster.brokers.values():
        wait_until(lambda broker=broker: not (broker.log_dir / f"{topic}-0").exists(), "it is gone")
    wait_until(lambda: cluster.znode(f"/brokers/topics/{topic}") is None, "its znode is gone")
    marker = f"/admin/delete_topics/{topic}"
    wait_until(lambda: cluster.zk.exists(marker) is None, "its deletion is complete")
    cluster.create(topic)
    with Raw(cluster[cluster.leader(topic)].port) as raw:
        assert raw.topic_id(topic) != first_id
        assert raw.list_offset(topic, -1).offset == 0
        assert raw.produce(topic, batch(b"new")).base_offset == 0


@pytest.mark.rule("BADM-1")
def test_only_the_controller_administers_topics(cluster: RealCluster, topic: str) -> None:
    other = next(each for each in cluster.brokers if each != cluster.controller_id())
    with Raw(cluster[other].port) as raw:
        created = raw.ask(
            ApiKey.CREATE_TOPICS,
            topics=[
                {
                    "name": topic,
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
            ],
            timeout=1000,
            validate_only=False,
        )
        assert created.topics[0].error_code == ErrorCode.NOT_CONTROLLER
        listed = raw.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, timeout=1000, topics=None)
        assert listed.error_code == ErrorCode.NOT_CONTROLLER
    assert cluster.znode(f"/brokers/topics/{topic}") is None


def _alter(
    raw: Raw, kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False
) -> Any:
    return _altered(raw, kind, name, *changes, dry=dry).error_code


def _altered(
    raw: Raw, kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False
) -> Any:
    response = raw.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in changes
                ],
            }
        ],
        validate_only=dry,
    )
    return response.responses[0]


def _describe(raw: Raw, kind: int, name: str, *keys: str) -> dict[str, Any]:
    response = raw.ask(
        ApiKey.DESCRIBE_CONFIGS,
        resources=[
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
        ],
        include_synonyms=True,
        include_documentation=False,
    )
    (result,) = response.results
    assert result.error_code == ErrorCode.NONE, result.error_message
    return {each.name: each for each in result.configs}


@pytest.mark.rule("CFG-1", "CFG-2", "CFG-4", "CFG-5", "CFG-6", "CFG-7", "CFG-8")
def test_settings_of_a_topic(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic)
    leader = cluster.leader(topic)
    other = next(each for each in cluster.brokers if each != leader)
    # Any broker takes a change, and every broker hears of it.
    with Raw(cluster[leader].port) as data, Raw(cluster[other].port) as raw:
        assert data.produce(topic, batch(b"x" * 2000)).error_code == ErrorCode.NONE
        assert _alter(raw, TOPIC, topic, ("max.message.bytes", SET, "1000"), dry=True) == 0
        assert cluster.znode(f"/config/topics/{topic}")["config"] == {}
        assert _alter(raw, TOPIC, topic, ("max.message.bytes", SET, "1000")) == 0
        assert cluster.znode(f"/config/topics/{topic}")["config"] == {"max.message.bytes": "1000"}
        wait_until(
            lambda: (
                data.produce(topic, batch(b"x" * 2000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
            ),
            "the leader has heard of it",
        )
        found = _describe(raw, TOPIC, topic)
        assert len(found) >= 30
        entry = found["max.message.bytes"]
        assert (entry.value, entry.config_source, entry.config_type) == ("1000", 1, 3)
        assert [(each.name, each.source) for each in entry.synonyms] == [
            ("max.message.bytes", 1),
            ("message.max.bytes", 5),
        ]
        assert _describe(raw, TOPIC, topic, "retention.ms").keys() == {"retention.ms"}
        throttle = "leader.replication.throttled.replicas"
        assert (
            _alter(
                raw, TOPIC, topic, (throttle, APPEND, "0:1"), ("cleanup.policy", APPEND, "compact")
            )
            == 0
        )
        assert _describe(raw, TOPIC, topic)["cleanup.policy"].value == "delete,compact"
        assert _alter(raw, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
        assert _describe(raw, TOPIC, topic)["cleanup.policy"].value == "compact"
        assert _alter(raw, TOPIC, topic, ("max.message.bytes", DELETE, None)) == 0
        for change, error in (
            ((("retention.ms", APPEND, "1"),), ErrorCode.INVALID_CONFIG),
            ((("no.such.key", SET, "1"),), ErrorCode.INVALID_CONFIG),
            ((("retention.ms", SET, "many"),), ErrorCode.INVALID_CONFIG),
            ((("retention.ms", SET, None),), ErrorCode.INVALID_REQUEST),
            ((("retention.ms", SET, "1"), ("retention.ms", SET, "2")), ErrorCode.INVALID_REQUEST),
        ):
            assert _alter(raw, TOPIC, topic, *change) == error
        unknown = _alter(raw, TOPIC, "no-such-topic", ("retention.ms", SET, "1"))
        assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.rule("CFG-1", "CFG-3", "CFG-7")
def test_settings_of_a_broker(cluster: RealCluster) -> None:
    with Raw(cluster[1].port) as raw, Raw(cluster[2].port) as second:
        own = _describe(raw, BROKER, "1")
        assert own["broker.id"].value == "1"
        assert own["broker.id"].read_only
        assert own["log.retention.hours"].config_source == 5
        assert own["zookeeper.session.timeout.ms"].config_source == 4
        elsewhere = raw.ask(
            ApiKey.DESCRIBE_CONFIGS,
            resources=[{"resource_type": BROKER, "resource_name": "2", "configuration_keys": None}],
            include_synonyms=False,
            include_documentation=False,
        )
        assert elsewhere.results[0].error_code == ErrorCode.INVALID_REQUEST
        assert _alter(raw, BROKER, "2", ("log.retention.ms", SET, "1")) == ErrorCode.INVALID_REQUEST
        assert _alter(raw, BROKER, "1", ("broker.id", SET, "7")) == ErrorCode.INVALID_REQUEST
        assert _alter(raw, BROKER, "", ("message.max.bytes", SET, "900000")) == 0
        for connection, name in ((raw, "1"), (second, "2")):
            wait_until(
                lambda connection=connection, name=name: (
                    _describe(connection, BROKER, name)["message.max.bytes"].config_source == 3
                ),
                f"broker {name} has heard of it",
            )
        assert _describe(raw, BROKER, "").keys() == {"message.max.bytes"}
        assert _alter(raw, BROKER, "", ("message.max.bytes", DELETE, None)) == 0
        assert "klamm.broker" in _describe(raw, LOGGER, "1")
        assert _alter(raw, LOGGER, "1", ("klamm.broker.requests", SET, "DEBUG")) == 0
        assert _describe(raw, LOGGER, "1")["klamm.broker.requests"].value == "DEBUG"


@pytest.mark.parametrize(
    ("kind", "name", "change", "error", "message"),
    [
        (TOPIC, "", ("retention.ms", SET, "1"), "INVALID_REQUEST", "Default topic resources are"),
        (TOPIC, "a b", ("retention.ms", SET, "1"), "UNKNOWN_TOPIC_OR_PARTITION", "The topic 'a b'"),
        (TOPIC, None, ("retention.ms", SET, "x"), "INVALID_CONFIG", "Invalid config value for res"),
        (TOPIC, None, ("odd", SET, "1"), "INVALID_CONFIG", "Unknown topic config name: odd"),
        (BROKER, "1", ("log.retention.ms", SET, "x"), "INVALID_REQUEST", "Invalid value x for co"),
        (BROKER, "1", ("broker.rack", SET, "a"), "INVALID_REQUEST", "Cannot update these configs"),
        (BROKER, "", ("listeners", SET, "a"), "INVALID_REQUEST", "Cannot update these configs at"),
        (BROKER, "1", ("num.partitions", APPEND, "2"), "INVALID_CONFIG", "Config value append is"),
        (BROKER, "7", ("log.retention.ms", SET, "1"), "INVALID_REQUEST", "Unexpected broker id, "),
        (BROKER, "x", ("log.retention.ms", SET, "1"), "INVALID_REQUEST", "Node id must be an int"),
        (3, "x", ("log.retention.ms", SET, "1"), "INVALID_REQUEST", "Unknown resource type 3"),
    ],
)
def test_settings_are_refused_with_kafkas_code_and_words(
    cluster: RealCluster,
    topic: str,
    kind: int,
    name: str | None,
    change: tuple[str, int, str],
    error: str,
    message: str,
) -> None:
    if name is None:
        name = topic
        cluster.create(topic)
    with Raw(cluster[1].port) as raw:
        refused = _altered(raw, kind, name, change, dry=True)
    assert refused.error_code == ErrorCode[error]
    assert refused.error_message.startswith(message)


@pytest.mark.rule("CFG-5")
def test_alter_configs_replaces_everything(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, config={"retention.ms": "1000000", "segment.ms": "900000"})
    with Raw(cluster[1].port) as raw:
        response = raw.ask(
            ApiKey.ALTER_CONFIGS,
            resources=[
                {
                    "resource_type": TOPIC,
                    "resource_name": topic,
                    "configs": [{"name": "retention.ms", "value": "2000000"}],
                }
            ],
            validate_only=False,
        )
        assert response.responses[0].error_code == ErrorCode.NONE
    assert cluster.znode(f"/config/topics/{topic}")["config"] == {"retention.ms": "2000000"}


@pytest.mark.rule("BADM-7", "BADM-8", "REPL-1", "BISR-5")
def test_replicas_move_and_leaders_are_elected(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, assignment=[[1, 2]])
    cluster.produce(topic, [b"x" * 1000] * 100)
    with Raw(cluster[cluster.controller_id()].port) as raw:

        def elect() -> int:
            response = raw.ask(
                ApiKey.ELECT_LEADERS,
                election_type=0,
                topic_partitions=[{"topic": topic, "partitions": [0]}],
                timeout=5000,
            )
            (of_topic,) = response.replica_election_results
            return int(of_topic.partition_result[0].error_code)

        assert elect() == ErrorCode.ELECTION_NOT_NEEDED
        moved = raw.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            timeout=5000,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "replicas": [3, 1]}]}],
        )
        assert moved.responses[0].partitions[0].error_code == ErrorCode.NONE
        wait_until(
            lambda: cluster.znode(f"/brokers/topics/{topic}")["partitions"]["0"] == [3, 1],
            "the replica has moved",
        )
        cluster.wait_isr(topic, {1, 3})
        wait_until(lambda: not (cluster[2].log_dir / f"{topic}-0").exists(), "the old one is gone")
        assert cluster.leader(topic) == 1, "the leader stays as long as it may"
        assert elect() == ErrorCode.NONE
        assert cluster.leader(topic) == 3
    with Raw(cluster[3].port) as raw:
        wait_until(lambda: raw.list_offset(topic, -1).offset == 100, "all of it has moved")


@pytest.mark.rule("BADM-2", "BADM-6", "BADM-7")
def test_what_cannot_be_meant_is_refused_at_once(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, assignment=[[1]])
    with Raw(cluster[cluster.controller_id()].port) as raw:
        for kind in (-1, 2, 127):
            response = raw.ask(
                ApiKey.ELECT_LEADERS,
                election_type=kind,
                topic_partitions=[{"topic": topic, "partitions": [0]}],
                timeout=5000,
            )
            assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            (of_topic,) = response.replica_election_results
            assert of_topic.partition_result[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        new = {"name": f"{topic}-new", "num_partitions": 2**31 - 1, "replication_factor": 1}
        (created,) = raw.ask(
            ApiKey.CREATE_TOPICS,
            topics=[{**new, "assignments": [], "configs": []}],
            timeout=5000,
            validate_only=False,
        ).topics
        assert created.error_code == ErrorCode.INVALID_PARTITIONS
        (grown,) = raw.ask(
            ApiKey.CREATE_PARTITIONS,
            topics=[{"name": topic, "count": 2**31 - 1, "assignments": None}],
            timeout=5000,
            validate_only=False,
        ).results
        assert grown.error_code == ErrorCode.INVALID_PARTITIONS


@pytest.mark.rule("BADM-10")
def test_log_directories_are_described(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [b"x" * 1000])
    with Raw(cluster[1].port) as raw:
        (found,) = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None).results
        assert Path(found.log_dir) == cluster[1].log_dir
        assert topic in {each.name for each in found.topics}
        assert 0 < found.usable_bytes < found.total_bytes
        wanted = [{"topic": topic, "partitions": [0]}]
        (only,) = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=wanted).results
        (of_topic,) = only.topics
        assert of_topic.partitions[0].partition_size > 1000


@pytest.mark.rule("BADM-9", "LOG-29", "LOG-30", "FETCH-4")
def test_records_are_deleted_on_all_replicas(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [b"%d" % each for each in range(10)], acks="all")

    def delete(raw: Raw, offset: int, name: str = topic) -> tuple[int, int]:
        response = raw.ask(
            ApiKey.DELETE_RECORDS,
            topics=[{"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}],
            timeout=10_000,
        )
        entry = response.topics[0].partitions[0]
        return int(entry.error_code), int(entry.low_watermark)

    leader = cluster.leader(topic)
    with Raw(cluster[leader].port) as raw:
        assert delete(raw, 11) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert delete(raw, 4) == (0, 4)
        assert raw.list_offset(topic, -2).offset == 4
        below = raw.fetch(raw.topic_id(topic), 3).topics[0].partitions[0]
        assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert delete(raw, -1) == (0, 10)
    other = next(each for each in cluster.brokers if each != leader)
    with Raw(cluster[other].port) as raw:
        assert delete(raw, 1)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert delete(raw, 1, "no-such-topic")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    compacted = cluster.create(f"{topic}-compacted", config={"cleanup.policy": "compact"})
    with Raw(cluster[cluster.leader(compacted)].port) as raw:
        assert delete(raw, 0, compacted)[0] == ErrorCode.POLICY_VIOLATION


@pytest.mark.rule("LOG-24", "LOG-26", "LOG-27", "LOG-28")
def test_old_segments_go_by_size_and_by_time(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, config={"segment.bytes": "10000", "retention.bytes": "20000"})
    with Raw(cluster[cluster.leader(topic)].port) as raw:
        for _ in range(10):
            raw.produce(topic, batch(b"x" * 5000))
        wait_until(lambda: 0 < raw.list_offset(topic, -2).offset < 10, "the oldest are gone")
        cluster.alter_topic(topic, retention_ms="1")
        wait_until(lambda: raw.list_offset(topic, -2).offset == 10, "all are gone")
        assert raw.list_offset(topic, -1).offset == 10
        assert raw.produce(topic, batch(b"next")).base_offset == 10


@pytest.mark.rule("CMP-1", "CMP-3", "CMP-4", "CMP-5", "LOG-6")
def test_compaction_keeps_the_last_of_each_key(cluster: RealCluster, topic: str) -> None:
    cluster.create(
        topic,
        config={
            "cleanup.policy": "compact",
            "segment.bytes": "5000",
            "min.cleanable.dirty.ratio": "0.01",
        },
    )
    client = CLIENTS[0]
    for turn in range(40):
        client.produce(
            cluster.bootstrap,
            topic,
            [Record(b"%d" % key, b"%d" % turn + b"x" * 500) for key in range(3)],
        )
    replica = cluster[cluster.leader(topic)].log_dir / f"{topic}-0"
    wait_until(
        lambda: sum(each.stat().st_size for each in replica.glob("*.log")) < 30_000,
        "the log shrinks",
    )
    last = {each.key: each.value for each in client.read(cluster.bootstrap, topic, 3, offset=117)}
    assert last == {b"%d" % key: b"39" + b"x" * 500 for key in range(3)}
    with Raw(cluster[cluster.leader(topic)].port) as raw:
        assert raw.list_offset(topic, -1).offset == 120
