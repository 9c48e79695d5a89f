"""The leader of each partition, and a connection to each leader, kept between tasks.

A worker that reads one micro-batch after another requests metadata once, and again when a broker
responds that it does not lead a partition or does not know a topic.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.client.admin import Admin, check
from klamm.errors import UnavailableError
from klamm.net.librdkafka import security_from_librdkafka
from klamm.net.secure import SecureClient
from klamm.pipeline.source.fetch_link import Address, FetchLink
from klamm.pipeline.source.pool import Pool
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

_EARLIEST: Final = -2  # as a timestamp
_CONSUMER: Final = -1
#: Java's metadata.max.age.ms is longer, but requests are cheap, and leaders should be preferred.
_METADATA_MAX_AGE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class TopicLeaders:
    """A topic as one response had it."""

    #: None where the cluster has no ids.
    topic_id: uuid.UUID | None
    #: By partition: the broker's id and address. A partition without a leader has no entry.
    leaders: Mapping[int, tuple[int, Address]]
    heard_at: float


class Leaders:
    """The brokers of one cluster, and which of them leads each partition."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        security = security_from_librdkafka(kafka)
        assert security is not None, "looked at before this way of reading was chosen"
        self._secure = SecureClient(security)
        self._admin = Admin(
            kafka["bootstrap.servers"], client_id=kafka["client.id"], security=security
        )
        self._links: dict[Address, FetchLink] = {}
        self._topics: dict[str, TopicLeaders] = {}

    def close(self) -> None:
        """Close every connection."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._admin.close()

    def begin(self) -> None:
        """Begin a task: forget topics if a broker would not notice that one was created again."""
        if not all(link.goes_by_ids for link in self._links.values()):
            self._topics.clear()

    def known(self, topic: str) -> TopicLeaders | None:
        """The last metadata of a topic, unless it is too old."""
        found = self._topics.get(topic)
        if found is not None and time.monotonic() - found.heard_at > _METADATA_MAX_AGE_S:
            return None
        return found

    def learn(self, topics: Iterable[str]) -> None:
        """Request metadata of topics, and forget those that the broker does not know."""
        asked = list(topics)
        response = self._admin.metadata(asked)
        addresses = {each.node_id: (each.host, each.port) for each in response.brokers}
        now = time.monotonic()
        for name in asked:
            self._topics.pop(name, None)
        for topic in response.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if ErrorCode.of(topic.error_code).retriable:
                continue
            check(topic.error_code)
            self._topics[topic.name] = TopicLeaders(
                getattr(topic, "topic_id", None),
                {
                    each.partition_index: (each.leader_id, addresses[each.leader_id])
                    for each in topic.partitions
                    if each.leader_id in addresses
                },
                now,
            )

    def forget(self, topic: str) -> None:
        """Drop the metadata of a topic, which has turned out to be wrong."""
        self._topics.pop(topic, None)

    def link(self, address: Address) -> FetchLink:
        """The connection to a broker, made if there is none."""
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = FetchLink(address, self._kafka, self._secure)
        return link

    def drop(self, address: Address) -> None:
        """Close a connection that failed, or whose pending response is no longer wanted."""
        link = self._links.pop(address, None)
        if link is not None:
            link.close()

    def earliest(self, broker: int, topic: str, partition: int) -> int:
        """Where a partition begins by now, as its leader knows."""
        place = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": _EARLIEST}
        asked: dict[str, Any] = {
            "replica_id": _CONSUMER,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [place]}],
        }
        response = self._admin.ask_broker(broker, ApiKey.LIST_OFFSETS, asked)
        found = response.topics[0].partitions[0]
        if ErrorCode.of(found.error_code).retriable:
            raise UnavailableError(ErrorCode.of(found.error_code).message)
        check(found.error_code)
        return int(found.offset)


#: Connections that no task is using.
LEADERS: Final = Pool(Leaders, is_sound=lambda _: True, close=Leaders.close)
