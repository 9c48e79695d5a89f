"""Transactions on real brokers: by stock clients, and by hand where the bytes matter."""

import asyncio
import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from klamm.broker.groups.coordinator import group_partition
from klamm.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from tests.support.cluster import RealCluster
from tests.support.raw import Raw
from tests.support.transactions import RawProducer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

READ_COMMITTED = 1


def raw_producer(cluster: RealCluster, name: str) -> RawProducer:
    return RawProducer({id: broker.port for id, broker in cluster.brokers.items()}, name)


def transactional(cluster: RealCluster, name: str, **settings: Any) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    producer.init_transactions(60)
    return producer


def read(cluster: RealCluster, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Everything of the one partition that a reader of this isolation sees now."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "the end of the partition is not reached"
            if not message.error():
                values.append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return values
    finally:
        consumer.close()


@pytest.mark.rule("TXN-1", "TXN-6", "TXN-8", "TXN-9")
def test_librdkafka_commits_and_aborts(cluster: RealCluster, topic: str):
    cluster.create(topic)
    producer = transactional(cluster, topic)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.flush()
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    assert read(cluster, topic, "read_uncommitted") == [b"0", b"1", b"2", b"3"]
    assert read(cluster, topic) == [b"0", b"2"]


def test_aiokafka_commits_and_aborts(cluster: RealCluster, topic: str):
    from aiokafka import AIOKafkaProducer

    cluster.create(topic)

    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic)
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept")
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"dropped")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept too")
        finally:
            await producer.stop()

    asyncio.run(produce())
    assert read(cluster, topic) == [b"kept", b"kept too"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_commits_and_aborts(cluster: RealCluster, topic: str):
    from kafka import KafkaProducer

    cluster.create(topic)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic)
    try:
        producer.init_transactions()
        for value, commits in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
            producer.begin_transaction()
            producer.send(topic, value)
            producer.flush()
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close()
    assert read(cluster, topic) == [b"kept", b"kept too"]


@pytest.mark.rule("TXN-3")
def test_a_zombie_is_fenced(cluster: RealCluster, topic: str):
    cluster.create(topic)
    zombie = transactional(cluster, topic)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie")
    zombie.flush()
    heir = transactional(cluster, topic)
    with pytest.raises(KafkaException, match="fenced"):
        zombie.commit_transaction(30)
    heir.begin_transaction()
    heir.produce(topic, b"heir")
    heir.commit_transaction(30)
    assert read(cluster, topic) == [b"heir"]


@pytest.mark.rule("TXN-6", "TXN-10", "TXN-14", "TXN-16")
def test_each_input_is_once_in_the_output_while_brokers_die(breakable: RealCluster, topic: str):
    """Consume, transform, produce, over the deaths of coordinators and leaders."""
    inputs = [b"%d" % number for number in range(300)]
    breakable.create(topic)
    breakable.create(f"{topic}-out")
    breakable.produce(topic, inputs)
    done = threading.Event()
    failures: list[BaseException] = []

    def transform() -> None:
        try:
            while _transform_some(breakable, topic) < len(inputs):
                pass
        except BaseException as failure:
            failures.append(failure)
        finally:
            done.set()

    worker = threading.Thread(target=transform)
    worker.start()
    for broker_id in (1, 2, 3):
        wait_until(lambda: done.is_set() or _output_grows(breakable, topic), "output")
        breakable[broker_id].kill()
        breakable[broker_id].start()
        breakable.wait_ready()
        breakable.wait_isr(topic, {1, 2, 3})
    worker.join()
    assert not failures
    assert sorted(read(breakable, f"{topic}-out")) == sorted(inputs)


def _output_grows(cluster: RealCluster, topic: str, seen: dict[str, int] = {}) -> bool:  # noqa: B006
    count = len(read(cluster, f"{topic}-out"))
    grows = count > seen.get(topic, 0)
    seen[topic] = count
    return grows


