"""Three brokers, one partition and a controller, without sockets, disks or clocks.

The brokers run the objects of the real broker; only what joins them is made up. Messages are
delivered when the test says so, one direction at a time, or are lost.
"""

from dataclasses import dataclass, field

from klamm.broker.fetch.sessions import (
    FetchContext,
    FetchSessions,
    RequestedPartition,
    SessionRequest,
)
from klamm.broker.replication.fetcher import ListOffsetsResult, ReplicaFetcher
from klamm.broker.replication.isr import AlterPartitionQueue, AlterPartitionResult
from klamm.broker.replication.partition import LeaderAndIsrPartitionState, Partition, Role, Step
from klamm.broker.replication.replica_log import Reader
from klamm.names import LATEST, TopicPartition
from klamm.protocol.codes import ErrorCode as E
from klamm.protocol.fast.fetch import (
    EpochEndOffset,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
)
from tests.support.memory_log import MemoryLog

NAME = TopicPartition("t", 0)
BROKERS = (1, 2, 3)
MAX_LAG_MS = 10_000
BACKOFF_MS = 100


@dataclass
class Controller:
    """The partition's state in ZooKeeper, and who is alive."""

    leader: int = 1
    leader_epoch: int = 0
    isr: tuple[int, ...] = BROKERS
    partition_epoch: int = 0
    alive: set[int] = field(default_factory=lambda: set(BROKERS))

    def order(self) -> LeaderAndIsrPartitionState:
        return LeaderAndIsrPartitionState(
            self.leader, self.leader_epoch, self.isr, self.partition_epoch, BROKERS
        )

    def elect(self, *, unclean: bool = False) -> None:
        """Replace a leader that is gone, or let the same one start another epoch."""
        live_isr = tuple(each for each in self.isr if each in self.alive)
        candidates = live_isr or (tuple(sorted(self.alive)) if unclean else ())
        if not candidates:
            self.leader = -1
        else:
            if self.leader not in candidates:
                self.leader = candidates[0]
            self.isr = live_isr or (self.leader,)
        self.leader_epoch += 1
        self.partition_epoch += 1

    def move_leader(self, to: int) -> None:
        """A clean move, as for a preferred replica."""
        if to in self.isr and to in self.alive:
            self.leader = to
            self.leader_epoch += 1
            self.partition_epoch += 1

    def alter(
        self, sender: int, leader_epoch: int, partition_epoch: int, isr
    ) -> AlterPartitionResult:
        if sender != self.leader or leader_epoch != self.leader_epoch:
            return AlterPartitionResult(E.FENCED_LEADER_EPOCH)
        if isr == self.isr:  # asked for again, since the response was lost
            return AlterPartitionResult(E.NONE, self.leader_epoch, self.partition_epoch, isr)
        if partition_epoch != self.partition_epoch:
            return AlterPartitionResult(E.INVALID_UPDATE_VERSION)
        if not set(isr) <= self.alive:
            return AlterPartitionResult(E.INELIGIBLE_REPLICA)
        self.isr = isr
        self.partition_epoch += 1
        return AlterPartitionResult(E.NONE, self.leader_epoch, self.partition_epoch, isr)


