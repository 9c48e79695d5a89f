"""Consume, transform and produce while coordinators, leaders and copiers are killed.

    python -m tests.chaos.copying --kills 20 --seed 7

Copiers are processes that read numbers, write each of them to another topic and commit the offsets
in the same transaction. Brokers and copiers die by SIGKILL and come back. In the end a reader of
committed records must find each number once.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from klamm import Cluster
from klamm.client.admin import Admin, check
from klamm.errors import KlammError
from klamm.protocol.apis import ApiKey

SOURCE, TARGET, GROUP = "numbers", "copies", "copiers"
PARTITIONS = 4
COPIERS = 2
_BATCH = 50
_TRANSACTION = 1  # as a FindCoordinator key type
_TRANSACTION_TIMEOUT_MS = 10_000
_ROLES = ("coordinator", "leader", "copier")


# A copier, in a process of its own


def copy(bootstrap: str, name: str) -> None:
    """Copy until killed; whatever goes wrong is begun anew, as a client of a Streams kind would."""
    while True:
        try:
            _copy(bootstrap, name)
        except KafkaException as error:
            print(f"{name} begins anew: {error.args[0].str()}", file=sys.stderr, flush=True)


def _copy(bootstrap: str, name: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            "log_level": 0,
        }
    )
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "partition.assignment.strategy": "cooperative-sticky",
            "log_level": 0,
        }
    )
    try:
        producer.init_transactions(60)
        consumer.subscribe([SOURCE])
        while True:
            messages = [each for each in consumer.consume(_BATCH, 0.5) if not _is_error(each)]
            if messages:
                _transact(producer, consumer, messages)
    finally:
        consumer.close()


def _is_error(message: Message) -> bool:
    error = message.error()
    if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
        raise KafkaException(error)
    return error is not None


def _transact(producer: Producer, consumer: Consumer, messages: list[Message]) -> None:
    positions: dict[int, int] = {}
    producer.begin_transaction()
    try:
        for message in messages:
            producer.produce(TARGET, message.value(), partition=message.partition())
            positions[message.partition()] = message.offset() + 1
        offsets = [TopicPartition(SOURCE, *each) for each in positions.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(60)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(60)
        # The records are read once more, from the committed offsets on.
        for each in consumer.committed(
            [TopicPartition(SOURCE, partition) for partition in positions], 60
        ):
            consumer.seek(TopicPartition(SOURCE, each.partition, max(each.offset, 0)))


# The run


class Writer(threading.Thread):
    """Writes numbers until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self.count = 0
        self._is_stopping = threading.Event()

    def run(self) -> None:
        while not self._is_stopping.wait(0.005):
            value = b"%d" % self.count
            self._producer.produce(SOURCE, value, partition=self.count % PARTITIONS)
            self._producer.poll(0)
            self.count += 1

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()
        assert self._producer.flush(120) == 0, "numbers are not written"


class Copiers:
    """The processes that copy."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._log = (directory / "copiers.log").open("ab")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for number in range(COPIERS):
            self.start(f"copier-{number}")

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.chaos.copying", "--copier", name, self._bootstrap]
        self._processes[name] = subprocess.Popen(command, stderr=self._log)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        self._log.close()


class Chaos:
    """Kills one thing after the other, and lets it come back."""

    def __init__(self, cluster: Cluster, copiers: Copiers, chance: random.Random) -> None:
        self._cluster = cluster
        self._copiers = copiers
        self._chance = chance
        self.kills: Counter[str] = Counter()

    def kill(self, role: str) -> None:
        name = f"copier-{self._chance.randrange(COPIERS)}"
        if role == "copier":
            self._copiers.kill(name)
            time.sleep(self._chance.uniform(0.0, 2.0))
            self._copiers.start(name)
        else:
            broker = self._leader() if role == "leader" else self._coordinator(name)
            if broker is None:
                return
            self._cluster.kill(broker)
            time.sleep(self._chance.uniform(0.0, 3.0))
            self._cluster.start(broker)
        self.kills[role] += 1

    def _leader(self) -> int:
        topic = self._chance.choice((SOURCE, TARGET))
        return self._cluster.leader(topic, self._chance.randrange(PARTITIONS))

    def _coordinator(self, name: str) -> int | None:
        try:
            with Admin(self._cluster.bootstrap_servers) as admin:
                asked = {"key": name, "key_type": _TRANSACTION}
                found = admin.ask_any(ApiKey.FIND_COORDINATOR, asked)
                check(found.error_code)
                return int(found.node_id)
        except KlammError:
            return None


def read_all(bootstrap: str) -> list[Counter[int]]:
    """How often each number is there for a reader of committed records, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)])
    found = [Counter[int]() for _ in range(PARTITIONS)]
    ended: set[int] = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(30)
            if message is None:
                raise SystemExit("a partition cannot be read to its end")
            if not message.error():
                found[message.partition()][int(message.value())] += 1
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        consumer.close()
    return found


def run(kills: int, seed: int, directory: Path) -> int:
    chance = random.Random(seed)
    settings = {"offsets.topic.replication.factor": "3", "min.insync.replicas": "2"}
    with Cluster(brokers=3, data_dir=directory / "cluster", config=settings) as cluster:
        for topic in (SOURCE, TARGET):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        bootstrap = cluster.bootstrap_servers
        writer, copiers = Writer(bootstrap), Copiers(bootstrap, directory)
        writer.start()
        chaos = Chaos(cluster, copiers, chance)
        try:
            for number in range(10 * kills):
                if chaos.kills.total() >= kills:
                    break
                time.sleep(chance.uniform(2.0, 5.0))
                chaos.kill(_ROLES[number % len(_ROLES)])
                print(f"{chaos.kills.total()} kills, {writer.count} numbers", flush=True)
            writer.stop()
            is_complete = wait_complete(bootstrap, writer.count)
        finally:
            copiers.close()
        return report(chaos.kills, read_all(bootstrap), writer.count, is_complete)


def wait_complete(bootstrap: str, count: int) -> bool:
    """Wait until as many numbers are copied as were written."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if sum(each.total() for each in read_all(bootstrap)) >= count:
            return True
        time.sleep(1)
    return False


def report(kills: Counter[str], found: list[Counter[int]], count: int, is_complete: bool) -> int:
    total = sum(found, Counter[int]())
    missing = [number for number in range(count) if not total[number]]
    doubled = [number for number, times in total.items() if times > 1]
    disordered = sum(list(each) != sorted(each) for each in found)
    told = ", ".join(f"{number} of a {role}" for role, number in sorted(kills.items()))
    print(
        f"{kills.total()} kills ({told}); {count} numbers in, {total.total()} copies out: "
        f"{len(missing)} missing, {len(doubled)} more than once, {disordered} partitions out of "
        "order"
    )
    for what, numbers in (("missing", missing), ("more than once", doubled)):
        if numbers:
            print(f"{what}: {numbers[:20]}")
    return 0 if is_complete and not (missing or doubled or disordered) else 1


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.copying", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--copier", nargs=2, metavar=("NAME", "BOOTSTRAP"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.copier:
        name, bootstrap = given.copier
        copy(bootstrap, name)
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="klamm-copying-") as directory:
        return run(given.kills, given.seed, Path(directory))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
