"""ApiVersions, Metadata and DescribeCluster (sections 1 and 7).

A broker listens before its first UpdateMetadata can arrive. Until then it would describe an empty
cluster, and some clients wait long before they ask again; so `FirstMetadata` delays such requests.
"""

import asyncio
import contextlib
import inspect
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from klamm.broker.handlers.dispatch import (
    Body,
    Call,
    EncodedResponse,
    Handler,
    Result,
    in_slices,
    translated,
)
from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import ClusterSnapshot, MetadataCache, SnapshotChange
from klamm.broker.metadata.response import NOT_ASKED, FoundTopic, MetadataEncoder
from klamm.broker.security.authorizer import Access
from klamm.errors import SessionLostError
from klamm.names import is_legal
from klamm.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType
from klamm.protocol.apis import APIS, UNADVERTISED, ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps, aside

log = logging.getLogger("klamm.broker.metadata")

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
#: Operations that an unrestricted client may do, one bit for each of Kafka's codes: READ 3,
#: WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11 on a
#: topic; CREATE 5, ALTER 7, DESCRIBE 8, CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11,
#: IDEMPOTENT_WRITE 12 on the cluster.
TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
_BROKER_ENDPOINTS: Final = 1
#: A response about more partitions than this is encoded in another thread.
_MANY_PARTITIONS: Final = 10_000


class AutoCreate(Protocol):
    """Creates a topic that a Metadata request names (META-6)."""

    def __call__(self, topic: str) -> Awaitable[ErrorCode]:
        """Create the topic; return the error for this response."""
        ...


