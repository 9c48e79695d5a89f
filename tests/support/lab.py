"""A laboratory for controllers: real nodes as processes, a real ZooKeeper, and scripted brokers.

A scripted broker registers, accepts connections, records what controllers tell it and responds as
it was told to: at once, not until released, or with errors. Everything waits for conditions.
"""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from klamm.protocol.apis import ApiKey, request_header_version
from klamm.protocol.codec.frames import decode_response, encode_request, encode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.schema.lookup import message_reader
from tests.support.chroot import Chroot
from tests.support.node_process import NodeProcess, with_dots
from tests.support.waiting import PATIENCE_S, wait_until

CONTROL = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA}


def topic_znode(partitions: Mapping[int, list[int]], topic_id: str | None = None) -> bytes:
    value: dict[str, Any] = {
        "version": 3,
        "partitions": {str(p): r for p, r in partitions.items()},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    if topic_id is not None:
        value["topic_id"] = topic_id
    return json.dumps(value).encode()


@dataclass
class Received:
    """One request of a controller."""

    api: ApiKey
    version: int
    body: Any

    def partitions(self) -> dict[tuple[str, int], Any]:
        """What it says, by partition."""
        states = getattr(self.body, "ungrouped_partition_states", None)
        if states is not None:
            return {(s.topic_name, s.partition_index): s for s in states}
        return {
            (topic.topic_name, state.partition_index): state
            for topic in self.body.topic_states
            for state in topic.partition_states
        }


@dataclass
class Script:
    """How a broker responds."""

    withheld: set[ApiKey] = field(default_factory=set)
    top_error: dict[ApiKey, ErrorCode] = field(default_factory=dict)
    partition_error: dict[tuple[str, int], ErrorCode] = field(default_factory=dict)


class ScriptedBroker:
    """A broker as the controller sees one, and nothing more."""

    def __init__(self, zookeeper: str, broker_id: int, rack: str | None = None) -> None:
        self.id = broker_id
        self.rack = rack
        self.script = Script()
        self.received: list[Received] = []
        #: The highest controller epoch of an UpdateMetadata; a deposed controller's may come later.
        self.heard_of = -1
        self.epoch = -1
        self._zookeeper = zookeeper
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._client: KazooClient | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def register(self) -> "ScriptedBroker":
        self._client = KazooClient(self._zookeeper, timeout=10)
        self._client.start()
        path = f"/brokers/ids/{self.id}"
        self._client.create(path, self.registration(), ephemeral=True, makepath=True)
        self.epoch = self._client.exists(path).czxid
        return self

    @property
    def is_registered(self) -> bool:
        return self._client is not None

    def registration(self, **changes: Any) -> bytes:
        value = {
            "version": 5,
            "host": "127.0.0.1",
            "port": self.port,
            "jmx_port": -1,
            "timestamp": "1",
            "endpoints": [f"PLAINTEXT://127.0.0.1:{self.port}"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "features": {},
        }
        if self.rack is not None:
            value["rack"] = self.rack
        return json.dumps(value | changes).encode()

    def bounce(self) -> None:
        """Delete and create the registration in one transaction, as a fast restart would."""
        assert self._client is not None
        path = f"/brokers/ids/{self.id}"
        transaction = self._client.transaction()
        transaction.delete(path)
        transaction.create(path, self.registration(), ephemeral=True)
        results = transaction.commit()
        assert not any(isinstance(result, Exception) for result in results)
        self.epoch = self._client.exists(path).czxid

    def leave(self) -> None:
        """The registration goes; connections stay until the controller closes them."""
        if self._client is not None:
            self._client.stop()
            self._client.close()
            self._client = None

    def close(self) -> None:
        self.leave()
        self._listener.close()
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def release(self) -> None:
        """Answer again what was withheld."""
        with self._changed:
            self.script.withheld.clear()
            self._changed.notify_all()

    def told(self, api: ApiKey, topic: str, partition: int) -> list[Any]:
        """Everything it was told about a partition by one kind of request, in order."""
        return [
            request.partitions()[topic, partition]
            for request in list(self.received)
            if request.api is api and (topic, partition) in request.partitions()
        ]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._sockets.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), connection:
            stream = connection.makefile("rb")
            while size := stream.read(4):
                frame = stream.read(struct.unpack(">i", size)[0])
                header, body = decode_any_request(frame)
                request = Received(ApiKey(header.api_key), header.api_version, body)
                self.received.append(request)
                if request.api is ApiKey.UPDATE_METADATA:
                    self.heard_of = max(self.heard_of, body.controller_epoch)
                with self._changed:
                    self._changed.wait_for(lambda api=request.api: api not in self.script.withheld)
                connection.sendall(encode_response(header, self._response_to(request)))

    def _response_to(self, request: Received) -> dict[str, Any]:
        top = self.script.top_error.get(request.api, ErrorCode.NONE)
        if request.api is ApiKey.UPDATE_METADATA:
            return {"error_code": top}
        errors = [
            {
                "topic_name": topic,
                "partition_index": partition,
                "error_code": self.script.partition_error.get((topic, partition), top),
            }
            for topic, partition in _named(request)
        ]
        response: dict[str, Any] = {"error_code": top, "partition_errors": errors}
        if request.api is ApiKey.LEADER_AND_ISR and request.version >= 5:
            response["topics"] = [
                {
                    "topic_id": topic.topic_id,
                    "partition_errors": [e for e in errors if e["topic_name"] == topic.topic_name],
                }
                for topic in request.body.topic_states
            ]
        return response


def _named(request: Received) -> Iterator[tuple[str, int]]:
    if request.api is ApiKey.STOP_REPLICA and request.version < 3:
        for topic in getattr(request.body, "topics", ()):
            yield from ((topic.name, p) for p in topic.partition_indexes)
        for each in getattr(request.body, "ungrouped_partitions", ()):
            yield each.topic_name, each.partition_index
    else:
        yield from request.partitions()


def decode_any_request(frame: bytes) -> tuple[RequestHeader, Any]:
    """A request in any version, also those that klamm's own brokers refuse."""
    key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
    at = 10 + max(length, 0)
    if request_header_version(key, version) == 2:
        at += 1
    body, _ = message_reader(key, version, "request")(memoryview(frame), at)
    return RequestHeader(key, version, correlation_id, ""), body


class Node(NodeProcess):
    """A node that is only a controller, unless its settings say otherwise."""

    def __init__(self, directory: Path, zookeeper: str, node_id: int, **config: Any) -> None:
        super().__init__(
            node_id,
            directory / f"node{node_id}",
            {
                "zookeeper.connect": zookeeper,
                "zookeeper.session.timeout.ms": 3000,
                "auto.leader.rebalance.enable": "false",
                "auto.create.topics.enable": "false",
                "controlled.shutdown.retry.backoff.ms": 100,
                "klamm.roles": "controller",
                **with_dots(config),
            },
        )

    def ask(self, api: ApiKey, version: int, timeout_s: float = PATIENCE_S, **body: Any) -> Any:
        """One request on a connection of its own."""
        header = RequestHeader(api, version, 7, "lab")
        with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            connection.sendall(encode_request(header, body))
            stream = connection.makefile("rb")
            size = stream.read(4)
            if len(size) < 4:
                raise EOFError("closed without a response")
            return decode_response(header, stream.read(struct.unpack(">i", size)[0]))

    def candidate_pid(self) -> int | None:
        """The process of its controller candidate; none while one that died is replaced."""
        assert self.process is not None
        # A child is listed with the thread that started it, and threads come and go.
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for pid in (thread / "children").read_text().split():
                    return int(pid)
        return None


class Lab(Chroot):
    """One cluster on a chroot of its own."""

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__(address, "lab")
        self.directory = directory
        self.brokers: dict[int, ScriptedBroker] = {}
        self.nodes: dict[int, Node] = {}

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        for broker in self.brokers.values():
            broker.close()
        super().close()

    def add_brokers(self, *ids: int, racks: Mapping[int, str] | None = None) -> None:
        for broker_id in ids:
            rack = (racks or {}).get(broker_id)
            self.brokers[broker_id] = ScriptedBroker(self.address, broker_id, rack).register()

    def add_node(self, node_id: int = 100, **config: Any) -> Node:
        node = Node(self.directory, self.address, node_id, **config)
        self.nodes[node_id] = node.start()
        return node

    def start(self, brokers: int = 3, **config: Any) -> Node:
        """Scripted brokers 1..n and one node, which is controller when this returns."""
        self.add_brokers(*range(1, brokers + 1))
        node = self.add_node(**config)
        self.wait_controller(100)
        return node

    # ZooKeeper

    def wait_registered(self, *ids: int) -> None:
        for each in ids:
            wait_until(lambda each=each: self.zk.exists(f"/brokers/ids/{each}"), f"broker {each}")

    def wait_controller(self, *ids: int) -> int:
        """Wait until one of the nodes has the role and has announced itself to every broker."""

        def announced() -> int | None:
            holder = self.controller_id()
            if holder is None or (ids and holder not in ids):
                return None
            epoch = int(self.zk.get("/controller_epoch")[0])
            registered = [broker for broker in self.brokers.values() if broker.is_registered]
            return holder if all(broker.heard_of == epoch for broker in registered) else None

        found: int = wait_until(announced, f"a controller of {ids}")
        return found

    def create_topic(self, name: str, partitions: Mapping[int, list[int]]) -> None:
        """By znode, and wait until every partition has a leader."""
        self.zk.create(f"/brokers/topics/{name}", topic_znode(partitions))
        for partition in partitions:
            self.wait_state(name, partition, lambda state: state["leader"] >= 0)

    def wait_state(
        self, topic: str, partition: int, condition: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        def met() -> dict[str, Any] | None:
            state = self.state(topic, partition)
            return state if state is not None and condition(state) else None

        found: dict[str, Any] = wait_until(met, f"state of {topic}-{partition}")
        return found

    def alter_partition(
        self, node: Node, topic: str, partition: int, isr: list[int], **changes: Any
    ) -> Any:
        """Propose an ISR as the leader, from the present state; return the response."""
        state = self.state(topic, partition)
        assert state is not None
        leader = changes.pop("broker", state["leader"])
        proposal = {
            "partition_index": partition,
            "leader_epoch": state["leader_epoch"],
            "new_isr": isr,
            "leader_recovery_state": 0,
            "partition_epoch": state["version"],
            **changes,
        }
        response = node.ask(
            ApiKey.ALTER_PARTITION,
            1,
            broker_id=leader,
            broker_epoch=self.brokers[leader].epoch,
            topics=[{"topic_name": topic, "partitions": [proposal]}],
        )
        return response.topics[0].partitions[0] if response.topics else response
