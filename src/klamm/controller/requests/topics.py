"""Creating, expanding and deleting topics on request (sections 9, 10 and 20; ADM-1..28).

A request is checked and written to ZooKeeper. Its response is sent after the controller has handled
the change and this node's own broker has the new metadata. After a timeout the change still takes
effect.
"""

import asyncio
import contextlib
import functools
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
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
    TakenNames,
    TopicRefusedError,
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
from klamm.names import CLUSTER_METADATA
from klamm.protocol.codec.frames import Request
from klamm.protocol.codes import ErrorCode
from klamm.slices import aside, counted, finish, paced
from klamm.zookeeper import znodes
from klamm.zookeeper.store import (
    NO_VERSION,
    Create,
    Fence,
    Row,
    SetData,
    Store,
    ZooKeeperCode,
)

Body = dict[str, Any]
_DEFAULT: Final = -1
#: A topic with more partitions or settings than this is checked and encoded in another thread.
_MANY: Final = 1000


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


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits until each of its topics has been ready once."""

    names: list[str]
    is_ready: Callable[[ClusterState, str], bool]
    done: asyncio.Future[None]

    def look(self, cluster: ClusterState) -> bool:
        """Drop topics that are ready, up to the first that is not; whether more may be ready."""
        for _ in range(_MANY):
            if not self.names:
                break
            if not self.is_ready(cluster, self.names[-1]):
                return False
            self.names.pop()
        if not self.names and not self.done.done():
            self.done.set_result(None)
        return bool(self.names)


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
        self._waiting: list[_Waiting] = []
        controller.after_each_event(self._look_at_waiting)

    # CreateTopics

    async def create_topics(self, request: Request) -> Body:
        """Handle a CreateTopics request."""
        body = request.body
        deadline = self._deadline(body)
        validate_only = bool(getattr(body, "validate_only", False))
        await self._controller.wait_taken_over(deadline)
        results: dict[str, Body] = {}
        accepted: list[TopicToCreate] = []
        counts = await finish(counted(str(topic.name) for topic in body.topics))
        taken: TakenNames | None = None
        async for topic in paced(body.topics):
            name = str(topic.name)
            if name in results:
                continue
            try:
                cluster = self._cluster()
                if name == CLUSTER_METADATA:
                    raise TopicRefusedError(
                        ErrorCode.INVALID_REQUEST,
                        f"Creation of internal topic {name} is prohibited.",
                    )
                if counts[name] > 1:
                    raise TopicRefusedError(
                        ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic."
                    )
                # A topic whose deletion has begun is in no broker's cache; only ZooKeeper has it.
                if not _is_gone(cluster, name):
                    raise TopicRefusedError(
                        ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
                    )
                taken = taken or await self._taken_names()
                check = functools.partial(self._check_new_topic, racks_of(cluster), topic, taken)
                sizes = (topic.num_partitions, len(topic.assignments), len(topic.configs))
                new = await aside(check) if max(sizes) > _MANY else check()
            except TopicRefusedError as refused:
                results[name] = _failed_topic(name, refused)
            else:
                accepted.append(new)
                results[name] = self._created_topic(new)
                if not validate_only:
                    taken.add(name)
        if not validate_only:
            for new, reason in await self._write(accepted):
                results[new.name] = _failed_topic(new.name, reason)
            created = [t for t in accepted if results[t.name]["error_code"] == ErrorCode.NONE]
            for name in await self._late([t.name for t in created], _all_led, deadline):
                results[name] = _failed_topic(name, TopicRefusedError(ErrorCode.REQUEST_TIMED_OUT))
        return {"topics": [results[str(topic.name)] for topic in body.topics]}

    def _check_new_topic(
        self, racks: Mapping[int, str | None], topic: Any, taken: TakenNames
    ) -> TopicToCreate:
        name = str(topic.name)
        nulls = [str(entry.name) for entry in topic.configs if entry.value is None]
        if nulls:
            raise TopicRefusedError(
                ErrorCode.INVALID_CONFIG,
                f"Null value not supported for topic configs: {','.join(nulls)}",
            )
        overrides = {str(entry.name): str(entry.value) for entry in topic.configs}
        partitions = self._requested_assignment(racks, topic)
        check_name(name)
        taken.check(name)
        if topic.assignments:
            check_consistent(partitions)
        try:
            validate_topic_config(overrides)
        except ConfigError as error:
            raise TopicRefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
        topic_id = znodes.new_topic_id(self._random.randbytes)
        return TopicToCreate(name, topic_id, partitions, overrides)

    def _requested_assignment(
        self, racks: Mapping[int, str | None], topic: Any
    ) -> dict[int, list[int]]:
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
        return self.place(racks, count, factor)

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

    async def _taken_names(self) -> TakenNames:
        marked = await self._store.children(znodes.DELETE_TOPICS)
        return TakenNames(await self._store.children(znodes.TOPICS), marked)

    async def _write(
        self, topics: Sequence[TopicToCreate]
    ) -> list[tuple[TopicToCreate, TopicRefusedError]]:
        """Write topics, fenced; those that lost are returned with the reason."""
        lost = []
        try:
            rows = [
                await aside(each.row) if len(each.partitions) > _MANY else each.row()
                async for each in paced(topics)
            ]
            outcomes = await self._store.write_many(rows, self._fence())
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
            (await self._taken_names()).check(name)
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
        await self._controller.wait_taken_over(deadline)
        rows: dict[str, Row] = {}
        counts = await finish(counted(str(topic.name) for topic in body.topics))
        try:
            cluster = self._cluster()
            check_racks(cluster)
        except TopicRefusedError as refused:
            return {"results": [_failed(name, refused) async for name in paced(counts)]}
        results: dict[str, Body] = {}
        possible = {}
        async for topic in paced(body.topics):
            name = str(topic.name)
            results[name] = {"name": name, "error_code": ErrorCode.NONE, "error_message": None}
            try:
                self._check_expandable(cluster, name, counts[name])
                possible[znodes.topic_path(name)] = topic
            except TopicRefusedError as refused:
                results[name] = _failed(name, refused)
        async for chunk in self._store.read_many(list(possible)):
            async for path, data, version in paced(
                zip(chunk.path, chunk.data, chunk.version, strict=True)
            ):
                topic = possible[path]
                name = str(topic.name)
                try:
                    if version == NO_VERSION:
                        raise TopicRefusedError(
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            f"The topic '{name}' does not exist.",
                        )
                    brokers, racks = set(cluster.brokers), racks_of(cluster)
                    expand = functools.partial(_expansion, brokers, racks, topic, data)
                    sizes = (topic.count, len(topic.assignments or ()), len(data or b"") // 10)
                    rows[name] = await aside(expand) if max(sizes) > _MANY else expand()
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

    def _check_expandable(self, cluster: ClusterState, name: str, count: int) -> None:
        """The checks of a topic that need nothing of its znode (ADM-18, ADM-19)."""
        if count > 1:
            raise TopicRefusedError(ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
        if name in cluster.queued_for_deletion:
            raise TopicRefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion."
            )
        known = cluster.topics.get(name)
        if known is not None and not cluster.being_reassigned.isdisjoint(known.rows.tolist()):
            raise TopicRefusedError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"A partition reassignment is in progress for the topic '{name}'.",
            )

    # DeleteTopics

    async def delete_topics(self, request: Request) -> Body:
        """Handle a DeleteTopics request."""
        body = request.body
        version = request.header.api_version
        deadline = self._deadline(body)
        if version >= 6:
            wanted = [(t.name and str(t.name), t.topic_id) async for t in paced(body.topics)]
        else:
            wanted = [(str(name), None) async for name in paced(body.topic_names)]
        if any(name is not None and topic_id is not None for name, topic_id in wanted):
            refused = TopicRefusedError(
                ErrorCode.INVALID_REQUEST, "Topic name and topic ID can not both be specified."
            )
            return {"responses": [_deleted(name, i, refused) async for name, i in paced(wanted)]}
        await self._controller.wait_taken_over(deadline)
        results: list[Body] = []
        accepted: dict[str, list[Body]] = {}
        async for name, topic_id in paced(wanted):
            refused_with = None
            try:
                name, topic_id = self._check_deletable(name, topic_id, version)
            except TopicRefusedError as refused:
                refused_with = refused
            results.append(_deleted(name, topic_id, refused_with))
            if name is not None and refused_with is None:
                accepted.setdefault(name, []).append(results[-1])
        failed = await self._mark_for_deletion(list(accepted))
        marked = [name for name in accepted if name not in failed]
        late = await self._late(marked, _is_gone, deadline)
        failed |= dict.fromkeys(late, ErrorCode.REQUEST_TIMED_OUT)
        for name, code in failed.items():
            for result in accepted[name]:
                result["error_code"] = code
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

    async def _mark_for_deletion(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Ask for the deletion of topics; returns the errors of those that cannot be deleted."""
        failed = {}
        marks: list[Row] = []
        async for chunk in self._store.read_many([znodes.topic_path(name) for name in names]):
            for path, version in zip(chunk.path, chunk.version, strict=True):
                name = path.rpartition("/")[2]
                if version == NO_VERSION:
                    failed[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    marks.append((Create(znodes.delete_topic_path(name), exist_ok=True),))
        try:
            await self._store.write_many(marks, self._fence())
        except FencedError:
            failed |= {name: ErrorCode.NOT_CONTROLLER for name in names if name not in failed}
        return failed

    # Waiting

    def _cluster(self) -> ClusterState:
        cluster = self._controller.known_cluster
        if cluster is None:
            raise TopicRefusedError(ErrorCode.NOT_CONTROLLER)
        return cluster

    def _fence(self) -> Fence:
        fence = self._interpreter.fence
        if fence is None:
            raise FencedError("this node is not the controller")
        return fence

    def _deadline(self, body: Any) -> float:
        now = asyncio.get_running_loop().time()
        return float(now + body.timeout.total_seconds())

    async def _late(
        self, names: Sequence[str], is_ready: Callable[[ClusterState, str], bool], deadline: float
    ) -> list[str]:
        """Wait until all topics are as they should be and the own broker knows; name those late."""
        if not names or deadline <= asyncio.get_running_loop().time():
            return list(names)
        waiting = _Waiting(list(names), is_ready, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._look_at_waiting()
        try:
            async with asyncio.timeout_at(deadline):
                await waiting.done
        except TimeoutError:
            context = self._controller.context
            late = [
                name
                async for name in paced(waiting.names)
                if context is None or not is_ready(context.cluster, name)
            ]
            return late if self._request_sender.own_broker_is_updated else list(names)
        return [] if await self.wait_announced(deadline) else list(names)

    def _look_at_waiting(self) -> None:
        context = self._controller.context
        if context is None:
            return
        has_more = [each.look(context.cluster) for each in self._waiting]
        self._waiting = [each for each in self._waiting if not each.done.done()]
        if any(has_more):
            asyncio.get_running_loop().call_soon(self._look_at_waiting)

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


def _expansion(
    brokers: Collection[int], racks: Mapping[int, str | None], topic: Any, data: bytes | None
) -> Row:
    """The write that adds partitions to a topic, after all checks of its znode (ADM-18..22)."""
    name, count = str(topic.name), int(topic.count)
    try:
        present = znodes.decode_topic(name, data)
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
        added = _more_replicas(racks, existing, more)
    else:
        lists = [[int(b) for b in a.broker_ids] for a in topic.assignments]
        added = dict(enumerate(lists, start=len(existing)))
        check_expansion(brokers, added, more, len(existing[0]))
    data = znodes.encode_topic(present._replace(partitions={**existing, **added}))
    return (SetData(znodes.topic_path(name), data),)


def _more_replicas(
    racks: Mapping[int, str | None], existing: Mapping[int, Sequence[int]], more: int
) -> dict[int, list[int]]:
    try:
        rows = assign_more_replicas(racks, existing[0], len(existing), more)
    except AssignmentError as error:
        raise TopicRefusedError(ErrorCode[error.kind.value], str(error)) from error
    return dict(enumerate(rows.tolist(), start=len(existing)))


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
