"""Whole dialogues about transactions go the same way with a broker of either kind.

A dialogue is a function that asks one broker; what it is told is written down and compared, with
producer ids numbered in the order in which they turn up.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.groups.coordinator import group_partition
from klamm.broker.transactions.records import (
    StoredTransaction,
    TransactionState,
    encode_key,
    encode_value,
)
from klamm.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from klamm.protocol.apis import ApiKey as K
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.records import Record, build_batch
from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import create
from tests.interop.transaction_dialogue import (
    AGAIN,
    LAST_EPOCH,
    NOBODY,
    PATIENCE_S,
    SETTINGS,
    Dialogue,
    Producer,
)
from tests.support.mixed_cluster import Kind, MixedCluster
from tests.support.raw import Raw
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def both(
    zookeeper_server: ZooKeeperServer, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Kind, MixedCluster]]:
    """A broker of each kind, in a cluster of its own."""
    directory = tmp_path_factory.mktemp("both")
    address = zookeeper_server.address
    with (
        MixedCluster(address, directory / "kafka", kafka_libs, **SETTINGS) as kafka,
        MixedCluster(address, directory / "klamm", kafka_libs, **SETTINGS) as klamm,
    ):
        clusters = {Kind.KAFKA: kafka, Kind.KLAMM: klamm}
        for kind, cluster in clusters.items():
            cluster.add(kind, 1)
        yield clusters


def agree(both: dict[Kind, MixedCluster], name: str, dialogue: Callable[[Dialogue], None]) -> None:
    """Hold the same dialogue with both, about a topic of its own, and compare them."""
    heard: dict[Kind, list[str]] = {}
    for kind, cluster in both.items():
        create(cluster.bootstrap, name, [[1], [1]])
        say = Dialogue(int(cluster.broker(1).address.rpartition(":")[2]))
        dialogue(say)
        heard[kind] = say.lines
    differences = [
        f"  kafka: {kafka}\n  klamm: {klamm}"
        for kafka, klamm in zip(heard[Kind.KAFKA], heard[Kind.KLAMM], strict=True)
        if kafka != klamm
    ]
    if differences:
        pytest.fail("\n".join(differences), pytrace=False)


@pytest.mark.rule("TXN-1")
def test_the_first_coordinator_and_its_topic(both: dict[Kind, MixedCluster]):
    def dialogue(say: Dialogue) -> None:
        nobody = Producer(say, "pay", 1, 0)
        say.init("pay")
        say.init("")
        say.init("pay", transaction_timeout=0)
        nobody.add({"coordinator": [0]})
        nobody.batched({"coordinator": [0]})
        nobody.add_offsets("group")
        nobody.end()
        nobody.produce("coordinator", b"x")
        say.describe("pay")
        say.ask(K.LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[])
        say.ask(K.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["pay"])
        say.quietly(K.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["pay"])
        for version in range(1, 7):
            body: dict[str, Any] = (
                {"key": "pay"} if version < 4 else {"coordinator_keys": ["pay", ""]}
            )
            say.ask(K.FIND_COORDINATOR, version, key_type=1, **body)
            say.ask(K.FIND_COORDINATOR, version, key_type=9, **body)
        say.ask(K.FIND_COORDINATOR, 0, key="pay")
        say.ask(K.FIND_COORDINATOR, 3, key="", key_type=1)
        resource = {
            "resource_type": 2,
            "resource_name": TRANSACTION_STATE,
            "configuration_keys": None,
        }
        response = say.quietly(
            K.DESCRIBE_CONFIGS,
            4,
            resources=[resource],
            include_synonyms=False,
            include_documentation=False,
        )
        own = [
            (each.name, each.value)
            for each in response.results[0].configs
            if each.config_source == 1
        ]
        say.lines.append(str(sorted(own)))
        with Raw(say.port) as raw:
            (topic,) = raw.metadata(TRANSACTION_STATE).topics
        say.lines.append(f"{len(topic.partitions)} {topic.is_internal}")

    agree(both, "coordinator", dialogue)


@pytest.mark.rule("TXN-3")
def test_producers_and_their_epochs(both: dict[Kind, MixedCluster]):
    def dialogue(say: Dialogue) -> None:
        say.begun("a")
        for version in range(6):
            say.init("", version)
            for timeout_ms in (0, -1, 900_001, 2**31 - 1, 900_000, 60_000):
                say.init("b", version, transaction_timeout=timeout_ms)
        for version in (3, 4, 5):
            response = say.init("c", version)
            one, epoch = response.producer_id, response.producer_epoch
            for given in (
                (one, epoch),
                (one, epoch),
                (one, epoch + 1),
                (one, epoch),
                (one, 9999),
                (one + 1000, epoch + 1),
                (one, -1),
                (-1, 0),
                (-1, 5),
                (one, -2),
                (-5, 0),
            ):
                say.init("c", version, producer_id=given[0], producer_epoch=given[1])
            say.describe("c")
            say.init(None, version)
            say.init(None, version, producer_id=one, producer_epoch=epoch)
            say.init(None, version, producer_id=one)
            say.init(None, version, producer_epoch=3)
            say.init(None, version, transaction_timeout=-1)
            say.init("", version, producer_id=7)
        # A new entry ignores what is given.
        say.init("d", producer_id=4711, producer_epoch=8)
        # A fence remembers no epoch.
        first = say.begun("e")
        first.add({"epochs": [0]})
        say.init("e", transaction_timeout=5000)
        say.wait_state("e", "CompleteAbort")
        say.init("e", producer_id=first.producer_id, producer_epoch=first.epoch)
        first.end()
        first.add({"epochs": [0]})
        say.init("e", producer_id=first.producer_id, producer_epoch=first.epoch + 1)
        # KIP-360 within an open transaction.
        second = say.begun("f")
        second.add({"epochs": [0]})
        say.init("f", producer_id=second.producer_id, producer_epoch=second.epoch + 4)
        say.wait_state("f", "CompleteAbort")
        say.init("f", producer_id=second.producer_id, producer_epoch=second.epoch)
        say.init("f", producer_id=second.producer_id, producer_epoch=second.epoch + 1)
        say.init("f", producer_id=second.producer_id, producer_epoch=second.epoch + 1)
        # After a commit the producer asks for a higher epoch.
        third = say.begun("g")
        third.add({"epochs": [0]})
        third.ended()
        say.init("g", producer_id=third.producer_id, producer_epoch=third.epoch)

    agree(both, "epochs", dialogue)


@pytest.mark.rule("TXN-3")
def test_ids_of_every_kind(both: dict[Kind, MixedCluster]):
    """Very long ones, with characters of every kind, and bytes that are no UTF-8."""

    def dialogue(say: Dialogue) -> None:
        say.begun("first")
        for id in (" ", "a/b", "x" * 249, "x" * 250, "x" * 5000, "é", "\U0001f600", "a\x00b", ".."):
            say.begun(id)
            say.describe(id)
        for version in (1, 4):
            say.lines.append(f"{version} {told(say, version, b'y' * 32767)}")
        for version in (1, 4):
            for broken in (b"\xff\xfe", b"ab\xc3", b"\xed\xa0\x80"):
                say.lines.append(f"{version} {broken!r} {told(say, version, broken)}")
        say.describe("\ufffd\ufffd", "ab\ufffd", "y" * 32767)

    agree(both, "kinds", dialogue)


def told(say: Dialogue, version: int, id: bytes) -> Any:
    """InitProducerId with an id of any bytes: the error, or how the connection ended."""
    placeholder = "q" * len(id)
    header = RequestHeader(K.INIT_PRODUCER_ID, version, 7, "raw")
    body = {"transactional_id": placeholder, "transaction_timeout": 60_000, **NOBODY}
    try:
        frame = bytes(encode_request(header, body)).replace(placeholder.encode(), id)
    except Exception as error:
        return f"not encoded: {type(error).__name__}"

    def answered() -> Any:
        with Raw(say.port) as raw:
            raw.socket.sendall(frame)
            try:
                response = decode_response(header, raw.receive())
            except ConnectionError:
                return "closed"
        return None if response.error_code in AGAIN else f"error {response.error_code}"

    return wait_until(answered, "an answer", PATIENCE_S)


@pytest.mark.rule("TXN-3")
def test_epochs_at_their_end(both: dict[Kind, MixedCluster]):
    """The state is written to the log as a coordinator would write it, and loaded."""
    for cluster in both.values():
        say = Dialogue(int(cluster.broker(1).address.rpartition(":")[2]))
        for number in range(6):
            say.begun(f"end-{number}")
    for cluster in both.values():
        say = Dialogue(int(cluster.broker(1).address.rpartition(":")[2]))
        for number in range(6):
            epoch = LAST_EPOCH + (number == 5)
            write_state(say, f"end-{number}", producer_id=700 + number, epoch=epoch)
        cluster.restart(1)

    def dialogue(say: Dialogue) -> None:
        for number in range(6):
            say.finally_(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[f"end-{number}"])
        say.begun("end-0")
        say.init("end-0", producer_id=700, producer_epoch=LAST_EPOCH)
        say.init("end-0", producer_id=700, producer_epoch=LAST_EPOCH)
        say.init("end-0", producer_id=700, producer_epoch=3)
        response = say.init("end-1", producer_id=701, producer_epoch=LAST_EPOCH)
        say.init("end-1", producer_id=701, producer_epoch=LAST_EPOCH)
        say.init("end-1", producer_id=response.producer_id, producer_epoch=0)
        say.init("end-2", producer_id=702, producer_epoch=LAST_EPOCH - 1)
        say.init("end-2", producer_id=702, producer_epoch=5)
        say.init("end-2", 3, producer_id=702, producer_epoch=5)
        say.init("end-2", producer_id=999_999, producer_epoch=LAST_EPOCH)
        for number, outcome in ((3, True), (4, False)):
            producer = Producer(say, f"end-{number}", 700 + number, LAST_EPOCH)
            producer.add({"ends": [0]})
            producer.produce("ends", b"last")
            if outcome:
                producer.ended()
            else:
                say.init(producer.id)
                say.wait_state(producer.id, "CompleteAbort")
                producer.end()
                say.init(producer.id, producer_id=704, producer_epoch=LAST_EPOCH)
                say.init(producer.id, producer_id=704, producer_epoch=LAST_EPOCH + 1)
            say.init(producer.id)
        say.init("end-5", producer_id=705, producer_epoch=LAST_EPOCH + 1)
        say.init("end-5")

    agree(both, "ends", dialogue)


def write_state(say: Dialogue, id: str, *, producer_id: int, epoch: int) -> None:
    now_ms = int(time.time() * 1000)
    stored = StoredTransaction(producer_id, epoch, 60_000, TransactionState.EMPTY, (), now_ms, -1)
    records = build_batch([Record(encode_key(id), encode_value(stored), now_ms)])
    with Raw(say.port, client_id="__admin_client") as raw:
        response = raw.produce(
            TRANSACTION_STATE, bytes(records.data), partition=group_partition(id, 3)
        )
    assert not response.error_code, response


@pytest.mark.rule("TXN-4", "TXN-5", "TXN-6", "TXN-12", "TXN-17")
def test_adding_and_ending(both: dict[Kind, MixedCluster]):
    def dialogue(say: Dialogue) -> None:
        producer = say.begun("adds")
        for version in range(4):
            producer.add({"adding": [0]}, version, v3_and_below_transactional_id="")
            producer.add({"adding": [0]}, version, v3_and_below_transactional_id="unknown")
            producer.add({"adding": [0]}, version, v3_and_below_producer_id=987654)
            producer.add({"adding": [0]}, version, v3_and_below_producer_epoch=7)
            producer.add({"adding": [0]}, version, v3_and_below_producer_epoch=-1)
            producer.add({"adding": [0, 5], CONSUMER_OFFSETS: [0], "none": [0]}, version)
            producer.add({"adding": [0], TRANSACTION_STATE: [0]}, version)
            producer.add({"adding": [-1]}, version)
            producer.add({"a b": [0]}, version)
            producer.add({"": [0]}, version)
        say.describe("adds")
        producer.add({}, 3)
        say.describe("adds")
        for version in range(5):
            producer.end(version, transactional_id="")
            producer.end(version, transactional_id="unknown")
            producer.end(version, producer_id=987654)
            producer.end(version, producer_epoch=7)
            producer.add_offsets("g", version, transactional_id="")
            producer.add_offsets("g", version, transactional_id="unknown")
            producer.add_offsets("g", version, producer_id=987654)
            producer.add_offsets("g", version, producer_epoch=7)
        producer.ended()
        empty = say.begun("ends-empty")
        for version in range(5):
            empty.end(version)
            empty.end(version, commit=False)
        for version in (4, 5):
            for verify in (True, False):
                producer.batched({"adding": [0]}, version, verify_only=verify, transactional_id="")
                producer.batched(
                    {"adding": [0]}, version, verify_only=verify, transactional_id="no"
                )
                producer.batched({"adding": [0]}, version, verify_only=verify, producer_id=9876)
                producer.batched({"adding": [0]}, version, verify_only=verify, producer_epoch=9)
                producer.batched({"adding": [0, 9], "none": [0]}, version, verify_only=verify)
                producer.batched({}, version, verify_only=verify)
            producer.batched({"adding": [0]}, version)
            producer.batched({"adding": [0], CONSUMER_OFFSETS: [0]}, version)
        say.quietly(K.FIND_COORDINATOR, 3, key="adding-g", key_type=0)
        producer.batched({"adding": [0], CONSUMER_OFFSETS: [0]}, 5, verify_only=False)
        say.describe("adds")
        producer.batched({"adding": [0, 1]}, 4)
        producer.add({"adding": [0]}, 0)
        producer.add({"adding": [0, 1]}, 1)
        producer.ended(commit=False)
        for version in range(5):
            producer.end(version, commit=False)
            producer.end(version)
        say.describe("adds", "", "unknown", "adds")
        say.ask(K.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[])

    agree(both, "adding", dialogue)


@pytest.mark.rule("TXN-12", "TXN-13")
def test_producing_within_and_without(both: dict[Kind, MixedCluster]):
    def dialogue(say: Dialogue) -> None:
        producer = say.begun("writer")
        topic = "producing"
        for version in (9, 10, 11):
            producer.produce(topic, b"outside", version=version)
            producer.produce(topic, b"outside", version=version, sequence=5)
            producer.produce(topic, b"no id", version=version, transactional_id=None)
            producer.produce(topic, b"empty id", version=version, transactional_id="")
            producer.produce(topic, b"other id", version=version, transactional_id="somebody")
            producer.produce(topic, b"epoch", version=version, epoch=9)
        producer.add({topic: [0]})
        producer.produce(topic, b"a")
        producer.produce(topic, b"b")
        producer.produce(topic, b"b", sequence=1, counts=False)
        producer.produce(topic, b"gap", sequence=7, counts=False)
        producer.produce(topic, b"plain", transactional=False, counts=False)
        producer.produce(topic, b"old", epoch=producer.epoch - 1, counts=False)
        producer.produce(topic, b"elsewhere", partition=1, counts=False)
        say.producers(topic, 0, 1)
        say.list_offset(topic, -1, 0)
        say.list_offset(topic, -1, 1)
        say.list_offset(topic, -3, 1)
        say.read(topic, 0)
        say.read(topic, 1)
        say.read(topic, 2)
        say.read(topic, 3)
        producer.ended()
        for version in (10, 11):
            producer.produce(topic, b"late", version=version, counts=False)
            producer.produce(topic, b"b", sequence=1, version=version, counts=False)
        producer.produce(topic, b"plain", transactional=False, counts=False)
        say.producers(topic, 0)
        producer.add({topic: [0]}, last=True)
        producer.produce(topic, b"b", sequence=1, counts=False)
        producer.produce(topic, b"c", sequence=2)
        producer.produce(topic, b"c", sequence=2)
        producer.ended(commit=False)
        say.read(topic, 0)
        say.producers(topic, 0)
        heir = say.begun("writer")
        producer.produce(topic, b"zombie", counts=False)
        producer.produce(topic, b"zombie", version=10, counts=False)
        heir.add({topic: [0]})
        producer.produce(topic, b"zombie", counts=False)
        heir.produce(topic, b"not first", sequence=4, counts=False)
        heir.produce(topic, b"first", sequence=0)
        producer.produce(topic, b"zombie", counts=False)
        heir.ended()
        say.read(topic, 0)
        say.read(topic, 3)
        say.read(topic, 6, max_bytes=10, partition_max_bytes=10)
        say.producers(topic, 0)

    agree(both, "producing", dialogue)


@pytest.mark.rule("TXN-7", "TXN-19")
def test_markers_by_hand(both: dict[Kind, MixedCluster]):
    def dialogue(say: Dialogue) -> None:
        topic = "marking"
        say.marker({topic: [0]}, (5000, 0), version=0)
        producer = say.begun("marked")
        producer.add({topic: [0, 1]})
        producer.produce(topic, b"x")
        mine = (producer.producer_id, producer.epoch)
        say.marker({topic: [0, 1, 7], "none": [0]}, mine, 3, commit=False)
        say.producers(topic, 0, 1)
        say.read(topic, 0)
        say.marker({topic: [0]}, (mine[0], mine[1] - 1), 3)
        say.marker({topic: [0]}, mine, 2)
        say.marker({topic: [0]}, mine, 3)
        say.marker({topic: [0]}, mine, 9)
        say.marker({topic: [0]}, (mine[0], mine[1] + 2), 9)
        say.marker({topic: [0]}, mine, 9)
        say.marker({topic: [0]}, (mine[0], mine[1] + 2), 3)
        say.marker({topic: [0]}, (123_456, 0), -1)
        say.marker({topic: [0]}, (-1, -1), 0)
        say.marker({topic: [0]}, (123_457, -1), 0)
        say.marker({"a b": [0], "": [0]}, (123_459, 4), 0)
        say.ask(K.WRITE_TXN_MARKERS, 1, markers=[])
        say.producers(topic, 0, 1)
        say.producers("a b", 0)
        say.producers("", 0)
        say.producers("none", 0)
        say.read(topic, 0)
        producer.end()
        say.describe("marked")

    agree(both, "marking", dialogue)


@pytest.mark.rule("TXN-8", "TXN-9")
def test_readers_of_many_transactions(both: dict[Kind, MixedCluster]):
    def dialogue(say: Dialogue) -> None:
        topic = "readers"
        one, two, three = (say.begun(f"reader-{number}") for number in range(3))
        for each in (one, two, three):
            each.add({topic: [0]})
        one.produce(topic, b"1")
        two.produce(topic, b"2")
        three.produce(topic, b"3")
        two.ended(commit=False)
        say.read(topic, 0)
        one.ended()
        say.read(topic, 0)
        say.read(topic, 2)
        say.list_offset(topic, -1, 1)
        say.list_offset(topic, 1, 1)
        three.ended(commit=False)
        for number in range(12):
            producer = (one, two, three)[number % 3]
            producer.add({topic: [0]}, last=True)
            producer.produce(topic, b"%d" % number)
            producer.ended(commit=number % 4 == 0)
        for offset in (*range(0, 31, 3), 30, 31):
            say.read(topic, offset)
            say.read(topic, offset, max_bytes=1, partition_max_bytes=1)
            say.read(topic, offset, partition_max_bytes=200)
            say.read(topic, offset, isolation_level=0)
        say.list_offset(topic, -1, 0)
        say.list_offset(topic, -1, 1)
        say.list_offset(topic, -2, 1)

    agree(both, "readers", dialogue)


@pytest.mark.rule("TXN-10", "TXN-12")
def test_offsets_of_transactions(both: dict[Kind, MixedCluster]):
    def dialogue(say: Dialogue) -> None:
        topic, group = "offsetting", "offset-group"
        say.quietly(K.FIND_COORDINATOR, 3, key=group, key_type=0)
        say.quietly(K.OFFSET_FETCH, 7, group_id=group, topics=None, require_stable=True)

        def fetched(*, stable: bool) -> None:
            say.ask(
                K.OFFSET_FETCH,
                7,
                group_id=group,
                require_stable=stable,
                topics=[{"name": topic, "partition_indexes": [0]}],
            )
            say.ask(K.OFFSET_FETCH, 7, group_id=group, require_stable=stable, topics=None)

        producer = say.begun("offsets")
        for version in range(5):
            producer.commit_offsets(group, {topic: 5}, version)
            producer.commit_offsets(group, {topic: 5}, version, transactional_id="")
            producer.commit_offsets(group, {topic: 5}, version, transactional_id="other")
            producer.commit_offsets(group, {topic: 5}, version, producer_epoch=7)
            producer.commit_offsets(group, {topic: 5}, version, producer_id=98765)
            producer.commit_offsets("", {topic: 5}, version)
            producer.commit_offsets(group, {}, version)
            producer.commit_offsets(group, {"none": 5}, version)
        fetched(stable=True)
        for version in range(5):
            producer.add_offsets(group, version)
        producer.add_offsets("", 4)
        for version in range(5):
            producer.commit_offsets(group, {topic: 5 + version, "none": 3}, version)
        producer.commit_offsets(group, {topic: 5}, 4, member_id="nobody")
        producer.commit_offsets(group, {topic: 5}, 4, generation_id=3)
        producer.commit_offsets(group, {topic: 5}, 4, generation_id=0)
        producer.commit_offsets(group, {topic: 5}, 4, member_id="nobody", generation_id=3)
        producer.commit_offsets(group, {topic: 5}, 4, group_instance_id="nobody")
        producer.commit_offsets(group, {topic: -1}, 4)
        producer.commit_offsets(group, {topic: 9}, 4)
        fetched(stable=True)
        fetched(stable=False)
        say.ask(K.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False)
        say.ask(K.DELETE_GROUPS, 2, groups_names=[group])
        producer.ended()
        fetched(stable=True)
        producer.add_offsets(group)
        producer.commit_offsets(group, {topic: 100})
        producer.ended(commit=False)
        fetched(stable=True)
        # A plain commit while a transactional one is pending survives its marker.
        producer.add_offsets(group)
        producer.commit_offsets(group, {topic: 200})
        say.ask(
            K.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 300,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        )
        fetched(stable=True)
        fetched(stable=False)
        producer.ended()
        fetched(stable=True)
        say.producers(CONSUMER_OFFSETS, 0, 1, 2, 3)

    agree(both, "offsetting", dialogue)


@pytest.mark.rule("TXN-11", "TXN-18")
def test_listings_and_timeouts(both: dict[Kind, MixedCluster]):
    def dialogue(say: Dialogue) -> None:
        def listed(version: int = 1, **filters: Any) -> None:
            body = {"state_filters": [], "producer_id_filters": [], **filters}
            if version:
                body.setdefault("duration_filter", -1)
            with Raw(say.port) as raw:
                response = raw.ask(K.LIST_TRANSACTIONS, version, **body)
            mine = sorted(
                (each.transactional_id, each.transaction_state)
                for each in response.transaction_states
                if each.transactional_id.startswith("listed")
            )
            unknown = sorted(response.unknown_state_filters)
            say.lines.append(
                f"LIST {version} {say.shown(filters)}: {response.error_code} {unknown} {mine}"
            )

        empty, ongoing, committed, aborted = (
            say.begun(f"listed-{name}") for name in ("empty", "ongoing", "committed", "aborted")
        )
        for each in (ongoing, committed, aborted):
            each.add({"listing": [0]})
        committed.ended()
        aborted.ended(commit=False)
        slow = say.begun("listed-slow", transaction_timeout=300)
        slow.add({"listing": [0]})
        slow.produce("listing", b"slow")
        say.wait_state("listed-slow", "CompleteAbort")
        slow.end()
        slow.end(1)
        slow.end(commit=False)
        slow.add({"listing": [0]})
        slow.produce("listing", b"slower", counts=False)
        say.read("listing", 0)
        for version in (0, 1):
            listed(version)
            for states in (
                ["Empty"],
                ["Ongoing"],
                ["Empty", "Ongoing"],
                ["empty"],
                ["None", "Ongoing"],
                ["CompleteCommit", "CompleteAbort"],
                ["Dead"],
                ["PrepareCommit"],
                [""],
                ["PrepareEpochFence"],
                ["Unknown", "Unknown"],
            ):
                listed(version, state_filters=states)
            listed(version, producer_id_filters=[ongoing.producer_id])
            listed(version, producer_id_filters=[-1])
            listed(version, producer_id_filters=[empty.producer_id], state_filters=["Ongoing"])
        for duration_ms in (-2, -1, 0, 1, 3_600_000, 2**62):
            listed(duration_filter=duration_ms)
            listed(duration_filter=duration_ms, state_filters=["Ongoing"])

    agree(both, "listing", dialogue)
