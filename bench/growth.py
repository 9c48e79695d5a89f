"""What one small request or change costs while the number of partitions grows.

    python -m bench.growth [--sizes 1000 10000 ...] [--hosted 100 1000 ...] [--rounds 50]

One real broker: an incremental fetch of a session with all its partitions, a produce, the metadata
of one topic, an offset commit, a topic of one partition created and deleted. Then a controller with
stub brokers: one ISR change, one new partition, one topic created and deleted again, one
reassignment, a topic setting, and the return of a broker without replicas. Median milliseconds and
CPU milliseconds of the node; a row is flat if its last column is no more than twice its first.
`--sizes` or `--hosted` without numbers leaves a half out; a million partitions take minutes.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.side_by_side.cluster import ZooKeeper, cpu_s, wait_port
from bench.side_by_side.controller import Stubs, populate, topic_id
from klamm.local.network import free_ports
from klamm.net.blocking import BlockingConnection
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Record, build_batch
from klamm.zookeeper import znodes

TIMEOUT_S = 120.0
PER_TOPIC = 100
STUBS = list(range(1, 11))
#: A stub broker that never has a replica.
IDLE = 11
#: A partition takes up more than this in an UpdateMetadata.
LEAST_BYTES = 40

#: Milliseconds and CPU milliseconds of one repetition, by the name of the row.
Costs = dict[str, tuple[float, float]]


@contextlib.contextmanager
def node(zookeeper: ZooKeeper, directory: Path, settings: str = "") -> Iterator[tuple[int, int]]:
    """A klamm node in a process of its own: its port and process id."""
    (port,) = free_ports(1)
    file = directory / "server.properties"
    file.write_text(
        f"broker.id=101\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
        f"zookeeper.connect={zookeeper.address}\nzookeeper.session.timeout.ms=30000\n"
        f"log.dirs={directory}/logs\nauto.leader.rebalance.enable=false\n"
        f"controlled.shutdown.enable=false\noffsets.topic.replication.factor=1\n{settings}"
    )
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "klamm", "broker", str(file)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_port(port, 60)
        yield port, process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure(pid: int, rounds: int, do: Callable[[int], object]) -> tuple[float, float]:
    """The median time and the mean CPU time of `do`, which is given the number of the round."""
    do(0)
    times = []
    before = cpu_s(pid)
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        do(number)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times), (cpu_s(pid) - before) * 1000 / rounds


def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {TIMEOUT_S:g} s")
        time.sleep(0.001)


class ControllerRows:
    """Single changes for a controller that knows many partitions."""

    def __init__(self, admin: Any, stubs: Stubs, port: int, partitions: int) -> None:
        self._admin = admin
        self._stubs = stubs
        self._partitions = partitions
        self._connection = BlockingConnection("127.0.0.1", port, "growth")
        topic = json.loads(admin.get("/brokers/topics/bench-00000")[0])
        self._replicas = topic["partitions"]["0"]
        self._topic_id = znodes.decode_topic("", json.dumps(topic).encode()).topic_id
        data, stat = admin.get("/brokers/topics/bench-00000/partitions/0/state")
        self._state, self._version = json.loads(data), stat.version
        self._leader_epoch = admin.exists(f"/brokers/ids/{self._state['leader']}").czxid

    def rows(self) -> dict[str, Callable[[int], object]]:
        return {
            "ISR change": self.change_isr,
            "topic of one partition": self.create_topic,
            "topic created and deleted": self.create_and_delete,
            "reassignment": self.reassign,
            "topic setting": self.set_config,
            "broker without replicas": self.register_broker,
        }

    def change_isr(self, number: int) -> None:
        """The leader of one partition removes a follower from the ISR, or puts it back."""
        leader, isr = self._state["leader"], self._state["isr"]
        rest = [each for each in self._replicas if each != leader]
        isr = [leader, *(rest if len(isr) < len(self._replicas) else rest[:-1])]
        response = self._connection.send(
            ApiKey.ALTER_PARTITION,
            {
                "broker_id": leader,
                "broker_epoch": self._leader_epoch,
                "topics": [
                    {
                        "topic_name": "bench-00000",
                        "topic_id": self._topic_id,
                        "partitions": [
                            {
                                "partition_index": 0,
                                "leader_epoch": self._state["leader_epoch"],
                                "new_isr": isr,
                                "new_isr_with_epochs": [
                                    {"broker_id": each, "broker_epoch": -1} for each in isr
                                ],
                                "leader_recovery_state": 0,
                                "partition_epoch": self._version,
                            }
                        ],
                    }
                ],
            },
            TIMEOUT_S,
        )
        code = response.error_code or response.topics[0].partitions[0].error_code
        assert not code, f"AlterPartition: error {code}"
        self._state["isr"] = isr
        self._version = response.topics[0].partitions[0].partition_epoch

    def create_topic(self, number: int) -> None:
        """A topic on the stub brokers, until its partition has a leader."""
        self._create(f"small-{number}", [1, 2, 3])

    def create_and_delete(self, number: int) -> None:
        """A topic on the node itself, which answers StopReplica, until its znode is gone."""
        name = f"brief-{number}"
        self._create(name, [101])
        self._admin.create(f"/admin/delete_topics/{name}")
        until(lambda: not self._admin.exists(f"/brokers/topics/{name}"))

    def _create(self, name: str, replicas: list[int]) -> None:
        body = {
            "partitions": {"0": replicas},
            "topic_id": topic_id(),
            "adding_replicas": {},
            "removing_replicas": {},
            "version": 3,
        }
        path = f"/brokers/topics/{name}"
        self._admin.create(path, json.dumps(body).encode())
        until(lambda: self._admin.exists(f"{path}/partitions/0/state"))

    def reassign(self, number: int) -> None:
        """Change the order of a partition's replicas, which moves no data."""
        path = f"/brokers/topics/small-{number}"
        self._connection.send(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            {
                "timeout_ms": 60_000,
                "topics": [
                    {
                        "name": f"small-{number}",
                        "partitions": [{"partition_index": 0, "replicas": [2, 1, 3]}],
                    }
                ],
            },
            TIMEOUT_S,
        )
        until(lambda: json.loads(self._admin.get(path)[0])["partitions"]["0"] == [2, 1, 3])

    def set_config(self, number: int) -> None:
        """Set a retention by IncrementalAlterConfigs."""
        response = self._connection.send(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            {
                "validate_only": False,
                "resources": [
                    {
                        "resource_type": 2,
                        "resource_name": f"small-{number}",
                        "configs": [
                            {"name": "retention.ms", "config_operation": 0, "value": "3600000"}
                        ],
                    }
                ],
            },
            TIMEOUT_S,
        )
        assert not response.responses[0].error_code

    def register_broker(self, number: int) -> None:
        """A broker without replicas leaves and returns; it is told about every partition."""
        self._stubs.say(f"kill {IDLE}")
        self._stubs.say("reset")
        self._stubs.say(f"start {IDLE}")
        until(lambda: self._bytes_of_metadata() >= LEAST_BYTES * self._partitions)

    def _bytes_of_metadata(self) -> int:
        told: int = json.loads(self._stubs.say("tally")).get("UpdateMetadata", {}).get("bytes", 0)
        return told


