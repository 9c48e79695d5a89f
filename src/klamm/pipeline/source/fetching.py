"""Reading ranges of offsets from their leaders, with Kafka's own protocol.

librdkafka makes an object for each record, which costs several times what everything else does.
Here a response becomes columns as a whole, and the next one is on its way in the meantime. All
ranges of a task that one broker leads are asked for in one request.
"""

import base64
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from klamm.errors import UnavailableError
from klamm.pipeline.source import reaching
from klamm.pipeline.source.columns import Decoder, FetchedRecords, is_old_format, offset_after
from klamm.pipeline.source.fetch_link import Address, Wish
from klamm.pipeline.source.leaders import Leaders, TopicLeaders
from klamm.pipeline.source.messages import cannot_read, report_loss
from klamm.pipeline.source.options import ReadOptions
from klamm.pipeline.source.ranges import OffsetRange
from klamm.protocol.codes import ErrorCode, KafkaError
from klamm.protocol.fast.fetch import FetchPartitionResponse

_PAUSE_S: Final = 0.1


@dataclass(slots=True, eq=False)
class Progress:
    """How far one range has been read."""

    wanted: OffsetRange
    #: The next offset that is asked for.
    position: int
    topic_id: uuid.UUID | None
    #: The leader's id and address, or None until it is found.
    leader: tuple[int, Address] | None = None
    #: When the position last moved, when the topic was last heard of, and the leader looked for.
    moved_at: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)
    looked_at: float = 0.0
    #: Why the last attempt gave no records.
    trouble: str = "no broker has answered"

    @property
    def is_done(self) -> bool:
        return self.position >= self.wanted.until

    def is_led_by(self, address: Address) -> bool:
        return self.leader is not None and self.leader[1] == address

    def move(self, position: int) -> None:
        self.position, self.moved_at = position, time.monotonic()

    def is_topic(self, found: TopicLeaders) -> bool:
        """Whether the topic has the id that was planned with, rather than being a recreated one."""
        return not (found.topic_id and self.topic_id) or found.topic_id == self.topic_id