class ClusterHandlers:
    """Serves ApiVersions, Metadata and DescribeCluster from the metadata cache."""

    def __init__(
        self,
        identity: BrokerIdentity,
        metadata: MetadataCache,
        served: Callable[[], Sequence[int]],
        auto_create: AutoCreate | None,
    ) -> None:
        self._identity = identity
        self._metadata = metadata
        self._served = served
        self._auto_create = auto_create

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._describe_topics,
            ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
        }

    # ApiVersions

    def _api_versions(self, call: Call) -> Body:
        if call.body is None:
            # The request's version is unknown: the response has version 0 and one API (API-5).
            return {
                "error_code": ErrorCode.UNSUPPORTED_VERSION,
                "api_keys": [_version_range(ApiKey.API_VERSIONS)],
            }
        if call.header.api_version >= 3:
            names = (call.body.client_software_name, call.body.client_software_version)
            if not all(_SOFTWARE.fullmatch(name) for name in names):
                return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": []}
        return {
            "error_code": ErrorCode.NONE,
            "api_keys": [_version_range(key) for key in self._served() if key not in UNADVERTISED],
        }

    # Metadata

    def _describe_topics(self, call: Call) -> Result | Awaitable[Result]:
        snapshot = self._metadata.snapshot
        body = call.body
        version = call.header.api_version
        wanted = body.topics
        if wanted is None or (version == 0 and not wanted):
            if call.access is not None or snapshot.partition_count > _MANY_PARTITIONS:
                # Safe in another thread, because a snapshot does not change.
                return aside(self._describe_all, call, snapshot)
            return self._describe_all(call, snapshot)
        if 10 <= version < 12 and any(t.topic_id is not None or t.name is None for t in wanted):
            return self._refuse_ids(call, snapshot, wanted)
        may_create = self._auto_create is not None and getattr(
            body, "allow_auto_topic_creation", True
        )
        return self._describe_named(call, snapshot, wanted, may_create)

    @in_slices
    def _refuse_ids(
        self, call: Call, snapshot: ClusterSnapshot, wanted: Sequence[Any]
    ) -> Steps[EncodedResponse]:
        encoder = self._encoder(call, snapshot)
        for topic in wanted:
            encoder.add(FoundTopic(topic.name or "", ErrorCode.INVALID_REQUEST))
            yield None
        return EncodedResponse([encoder.frame()], encoder.errors)

    @in_slices
    def _describe_named(
        self, call: Call, snapshot: ClusterSnapshot, wanted: Sequence[Any], may_create: bool
    ) -> Steps[EncodedResponse]:
        """Describe topics, and create those that have to be created first."""
        encoder = self._encoder(call, snapshot)
        for topic in (yield from translated(call, _distinct, wanted)):
            yield None
            found = _lookup(snapshot, topic)
            is_creatable = (
                may_create
                and found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                and found.name is not None
            )
            if call.access is not None:
                denied = _denied(call.access, topic, found, creates=is_creatable)
                if denied is not None:
                    encoder.add(denied)
                    continue
            if is_creatable and self._auto_create is not None:
                error: ErrorCode = yield self._auto_create(str(found.name))
                found = FoundTopic(found.name, error)
            # Who may describe a topic that is not there is told what else is allowed, too.
            encoder.add(found, _topic_operations(call, found.name))
        return EncodedResponse([encoder.frame()], encoder.errors)

    def _describe_all(self, call: Call, snapshot: ClusterSnapshot) -> EncodedResponse:
        """Describe every topic that the client may describe."""
        encoder = self._encoder(call, snapshot)
        access = call.access
        may_describe = None if access is None else access.may_on_topic(AclOperation.DESCRIBE)
        for topic in snapshot.topics():
            if may_describe is None or may_describe(topic.name):
                found = FoundTopic(topic.name, topic=topic)
                encoder.add(found, _topic_operations(call, topic.name))
        # Counted as one error code, because the request names no topic.
        return EncodedResponse([encoder.frame()], [ErrorCode.NONE])

    def _encoder(self, call: Call, snapshot: ClusterSnapshot) -> MetadataEncoder:
        asks = getattr(call.body, "include_cluster_authorized_operations", False)
        return MetadataEncoder(
            call.header,
            snapshot,
            call.connection.listener,
            self._identity.cluster_id,
            _cluster_operations(call) if asks else NOT_ASKED,
        )

    # DescribeCluster

    def _describe_cluster(self, call: Call) -> Body:
        body = call.body
        snapshot = self._metadata.snapshot
        endpoint_type = getattr(body, "endpoint_type", _BROKER_ENDPOINTS)
        asks = body.include_cluster_authorized_operations
        response = {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "endpoint_type": _BROKER_ENDPOINTS,
            "cluster_id": self._identity.cluster_id,
            "controller_id": snapshot.controller_id,
            "brokers": [
                {"broker_id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
                for node in snapshot.nodes(call.connection.listener)
            ],
            "cluster_authorized_operations": _cluster_operations(call) if asks else NOT_ASKED,
        }
        if endpoint_type != _BROKER_ENDPOINTS:
            known = endpoint_type == 2
            code = (
                ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            )
            response |= {"error_code": code, "error_message": code.message, "brokers": []}
        return response


def _distinct(wanted: Iterable[Any]) -> list[Any]:
    """Each topic once, however often it is named, as Kafka does."""
    return list({(getattr(each, "topic_id", None), each.name): each for each in wanted}.values())


def _lookup(snapshot: ClusterSnapshot, wanted: Any) -> FoundTopic:
    """Find a topic that a request names by its name or by its id."""
    topic_id: uuid.UUID | None = getattr(wanted, "topic_id", None)
    name = wanted.name
    if name is None or topic_id is not None:
        name = None if topic_id is None else snapshot.topic_name(topic_id)
        if name is None:
            return FoundTopic(None, ErrorCode.UNKNOWN_TOPIC_ID, topic_id)
    topic = snapshot.topic(name)
    if topic is not None:
        return FoundTopic(topic.name, topic=topic)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return FoundTopic(name, unknown if is_legal(name) else ErrorCode.INVALID_TOPIC_EXCEPTION)


def _topic_operations(call: Call, topic: str | None) -> int:
    """What the client may do with a topic, if it has asked and the topic has a name."""
    if not topic or not getattr(call.body, "include_topic_authorized_operations", False):
        return NOT_ASKED
    if call.access is None:
        return TOPIC_OPERATIONS
    return call.access.operations(ResourceType.TOPIC, topic)


def _cluster_operations(call: Call) -> int:
    if call.access is None:
        return CLUSTER_OPERATIONS
    if not call.access.may_on_cluster(AclOperation.DESCRIBE):
        return 0
    return call.access.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def _denied(access: Access, wanted: Any, found: FoundTopic, *, creates: bool) -> FoundTopic | None:
    """The response for a topic that the client may not describe or create (SEC-9)."""
    name, refusal = found.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name is None:
        return None  # an id that is not known: nothing is told
    if not access.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
        topic_id = getattr(wanted, "topic_id", None)
        return FoundTopic(name if topic_id is None else None, refusal, topic_id)
    may_create = access.may_on_cluster(AclOperation.CREATE) or access.may(
        AclOperation.CREATE, ResourceType.TOPIC, name
    )
    if creates and not may_create:
        return FoundTopic(name, refusal)
    return None


def _version_range(key: int) -> Body:
    api = APIS[key]
    return {
        "api_key": int(key),
        "min_version": api.min_version,
        "max_version": api.max_version,
    }


#: After this time requests are served even if there is no controller.
_PATIENCE_S: Final = 25.0


class FirstMetadata:
    """Delays requests until the controller has described the cluster's partitions.

    The first UpdateMetadata of a new controller names brokers only. It is complete if there are no
    topics; otherwise clients would be told that their topics are gone, and give up.
    """

    def __init__(self, has_topics: Callable[[], Awaitable[bool]]) -> None:
        """`has_topics` tells from ZooKeeper whether there are topics to be described."""
        self._has_topics = has_topics
        self._has_arrived = asyncio.Event()
        self._checking: asyncio.Task[None] | None = None

    def on_metadata(self, change: SnapshotChange) -> None:
        """Let requests pass once the metadata has partitions, or the cluster has no topics."""
        if change.snapshot.partition_count:
            self._has_arrived.set()
        elif self._checking is None and not self._has_arrived.is_set():
            self._checking = asyncio.create_task(self._check())

    async def _check(self) -> None:
        try:
            if not await self._has_topics():
                self._has_arrived.set()
        except SessionLostError:
            log.warning("it is not known whether there are topics: the session is lost")
        finally:
            self._checking = None

    def hold(self, handler: Handler) -> Handler:
        """Return a handler that delays requests until the first metadata has arrived."""

        def handle(call: Call) -> Result | Awaitable[Result]:
            return handler(call) if self._has_arrived.is_set() else self._later(handler, call)

        return handle

    async def _later(self, handler: Handler, call: Call) -> Result:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._has_arrived.wait()
        response = handler(call)
        return await response if inspect.isawaitable(response) else response