def _transform_some(cluster: RealCluster, topic: str) -> int:
    """Copy for as long as no error is fatal; the offset that the group has committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"{topic}-group",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    position = 0
    try:
        producer = transactional(cluster, f"{topic}-copier", transaction_timeout_ms=20_000)
        while position < 300:
            messages = [each for each in consumer.consume(10, timeout=5) if not each.error()]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(f"{topic}-out", message.value())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
            )
            producer.commit_transaction(60)
            position = messages[-1].offset() + 1
    except KafkaException as error:
        if error.args[0].txn_requires_abort():
            producer.abort_transaction(60)
    finally:
        consumer.close()
    return position


# By hand


@pytest.mark.rule("TXN-3", "TXN-4", "TXN-17")
def test_every_version_is_told_what_it_knows(cluster: RealCluster, topic: str):
    producer = raw_producer(cluster, topic)
    producer.init_at_last()
    first = producer.producer_id, producer.epoch
    for version in range(6):
        assert producer.init(version=version) is ErrorCode.NONE
    assert (producer.producer_id, producer.epoch) == (first[0], first[1] + 6)
    fenced = {"producer_id": first[0], "producer_epoch": first[1]}
    assert producer.init(version=3, **fenced) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.init(version=4, **fenced) is ErrorCode.PRODUCER_FENCED
    assert producer.init(producer_id=7) is ErrorCode.INVALID_REQUEST
    assert producer.init(timeout_ms=0) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(timeout_ms=900_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(transactional_id="") is ErrorCode.INVALID_REQUEST
    for version in range(5):
        assert producer.end(version=version) is ErrorCode.INVALID_TXN_STATE
    producer.epoch += 1
    assert producer.end(version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(version=2) is ErrorCode.PRODUCER_FENCED
    described = producer.describe()
    assert (described.transaction_state, described.producer_id) == ("Empty", first[0])


@pytest.mark.rule("TXN-5")
def test_a_partition_that_cannot_be_added_keeps_out_the_others(cluster: RealCluster, topic: str):
    cluster.create(topic)
    producer = raw_producer(cluster, topic)
    producer.init_at_last()
    for version in range(4):
        assert producer.add({topic: [0, 9], CONSUMER_OFFSETS: [0]}, version) == {
            (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            (topic, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (CONSUMER_OFFSETS, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
    assert producer.describe().transaction_state == "Empty"
    assert producer.add({topic: [0]}, 0) == {(topic, 0): ErrorCode.NONE}
    for version in (4, 5):
        assert producer.verify({topic: [0]}, version) == {(topic, 0): ErrorCode.NONE}
        assert producer.verify({topic: [0], "no": [1]}, version) == {
            (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            ("no", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }


@pytest.mark.rule("TXN-12")
def test_a_batch_outside_of_a_transaction_is_refused(cluster: RealCluster, topic: str):
    cluster.create(topic, partitions=2)
    producer = raw_producer(cluster, topic)
    producer.init_at_last()
    leader = cluster.leader(topic)
    refused = producer.produce(leader, topic, b"x", version=11)
    assert refused.error_code == ErrorCode.TRANSACTION_ABORTABLE
    producer.sequences.clear()
    refused = producer.produce(leader, topic, b"x", version=10)
    assert refused.error_code == ErrorCode.INVALID_TXN_STATE
    producer.sequences.clear()
    refused = producer.produce(leader, topic, b"x", transactional_id=None)
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    producer.sequences.clear()
    producer.add_at_last({topic: [0]})
    assert not producer.produce(leader, topic, b"x").error_code
    assert not producer.produce(leader, topic, b"y").error_code
    assert producer.end() is ErrorCode.NONE
    producer.wait_state("CompleteCommit")
    late = producer.produce(leader, topic, b"late")
    assert late.error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert read(cluster, topic) == [b"x", b"y"]


@pytest.mark.rule("TXN-11")
def test_a_transaction_that_takes_too_long_is_aborted(cluster: RealCluster, topic: str):
    cluster.create(topic)
    producer = raw_producer(cluster, topic)
    producer.init_at_last(timeout_ms=1_500)
    producer.add_at_last({topic: [0]})
    producer.produce_at_last(cluster.leader(topic), topic, b"late")
    found = producer.wait_state("CompleteAbort")
    assert found.producer_epoch == producer.epoch + 1
    assert producer.end() is ErrorCode.PRODUCER_FENCED
    assert read(cluster, topic) == []


@pytest.mark.rule("TXN-7", "TXN-19")
def test_markers_by_hand(cluster: RealCluster, topic: str):
    cluster.create(topic)
    producer = raw_producer(cluster, topic)
    producer.init_at_last()
    producer.add_at_last({topic: [0]})
    leader = cluster.leader(topic)
    producer.produce_at_last(leader, topic, b"x")

    def write(broker: int, epoch: int, coordinator_epoch: int, name: str = topic) -> ErrorCode:
        with producer.broker(broker) as raw:
            response = raw.ask(
                ApiKey.WRITE_TXN_MARKERS,
                markers=[
                    {
                        "producer_id": producer.producer_id,
                        "producer_epoch": epoch,
                        "transaction_result": False,
                        "topics": [{"name": name, "partition_indexes": [0]}],
                        "coordinator_epoch": coordinator_epoch,
                    }
                ],
            )
        return ErrorCode.of(response.markers[0].topics[0].partitions[0].error_code)

    def producers(broker: int) -> Any:
        with producer.broker(broker) as raw:
            response = raw.ask(
                ApiKey.DESCRIBE_PRODUCERS, topics=[{"name": topic, "partition_indexes": [0]}]
            )
        return response.topics[0].partitions[0].active_producers

    (state,) = producers(leader)
    assert (state.producer_id, state.last_sequence) == (producer.producer_id, 0)
    assert (state.current_txn_start_offset, state.coordinator_epoch) == (0, -1)
    follower = next(each for each in cluster.brokers if each != leader)
    wait_until(lambda: producers(follower) == (state,), "the follower's view")
    assert write(leader, producer.epoch, 0, "nothing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert write(follower, producer.epoch, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert write(leader, -1, 0) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert write(leader, producer.epoch + 1, 5) is ErrorCode.NONE
    assert write(leader, producer.epoch, 6) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(leader, producer.epoch + 1, 4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert write(leader, producer.epoch + 1, 5) is ErrorCode.NONE
    (state,) = producers(leader)
    assert (state.current_txn_start_offset, state.coordinator_epoch) == (-1, 5)
    assert read(cluster, topic) == []


@pytest.mark.rule("TXN-10")
def test_offsets_of_a_transaction_are_visible_after_its_commit(cluster: RealCluster, topic: str):
    cluster.create(topic)
    producer = raw_producer(cluster, topic)
    producer.init_at_last()
    group = f"{topic}-group"

    def coordinator() -> int:
        def ask() -> int | None:
            with producer.anybody() as raw:
                found = raw.ask(
                    ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group]
                ).coordinators[0]
            return found.node_id if not found.error_code else None

        return wait_until(ask, "the group's coordinator")

    def commit(offset: int, version: int = 4, **member: Any) -> int:
        with producer.broker(coordinator()) as raw:
            response = raw.ask(
                ApiKey.TXN_OFFSET_COMMIT,
                version,
                **{
                    "transactional_id": producer.id,
                    "group_id": group,
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.epoch,
                    "topics": [
                        {
                            "name": topic,
                            "partitions": [
                                {
                                    "partition_index": 0,
                                    "committed_offset": offset,
                                    "committed_metadata": "",
                                }
                            ],
                        }
                    ],
                    **member,
                },
            )
        return response.topics[0].partitions[0].error_code

    def fetch(*, stable: bool) -> tuple[int, int]:
        with producer.broker(coordinator()) as raw:
            response = raw.ask(
                ApiKey.OFFSET_FETCH,
                7,
                group_id=group,
                topics=[{"name": topic, "partition_indexes": [0]}],
                require_stable=stable,
            )
        found = response.topics[0].partitions[0]
        return found.error_code, found.committed_offset

    def add_offsets() -> None:
        def added() -> bool:
            error = producer.ask(
                ApiKey.ADD_OFFSETS_TO_TXN,
                transactional_id=producer.id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=group,
            ).error_code
            return not error

        wait_until(added, "the offsets partition in the transaction")

    wait_until(lambda: fetch(stable=True) == (0, -1), "a coordinator that has loaded")
    assert commit(5, group_id="") == ErrorCode.INVALID_GROUP_ID
    assert commit(5, 4) == ErrorCode.TRANSACTION_ABORTABLE
    assert commit(5, 3) == ErrorCode.INVALID_TXN_STATE
    add_offsets()
    for version in range(5):
        assert commit(5 + version, version) == ErrorCode.NONE
    assert commit(9, member_id="nobody", generation_id=3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch(stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert fetch(stable=False) == (0, -1)
    assert producer.end() is ErrorCode.NONE
    wait_until(lambda: fetch(stable=True) == (0, 9), "the committed offset")
    producer.wait_state("CompleteCommit")
    add_offsets()
    assert commit(100) == ErrorCode.NONE
    assert producer.end(commit=False) is ErrorCode.NONE
    wait_until(lambda: fetch(stable=True) == (0, 9), "the old offset")
    assert group_partition(group, 4) < 4


@pytest.mark.rule("TXN-18")
def test_transactions_are_listed_by_their_coordinator(cluster: RealCluster, topic: str):
    cluster.create(topic)
    producer = raw_producer(cluster, topic)
    producer.init_at_last()
    producer.add_at_last({topic: [0]})
    coordinator = producer.find_coordinator()

    def listed(broker: int, **filters: Any) -> Any:
        with producer.broker(broker) as raw:
            return raw.ask(ApiKey.LIST_TRANSACTIONS, **filters)

    for broker in cluster.brokers:
        found = listed(broker, producer_id_filters=[producer.producer_id]).transaction_states
        assert [each.transactional_id for each in found] == [topic] * (broker == coordinator)
    assert not listed(
        coordinator, state_filters=["Empty"], producer_id_filters=[producer.producer_id]
    ).transaction_states
    assert listed(coordinator, state_filters=["None"]).unknown_state_filters == ("None",)
    producer.end()


@pytest.mark.rule("TXN-8")
def test_a_fetch_that_waits_is_woken_when_the_transaction_ends(cluster: RealCluster, topic: str):
    cluster.create(topic)
    producer = raw_producer(cluster, topic)
    producer.init_at_last()
    producer.add_at_last({topic: [0]})
    leader = cluster.leader(topic)
    producer.produce_at_last(leader, topic, b"x")
    with Raw(cluster[leader].port) as reader:
        topic_id = reader.topic_id(topic)
        empty = reader.fetch(topic_id, 0, isolation_level=READ_COMMITTED)
        partition = empty.topics[0].partitions[0]
        assert (partition.error_code, partition.last_stable_offset) == (0, 0)
        assert not partition.records
        woken: list[Any] = []
        waiting = threading.Thread(
            target=lambda: woken.append(
                reader.fetch(topic_id, 0, isolation_level=READ_COMMITTED, max_wait_ms=15_000)
            )
        )
        waiting.start()
        producer.end()
        waiting.join()
    assert woken[0].topics[0].partitions[0].records


@pytest.mark.rule("TXN-14")
def test_a_new_coordinator_goes_on_with_what_was_decided(breakable: RealCluster, topic: str):
    breakable.create(topic)
    producer = raw_producer(breakable, topic)
    producer.init_at_last()
    producer.add_at_last({topic: [0]})
    producer.produce_at_last(breakable.wait_leader(topic), topic, b"x")
    old = producer.find_coordinator()
    breakable[old].kill()
    producer.ports = {
        id: broker.port for id, broker in breakable.brokers.items() if broker.is_running
    }
    breakable.wait_leader(TRANSACTION_STATE, producer.state_partition(), other_than=old)
    producer.end_at_last()
    producer.wait_state("CompleteCommit")
    breakable[old].start()
    breakable.wait_ready()
    assert read(breakable, topic) == [b"x"]
