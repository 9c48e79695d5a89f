"""Reading a range of offsets from its leader, with Kafka's own protocol.

librdkafka makes an object for each record, which costs several times what everything else does.
Here an answer becomes columns as a whole, and the next one is on its way in the meantime.
"""

import base64
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from klamm.client.admin import Admin
from klamm.client.errors import check
from klamm.errors import UnavailableError
from klamm.pipeline.source import loss
from klamm.pipeline.source.columns import Decoder, offset_after
from klamm.pipeline.source.leader_link import LeaderLink, Wish
from klamm.pipeline.source.loss import cannot_read, report_loss
from klamm.pipeline.source.options import ReadOptions
from klamm.pipeline.source.ranges import OffsetRange
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError
from klamm.protocol.fast.fetch import FetchPartitionResponse

_EARLIEST: Final = -2  # as a timestamp
_CONSUMER: Final = -1
_PAUSE_S: Final = 0.1

#: What this way of reading does justice to. With anything else set, librdkafka reads.
_HONOURED: Final = frozenset(
    {"bootstrap.servers", "check.crcs", "client.id", "fetch.max.bytes", "fetch.wait.max.ms"}
    | {"fetch.min.bytes", "isolation.level", "max.partition.fetch.bytes", "socket.timeout.ms"}
)
#: Of no consequence where nobody joins a group, and nothing is read but what was asked for.
_WITHOUT_EFFECT: Final = frozenset(
    {"allow.auto.create.topics", "auto.offset.reset", "enable.auto.commit", "group.id"}
    | {"enable.auto.offset.store", "enable.partition.eof", "heartbeat.interval.ms", "log_level"}
    | {"group.instance.id", "max.poll.interval.ms", "metadata.max.age.ms", "session.timeout.ms"}
)


def can_fetch(kafka: Mapping[str, str]) -> bool:
    """Whether everything that the options ask for is done here."""
    is_plain = kafka.get("security.protocol", "plaintext").lower() == "plaintext"
    return is_plain and set(kafka) <= _HONOURED | _WITHOUT_EFFECT | {"security.protocol"}


class RangeReader:
    """Reads one range, from whichever broker leads the partition at the time."""

    def __init__(self, wanted: OffsetRange, options: ReadOptions) -> None:
        kafka = options.kafka
        self._range = wanted
        self._options = options
        self._topic_id = None if wanted.topic_id is None else decode_topic_id(wanted.topic_id)
        self._admin = Admin(kafka["bootstrap.servers"], client_id=kafka["client.id"])
        self._link: LeaderLink | None = None
        self._leader = -1
        self._last_heard_of_topic = time.monotonic()
        #: The next offset.
        self.position = wanted.start
        self._decoder = Decoder(
            wanted.topic,
            wanted.partition,
            include_headers=options.include_headers,
            read_committed=options.is_read_committed,
            check_crcs=kafka.get("check.crcs", "true").lower() == "true",
        )

    def close(self) -> None:
        """Close every connection."""
        self._disconnect()
        self._admin.close()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The records; ends early only where data is gone and that is allowed."""
        until, patience_s = self._range.until, self._options.poll_timeout_s
        deadline = time.monotonic() + patience_s
        while self.position < until:
            try:
                answer = self._fetch()
            except UnavailableError as error:
                self._disconnect()
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"Nothing of {self._range} was to be had at offset {self.position} for "
                        f"{patience_s:.0f} s: {error}"
                    ) from error
                time.sleep(_PAUSE_S)
                continue
            if answer is None:
                continue
            records = memoryview(answer.records or b"")  # type: ignore[arg-type]  # no placeholder
            after = offset_after(records, self.position)
            if after < until:
                self._fetch_ahead(after)
            yield from self._decoder.decode(
                records, self.position, until, answer.aborted_transactions or ()
            )
            if after > self.position:
                self.position, deadline = after, time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                raise UnavailableError(
                    f"There is still nothing at offset {self.position} of {self._range} after "
                    f"{patience_s:.0f} s"
                )

    def _fetch(self) -> FetchPartitionResponse | None:
        """An answer with or without records; None if the position had to change instead."""
        if self._link is None:
            address = self._find_leader()
            if address is None:
                self._lose("the topic was deleted", first_left=self._range.until)
                return None
            wish = Wish(
                self._range.topic, self._topic_id, self._range.partition, self._options.kafka
            )
            self._link = LeaderLink(address, wish)
        answer = self._link.answer(self.position)
        match answer.error_code:
            case ErrorCode.NONE:
                return answer
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                first_left = self._earliest()
                self._lose(f"the partition begins at {first_left}", first_left=first_left)
                self._disconnect()
                return None
        code = ErrorCode.of(answer.error_code)
        if code.retriable:
            raise UnavailableError(f"{code.name}: {code.message}")
        raise KafkaError(code)

    def _fetch_ahead(self, position: int) -> None:
        """If this fails, so will asking when it matters."""
        assert self._link is not None
        with suppress(UnavailableError):
            self._link.ask(position)

    def _lose(self, why: str, *, first_left: int) -> None:
        """Go on with what is left, unless that is not allowed."""
        report_loss(
            cannot_read(self._range, self.position, why), fail=self._options.fail_on_data_loss
        )
        # An offset beyond the end of a partition is as far out of range, and nothing comes after.
        self.position = first_left if first_left > self.position else self._range.until

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _find_leader(self) -> tuple[str, int] | None:
        """Where the leader is; None if the topic is gone, or another one of the same name."""
        metadata = self._admin.metadata([self._range.topic])
        (topic,) = metadata.topics
        now = time.monotonic()
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if now - self._last_heard_of_topic > loss.GONE_AFTER_S:
                return None
            raise UnavailableError(f"nobody knows the topic {self._range.topic}")
        self._last_heard_of_topic = now
        topic_id = getattr(topic, "topic_id", None)
        if topic_id and self._topic_id and topic_id != self._topic_id:
            return None
        addresses = {each.node_id: (each.host, each.port) for each in metadata.brokers}
        for each in topic.partitions:
            if each.partition_index == self._range.partition and each.leader_id in addresses:
                self._leader = each.leader_id
                return addresses[each.leader_id]
        raise UnavailableError(f"{self._range.topic}-{self._range.partition} has no leader")

    def _earliest(self) -> int:
        """Where the partition begins by now."""
        partition = {
            "partition_index": self._range.partition,
            "current_leader_epoch": -1,
            "timestamp": _EARLIEST,
        }
        asked: dict[str, Any] = {
            "replica_id": _CONSUMER,
            "isolation_level": 0,
            "topics": [{"name": self._range.topic, "partitions": [partition]}],
        }
        answer = self._admin.ask_broker(self._leader, ApiKey.LIST_OFFSETS, asked)
        found = answer.topics[0].partitions[0]
        if ErrorCode.of(found.error_code).retriable:
            raise UnavailableError(ErrorCode.of(found.error_code).message)
        check(found.error_code)
        return int(found.offset)


def decode_topic_id(text: str) -> uuid.UUID:
    """An id as Kafka writes it: base64 without the padding."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
