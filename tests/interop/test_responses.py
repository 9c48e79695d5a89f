"""Single requests, mostly wrong ones, get the same response from a broker of either kind.

Error codes and messages are compared, and everything else in the response, apart from what differs
from run to run. Each list of questions is put to both brokers in its order.
"""

import dataclasses
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from klamm.protocol.apis import ApiKey as K
from klamm.protocol.records import Record, build_batch
from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import create, produce
from tests.support.mixed_cluster import PATIENCE_S, Kind, MixedCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

#: Fields whose values are chance.
CHANCE = frozenset(
    {"topic_id", "cluster_id", "host", "port", "throttle_time", "broker_epoch", "timestamp_ms"}
    | {
        "timestamp",
        "producer_id",
        "log_dir",
        "total_bytes",
        "usable_bytes",
        "member_id",
        "session_id",
    }
    | {"topic_authorized_operations", "cluster_authorized_operations", "authorized_operations"}
)


@dataclass(frozen=True)
class Question:
    api: K
    version: int
    body: dict[str, Any]


def ask(api: K, version: int, **body: Any) -> Question:
    return Question(api, version, body)


@pytest.fixture(scope="module")
def both(
    zookeeper_server: ZooKeeperServer, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Kind, MixedCluster]]:
    """A broker of each kind, in a cluster of its own, with a topic that has ten records."""
    directory = tmp_path_factory.mktemp("both")
    config = {"offsets_topic_replication_factor": 1}
    with (
        MixedCluster(zookeeper_server.address, directory / "kafka", kafka_libs, **config) as kafka,
        MixedCluster(zookeeper_server.address, directory / "klamm", kafka_libs, **config) as klamm,
    ):
        clusters = {Kind.KAFKA: kafka, Kind.KLAMM: klamm}
        for kind, cluster in clusters.items():
            cluster.add(kind, 1)
            create(cluster.bootstrap, "there", [[1], [1]], max_message_bytes="2000")
            produce(cluster.bootstrap, "there", [b"x"] * 10, partition=0)
            _wait_for_coordinator(cluster)
        yield clusters


def _wait_for_coordinator(cluster: MixedCluster) -> None:
    def is_there() -> bool:
        found = cluster.nodes[1].ask(K.FIND_COORDINATOR, 2, key="g", key_type=0)
        known = cluster.nodes[1].ask(K.OFFSET_FETCH, 5, group_id="g", topics=[])
        return int(found.error_code) == 0 and int(known.error_code) == 0

    wait_until(is_there, "a group coordinator", PATIENCE_S)


def answers_agree(
    both: dict[Kind, MixedCluster],
    questions: list[Question],
    apart_from: frozenset[str] = frozenset(),
) -> None:
    differences = []
    for question in questions:
        responses = {
            kind: plain(
                cluster.nodes[1].ask(question.api, question.version, **question.body),
                CHANCE | apart_from,
            )
            for kind, cluster in both.items()
        }
        if responses[Kind.KLAMM] != responses[Kind.KAFKA]:
            differences.append(
                f"{question.api.name} {question.version} {question.body}\n"
                + "\n".join(f"  {kind}: {response}" for kind, response in responses.items())
            )
    if differences:
        pytest.fail("\n".join(differences), pytrace=False)


