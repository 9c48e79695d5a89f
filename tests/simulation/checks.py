"""What is always true, looked at in every step, and the ledger of what clients were promised.

ZooKeeper's transactions, the controller's events and announcements, and what brokers do to their
logs are all seen here as they happen. The first thing that is wrong ends the history.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from klamm import slices
from klamm.broker.log.checkpoints import PARTITION_METADATA
from klamm.broker.log.errors import StorageError
from klamm.broker.log.log import Log
from klamm.broker.replication.partition import Partition
from klamm.controller.requests import handlers
from klamm.core import effects
from klamm.core.cluster import ClusterState
from klamm.core.columns import unpad
from klamm.core.context import Context
from klamm.core.invariants import violations
from klamm.names import CONSUMER_OFFSETS, TopicPartition
from klamm.protocol.records import iterate_batches
from klamm.zookeeper import znodes
from klamm.zookeeper.store import Create, Delete, Op, SetData, TransactionResult
from tests.simulation.loop import CURRENT, Process, current

NOBODY = -1


@dataclass
class Story:
    """One partition of one topic, as far as it can be told from outside."""

    name: str
    leader: int = NOBODY
    epoch: int = -1
    isr: tuple[int, ...] = ()
    version: int = -1
    #: By version of the znode: what it said.
    written: dict[int, tuple[int, int, tuple[int, ...]]] = field(default_factory=dict)
    #: By leader epoch: the broker that has acted as leader.
    led_by: dict[int, int] = field(default_factory=dict)
    #: By base offset: last offset, checksum and epoch of a batch that was committed.
    committed: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    #: By offset: what was acknowledged, to acks=all, and where that ends.
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    acknowledged_end: int = 0
    #: By offset: what a consumer has read.
    read: dict[int, bytes] = field(default_factory=dict)
    replicas: frozenset[int] = frozenset()


class Checks:
    """All that is checked while a history runs."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self.world: Any = None
        self.stories: dict[tuple[str, int], Story] = {}
        #: Topics for which a leader may be chosen that lacks records.
        self.unclean_topics: set[str] = set()
        #: Topics that clients were promised something about, and that are never deleted.
        self.kept_topics: set[str] = set()
        self.producer_ids: dict[int, str] = {}
        self._topic_ids: dict[str, str] = {}
        self._controller_epoch = 0
        self._elected: int | None = None  # the session that won the last election
        self._checked_to: dict[Log, int] = {}
        self._broker_epochs: dict[tuple[Process, str, int], int] = {}
        self._owners: dict[tuple[str, int, int, int], str] = {}
        #: By group, topic and partition: the generation, and what it was told is committed.
        self._commits: dict[tuple[str, str, int], tuple[int, int]] = {}

    def attach(self, world: Any) -> None:
        """Say whose history this is."""
        self.world = world

    def fail(self, what: str) -> None:
        """Something is wrong: the history ends here."""
        if self.failure is None:
            self.failure = what
            self.world.note("CHECK", what)
            self.world.loop.stop()

    def kept_stories(self) -> list[Story]:
        """The stories of partitions of which nothing may be lost."""
        kept = {self._topic_ids.get(topic) for topic in self.kept_topics}
        return [story for (topic_id, _), story in self.stories.items() if topic_id in kept]

    # ZooKeeper

    def on_transaction(
        self,
        process: Process | None,
        session_id: int,
        ops: Sequence[Op],
        result: TransactionResult,
    ) -> None:
        """A transaction was carried out."""
        is_candidate = process is not None and process.name.startswith("c")
        for op in ops:
            path = op.path
            if path == "/controller" and isinstance(op, Create):
                self._elected = session_id
                self.world.note(process.name if process else "-", "wins the election")
            elif path == "/controller_epoch" and isinstance(op, SetData):
                self._on_controller_epoch(int(op.data or b"0"))
            elif path.startswith("/brokers/topics/"):
                # Any node may create a topic that a client asked a broker for (META-6).
                is_new_topic = isinstance(op, Create) and path.count("/") == 3
                if is_candidate and session_id != self._elected and not is_new_topic:
                    self.fail(f"{process} writes {path} although another node is controller")
                self._on_topic_write(path, op)

    def _on_controller_epoch(self, epoch: int) -> None:
        if epoch <= self._controller_epoch:
            self.fail(f"the controller epoch goes from {self._controller_epoch} to {epoch}")
        self._controller_epoch = epoch

    def _on_topic_write(self, path: str, op: Op) -> None:
        topic, *rest = path.removeprefix("/brokers/topics/").split("/")
        if not rest:
            if isinstance(op, Delete):
                self._check_deleted(topic, self._topic_ids.pop(topic, ""))
            elif isinstance(op, Create | SetData) and op.data:
                self._on_assignment(topic, znodes.decode_topic(topic, op.data))
        elif len(rest) == 3 and rest[2] == "state" and isinstance(op, Create | SetData):
            state = znodes.decode_state(path, op.data)
            if state is not None:
                self._on_state(topic, int(rest[1]), state, is_new=isinstance(op, Create))

    def _check_deleted(self, topic: str, topic_id: str) -> None:
        """Check that no replica is left: who is down cannot have deleted what it has (DEL-15)."""
        for (each, _), story in self.stories.items():
            for broker in story.replicas if each == topic_id else ():
                for directory in self.world.machines[broker].directories:
                    metadata = directory / story.name / PARTITION_METADATA
                    if metadata.exists() and topic_id in metadata.read_text():
                        self.fail(f"{topic} is gone, but broker {broker} has {story.name}")

    def _on_assignment(self, topic: str, assignment: znodes.TopicAssignment) -> None:
        if assignment.topic_id is not None:
            self._topic_ids[topic] = znodes.encode_topic_id(assignment.topic_id)
        for partition, replicas in assignment.partitions.items():
            story = self._story(topic, partition)
            story.replicas = frozenset(replicas)

    def _story(self, topic: str, partition: int) -> Story:
        topic_id = self._topic_ids.get(topic, "")
        return self.stories.setdefault((topic_id, partition), Story(f"{topic}-{partition}"))

    def _on_state(self, topic: str, partition: int, state: Any, *, is_new: bool) -> None:
        story = self._story(topic, partition)
        name, isr = story.name, tuple(state.isr)
        before = story.leader, story.epoch, story.isr
        version = 0 if is_new else story.version + 1
        story.leader, story.epoch, story.isr = state.leader, state.leader_epoch, isr
        story.version = version
        story.written[version] = (state.leader, state.leader_epoch, isr)
        self.world.note(
            "zookeeper",
            f"{name} leader {state.leader} epoch {state.leader_epoch} ISR {list(isr)} "
            f"version {version}",
        )
        if state.controller_epoch != self._controller_epoch:
            self.fail(
                f"{name} is written under controller epoch {state.controller_epoch}, but it is "
                f"{self._controller_epoch}"
            )
        if not isr:
            self.fail(f"{name} has an empty ISR")
        if state.leader != NOBODY and state.leader not in isr:
            self.fail(f"{name} is led by {state.leader}, which is not in the ISR {list(isr)}")
        if not is_new and before[1] >= 0:
            self._check_succession(topic, story, before)
        self._check_in_sync(topic, partition, story)

    def _check_succession(
        self, topic: str, story: Story, before: tuple[int, int, tuple[int, ...]]
    ) -> None:
        leader, epoch, isr = before
        if story.epoch < epoch:
            self.fail(f"{story.name}: the leader epoch goes from {epoch} to {story.epoch}")
        if story.epoch == epoch and story.leader != leader:
            self.fail(f"{story.name}: {leader} and {story.leader} both lead under epoch {epoch}")
        if story.leader not in (NOBODY, leader) and story.leader not in isr:
            if topic not in self.unclean_topics:
                self.fail(f"{story.name}: {story.leader} is elected, but the ISR was {list(isr)}")
            elif set(story.isr) != {story.leader}:
                self.fail(
                    f"{story.name}: after an unclean election {list(story.isr)} are said to be in "
                    "sync"
                )

    # The controller

    def on_controller_event(self, broker: int, event: str, cause: str) -> None:
        """A candidate begins to handle an event."""
        self.world.note(f"c{broker}", f"handles {event} ({cause})")

    def after_controller_event(
        self, broker: int, event: str, outcome: str, context: Context | None
    ) -> None:
        """A candidate has handled an event."""
        if outcome != "done":
            self.world.note(f"c{broker}", f"{event}: {outcome}")
        if outcome.startswith("failed"):
            self.fail(f"c{broker}: {event} {outcome}")
        # Who has been replaced and does not know it may hold what its successor has decided.
        is_controller = context and context.cluster.controller_epoch == self._controller_epoch
        if context is not None and is_controller and outcome == "done":
            for violation in violations(context.cluster):
                self.fail(f"c{broker} after {event}: {violation}")

    def on_effect(self, broker: int, cluster: ClusterState, effect: Any) -> None:
        """A candidate has carried out an effect."""
        if not isinstance(effect, effects.SendRequestBatch):
            return
        rows = {int(row) for each in effect.leader_and_isr.values() for row in each.rows}
        metadata = effect.metadata_rows
        rows.update(metadata[cluster.has_leadership[metadata]].tolist())
        for row in sorted(rows):
            topic, partition = cluster.name(row)
            story = self.stories.get((cluster.topics[topic].id or "", partition))
            version = int(cluster.partition_epoch[row])
            told = (
                int(cluster.leader[row]),
                int(cluster.leader_epoch[row]),
                tuple(unpad(cluster.isr[row])),
            )
            held = story.written.get(version) if story else None
            if held != told:
                self.fail(
                    f"c{broker} announces {topic}-{partition} as {told} at version {version}, "
                    f"where ZooKeeper has {held}"
                )

    # Brokers

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Watch what brokers do to their partitions and logs."""
        become_leader = Partition.become_leader
        advance = Log.advance_high_watermark

        def becomes_leader(partition: Partition, state: Any, log: Any, now_ms: int) -> None:
            become_leader(partition, state, log, now_ms)
            self._on_leading(partition, log)

        def advances(log: Log, offset: int) -> int:
            reached = advance(log, offset)
            if hasattr(log, "_segments"):
                self._on_high_watermark(log, reached)
            return reached

        with (
            # Slices end by the clock of this machine, which no seed determines.
            patch.object(slices, "SLICE_S", math.inf),
            # Nothing is collected while a history runs, and all of it afterwards.
            patch.object(slices, "uncollected", nullcontext),
            patch.object(handlers, "uncollected", nullcontext),
            # A process that crashes must not keep the turn of the others.
            patch.object(slices, "turn_of_process", lambda: current().turn),
            patch.object(Partition, "become_leader", becomes_leader),
            patch.object(Log, "advance_high_watermark", advances),
        ):
            yield

    def story_of(self, log: Log) -> Story:
        """The story of the partition whose replica this is."""
        topic_id = "" if log.topic_id is None else znodes.encode_topic_id(log.topic_id)
        topic, partition = log.partition
        return self.stories.setdefault((topic_id, partition), Story(f"{topic}-{partition}"))

    def _on_leading(self, partition: Partition, log: Log) -> None:
        story, broker, epoch = self.story_of(log), partition.broker_id, partition.leader_epoch
        self.world.note(f"b{broker}", f"leads {story.name} from {log.end_offset}, epoch {epoch}")
        if story.led_by.setdefault(epoch, broker) != broker:
            self.fail(
                f"{story.name}: {story.led_by[epoch]} and {broker} both lead under epoch {epoch}"
            )
        process = CURRENT.get()
        assert process is not None
        key = process, story.name, id(story)
        if epoch < self._broker_epochs.get(key, -1):
            self.fail(f"b{broker}: the epoch of {story.name} goes back to {epoch}")
        self._broker_epochs[key] = epoch
        # Who hears late that it was to lead, under an epoch of the past, can commit nothing.
        if partition.name.topic in self.unclean_topics or epoch < story.epoch:
            return
        if log.end_offset < story.acknowledged_end:
            self.fail(
                f"{story.name}: acknowledged up to {story.acknowledged_end}, but its leader "
                f"{broker} of epoch {epoch} ends at {log.end_offset}"
            )

    def _on_high_watermark(self, log: Log, reached: int) -> None:
        """What is committed is the same everywhere."""
        checked = self._checked_to.get(log, log.start_offset)
        self._checked_to[log] = reached
        if reached <= checked or log.partition.topic in self.unclean_topics:
            return
        committed = self.story_of(log).committed
        for base, last, crc, epoch in _batches(log, checked, reached):
            known = committed.setdefault(base, (last, crc, epoch))
            if known != (last, crc, epoch):
                self.fail(
                    f"{log.partition} of {CURRENT.get()} has {(last, crc, epoch)} at {base}, "
                    f"where {known} is committed"
                )

    def hosted_by(self, broker: int) -> list[Partition]:
        """The partitions of a broker that runs."""
        machine = self.world.machines.get(broker)
        if machine is None or not machine.is_up or not hasattr(machine.node, "_broker"):
            return []
        return list(machine.node._broker.data.replicas)

    def log_of(self, broker: int, topic: str, partition: int) -> Log | None:
        """A broker's replica, if the broker runs and has it on a working disk."""
        machine = self.world.machines.get(broker)
        if machine is None or not machine.is_up or not hasattr(machine.node, "_broker"):
            return None
        data = machine.node._broker.data
        try:
            log: Log | None = data.logs.get(TopicPartition(topic, partition))
        except StorageError:
            return None
        return log

    def _check_in_sync(self, topic: str, partition: int, story: Story) -> None:
        """Every member of the ISR has all acknowledged records."""
        if topic in self.unclean_topics or not story.acknowledged_end:
            return
        for broker in story.isr:
            log = self.log_of(broker, topic, partition)
            if log is None or self.story_of(log) is not story:
                continue
            if log.end_offset < story.acknowledged_end:
                self.fail(
                    f"{story.name}: {broker} is in the ISR {list(story.isr)} and ends at "
                    f"{log.end_offset}, but {story.acknowledged_end} is acknowledged"
                )

    # Clients

    def current_story(self, topic: str, partition: int) -> Story | None:
        """The story of the partition that now has this name."""
        return self.stories.get((self._topic_ids.get(topic, ""), partition))

    def on_producer_id(self, producer: str, producer_id: int) -> None:
        """A producer id was given out."""
        owner = self.producer_ids.setdefault(producer_id, producer)
        if owner != producer:
            self.fail(f"{owner} and {producer} both have the producer id {producer_id}")

    def on_acknowledged(
        self, topic: str, partition: int, offset: int, values: Iterable[bytes], is_all: bool
    ) -> None:
        """A producer was told where its records are."""
        story = self.current_story(topic, partition)
        if story is None or not is_all or topic in self.unclean_topics:
            return
        for at, value in enumerate(values, offset):
            if story.acknowledged.setdefault(at, value) != value:
                self.fail(f"{story.name}: two records are acknowledged at offset {at}")
            story.acknowledged_end = max(story.acknowledged_end, at + 1)
        self._check_in_sync(topic, partition, story)

    def on_read(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        """A consumer has read a record."""
        story = self.current_story(topic, partition)
        if story is None or topic in self.unclean_topics:
            return
        known = story.acknowledged.get(offset, value)
        if known != value or story.read.setdefault(offset, value or b"") != value:
            self.fail(f"{story.name}: {value!r} is read at {offset}, where {known!r} was before")

    def on_assigned(
        self, group: str, coordinator: int, generation: int, member: str, partitions: Any
    ) -> None:
        """A member of a group was given partitions.

        A generation that was not committed when its coordinator died may come again elsewhere.
        """
        for partition in partitions:
            key = group, coordinator, generation, partition
            owner = self._owners.setdefault(key, member)
            if owner != member:
                self.fail(
                    f"{group}: partition {partition} belongs to two members in generation "
                    f"{generation}"
                )

    def promised_commits(self, group: str, topic: str) -> Mapping[int, int]:
        """What the group has been told is committed, by partition."""
        return {
            partition: offset
            for (of, name, partition), (_, offset) in self._commits.items()
            if (of, name) == (group, topic)
        }

    def on_committed(
        self, group: str, topic: str, partition: int, generation: int, offset: int
    ) -> None:
        """A member was told that its position is committed.

        What a later generation commits counts, even if it is less: it may have begun to read
        before the last commit of an earlier one was through.
        """
        key = group, topic, partition
        self._commits[key] = max(self._commits.get(key, (0, 0)), (generation, offset))

    def on_committed_seen(
        self,
        group: str,
        coordinator: int,
        topic: str,
        promised: Mapping[int, int],
        found: Mapping[int, int],
    ) -> None:
        """A member has asked where to go on.

        A coordinator that has been replaced and does not know it answers from its memory, in
        Apache Kafka too; what it says is not held against it.
        """
        story = self.current_story(CONSUMER_OFFSETS, 0)
        if story is None or story.leader != coordinator:
            return
        for partition, offset in found.items():
            if offset < promised.get(partition, 0):
                self.fail(
                    f"{group}: {topic}-{partition} was committed up to {promised[partition]}, but "
                    f"goes on at {offset}"
                )


def _batches(log: Log, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Base offset, last offset, checksum and epoch of what lies between two offsets."""
    while start < end:
        content = log.read(start, 1 << 20, end, at_least_one=True).bytes()
        before = start
        for batch in iterate_batches(content, may_end_early=True):
            header = batch.header
            if header.base_offset >= start:
                yield header.base_offset, header.last_offset, header.crc, header.leader_epoch
            start = header.last_offset + 1
        if start == before:
            return