class Broker:
    """One broker's replica of the partition, with the loop that follows its leader."""

    def __init__(self, number: int, cluster: "Cluster") -> None:
        self.number = number
        self.cluster = cluster
        self.log = MemoryLog()
        self.broker_epoch = 0
        self.checkpoint = 0
        self.start()

    def start(self) -> None:
        """Begin with what the disk has; the high watermark is as old as its checkpoint."""
        self.broker_epoch += 1
        self.log.advance_high_watermark(min(self.checkpoint, self.log.end_offset))
        self.partition = Partition(
            NAME,
            self.number,
            is_alive=self.cluster.controller.alive.__contains__,
            replica_lag_time_max_ms=MAX_LAG_MS,
            log=self.log,
        )
        self.fetcher = ReplicaFetcher(backoff_ms=BACKOFF_MS)
        ids = iter(range(1, 1_000_000)).__next__
        self.sessions = FetchSessions(10, ids)
        self.line = AlterPartitionQueue()
        self.response: FetchResponse | None = None
        self.altered: dict[TopicPartition, AlterPartitionResult] | None = None

    def obey(self, state: LeaderAndIsrPartitionState) -> None:
        step = self.partition.decide(state, None).step
        if step is Step.LEAD:
            self.fetcher.remove(NAME)
            self.partition.become_leader(state, self.log, self.cluster.now_ms)
        elif step is Step.FOLLOW:
            self.line.withdraw(NAME)
            self.fetcher.remove(NAME)
            if state.leader != self.partition.leader:
                # Another leader is another loop, with a connection and a session of its own.
                self.fetcher = ReplicaFetcher(backoff_ms=BACKOFF_MS)
                self.response = None
            self.partition.become_follower(state, self.log)
            truncation = self.fetcher.add(NAME, None, self.log, state.leader_epoch)
            self.cut([truncation] if truncation else [])

    def cut(self, truncations) -> None:
        for truncation in truncations:
            truncation.carry_out(self.log, self.cluster.now_ms)
            self.fetcher.on_truncated(truncation)

    # The follower's side

    def send_fetch(self) -> None:
        """Ask the leader, and have it respond; the response waits to be delivered."""
        now_ms = self.cluster.now_ms
        if self.partition.role is not Role.FOLLOWER or self.response:
            return
        leader = self.cluster.reach(self.number, self.partition.leader)
        if leader and (question := self.fetcher.next_list_offsets()):
            replies = {NAME: leader.reply(question)}
            self.cut(self.fetcher.on_list_offsets(question, replies, now_ms).truncations)
        plan = self.fetcher.next_fetch(now_ms)
        if not plan:
            return
        if not leader:
            self.fetcher.on_disconnect(now_ms)
            return
        wanted = [
            RequestedPartition(name, None, name.partition, each.position, 200, each.start_offset)
            for name, each in plan.partitions.items()
        ]
        request = SessionRequest(
            plan.session_id,
            plan.session_epoch,
            wanted,
            [(each.name.topic, each.name.partition) for each in plan.forgotten],
            is_follower=True,
        )
        self.response = leader.serve(request, Reader(self.number, self.broker_epoch))

    def take_response(self) -> None:
        response, self.response = self.response, None
        if response:
            self.cut(self.fetcher.on_response(response, self.cluster.now_ms).truncations)

    def lose_response(self) -> None:
        if self.response:
            self.response = None
            self.fetcher.on_disconnect(self.cluster.now_ms)

    # The leader's side

    def serve(self, request: SessionRequest, reader: Reader) -> FetchResponse:
        now_ms = self.cluster.now_ms
        context = self.sessions.open(request, now_ms)
        if not isinstance(context, FetchContext):
            return FetchResponse([], context)
        fetched = [(each, self._read(each, reader)) for each in context.partitions]
        response, included = context.response(fetched, now_ms)
        topics = [FetchTopicResponse(NAME.topic, None, [each]) for _, each in included]
        return FetchResponse(topics, response.error, response.session_id)

    def _read(self, wanted: RequestedPartition, reader: Reader) -> FetchPartitionResponse:
        view = self.partition.view(reader, wanted.position)
        if view.error:
            return FetchPartitionResponse(NAME.partition, view.error)
        records, diverging = b"", None
        if view.diverging:
            diverging = EpochEndOffset(*view.diverging)
        else:
            records = self.log.read(wanted.position.offset, wanted.max_bytes, view.readable_end)
            progress = self.partition.record_follower_fetch(
                reader,
                wanted.position.offset,
                wanted.start_offset,
                view.end_offset,
                self.cluster.now_ms,
            )
            if progress.proposal:
                self.line.submit(progress.proposal)
        return FetchPartitionResponse(
            NAME.partition,
            0,
            view.high_watermark,
            view.last_stable_offset,
            view.start_offset,
            memoryview(records),
            diverging_epoch=diverging,
        )

    def reply(self, question) -> ListOffsetsResult:
        error = self.partition.check_epoch(question.leader_epochs[NAME])
        if error or self.partition.role is not Role.LEADER:
            return ListOffsetsResult(error or E.NOT_LEADER_OR_FOLLOWER)
        is_latest = question.timestamp == LATEST
        return ListOffsetsResult(0, self.log.end_offset if is_latest else self.log.start_offset)

    def shrink(self) -> None:
        if proposal := self.partition.shrink(self.cluster.now_ms):
            self.line.submit(proposal)

    # With the controller

    def propose(self) -> None:
        """Send what is proposed; the controller acts at once, its response waits."""
        batch = self.line.next_batch(0, self.cluster.now_ms)
        if batch and self.number not in self.cluster.cut_off:
            self.altered = {
                each.partition: self.cluster.controller.alter(
                    self.number, each.leader_epoch, each.partition_epoch, each.isr
                )
                for each in batch.proposals
            }
        elif batch:
            self.line.on_disconnect(self.cluster.now_ms)

    def take_altered(self) -> None:
        altered, self.altered = self.altered, None
        if altered is not None:
            for proposal, response in self.line.on_response(altered, self.cluster.now_ms):
                outcome = self.partition.on_alter_partition_result(
                    proposal, response, self.cluster.now_ms
                )
                if outcome.resend:
                    self.line.submit(proposal)

    def lose_altered(self) -> None:
        if self.altered is not None:
            self.altered = None
            self.line.on_disconnect(self.cluster.now_ms)


