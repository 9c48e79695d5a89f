"""klamm with one mistake at a time: if the simulation does not find these, it finds nothing.

Each variant replaces one small piece of the real code while a history runs. `FOUND_WITHIN` is the
promise: the simulation finds the mistake within a number of seeds, counted from 1.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from klamm.broker.groups.effects import Append
from klamm.broker.groups.offsets import GroupOffsets
from klamm.broker.groups.service import GroupService
from klamm.broker.identity import BrokerIdentity
from klamm.broker.log import manager
from klamm.broker.log.log import Log
from klamm.broker.log.producers import ProducerStateManager
from klamm.broker.replication.fetcher import ReplicaFetcher, Truncation
from klamm.broker.replication.partition import Decision, Partition, Role, Step
from klamm.broker.transactions.coordinator import TransactionCoordinator
from klamm.broker.transactions.markers import MarkerChannels
from klamm.broker.transactions.records import TransactionRecord, encode_key, encode_value
from klamm.broker.transactions.transaction import Transaction
from klamm.broker.transactions.verifier import TransactionVerifier
from klamm.controller import election
from klamm.controller.state_store import StateStore
from klamm.core.elections import IsrRemovals
from klamm.core.procedures import brokers, deletion, partitions, replicas
from klamm.core.transitions import ReplicaState
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.zookeeper import bulk
from klamm.zookeeper.memory import MemoryStore

Variant = Callable[[], Any]
VARIANTS: dict[str, Variant] = {}
#: In how many seeds each is to be found.
FOUND_WITHIN: dict[str, int] = {}


def variant(name: str, within: int) -> Callable[[Callable[[], Iterator[None]]], Variant]:
    """Make a generator that patches something a variant of this name."""

    def register(make: Callable[[], Iterator[None]]) -> Variant:
        VARIANTS[name] = contextmanager(make)
        FOUND_WITHIN[name] = within
        return VARIANTS[name]

    return register


# The controller


@variant("writes without a fence", 100)
def _no_fence() -> Iterator[None]:
    """A controller that was replaced can still write."""
    real = bulk.write_rows

    async def write_packed(self: MemoryStore, batches: Any, fence: Any) -> list[Any]:
        return [await self.write_many(batch.rows()) for batch in batches]

    with (
        patch.object(bulk, "write_rows", lambda rows, fence, transact: real(rows, None, transact)),
        patch.object(MemoryStore, "write_packed", write_packed),
    ):
        yield


@variant("announces before it has written", 10)
def _announces_early() -> Iterator[None]:
    """Brokers may hear of a decision that ZooKeeper never gets."""
    real = StateStore.write

    async def write(self: StateStore, cluster: Any, states: Any, fence: Any) -> Any:
        async def later() -> None:
            with contextlib.suppress(Exception):
                await real(self, cluster, states, fence)

        asyncio.create_task(later())  # noqa: RUF006 - the process's own list holds it
        return np.zeros(len(states), np.int8)

    with patch.object(StateStore, "write", write):
        yield


@variant("elects without a new epoch", 10)
def _no_new_epoch() -> Iterator[None]:
    """The new leader has the epoch of the old one."""

    def same_epoch(states: Any, **changes: Any) -> Any:
        if "leader" in changes and "leader_epoch" in changes:
            changes["leader_epoch"] = changes["leader_epoch"] - 1
        return replace(states, **changes)

    with patch.object(partitions, "replace", same_epoch):
        yield


@variant("keeps the ISR after an unclean election", 50)
def _unclean_keeps_isr() -> Iterator[None]:
    """Replicas count as in sync with a leader that never had what they have."""
    real = partitions.elect_offline

    def elect(replicas: Any, isr: Any, *rest: Any, **options: Any) -> Any:
        chosen = real(replicas, isr, *rest, **options)
        unclean = chosen.outcome == partitions.UNCLEAN
        if unclean.any():
            kept = chosen.isr.copy()
            for row in np.flatnonzero(unclean):
                old = [broker for broker in isr[row].tolist() if broker >= 0]
                members = [int(chosen.leader[row]), *old][: kept.shape[1]]
                kept[row] = members + [-1] * (kept.shape[1] - len(members))
            chosen = replace(chosen, isr=kept)
        return chosen

    with patch.object(partitions, "elect_offline", elect):
        yield


@variant("elects any live replica", 50)
def _always_unclean() -> Iterator[None]:
    """Unclean elections, whatever the topic's configuration says."""

    def allowed(ctx: Any, rows: Any) -> Any:
        yield from ()
        return np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)

    with patch.object(partitions, "_unclean_allowed", allowed):
        yield


