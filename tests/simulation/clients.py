"""Clients that remember what they were told: producers, members of a group, an administrator.

They speak Kafka's protocol through the broker's own `ClientConnection`, one request at a time to a
broker, and try again as real clients do. The ledger records what brokers have acknowledged.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from typing import Any

from klamm.errors import UnavailableError
from klamm.net.connection import ClientConnection
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Record, build_batch, iterate_batches, iterate_records
from tests.simulation.loop import Process
from tests.simulation.world import PORT, World

_TIMEOUT_S = 2.0
_PAUSE_S = 0.1
#: As `metadata.max.age.ms`, which is some seven times `session.timeout.ms` in Kafka's clients.
_METADATA_MAX_AGE_S = 10.0
_ALL_ACKS = -1

_VERSIONS = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.METADATA: 9,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.OFFSET_COMMIT: 7,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
}


class Client:
    """A client outside of the cluster, on a machine of its own."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance: random.Random = world.chance(name)
        self.process: Process = world.new_process(name, name)
        self.is_stopping = False
        #: partition index: leader, of the topic that was asked for last.
        self.leaders: dict[int, int] = {}
        self.controller = -1
        self.learned_at_s = 0.0
        self._exchanges: dict[int, ClientConnection] = {}

    async def ask(self, broker: int, api: ApiKey, /, **body: Any) -> Any:
        exchange = self._exchanges.get(broker)
        if exchange is None:
            exchange = self._exchanges[broker] = ClientConnection(self.name, _TIMEOUT_S, _TIMEOUT_S)
        return await exchange.send(f"b{broker}", PORT, api, _VERSIONS[api], body)

    async def learn(self, topic: str | None) -> bool:
        """Ask any broker who leads what; whether that worked."""
        broker = self.chance.choice(sorted(self.world.machines))
        try:
            response = await self.ask(
                broker,
                ApiKey.METADATA,
                topics=[] if topic is None else [{"name": topic}],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        except UnavailableError:
            await asyncio.sleep(_PAUSE_S)
            return False
        self.controller = int(response.controller_id)
        for found in response.topics:
            if not found.partitions:
                # A broker that has just started may not have heard of it yet.
                await asyncio.sleep(_PAUSE_S)
                return False
            self.leaders = {int(p.partition_index): int(p.leader_id) for p in found.partitions}
        self.learned_at_s = self.world.loop.time()
        return True

    def forget_connection(self, broker: int) -> None:
        exchange = self._exchanges.pop(broker, None)
        if exchange is not None:
            exchange.close()


class Producer(Client):
    """Writes numbered records to a topic until it is told to stop."""

    def __init__(
        self, world: World, name: str, topic: str, *, acks: int, idempotent: bool, pause_s: float
    ) -> None:
        super().__init__(world, name)
        self.topic = topic
        self.acks = acks
        self.idempotent = idempotent
        self.has_stopped = False
        self.acked = 0
        self._pause_s = pause_s
        self._number = 0
        self._producer_id = -1
        self._sequences: dict[int, int] = {}

    def start(self) -> None:
        self.process.start(self._run())

    async def _run(self) -> None:
        while not self.is_stopping:
            if not self.leaders and not await self.learn(self.topic):
                continue
            if self.idempotent and self._producer_id < 0 and not await self._init():
                continue
            if not self.leaders:
                await asyncio.sleep(_PAUSE_S)
                continue
            await self._produce(self.chance.choice(sorted(self.leaders)))
            await asyncio.sleep(self.chance.uniform(0.2, 1.8) * self._pause_s)
        self.has_stopped = True

    async def _init(self) -> bool:
        broker = self.chance.choice(sorted(self.world.machines))
        try:
            response = await self.ask(
                broker,
                ApiKey.INIT_PRODUCER_ID,
                transactional_id=None,
                transaction_timeout=0,
                producer_id=-1,
                producer_epoch=-1,
            )
        except UnavailableError:
            return False
        if response.error_code:
            await asyncio.sleep(_PAUSE_S)
            return False
        self._producer_id = int(response.producer_id)
        self.world.checks.on_producer_id(self.name, self._producer_id)
        return True

    async def _produce(self, partition: int) -> None:
        values = []
        for _ in range(self.chance.randint(1, 3)):
            self._number += 1
            values.append(f"{self.name}/{self._number}".encode())
        now_ms = int(time.time() * 1000)
        sequence = self._sequences.get(partition, 0)
        batch = build_batch(
            [Record(None, value, now_ms) for value in values],
            producer_id=self._producer_id,
            producer_epoch=0 if self.idempotent else -1,
            base_sequence=sequence if self.idempotent else -1,
        )
        attempts = 0
        while True:
            attempts += 1
            error, offset = await self._send(partition, bytes(batch.data))
            if error == ErrorCode.NONE:
                self.world.operations += 1
                self.acked += len(values)
                self._sequences[partition] = sequence + len(values)
                self.world.note(
                    self.name, f"{self.topic}-{partition} has {len(values)} at {offset}"
                )
                self.world.checks.on_acknowledged(
                    self.topic, partition, offset, values, self.acks == _ALL_ACKS
                )
                return
            if error in _HOPELESS:
                self._give_up()
                return
            if not self.idempotent and attempts >= 3:
                return  # It may have been written, and it may not.
            await asyncio.sleep(_PAUSE_S)
            await self.learn(self.topic)

    def _give_up(self) -> None:
        """Begin anew, under another producer id."""
        self._producer_id = -1
        self._sequences.clear()

    async def _send(self, partition: int, records: bytes) -> tuple[ErrorCode, int]:
        leader = self.leaders.get(partition, -1)
        if leader not in self.world.machines:
            return ErrorCode.LEADER_NOT_AVAILABLE, -1
        try:
            response = await self.ask(
                leader,
                ApiKey.PRODUCE,
                transactional_id=None,
                acks=self.acks,
                timeout=1500,
                topic_data=[
                    {
                        "name": self.topic,
                        "partition_data": [{"index": partition, "records": records}],
                    }
                ],
            )
        except UnavailableError:
            return ErrorCode.NETWORK_EXCEPTION, -1
        result = response.responses[0].partition_responses[0]
        return ErrorCode.of(int(result.error_code)), int(result.base_offset)


#: After these a producer begins anew rather than trying again.
_HOPELESS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class Member(Client):
    """A consumer in a group: joins, reads what it is assigned, and commits how far it has come."""

    def __init__(self, world: World, name: str, group: str, topic: str) -> None:
        super().__init__(world, name)
        self.group = group
        self.topic = topic
        self.positions: dict[int, int] = {}
        #: Whether it holds an assignment right now.
        self.is_settled = False
        self._coordinator = -1
        self._member_id = ""
        self._generation = -1
        #: The partitions that it has assigned as the group's leader; None for everybody else.
        self._shared_out: list[int] | None = None

    def start(self) -> None:
        self.process.start(self._run())

    async def _run(self) -> None:
        while not self.is_stopping:
            try:
                if not await self.learn(self.topic) or not await self._find_coordinator():
                    await asyncio.sleep(_PAUSE_S)
                    continue
                assigned = await self._join()
                if assigned is None or not await self._fetch_positions(assigned):
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self.is_settled = True
                await self._consume()
            except UnavailableError:
                self._coordinator = -1
                await asyncio.sleep(_PAUSE_S)
            finally:
                self.is_settled = False

    async def _find_coordinator(self) -> bool:
        broker = self.chance.choice(sorted(self.world.machines))
        response = await self.ask(broker, ApiKey.FIND_COORDINATOR, key=self.group, key_type=0)
        self._coordinator = int(response.node_id) if not response.error_code else -1
        return self._coordinator in self.world.machines

    async def _join(self) -> list[int] | None:
        response = await self.ask(
            self._coordinator,
            ApiKey.JOIN_GROUP,
            group_id=self.group,
            session_timeout=1000,
            rebalance_timeout=1500,
            member_id=self._member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            return await self._join()
        if response.error_code:
            self._on_error(response.error_code)
            return None
        self._member_id = response.member_id
        self._generation = int(response.generation_id)
        assignments: list[Mapping[str, Any]] = []
        self._shared_out = None
        if response.leader == self._member_id:
            self._shared_out = sorted(self.leaders)
            members = sorted(each.member_id for each in response.members)
            shares = [self._shared_out[i :: len(members)] for i in range(len(members))]
            assignments = [
                {"member_id": member, "assignment": json.dumps(share).encode()}
                for member, share in zip(members, shares, strict=True)
            ]
        response = await self.ask(
            self._coordinator,
            ApiKey.SYNC_GROUP,
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=None,
            assignments=assignments,
        )
        if response.error_code:
            self._on_error(response.error_code)
            return None
        assigned: list[int] = json.loads(bytes(response.assignment) or b"[]")
        self.world.operations += 1
        self.world.note(self.name, f"generation {self._generation}, assigned {assigned}")
        self.world.checks.on_assigned(
            self.group, self._coordinator, self._generation, self._member_id, assigned
        )
        return assigned

    def _on_error(self, error: int) -> None:
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._coordinator = -1

    async def _fetch_positions(self, assigned: list[int]) -> bool:
        promised = self.world.checks.promised_commits(self.group, self.topic)
        response = await self.ask(
            self._coordinator,
            ApiKey.OFFSET_FETCH,
            group_id=self.group,
            topics=[{"name": self.topic, "partition_indexes": assigned}],
        )
        if response.error_code:
            self._on_error(int(response.error_code))
            return False
        self.positions = {}
        for topic in response.topics:
            for each in topic.partitions:
                offset = int(each.committed_offset)
                self.positions[int(each.partition_index)] = max(offset, 0)
        self.world.checks.on_committed_seen(
            self.group, self._coordinator, self.topic, promised, self.positions
        )
        return True

    async def _consume(self) -> None:
        """Read and commit until the group has to be joined again."""
        while not self.is_stopping:
            for partition in sorted(self.positions):
                await self._read(partition)
            if not await self._commit():
                return
            response = await self.ask(
                self._coordinator,
                ApiKey.HEARTBEAT,
                group_id=self.group,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
            )
            if response.error_code:
                self._on_error(response.error_code)
                return
            if await self._finds_other_partitions():
                return
            await asyncio.sleep(self.chance.uniform(0.15, 0.35))

    async def _finds_other_partitions(self) -> bool:
        """Whether the topic has other partitions than this member has assigned as the leader.

        The leader of a group watches the metadata and joins again when the partitions change. It
        has to: after a failover a broker with an empty cache hears first of the partitions that
        live brokers host, and answers with those alone until the next UpdateMetadata.
        """
        if self._shared_out is None:
            return False
        if self.world.loop.time() - self.learned_at_s > _METADATA_MAX_AGE_S:
            await self.learn(self.topic)
        found = sorted(self.leaders)
        if found == self._shared_out:
            return False
        self.world.note(self.name, f"has assigned {self._shared_out}, but finds {found}")
        return True

    async def _read(self, partition: int) -> None:
        leader = self.leaders.get(partition, -1)
        if leader not in self.world.machines:
            await self.learn(self.topic)
            return
        try:
            response = await self.ask(
                leader,
                ApiKey.FETCH,
                replica_id=-1,
                max_wait=0,
                min_bytes=0,
                max_bytes=4000,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=[
                    {
                        "topic": self.topic,
                        "partitions": [
                            {
                                "partition": partition,
                                "current_leader_epoch": -1,
                                "fetch_offset": self.positions[partition],
                                "last_fetched_epoch": -1,
                                "log_start_offset": -1,
                                "partition_max_bytes": 4000,
                            }
                        ],
                    }
                ],
                forgotten_topics_data=[],
                rack_id="",
            )
        except UnavailableError:
            await self.learn(self.topic)
            return
        result = response.topics[0].partitions[0]
        if result.error_code:
            await self.learn(self.topic)
            return
        for batch in iterate_batches(bytes(result.records or b""), may_end_early=True):
            for record in iterate_records(batch):
                if record.offset >= self.positions[partition]:
                    self.world.checks.on_read(self.topic, partition, record.offset, record.value)
                    self.positions[partition] = record.offset + 1

    async def _commit(self) -> bool:
        positions = dict(self.positions)
        response = await self.ask(
            self._coordinator,
            ApiKey.OFFSET_COMMIT,
            group_id=self.group,
            generation_id_or_member_epoch=self._generation,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=None,
            topics=[
                {
                    "name": self.topic,
                    "partitions": [
                        {
                            "partition_index": partition,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                        for partition, offset in positions.items()
                    ],
                }
            ],
        )
        self.world.operations += 1
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code:
                    self._on_error(int(each.error_code))
                    return False
                partition = int(each.partition_index)
                self.world.checks.on_committed(
                    self.group, self.topic, partition, self._generation, positions[partition]
                )
        return True


class Administrator(Client):
    """Asks the controller for changes, and does not wait for ever for a response."""

    async def create(
        self, topic: str, assignment: list[list[int]], config: Mapping[str, str], attempts: int = 1
    ) -> ErrorCode:
        return await self._ask_controller(
            f"create {topic} with {assignment} {dict(config)}",
            attempts,
            ApiKey.CREATE_TOPICS,
            lambda response: response.topics[0].error_code,
            topics=[
                {
                    "name": topic,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [
                        {"partition_index": number, "broker_ids": replicas}
                        for number, replicas in enumerate(assignment)
                    ],
                    "configs": [{"name": name, "value": value} for name, value in config.items()],
                }
            ],
            timeout=1500,
            validate_only=False,
        )

    async def delete(self, topic: str) -> ErrorCode:
        return await self._ask_controller(
            f"delete {topic}",
            1,
            ApiKey.DELETE_TOPICS,
            lambda response: response.responses[0].error_code,
            topic_names=[topic],
            timeout=1000,
        )

    async def expand(self, topic: str, count: int) -> ErrorCode:
        return await self._ask_controller(
            f"expand {topic} to {count}",
            1,
            ApiKey.CREATE_PARTITIONS,
            lambda response: response.results[0].error_code,
            topics=[{"name": topic, "count": count, "assignments": None}],
            timeout=1000,
            validate_only=False,
        )

    async def reassign(self, topic: str, partition: int, replicas: list[int] | None) -> ErrorCode:
        what = f"move {topic}-{partition} to {replicas}"
        return await self._ask_controller(
            what if replicas else f"cancel the move of {topic}-{partition}",
            1,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            lambda response: response.error_code or response.responses[0].partitions[0].error_code,
            timeout=1000,
            topics=[
                {
                    "name": topic,
                    "partitions": [{"partition_index": partition, "replicas": replicas}],
                }
            ],
        )

    async def elect(self, topic: str, partition: int) -> ErrorCode:
        return await self._ask_controller(
            f"elect the preferred leader of {topic}-{partition}",
            1,
            ApiKey.ELECT_LEADERS,
            lambda response: (
                response.error_code
                or response.replica_election_results[0].partition_result[0].error_code
            ),
            election_type=0,
            topic_partitions=[{"topic": topic, "partitions": [partition]}],
            timeout=1000,
        )

    async def _ask_controller(
        self, what: str, attempts: int, key: ApiKey, error_of: Any, **body: Any
    ) -> ErrorCode:
        error = ErrorCode.NETWORK_EXCEPTION
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(_PAUSE_S)
            if not await self.learn(None) or self.controller not in self.world.machines:
                continue
            try:
                response = await self.ask(self.controller, key, **body)
            except UnavailableError:
                continue
            error = ErrorCode.of(int(error_of(response)))
            if error == ErrorCode.NONE:
                break
        self.world.operations += 1
        self.world.note(self.name, f"{what}: {error.name}")
        return error