def controller_costs(partitions: int, rounds: int) -> Costs:
    """Measure each row with a controller of `partitions` partitions."""
    directory = Path(tempfile.mkdtemp(prefix="growth-"))
    zookeeper = ZooKeeper(directory / "zk", heap="6g")
    admin = zookeeper.client()
    try:
        for path in (
            "/brokers/ids",
            "/brokers/topics",
            "/config/topics",
            "/config/changes",
            "/admin/delete_topics",
        ):
            admin.ensure_path(path)
        populate(zookeeper.port, partitions // PER_TOPIC, PER_TOPIC, STUBS, 3)
        (base,) = free_ports(1)
        stubs = Stubs(zookeeper.address, [*STUBS, IDLE], base)
        with contextlib.ExitStack() as stack, node(zookeeper, directory) as (port, pid):
            stack.callback(stubs.stop)
            told = LEAST_BYTES * partitions * len(STUBS)
            stubs.quiet(require=lambda t: t.get("UpdateMetadata", {}).get("bytes", 0) >= told)
            found = {}
            for name, do in ControllerRows(admin, stubs, port, partitions).rows().items():
                few = rounds if do.__name__ != "register_broker" else 3
                found[name] = measure(pid, few, do)
        return found
    finally:
        admin.stop()
        zookeeper.stop()
        shutil.rmtree(directory, ignore_errors=True)


class BrokerRows:
    """Single requests to a broker that hosts many partitions."""

    def __init__(self, port: int, partitions: int) -> None:
        self._connection = BlockingConnection("127.0.0.1", port, "growth")
        self._session = (0, 0)
        names = [f"many-{number}" for number in range(partitions // PER_TOPIC)]
        request = {
            "timeout_ms": 110_000,
            "validate_only": False,
            "topics": [
                {
                    "name": name,
                    "num_partitions": PER_TOPIC,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for name in names
            ],
        }

        def is_created() -> bool:
            codes = {each.error_code for each in self._send(ApiKey.CREATE_TOPICS, request).topics}
            return codes <= {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}

        def is_led() -> bool:
            found = self._metadata(names).topics
            self._ids = {each.name: each.topic_id for each in found}
            return all(
                not each.error_code and all(p.leader_id == 101 for p in each.partitions)
                for each in found
            )

        self._ids: dict[str, uuid.UUID] = {}
        until(is_created)
        until(is_led)
        self._fetch_all()

    def rows(self) -> dict[str, Callable[[int], object]]:
        return {
            "fetch of a session": self.fetch,
            "produce": self.produce,
            "metadata of a topic": self.metadata,
            "offset commit": self.commit,
            "topic created and deleted": self.create_and_delete,
        }

    def _send(self, api: ApiKey, values: dict[str, Any]) -> Any:
        return self._connection.send(api, values, TIMEOUT_S)

    def _fetch(self, topics: list[dict[str, Any]]) -> Any:
        session_id, epoch = self._session
        response = self._send(
            ApiKey.FETCH,
            {
                "replica_id": -1,
                "replica_state": {"replica_id": -1, "replica_epoch": -1},
                "max_wait": 0,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "isolation_level": 0,
                "session_id": session_id,
                "session_epoch": epoch,
                "topics": topics,
                "forgotten_topics_data": [],
                "rack_id": "",
            },
        )
        assert not response.error_code, f"Fetch: error {response.error_code}"
        self._session = (response.session_id, epoch + 1)
        return response

    def _fetch_all(self) -> None:
        """Open a session with every partition."""
        self._fetch(
            [
                {
                    "topic": name,
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition": number,
                            "current_leader_epoch": -1,
                            "fetch_offset": 0,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 1 << 20,
                        }
                        for number in range(PER_TOPIC)
                    ],
                }
                for name, topic_id in self._ids.items()
            ]
        )

    def fetch(self, number: int) -> None:
        self._fetch([])

    def produce(self, number: int) -> None:
        records = bytes(build_batch([Record(b"k", b"v" * 100, 1)]).data)
        response = self._send(
            ApiKey.PRODUCE,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout": 30_000,
                "topic_data": [
                    {"name": "many-0", "partition_data": [{"index": 0, "records": records}]}
                ],
            },
        )
        code = response.responses[0].partition_responses[0].error_code
        assert not code, f"Produce: error {code}"

    def _metadata(self, names: list[str]) -> Any:
        return self._send(
            ApiKey.METADATA,
            {
                "topics": [{"name": name, "topic_id": None} for name in names],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )

    def metadata(self, number: int) -> None:
        self._metadata(["many-0"])

    def commit(self, number: int) -> None:
        values = {
            "group_id": "growth",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [
                {
                    "name": "many-0",
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": number,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        }
        deadline = time.monotonic() + TIMEOUT_S
        while self._send(ApiKey.OFFSET_COMMIT, values).topics[0].partitions[0].error_code:
            assert time.monotonic() < deadline, "no coordinator"
            self._send(ApiKey.FIND_COORDINATOR, {"key": "growth", "key_type": 0})

    def create_and_delete(self, number: int) -> None:
        """A topic of one partition, until the broker leads it and until its name is gone."""
        name = f"small-{number}"
        topic = {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        create = {"timeout_ms": 60_000, "validate_only": False, "topics": [topic]}
        self._send(ApiKey.CREATE_TOPICS, create)
        until(lambda: not self._metadata([name]).topics[0].error_code)
        self._send(ApiKey.DELETE_TOPICS, {"timeout": 60_000, "topic_names": [name]})
        until(lambda: self._metadata([name]).topics[0].error_code)


def broker_costs(partitions: int, rounds: int) -> Costs:
    """Measure each row with a broker that hosts `partitions` partitions."""
    directory = Path(tempfile.mkdtemp(prefix="growth-"))
    zookeeper = ZooKeeper(directory / "zk")
    try:
        with node(zookeeper, directory, "offsets.topic.num.partitions=1\n") as (port, pid):
            rows = BrokerRows(port, partitions).rows()
            return {name: measure(pid, rounds, do) for name, do in rows.items()}
    finally:
        zookeeper.stop()
        shutil.rmtree(directory, ignore_errors=True)


def show(title: str, costs: dict[int, Costs]) -> None:
    print(f"{title:26}" + "".join(f"{size:>20,}" for size in costs) + f"{'growth':>9}", flush=True)
    first, last = next(iter(costs.values())), list(costs.values())[-1]
    for name in first:
        cells = "".join(f"{each[name][0]:9.1f}ms{each[name][1]:6.1f}CPU" for each in costs.values())
        print(f"{name:26}{cells}{last[name][0] / first[name][0]:8.1f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--hosted", type=int, nargs="*", default=[100, 1_000, 5_000, 20_000])
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    if options.hosted:
        show("broker", {size: broker_costs(size, options.rounds) for size in options.hosted})
    if options.sizes:
        show("controller", {size: controller_costs(size, options.rounds) for size in options.sizes})


if __name__ == "__main__":
    main()