@variant("takes the last replica out of an ISR", 20)
def _empties_isr() -> Iterator[None]:
    """No replica is left that is known to have all records."""

    def shrink(leader: Any, isr: Any, broker: int) -> IsrRemovals:
        is_broker = isr == broker
        was_member = is_broker.any(axis=1)
        kept = np.full_like(isr, -1)
        for row in range(len(isr)):
            members = [each for each in isr[row].tolist() if each not in (broker, -1)]
            kept[row, : len(members)] = members
        return IsrRemovals(np.where(was_member & (leader == broker), -1, leader), kept, was_member)

    with patch.object(replicas, "shrink_isr", shrink):
        yield


@variant("deletes a topic in spite of offline replicas", 100)
def _forgets_offline_replicas() -> Iterator[None]:
    """A replica that could not be reached is left behind for good."""
    real = deletion.resume_deletions

    def resume(ctx: Any) -> Any:
        cluster = ctx.cluster
        for name in cluster.deletion_started & cluster.queued_for_deletion:
            rows = cluster.rows_of([name])
            states = cluster.replica_state[rows]
            states[states == ReplicaState.DELETION_INELIGIBLE] = ReplicaState.DELETION_SUCCESSFUL
            cluster.replica_state[rows] = states
        yield from real(ctx)

    with patch.object(deletion, "resume_deletions", resume):
        yield


@variant("forgets to remove the request to delete", 20)
def _keeps_request() -> Iterator[None]:
    """The topic is gone, and is to be deleted all the same."""
    real = bulk.delete_subtrees

    async def delete(store: Any, roots: Iterable[str], fence: Any) -> None:
        kept = [root for root in roots if not root.startswith("/admin/delete_topics/")]
        await real(store, kept, fence)

    with patch.object(bulk, "delete_subtrees", delete):
        yield


@variant("does not watch who is controller", 100)
def _no_watch() -> Iterator[None]:
    """Who lost an election never hears that the winner is gone."""
    real = MemoryStore.exists

    async def exists(self: MemoryStore, path: str, *, watch: bool = False) -> Any:
        return await real(self, path, watch=watch and path != election.CONTROLLER)

    with patch.object(MemoryStore, "exists", exists):
        yield


@variant("tells a new broker of its own partitions alone", 20)
def _leaves_out_partitions() -> Iterator[None]:
    """Clients that ask this broker do not hear of the others."""
    real = brokers.send_metadata

    def send(ctx: Any, rows: Any, receivers: Any = None) -> Any:
        yield from real(ctx, rows[:0], receivers)

    with patch.object(brokers, "send_metadata", send):
        yield


# Brokers


@variant("commits what the leader alone has", 10)
def _leader_commits_alone() -> Iterator[None]:
    """The high watermark does not wait for the ISR."""

    def advance(self: Partition, now_ms: int) -> bool:
        log = self.log
        if self.role is not Role.LEADER or not log or log.end_offset <= log.high_watermark:
            return False
        log.advance_high_watermark(log.end_offset)
        return True

    with patch.object(Partition, "_raise_high_watermark", advance):
        yield


@variant("acknowledges before the ISR has it", 10)
def _acks_early() -> Iterator[None]:
    """acks=all is answered like acks=1."""

    def check(self: Partition, required_offset: int) -> ErrorCode | None:
        return ErrorCode.NONE if self.role is Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    with patch.object(Partition, "check_committed", check):
        yield


@variant("lets a follower join before it has caught up", 20)
def _joins_early() -> Iterator[None]:
    """Every follower that fetches counts as in sync."""

    def expand(self: Partition, replica_id: int, follower: Any) -> Any:
        if self.pending or replica_id in self.isr or not self.log:
            return None
        return self._propose((*self.isr, replica_id)) if self._is_alive(replica_id) else None

    with patch.object(Partition, "_expand", expand):
        yield


@variant("does not truncate", 20)
def _no_truncation() -> Iterator[None]:
    """A follower keeps what its leader does not have."""

    def carry_out(self: Truncation, log: Any, now_ms: int) -> None:
        """Nothing is cut off."""

    with patch.object(Truncation, "carry_out", carry_out):
        yield


@variant("truncates to the high watermark", 20)
def _truncates_to_high_watermark() -> Iterator[None]:
    """What Kafka did before leader epochs: a follower may cut what is committed."""
    real = ReplicaFetcher.add

    def add(self: ReplicaFetcher, name: Any, topic_id: Any, log: Any, leader_epoch: int) -> Any:
        truncation = real(self, name, topic_id, log, leader_epoch)
        if truncation is None and log.end_offset > log.high_watermark:
            followed = self._followed[name]
            return self._truncate(name, followed, log.high_watermark)
        return truncation

    with patch.object(ReplicaFetcher, "add", add):
        yield


@variant("serves whatever epoch asks", 50)
def _ignores_epochs() -> Iterator[None]:
    """A leader serves followers that believe in another epoch, and they compare nothing."""
    real = Partition.view

    def view(self: Partition, reader: Any, position: Any, **options: Any) -> Any:
        bare = position._replace(current_leader_epoch=-1, last_fetched_epoch=-1)
        return real(self, reader, bare, **options)

    with patch.object(Partition, "view", view):
        yield


