"""Creating, expanding and deleting topics on request (sections 9, 10 and 20; ADM-1..28).

A request is checked and written to ZooKeeper. Its response is sent after the controller has handled
the change and this node's own broker has the new metadata. After a timeout the change still takes
effect.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from klamm.config.broker import BrokerConfig
from klamm.config.describe import describe_topic
from klamm.config.topics import validate_topic_config
from klamm.controller.announcements import RequestBatchSender
from klamm.controller.interpreter import Interpreter
from klamm.controller.loop import Controller
from klamm.controller.requests.topic_checks import (
    TopicRefusedError,
    check_collision,
    check_consistent,
    check_count,
    check_expansion,
    check_name,
    check_racks,
    racks_of,
)
from klamm.core.assignment import AssignmentError, assign_more_replicas, assign_replicas
from klamm.core.cluster import ClusterState
from klamm.errors import ConfigError, FencedError, MalformedZnodeError
from klamm.protocol.codec.frames import Request
from klamm.protocol.codes import ErrorCode
from klamm.zookeeper import znodes
from klamm.zookeeper.store import Create, Fence, NoNodeError, Row, SetData, Store, ZooKeeperCode

Body = dict[str, Any]
_METADATA_TOPIC: Final = "__cluster_metadata"
_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    """A topic that passed all checks."""

    name: str
    id: uuid.UUID
    partitions: Mapping[int, Sequence[int]]
    config: Mapping[str, str]

    def row(self) -> Row:
        """Its configuration, written even when empty, and then the topic itself (TOPIC-17)."""
        config_path = znodes.config_path(f"topics/{self.name}")
        config = znodes.encode_config(self.config)
        topic = znodes.encode_topic(znodes.TopicAssignment(self.id, self.partitions))
        return (
            Create(config_path, config, exist_ok=True),
            SetData(config_path, config),
            Create(znodes.topic_path(self.name), topic),
        )


class TopicAdmin:
    """Handles CreateTopics, DeleteTopics and CreatePartitions on the controller's node."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        controller: Controller,
        interpreter: Interpreter,
        request_sender: RequestBatchSender,
        random: Random,
    ) -> None:
        self.config = config
        self._store = store
        self._controller = controller
        self._interpreter = interpreter
        self._request_sender = request_sender
        self._random = random
        self._waiting: list[tuple[Callable[[ClusterState], bool], asyncio.Future[None]]] = []
        controller.after_each_event(self._look_at_waiting)

    # CreateTopics

    async def create_topics(self, request: Request) -> Body:
        """Handle a CreateTopics request."""
        body = request.body
        deadline = self._deadline(body)
        validate_only = bool(getattr(body, "validate_only", False))
        results: dict[str, Body] = {}
        accepted: list[TopicToCreate] = []
        counts: dict[str, int] = {}
        for topic in body.topics:
            counts[str(topic.name)] = counts.get(str(topic.name), 0) + 1
        for topic in body.topics:
            name = str(topic.name)
            if name in results:
                continue
            try:
                cluster = self._cluster()
                if name == _METADATA_TOPIC:
                    raise TopicRefusedError(
                        ErrorCode.INVALID_REQUEST,
                        f"Creation of internal topic {name} is prohibited.",
                    )
                if counts[name] > 1:
                    raise TopicRefusedError(
                        ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic."
                    )
                new = await self._check_new_topic(cluster, topic)
            except TopicRefusedError as refused:
                results[name] = _failed_topic(name, refused)
            else:
                accepted.append(new)
                results[name] = self._created_topic(new)
        if not validate_only:
            for new, reason in await self._write(accepted):
                results[new.name] = _failed_topic(new.name, reason)
            created = [t for t in accepted if results[t.name]["error_code"] == ErrorCode.NONE]
            for name in await self._late([t.name for t in created], _all_led, deadline):
                results[name] = _failed_topic(name, TopicRefusedError(ErrorCode.REQUEST_TIMED_OUT))
        return {"topics": [results[str(topic.name)] for topic in body.topics]}

    async def _check_new_topic(self, cluster: ClusterState, topic: Any) -> TopicToCreate:
        name = str(topic.name)
        # A topic whose deletion has begun is in no broker's cache; only ZooKeeper still has it.
        if not _is_gone(cluster, name):
            raise TopicRefusedError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
            )
        nulls = [str(entry.name) for entry in topic.configs if entry.value is None]
        if nulls:
            raise TopicRefusedError(
                ErrorCode.INVALID_CONFIG,
                f"Null value not supported for topic configs: {','.join(nulls)}",
            )
        overrides = {str(entry.name): str(entry.value) for entry in topic.configs}
        partitions = self._requested_assignment(cluster, topic)
        check_name(name)
        await self._check_absent(name)
        if topic.assignments:
            check_consistent(partitions)
        try:
            validate_topic_config(overrides)
        except ConfigError as error:
            raise TopicRefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
        topic_id = znodes.new_topic_id(self._random.randbytes)
        return TopicToCreate(name, topic_id, partitions, overrides)

    def _requested_assignment(self, cluster: ClusterState, topic: Any) -> dict[int, list[int]]:
        count, factor = int(topic.num_partitions), int(topic.replication_factor)
        if topic.assignments:
            if count != _DEFAULT or factor != _DEFAULT:
                raise TopicRefusedError(
                    ErrorCode.INVALID_REQUEST,
                    "Both numPartitions or replicationFactor and replicasAssignments were set. "
                    "Both cannot be used at the same time.",
                )
            return {
                int(a.partition_index): [int(b) for b in a.broker_ids] for a in topic.assignments
            }
        count = self.config.num_partitions if count == _DEFAULT else count
        factor = self.config.default_replication_factor if factor == _DEFAULT else factor
        return self.place(racks_of(cluster), count, factor)

    def place(
        self, racks: Mapping[int, str | None], count: int, factor: int
    ) -> dict[int, list[int]]:
        """Kafka's own placement from a random start (ASSIGN-4)."""
        check_count(count)
        brokers = max(len(racks), 1)
        try:
            rows = assign_replicas(
                racks,
                count,
                factor,
                start=self._random.randrange(brokers),
                shift=self._random.randrange(brokers),
            )
        except AssignmentError as error:
            raise TopicRefusedError(ErrorCode[error.kind.value], str(error)) from error
        return dict(enumerate(rows.tolist()))

    async def _check_absent(self, name: str) -> None:
        """The topic is neither there nor on its way out, and its name is its own (ADM-8, ADM-9)."""
        if await self._store.exists(znodes.delete_topic_path(name)) is not None:
            raise TopicRefusedError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion."
            )
        existing = await self._store.children(znodes.TOPICS)
        if name in existing:
            raise TopicRefusedError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
            )
        check_collision(name, existing)

    async def _write(
        self, topics: Sequence[TopicToCreate]
    ) -> list[tuple[TopicToCreate, TopicRefusedError]]:
        """Write topics, fenced; those that lost are returned with the reason."""
        lost = []
        try:
            outcomes = await self._store.write_many((t.row() for t in topics), self._fence())
        except FencedError:
            return [(topic, TopicRefusedError(ErrorCode.NOT_CONTROLLER)) for topic in topics]
        for topic, outcome in zip(topics, outcomes, strict=True):
            if outcome.code is ZooKeeperCode.NODE_EXISTS:
                message = f"Topic '{topic.name}' already exists."
                lost.append((topic, TopicRefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, message)))
            elif outcome.code is not ZooKeeperCode.OK:
                lost.append((topic, TopicRefusedError(ErrorCode.UNKNOWN_SERVER_ERROR)))
        return lost

    def _created_topic(self, topic: TopicToCreate) -> Body:
        return {
            "name": topic.name,
            "topic_id": topic.id,
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "num_partitions": len(topic.partitions),
            "replication_factor": len(next(iter(topic.partitions.values()))),
            "configs": [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "read_only": entry.read_only,
                    "config_source": entry.source,
                    "is_sensitive": entry.sensitive,
                }
                for entry in describe_topic(topic.config, self.config)
            ],
        }

    async def auto_create(
        self, name: str, count: int, factor: int, config: Mapping[str, str]
    ) -> ErrorCode:
        """Create a topic that a client's Metadata request named (META-6); any node may do this."""
        try:
            check_name(name)
            await self._check_absent(name)
            partitions = self.place(await self._registered_racks(), count, factor)
        except TopicRefusedError as refused:
            return refused.code
        topic = TopicToCreate(name, znodes.new_topic_id(self._random.randbytes), partitions, config)
        (outcome,) = await self._store.write_many([topic.row()])
        if outcome.code is ZooKeeperCode.NODE_EXISTS:
            return ErrorCode.TOPIC_ALREADY_EXISTS
        return ErrorCode.NONE if outcome.ok else ErrorCode.UNKNOWN_SERVER_ERROR

    async def _registered_racks(self) -> dict[int, str | None]:
        """Brokers in ZooKeeper that hold replicas, with their racks; unreadable ones are left
        out.
        """
        names = await self._store.children(znodes.BROKER_IDS)
        ids = sorted(int(name) for name in names if name.isdecimal())
        racks = {}
        async for chunk in self._store.read_many(map(znodes.broker_path, ids)):
            for path, data in zip(chunk.path, chunk.data, strict=True):
                with contextlib.suppress(MalformedZnodeError):
                    broker = znodes.decode_broker(int(path.rpartition("/")[2]), data)
                    if not broker.controller_only:
                        racks[broker.broker] = broker.rack
        return racks

    # CreatePartitions

    async def create_partitions(self, request: Request) -> Body:
        """Handle a CreatePartitions request."""
        body = request.body
        deadline = self._deadline(body)
        results: dict[str, Body] = {}
        rows: dict[str, Row] = {}
        counts: dict[str, int] = {}
        for topic in body.topics:
            counts[str(topic.name)] = counts.get(str(topic.name), 0) + 1
        try:
            cluster = self._cluster()
            check_racks(cluster)
        except TopicRefusedError as refused:
            return {"results": [_failed(name, refused) for name in counts]}
        for topic in body.topics:
            name = str(topic.name)
            results[name] = {"name": name, "error_code": ErrorCode.NONE, "error_message": None}
            try:
                if counts[name] > 1:
                    raise TopicRefusedError(
                        ErrorCode.INVALID_REQUEST, "Duplicate topic in request."
                    )
                if name in cluster.queued_for_deletion:
                    raise TopicRefusedError(
                        ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion."
                    )
                rows[name] = await self._expansion(cluster, topic)
            except TopicRefusedError as refused:
                results[name] = _failed(name, refused)
        if not body.validate_only and rows:
            try:
                await self._store.write_many(rows.values(), self._fence())
            except FencedError:
                for name in rows:
                    results[name] = _failed(name, TopicRefusedError(ErrorCode.NOT_CONTROLLER))
                rows = {}
            wanted = {str(t.name): int(t.count) for t in body.topics}

            def grown(cluster: ClusterState, name: str) -> bool:
                known = cluster.topics.get(name)
                return (
                    known is not None
                    and len(known.rows) >= wanted[name]
                    and _all_led(cluster, name)
                )

            for name in await self._late(list(rows), grown, deadline):
                results[name] = _failed(name, TopicRefusedError(ErrorCode.REQUEST_TIMED_OUT))
        return {"results": [results[name] for name in counts]}

    async def _expansion(self, cluster: ClusterState, topic: Any) -> Row:
        """The write that adds partitions to a topic, after all checks (ADM-18..22)."""
        name, count = str(topic.name), int(topic.count)
        known = cluster.topics.get(name)
        if known is not None and any(
            row in cluster.being_reassigned for row in known.rows.tolist()
        ):
            raise TopicRefusedError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"A partition reassignment is in progress for the topic '{name}'.",
            )
        try:
            node = await self._store.get(znodes.topic_path(name))
        except NoNodeError:
            raise TopicRefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            ) from None
        try:
            present = znodes.decode_topic(name, node.data)
        except MalformedZnodeError as error:
            raise TopicRefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        existing = {p: list(replicas) for p, replicas in present.partitions.items()}
        more = count - len(existing)
        if more < 0:
            raise TopicRefusedError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {len(existing)} partitions, "
                f"which is higher than the requested {count}.",
            )
        if more == 0:
            raise TopicRefusedError(
                ErrorCode.INVALID_PARTITIONS, f"Topic already has {len(existing)} partitions."
            )
        check_count(count)
        if 0 not in existing:
            raise TopicRefusedError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"Topic '{name}' does not have a partition 0."
            )
        if topic.assignments is None:
            added = self._more_replicas(cluster, existing, more)
        else:
            lists = [[int(b) for b in a.broker_ids] for a in topic.assignments]
            added = dict(enumerate(lists, start=len(existing)))
            check_expansion(cluster, added, more, len(existing[0]))
        data = znodes.encode_topic(present._replace(partitions={**existing, **added}))
        return (SetData(znodes.topic_path(name), data),)

    def _more_replicas(
        self, cluster: ClusterState, existing: Mapping[int, Sequence[int]], more: int
    ) -> dict[int, list[int]]:
        try:
            rows = assign_more_replicas(racks_of(cluster), existing[0], len(existing), more)
        except AssignmentError as error:
            raise TopicRefusedError(ErrorCode[error.kind.value], str(error)) from error
        return dict(enumerate(rows.tolist(), start=len(existing)))

    # DeleteTopics

    async def delete_topics(self, request: Request) -> Body:
        """Handle a DeleteTopics request."""
        body = request.body
        version = request.header.api_version
        deadline = self._deadline(body)
        results: list[Body] = []
        accepted: list[str] = []
        if version >= 6:
            wanted = [(t.name and str(t.name), t.topic_id) for t in body.topics]
        else:
            wanted = [(str(name), None) for name in body.topic_names]
        if any(name is not None and topic_id is not None for name, topic_id in wanted):
            refused = TopicRefusedError(
                ErrorCode.INVALID_REQUEST, "Topic name and topic ID can not both be specified."
            )
            return {"responses": [_deleted(name, i, refused) for name, i in wanted]}
        for name, topic_id in wanted:
            refused_with = None
            try:
                name, topic_id = self._check_deletable(name, topic_id, version)
                await self._mark_for_deletion(name)
                accepted.append(name)
            except TopicRefusedError as refused:
                refused_with = refused
            results.append(_deleted(name, topic_id, refused_with))
        late = await self._late(accepted, _is_gone, deadline)
        for result in results:
            if result["name"] in late and result["error_code"] == ErrorCode.NONE:
                result.update(error_code=ErrorCode.REQUEST_TIMED_OUT)
        return {"responses": results}

    def _check_deletable(
        self, name: str | None, topic_id: uuid.UUID | None, version: int
    ) -> tuple[str, uuid.UUID | None]:
        cluster = self._cluster()
        if not self.config.delete_topic_enable:
            code = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
            raise TopicRefusedError(code)
        if name is None:
            text = znodes.encode_topic_id(topic_id or uuid.UUID(int=0))
            name = cluster.topic_names.get(text)
            if name is None:
                raise TopicRefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
        topic = cluster.topics.get(name)
        if topic is None or _is_gone(cluster, name):
            raise TopicRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.id is None:
            return name, None
        return name, znodes.decode_topic_id(znodes.topic_path(name), topic.id)

    async def _mark_for_deletion(self, name: str) -> None:
        if await self._store.exists(znodes.topic_path(name)) is None:
            raise TopicRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        row: Row = (Create(znodes.delete_topic_path(name), exist_ok=True),)
        try:
            await self._store.write_many([row], self._fence())
        except FencedError:
            raise TopicRefusedError(ErrorCode.NOT_CONTROLLER) from None

    # Waiting

    def _cluster(self) -> ClusterState:
        context = self._controller.context
        if context is None or not self._controller.is_active:
            raise TopicRefusedError(ErrorCode.NOT_CONTROLLER)
        return context.cluster

    def _fence(self) -> Fence:
        fence = self._interpreter.fence
        if fence is None:
            raise FencedError("this node is not the controller")
        return fence

    def _deadline(self, body: Any) -> float:
        now = asyncio.get_running_loop().time()
        return float(now + body.timeout.total_seconds())

    async def _late(
        self, names: Sequence[str], ready: Callable[[ClusterState, str], bool], deadline: float
    ) -> set[str]:
        """Wait until each topic is as it should be and the own broker knows; name those late."""

        async def wait(name: str) -> bool:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((lambda cluster: ready(cluster, name), done))
            self._look_at_waiting()
            try:
                async with asyncio.timeout_at(deadline):
                    await done
                    return await self.wait_announced(deadline)
            except TimeoutError:
                return False

        if names and deadline <= asyncio.get_running_loop().time():
            return set(names)
        waited = await asyncio.gather(*map(wait, names))
        return {name for name, in_time in zip(names, waited, strict=True) if not in_time}

    def _look_at_waiting(self) -> None:
        context = self._controller.context
        still = []
        for is_ready, done in self._waiting:
            if done.done():
                continue
            if context is not None and is_ready(context.cluster):
                done.set_result(None)
            else:
                still.append((is_ready, done))
        self._waiting = still

    async def wait_announced(self, deadline: float) -> bool:
        """Whether the own broker has, by the deadline, all metadata that was sent until now."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._request_sender.wait_own_broker_updated()
        except TimeoutError:
            return False
        return True


def _all_led(cluster: ClusterState, name: str) -> bool:
    """Every partition of the topic has a leader."""
    topic = cluster.topics.get(name)
    if topic is None or not len(topic.rows):
        return False
    return bool((cluster.has_leadership[topic.rows] & (cluster.leader[topic.rows] >= 0)).all())


def _is_gone(cluster: ClusterState, name: str) -> bool:
    """Whether brokers have removed the topic from their metadata."""
    return (
        name not in cluster.topics
        or name in cluster.deletion_started
        or name in cluster.hidden_from_brokers
    )


def _failed(name: str, refused: TopicRefusedError) -> Body:
    return {"name": name, "error_code": refused.code, "error_message": str(refused)}


def _failed_topic(name: str, refused: TopicRefusedError) -> Body:
    return {
        **_failed(name, refused),
        "topic_id": None,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }


def _deleted(
    name: str | None, topic_id: uuid.UUID | None, refused: TopicRefusedError | None
) -> Body:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": refused.code if refused else ErrorCode.NONE,
    }