class RangesReader:
    """Reads ranges from the brokers that lead them at the time."""

    def __init__(
        self, ranges: Sequence[OffsetRange], options: ReadOptions, leaders: Leaders
    ) -> None:
        self._options = options
        self._leaders = leaders
        self._left = [
            Progress(
                each,
                each.start,
                None if each.topic_id is None else decode_topic_id(each.topic_id),
            )
            for each in ranges
        ]
        #: Ranges that go on with messages from before Kafka 0.11, which are left to librdkafka.
        self.old: list[Progress] = []
        #: By address: what a request that is under way was about.
        self._asked: dict[Address, list[Progress]] = {}
        self._decoder = Decoder(
            options.columns,
            read_committed=options.is_read_committed,
            check_crcs=options.kafka.get("check.crcs", "true").lower() == "true",
        )

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The records of all ranges; a range ends early only if lost data is allowed."""
        self._leaders.begin()
        try:
            while self._left:
                self._place()
                if not self._asked:
                    self._be_patient()
                    continue
                address = next(iter(self._asked))
                group = self._asked.pop(address)
                ready, served = self._hear(address, group)
                self._left = [each for each in self._left if not each.is_done]
                # The next request is under way while this response is decoded. A response is
                # filled in the order of its request, so partitions that were served come last.
                led = [each for each in self._left if each.is_led_by(address)]
                self._ask(address, sorted(led, key=served.__contains__))
                yield from self._decoder.decode(ready)
                if not ready:
                    self._be_patient()
        finally:
            for address in self._asked:
                self._leaders.drop(address)

    def _place(self) -> None:
        """Find leaders for ranges without one, and send a request to each idle broker."""
        now = time.monotonic()
        lost = [
            each for each in self._left if each.leader is None and now - each.looked_at >= _PAUSE_S
        ]
        if lost:
            self._find_leaders(lost)
            self._left = [each for each in self._left if not each.is_done]
        groups: dict[Address, list[Progress]] = {}
        for each in self._left:
            if each.leader is not None and each.leader[1] not in self._asked:
                groups.setdefault(each.leader[1], []).append(each)
        for address, group in groups.items():
            self._ask(address, group)

    def _find_leaders(self, lost: list[Progress]) -> None:
        missing = {each.wanted.topic for each in lost}
        missing -= {topic for topic in missing if self._leaders.known(topic) is not None}
        if missing:
            try:
                self._leaders.learn(sorted(missing))
            except UnavailableError as error:
                for each in lost:
                    each.looked_at, each.trouble = time.monotonic(), str(error)
                return
        now = time.monotonic()
        for each in lost:
            each.looked_at = now
            topic, partition = each.wanted.topic, each.wanted.partition
            found = self._leaders.known(topic)
            if found is None:
                each.trouble = f"no broker knows the topic {topic}"
                if now - each.heard_at > reaching.GONE_AFTER_S:
                    self._lose(each, "the topic was deleted", first_left=each.wanted.until)
                continue
            if not each.is_topic(found):
                # A broker that the controller does not reach may still know the former one.
                self._leaders.forget(topic)
                each.trouble = f"{topic} is another topic of that name"
                if now - each.heard_at > reaching.GONE_AFTER_S:
                    why = "the topic was deleted and created again"
                    self._lose(each, why, first_left=each.wanted.until)
                continue
            each.heard_at = now
            each.leader = found.leaders.get(partition)
            if each.leader is None:
                self._leaders.forget(topic)
                each.trouble = f"{topic}-{partition} has no leader"

    def _ask(self, address: Address, group: list[Progress]) -> None:
        if not group:
            return
        wishes = [
            Wish(each.wanted.topic, each.topic_id, each.wanted.partition, each.position)
            for each in group
        ]
        try:
            self._leaders.link(address).send(wishes)
        except UnavailableError as error:
            self._lose_leader(address, group, str(error))
        else:
            self._asked[address] = group

    def _hear(
        self, address: Address, group: list[Progress]
    ) -> tuple[list[FetchedRecords], set[Progress]]:
        """Receive a response; return the records to decode and their ranges."""
        try:
            responses = self._leaders.link(address).receive()
        except UnavailableError as error:
            self._lose_leader(address, group, str(error))
            return [], set()
        ready: list[FetchedRecords] = []
        served: set[Progress] = set()
        for each in group:
            response = responses.get((each.wanted.topic, each.wanted.partition))
            fetched = None if response is None else self._take(each, response)
            if fetched is not None:
                ready.append(fetched)
                served.add(each)
        return ready, served

    def _take(self, each: Progress, response: FetchPartitionResponse) -> FetchedRecords | None:
        """The records of one partition, if there are any; the position moves behind them."""
        match response.error_code:
            case ErrorCode.NONE:
                pass
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                self._pass_over(each)
                return None
            case other:
                code = ErrorCode.of(other)
                if not code.retriable:
                    raise KafkaError(code)
                self._leaders.forget(each.wanted.topic)
                each.leader, each.trouble = None, f"{code.name}: {code.message}"
                return None
        records = memoryview(response.records or b"")  # type: ignore[arg-type]  # no placeholder
        if is_old_format(records):
            self.old.append(each)
            self._left.remove(each)
            each.leader = None
            return None
        after = offset_after(records, each.position)
        if after == each.position:
            each.trouble = "there is nothing yet"
            return None
        fetched = FetchedRecords(
            each.wanted.topic,
            each.wanted.partition,
            records,
            each.position,
            each.wanted.until,
            response.aborted_transactions or (),
        )
        each.move(after)
        return fetched

    def _pass_over(self, each: Progress) -> None:
        assert each.leader is not None
        try:
            first_left = self._leaders.earliest(
                each.leader[0], each.wanted.topic, each.wanted.partition
            )
        except UnavailableError as error:
            self._leaders.forget(each.wanted.topic)
            each.leader, each.trouble = None, str(error)
        else:
            self._lose(each, f"the partition begins at {first_left}", first_left=first_left)

    def _lose(self, each: Progress, why: str, *, first_left: int) -> None:
        """Skip lost offsets, or raise if the options forbid data loss."""
        report_loss(
            cannot_read(each.wanted, each.position, why), fail=self._options.fail_on_data_loss
        )
        # An offset beyond the end of a partition is as far out of range, and nothing comes after.
        each.move(first_left if first_left > each.position else each.wanted.until)

    def _lose_leader(self, address: Address, group: list[Progress], why: str) -> None:
        self._leaders.drop(address)
        for each in group:
            self._leaders.forget(each.wanted.topic)
            each.leader, each.trouble = None, why

    def _be_patient(self) -> None:
        """Pause, or raise if a range has made no progress for the poll timeout."""
        patience_s = self._options.poll_timeout_s
        for each in self._left:
            if time.monotonic() - each.moved_at > patience_s:
                raise UnavailableError(
                    f"Nothing of {each.wanted} was to be had at offset {each.position} for "
                    f"{patience_s:.0f} s: {each.trouble}"
                )
        if any(each.leader is None for each in self._left):
            time.sleep(_PAUSE_S)


def decode_topic_id(text: str) -> uuid.UUID:
    """An id as Kafka writes it: base64 without the padding."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