@variant("obeys a controller of the past", 300)
def _obeys_old_controllers() -> Iterator[None]:
    """Neither the controller's epoch nor the leader's is looked at."""
    real = Partition.decide

    def decide(self: Partition, order: Any, topic_id: Any) -> Decision:
        if order.leader_epoch < self.leader_epoch:
            is_leader = order.leader == self.broker_id
            return Decision(ErrorCode.NONE, Step.LEAD if is_leader else Step.FOLLOW)
        return real(self, order, topic_id)

    with (
        patch.object(BrokerIdentity, "admit_controller", lambda self, *epochs: ErrorCode.NONE),
        patch.object(Partition, "decide", decide),
    ):
        yield


@variant("takes duplicates", 20)
def _takes_duplicates() -> Iterator[None]:
    """A retry of an idempotent producer is written once more."""
    with (
        patch.object(ProducerStateManager, "find_duplicate", lambda self, header: None),
        patch.object(ProducerStateManager, "check", lambda self, header, **_: None),
    ):
        yield


@variant("commits offsets without replicas", 100)
def _commits_offsets_alone() -> Iterator[None]:
    """A group is told that its offsets are safe when one broker has them."""
    real = GroupService._append

    def append(self: GroupService, wanted: Append) -> None:
        real(self, replace(wanted, acks=1))

    with patch.object(GroupService, "_append", append):
        yield


@variant("takes every stop for a clean one", 100)
def _believes_logs() -> Iterator[None]:
    """After a crash, what stands at the end of a log is believed to be whole."""
    with patch.object(manager, "take_clean_shutdown_mark", lambda path, files: True):
        yield


# Transactions


@variant("marks one partition of a transaction", 10)
def _marks_one() -> Iterator[None]:
    """The others wait for their marker for good."""
    real = MarkerChannels.add

    def add(self: MarkerChannels, markers: Any, now_ms: int) -> None:
        real(self, markers, now_ms)
        rest = markers.partitions[1:]
        for queue in self._queues.values():
            for id, queued in queue.items():
                first = tuple(each for each in queued.partitions if each not in rest)
                if rest and queued.transactional_id == markers.transactional_id and first:
                    queue[id] = replace(queued, partitions=first)
                    self._report(replace(markers, partitions=rest))

    with patch.object(MarkerChannels, "add", add):
        yield


@variant("lets a zombie commit", 50)
def _lets_zombies() -> Iterator[None]:
    """A producer that was replaced goes on."""

    def check(self: Transaction, producer_id: int, producer_epoch: int) -> ErrorCode:
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE

    with patch.object(Transaction, "check_producer", check):
        yield


@variant("shows what is not committed", 20)
def _shows_uncommitted() -> Iterator[None]:
    """Readers of committed records see open transactions."""
    with patch.object(Log, "last_stable_offset", property(lambda self: self.high_watermark)):
        yield


@variant("forgets decided transactions when it loads", 100)
def _forgets_decided() -> Iterator[None]:
    """A transaction whose coordinator died between decision and markers is never ended."""
    real = TransactionCoordinator.finish_load

    def finish(self: TransactionCoordinator, *arguments: Any) -> Any:
        loaded, _ = real(self, *arguments)
        return loaded, []

    with patch.object(TransactionCoordinator, "finish_load", finish):
        yield


@variant("commits the offsets of aborted transactions", 20)
def _commits_aborted_offsets() -> Iterator[None]:
    """A consumer would leave out what was never processed."""
    real = GroupOffsets.end_transaction

    def end(self: GroupOffsets, producer_id: int, *, is_commit: bool) -> None:
        real(self, producer_id, is_commit=True)

    with patch.object(GroupOffsets, "end_transaction", end):
        yield


@variant("verifies no transaction", 100)
def _verifies_nothing() -> Iterator[None]:
    """A batch that comes after its transaction was aborted begins one that nobody ends."""

    def verify(self: TransactionVerifier, *question: Any) -> dict[TopicPartition, ErrorCode]:
        partitions: tuple[TopicPartition, ...] = question[-1]
        return dict.fromkeys(partitions, ErrorCode.NONE)

    with patch.object(TransactionVerifier, "verify", verify):
        yield


@variant("believes a transition before it is replicated", 700)
def _believes_early() -> Iterator[None]:
    """A coordinator answers and sends markers; its successor knows nothing of the decision."""

    def write(
        self: TransactionCoordinator, home: Any, transaction: Transaction, transit: Any, then: Any
    ) -> None:
        transaction.complete(transit)
        record = TransactionRecord(encode_key(transaction.id), encode_value(transit.stored))
        self._outbox.append(home.index, [record], transit.stored.timeout_ms, lambda *_: None)
        then(ErrorCode.NONE, transit.stored.last_update_ms)

    with patch.object(TransactionCoordinator, "_write", write):
        yield