def plain(value: Any, unequal: frozenset[str]) -> Any:
    """Nested dictionaries; what comes in no order is sorted."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {
            name: "any" if name in unequal else plain(getattr(value, name), unequal)
            for name in names
        }
    if isinstance(value, list | tuple):
        return sorted((plain(each, unequal) for each in value), key=repr)
    return without_scala(value) if isinstance(value, str) else value


def without_scala(message: str) -> str:
    """A message with its collections as klamm writes them."""
    lists = re.sub(r"(?:ArrayBuffer|List|Vector|Set)\(([\d, -]*)\)", r"[\1]", message)
    return re.sub(r"(?:Hash)?Map\((\d+) -> (\[[\d, -]*\])\)", r"{\1: \2}", lists)


def new_topic(name: str, **more: Any) -> dict[str, Any]:
    defaults = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"name": name, **defaults, **more}


def creating(*topics: dict[str, Any], version: int = 7, validate_only: bool = True) -> Question:
    body = {"topics": list(topics), "timeout": 10_000, "validate_only": validate_only}
    return ask(K.CREATE_TOPICS, version, **body)


def placed(*lists: list[int]) -> dict[str, Any]:
    rows = [{"partition_index": p, "broker_ids": ids} for p, ids in enumerate(lists)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": rows}


def configured(name: str, value: str | None) -> dict[str, Any]:
    return {"configs": [{"name": name, "value": value}]}


def test_creating_topics(both: dict[Kind, MixedCluster]):
    answers_agree(
        both,
        [
            creating(new_topic("fine")),
            creating(new_topic("fine"), version=4),
            creating(new_topic("there")),
            creating(new_topic("twice"), new_topic("twice")),
            creating(new_topic("")),
            creating(new_topic(".")),
            creating(new_topic("a b")),
            creating(new_topic("x" * 250)),
            creating(new_topic("zero", num_partitions=0)),
            creating(new_topic("negative", num_partitions=-2)),
            creating(new_topic("default", num_partitions=-1, replication_factor=-1)),
            creating(new_topic("none", replication_factor=0)),
            creating(new_topic("wide", replication_factor=2)),
            creating(new_topic("overflow", replication_factor=-3)),
            creating(new_topic("placed", **placed([1], [1]))),
            creating(new_topic("unknown", **placed([9]))),
            creating(new_topic("double", **placed([1, 1]))),
            creating(new_topic("uneven", **placed([1], [1, 2]))),
            creating(new_topic("empty", **placed([]))),
            creating(new_topic("both", **{**placed([1]), "num_partitions": 1})),
            creating(new_topic("odd", **configured("nonsense", "1"))),
            creating(new_topic("bad", **configured("retention.ms", "soon"))),
            creating(new_topic("null", **configured("retention.ms", None))),
            creating(new_topic("low", **configured("min.insync.replicas", "0"))),
            creating(new_topic("made"), validate_only=False),
            creating(new_topic("made"), validate_only=False),
            creating(new_topic("a.b"), validate_only=False),
            creating(new_topic("a_b"), validate_only=False),
            creating(new_topic("__consumer_offsets")),
            creating(new_topic("__cluster_metadata")),
        ],
    )


def test_expanding_topics(both: dict[Kind, MixedCluster]):
    def expanding(name: str, count: int, assignments: list[list[int]] | None = None) -> Question:
        rows = None if assignments is None else [{"broker_ids": ids} for ids in assignments]
        topic = {"name": name, "count": count, "assignments": rows}
        return ask(K.CREATE_PARTITIONS, 3, topics=[topic], timeout=10_000, validate_only=True)

    answers_agree(
        both,
        [
            expanding("there", 3),
            expanding("there", 2),
            expanding("there", 1),
            expanding("there", 0),
            expanding("nobody", 3),
            expanding("there", 3, [[1]]),
            expanding("there", 3, [[9]]),
            expanding("there", 3, [[1, 1]]),
            expanding("there", 3, []),
            expanding("there", 4, [[1]]),
            expanding("there", 3, [[]]),
        ],
    )


def test_deleting_topics(both: dict[Kind, MixedCluster]):
    def deleting(*names: str | None, version: int = 6) -> Question:
        topics = [{"name": name, "topic_id": None} for name in names]
        body = {"topics": topics, "topic_names": list(names), "timeout": 10_000}
        return ask(K.DELETE_TOPICS, version, **body)

    answers_agree(
        both,
        [
            deleting("nobody"),
            deleting("nobody", version=5),
            deleting("nobody", "nobody"),
            deleting("nobody", version=1),
            creating(new_topic("short-lived"), validate_only=False),
            deleting("short-lived"),
            deleting("short-lived"),
        ],
    )


TOPIC, BROKER = 2, 4


def test_configurations(both: dict[Kind, MixedCluster]):
    def altering(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Question:
        configs = [{"name": n, "config_operation": op, "value": value} for n, op, value in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        return ask(K.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=True)

    def replacing(kind: int, name: str, **settings: str | None) -> Question:
        configs = [{"name": k.replace("_", "."), "value": v} for k, v in settings.items()]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        return ask(K.ALTER_CONFIGS, 2, resources=[resource], validate_only=True)

    def describing(kind: int, name: str, *keys: str) -> Question:
        resource = {
            "resource_type": kind,
            "resource_name": name,
            "configuration_keys": list(keys) or None,
        }
        flags = {"include_synonyms": True, "include_documentation": False}
        return ask(K.DESCRIBE_CONFIGS, 4, resources=[resource], **flags)

    put, delete, append, subtract = range(4)
    answers_agree(
        both,
        [
            altering(TOPIC, "there", ("retention.ms", put, "5")),
            altering(TOPIC, "there", ("retention.ms", put, "soon")),
            altering(TOPIC, "there", ("retention.ms", put, None)),
            altering(TOPIC, "there", ("retention.ms", append, "5")),
            altering(TOPIC, "there", ("retention.ms", delete, None)),
            altering(TOPIC, "there", ("cleanup.policy", append, "compact")),
            altering(TOPIC, "there", ("cleanup.policy", subtract, "compact")),
            altering(TOPIC, "there", ("cleanup.policy", put, "burn")),
            altering(TOPIC, "there", ("nonsense", put, "1")),
            altering(TOPIC, "there", ("nonsense", delete, None)),
            altering(TOPIC, "there", ("retention.ms", put, "5"), ("retention.ms", put, "6")),
            altering(TOPIC, "there", ("min.insync.replicas", put, "0")),
            altering(TOPIC, "nobody", ("retention.ms", put, "5")),
            altering(TOPIC, "", ("retention.ms", put, "5")),
            altering(TOPIC, "a b", ("retention.ms", put, "5")),
            altering(BROKER, "1", ("log.retention.ms", put, "5")),
            altering(BROKER, "1", ("log.retention.ms", put, "soon")),
            altering(BROKER, "1", ("broker.rack", put, "a")),
            altering(BROKER, "1", ("nonsense", put, "a")),
            altering(BROKER, "", ("log.segment.bytes", put, "100000")),
            altering(BROKER, "", ("listeners", put, "PLAINTEXT://:1")),
            altering(BROKER, "", ("log.segment.bytes", put, "1")),
            altering(BROKER, "2", ("log.retention.ms", put, "5")),
            altering(BROKER, "x", ("log.retention.ms", put, "5")),
            replacing(TOPIC, "there", retention_ms="5"),
            replacing(TOPIC, "there", retention_ms="soon"),
            replacing(TOPIC, "there", retention_ms=None),
            replacing(TOPIC, "there", nonsense="1"),
            replacing(BROKER, "1", broker_rack="a"),
            describing(TOPIC, "there", "max.message.bytes", "retention.ms", "nonsense"),
            describing(TOPIC, "nobody"),
            describing(TOPIC, "a b"),
            describing(BROKER, "2"),
            describing(BROKER, "x"),
            replacing(TOPIC, "nobody", retention_ms="5"),
            replacing(TOPIC, "", retention_ms="5"),
            replacing(BROKER, "x", log_retention_ms="5"),
            replacing(3, "there", retention_ms="5"),
            altering(3, "there", ("retention.ms", put, "5")),
            altering(BROKER, "1", ("log.cleanup.policy", append, "compact")),
            altering(BROKER, "1", ("num.partitions", append, "2")),
            altering(
                TOPIC,
                "there",
                ("min.compaction.lag.ms", put, "9"),
                ("max.compaction.lag.ms", put, "3"),
            ),
            describing(BROKER, "1", "log.retention.ms", "num.partitions", "broker.rack"),
            describing(BROKER, "", "log.retention.ms"),
            describing(3, "there"),
        ],
    )


def test_leaders_and_moves(both: dict[Kind, MixedCluster]):
    def electing(topic: str, *partitions: int, kind: int = 0) -> Question:
        rows = [{"topic": topic, "partitions": list(partitions)}]
        return ask(K.ELECT_LEADERS, 2, election_type=kind, topic_partitions=rows, timeout=10_000)

    def moving(topic: str, partition: int, replicas: list[int] | None) -> Question:
        row = {"partition_index": partition, "replicas": replicas}
        topics = [{"name": topic, "partitions": [row]}]
        return ask(K.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=10_000, topics=topics)

    asked_for = [{"name": "nobody", "partition_indexes": [0]}]
    answers_agree(
        both,
        [
            electing("there", 0),
            electing("there", 0, kind=1),
            electing("there", 7),
            electing("nobody", 0),
            electing("there", 0, kind=2),
            electing("there", 0, kind=-1),
            ask(K.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=10_000),
            moving("there", 0, [1]),
            moving("there", 0, None),
            moving("there", 0, []),
            moving("there", 0, [1, 1]),
            moving("there", 0, [-1]),
            moving("there", 0, [9]),
            moving("there", 7, [1]),
            moving("nobody", 0, [1]),
            ask(K.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None),
            ask(K.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=asked_for),
        ],
    )


def test_producing(both: dict[Kind, MixedCluster]):
    def producing(
        topic: str, partition: int, records: bytes | None, acks: int = -1, version: int = 11
    ) -> Question:
        data = [{"index": partition, "records": records}]
        return ask(
            K.PRODUCE,
            version,
            transactional_id=None,
            acks=acks,
            timeout=5_000,
            topic_data=[{"name": topic, "partition_data": data}],
        )

    fine = batch(b"one", b"two")
    answers_agree(
        both,
        [
            producing("there", 1, fine),
            producing("there", 1, fine, version=3),
            producing("there", 7, fine),
            producing("nobody", 0, fine),
            producing("there", 1, fine, acks=7),
            producing("there", 1, b""),
            producing("there", 1, bytes(61)),
            producing("there", 1, b"not a batch, but a sentence in English"),
            producing("there", 1, b"a few bytes"),
            producing("nobody", 0, bytes(100)),
            producing("there", 1, fine + fine),
            producing("there", 1, batch(b"x" * 3000)),
            producing("there", 1, damaged(fine)),
            # The checksum is right, and so are the lengths of the records; the rest is not.
            *(
                producing("there", 1, resealed(fine, at, ">b", coded))
                for at, coded in ((64, 2), (65, 0x40), (65, 0x02), (69, 0x01), (69, 0x02))
            ),
            *(
                producing("there", 1, resealed(fine, at, ">i", count))
                for at in (23, 57)
                for count in (-1, 0, 1, 2, 3)
            ),
            producing("there", 1, resealed(fine, 21, ">h", 7)),
            producing("there", 1, resealed(fine, 21, ">h", 1)),
            producing("there", 1, resealed(fine, 21, ">h", 0x20)),
            producing("there", 1, resealed(fine, 43, ">q", 5)),
            producing("there", 1, batch(b"1", producer=(5, 0, 3))),
            producing("there", 1, batch(b"1", producer=(5, 0, 0))),
            producing("there", 1, batch(b"1", producer=(5, 0, 0))),
            producing("there", 1, batch(b"1", producer=(5, 0, 5))),
            producing("__consumer_offsets", 0, fine),
        ],
        # klamm says why it refuses records; Kafka says so in its log.
        apart_from=frozenset({"error_message", "log_start_offset"}),
    )


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    producer_id, producer_epoch, base_sequence = producer
    built = build_batch(
        [Record(None, value, 1_700_000_000_000) for value in values],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return bytes(built.data)


def resealed(records: bytes, at: int, form: str, value: int) -> bytes:
    """The batch with something else at a place, and a checksum that is right again."""
    content = bytearray(records)
    struct.pack_into(form, content, at, value)
    struct.pack_into(">I", content, 17, crc32c(bytes(content[21:])))
    return bytes(content)


def damaged(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


def test_fetching_and_offsets(both: dict[Kind, MixedCluster]):
    def listing(topic: str, partition: int, timestamp: int, epoch: int = -1) -> Question:
        row = {
            "partition_index": partition,
            "current_leader_epoch": epoch,
            "timestamp": timestamp,
        }
        topics = [{"name": topic, "partitions": [row]}]
        return ask(K.LIST_OFFSETS, 8, replica_id=-1, isolation_level=0, topics=topics)

    def epoch_end(topic: str, partition: int, current: int, asked: int) -> Question:
        row = {"partition": partition, "current_leader_epoch": current, "leader_epoch": asked}
        topics = [{"topic": topic, "partitions": [row]}]
        return ask(K.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)

    def removing(topic: str, partition: int, offset: int) -> Question:
        row = {"partition_index": partition, "offset": offset}
        topics = [{"name": topic, "partitions": [row]}]
        return ask(K.DELETE_RECORDS, 2, topics=topics, timeout=5_000)

    answers_agree(
        both,
        [
            listing("there", 0, -1),
            listing("there", 0, -2),
            listing("there", 0, 1),
            listing("there", 0, 9_999_999_999_999),
            listing("there", 0, -9),
            listing("there", 7, -1),
            listing("nobody", 0, -1),
            listing("there", 0, -1, epoch=7),
            listing("there", 0, -1, epoch=0),
            epoch_end("there", 0, -1, 0),
            epoch_end("there", 0, 0, 0),
            epoch_end("there", 0, 7, 0),
            epoch_end("there", 0, -1, 7),
            epoch_end("there", 7, -1, 0),
            epoch_end("nobody", 0, -1, 0),
            removing("there", 0, 3),
            removing("there", 0, -1),
            removing("there", 0, 999),
            removing("there", 0, -7),
            removing("there", 7, 0),
            removing("nobody", 0, 0),
            listing("there", 0, -2),
        ],
    )


def test_groups(both: dict[Kind, MixedCluster]):
    def joining(group: str, session_ms: int = 10_000, member: str = "", **more: Any) -> Question:
        return ask(
            K.JOIN_GROUP,
            5,
            **{
                "group_id": group,
                "session_timeout": session_ms,
                "rebalance_timeout": 10_000,
                "member_id": member,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
                **more,
            },
        )

    def committing(group: str, generation: int = -1, member: str = "", topic: str = "there"):
        row = {"partition_index": 0, "committed_offset": 3, "committed_metadata": "m"}
        return ask(
            K.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [row]}],
        )

    def fetching(group: str, topic: str = "there") -> Question:
        topics = [{"name": topic, "partition_indexes": [0, 1, 7]}]
        return ask(K.OFFSET_FETCH, 5, group_id=group, topics=topics)

    beat = {"generation_id": 1, "member_id": "m", "group_instance_id": None}
    answers_agree(
        both,
        [
            joining(""),
            joining("g", session_ms=1),
            joining("g", session_ms=10_000_000),
            joining("g", member="stranger"),
            joining("g", protocols=[]),
            joining("g", protocol_type=""),
            joining("g"),
            committing("g"),
            committing("loner"),
            committing("loner", topic="nobody"),
            committing("loner", generation=3, member="m"),
            committing(""),
            fetching("loner"),
            fetching("nobody"),
            fetching("loner", topic="nobody"),
            ask(K.HEARTBEAT, 4, group_id="g", **beat),
            ask(K.HEARTBEAT, 4, group_id="", **beat),
            ask(
                K.SYNC_GROUP,
                5,
                group_id="g",
                **beat,
                protocol_type=None,
                protocol_name=None,
                assignments=[],
            ),
            ask(K.LEAVE_GROUP, 3, group_id="g", members=[{"member_id": "m"}]),
            ask(
                K.DESCRIBE_GROUPS,
                5,
                groups=["g", "loner", "nobody", ""],
                include_authorized_operations=False,
            ),
            ask(K.LIST_GROUPS, 5, states_filter=[], types_filter=[]),
            ask(K.LIST_GROUPS, 4, states_filter=["Empty"]),
            ask(K.DELETE_GROUPS, 2, groups_names=["nobody"]),
            ask(
                K.OFFSET_DELETE,
                0,
                group_id="nobody",
                topics=[{"name": "there", "partitions": [{"partition_index": 0}]}],
            ),
            ask(K.DELETE_GROUPS, 2, groups_names=["loner", "loner"]),
            ask(K.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"]),
            ask(K.FIND_COORDINATOR, 4, key_type=7, coordinator_keys=["g"]),
        ],
    )


def init_producer(transactional_id: str | None, producer_id: int) -> Question:
    return ask(
        K.INIT_PRODUCER_ID,
        4,
        transactional_id=transactional_id,
        transaction_timeout=1000,
        producer_id=producer_id,
        producer_epoch=-1,
    )


def test_the_cluster(both: dict[Kind, MixedCluster]):
    def about(*names: str, version: int = 9, create: bool = False) -> Question:
        topics = [{"name": name, "topic_id": None} for name in names]
        return ask(
            K.METADATA,
            version,
            topics=topics,
            allow_auto_topic_creation=create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    answers_agree(
        both,
        [
            about("there"),
            about("there", version=12),
            about("nobody"),
            about("a b"),
            about("there", "nobody", version=1),
            ask(K.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False),
            ask(
                K.DESCRIBE_LOG_DIRS,
                4,
                topics=[{"topic": "there", "partitions": [0, 1, 7]}],
            ),
            init_producer(transactional_id="", producer_id=-1),
            init_producer(transactional_id=None, producer_id=-1),
            init_producer(transactional_id=None, producer_id=5),
            ask(K.CONTROLLED_SHUTDOWN, 3, broker_id=9, broker_epoch=1),
            ask(K.CONTROLLED_SHUTDOWN, 3, broker_id=1, broker_epoch=0),
            ask(K.ALTER_PARTITION, 3, broker_id=1, broker_epoch=0, topics=[]),
            ask(K.ALTER_PARTITION, 3, broker_id=9, broker_epoch=0, topics=[]),
            ask(K.ALLOCATE_PRODUCER_IDS, 0, broker_id=9, broker_epoch=0),
        ],
    )