class Cluster:
    """The brokers, who of them is up, and which orders are still on their way."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.controller = Controller()
        self.up = set(BROKERS)
        #: Brokers that neither the controller nor the other brokers can talk to.
        self.cut_off: set[int] = set()
        self.brokers = {number: Broker(number, self) for number in BROKERS}
        self.orders: dict[int, LeaderAndIsrPartitionState] = {}
        self.announce()

    def reach(self, sender: int, receiver: int) -> Broker | None:
        if receiver not in self.up or {sender, receiver} & self.cut_off:
            return None
        return self.brokers[receiver]

    def announce(self) -> None:
        for number in BROKERS:
            self.orders[number] = self.controller.order()

    def deliver(self, number: int) -> None:
        if number in self.up and number not in self.cut_off and number in self.orders:
            self.brokers[number].obey(self.orders.pop(number))

    def lost(self, number: int) -> None:
        """The controller notices that a broker is gone."""
        self.controller.alive.discard(number)
        if self.controller.leader == number:
            self.controller.elect()
            self.announce()

    def crash(self, number: int) -> None:
        self.up.discard(number)
        self.orders.pop(number, None)
        self.lost(number)

    def restart(self, number: int) -> None:
        if number in self.up:
            return
        self.up.add(number)
        self.brokers[number].start()
        self.returned(number)

    def returned(self, number: int) -> None:
        self.controller.alive.add(number)
        if self.controller.leader == -1:
            self.controller.elect()
            self.announce()
        self.orders[number] = self.controller.order()

    def settle(self) -> None:
        """All faults end; then everything is delivered until nothing changes any more."""
        self.cut_off.clear()
        for number in BROKERS:
            self.restart(number)
            if number not in self.controller.alive:
                self.returned(number)
        if self.controller.leader == -1:
            self.controller.elect(unclean=True)
            self.announce()
        for _ in range(200):
            self.now_ms += BACKOFF_MS
            for number in BROKERS:
                broker = self.brokers[number]
                self.deliver(number)
                broker.send_fetch()
                broker.take_response()
                broker.propose()
                broker.take_altered()
