"""One partition: orders of the controller, high watermark, ISR, readers."""

import uuid

import pytest

from klamm.broker.log.epochs import UNDEFINED_END, EpochEnd
from klamm.broker.replication.isr import AlterPartitionResult, IsrOutcome
from klamm.broker.replication.partition import LeaderAndIsrPartitionState, Partition, Role, Step
from klamm.broker.replication.replica_log import FetchPosition, Reader
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode as E
from tests.support.memory_log import MemoryLog

NAME = TopicPartition("orders", 0)
ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)
MAX_LAG_MS = 30_000
T0 = 1_000_000


class Leader:
    """Broker 1, leading a partition of brokers 1, 2 and 3."""

    def __init__(self, *, isr=(1, 2, 3), replicas=(1, 2, 3), min_isr=1, records=0, epoch=5):
        self.alive = {1, 2, 3, 4}
        self.log = MemoryLog(ID)
        for _ in range(records):
            self.log.append_as_leader(b"old", epoch - 1)
        self.partition = Partition(
            NAME,
            1,
            is_alive=self.alive.__contains__,
            replica_lag_time_max_ms=MAX_LAG_MS,
            min_insync_replicas=min_isr,
        )
        self.state = LeaderAndIsrPartitionState(1, epoch, isr, 10, replicas)
        self.partition.become_leader(self.state, self.log, T0)

    def append(self, count=1, now_ms=T0):
        self.log.append_as_leader(b"new", self.partition.leader_epoch, count)
        return self.partition.on_append(now_ms)

    def fetch(self, replica, offset, now_ms=T0, start_offset=0):
        return self.partition.record_follower_fetch(
            Reader(replica), offset, start_offset, self.log.end_offset, now_ms
        )

    def accept(self, proposal, now_ms=T0):
        response = AlterPartitionResult(
            E.NONE, proposal.leader_epoch, proposal.partition_epoch + 1, proposal.isr
        )
        return self.partition.on_alter_partition_result(proposal, response, now_ms)


def new_partition(*, log=None, alive=(1, 2, 3)):
    return Partition(
        NAME, 1, is_alive=set(alive).__contains__, replica_lag_time_max_ms=MAX_LAG_MS, log=log
    )


class TestOrders:
    @pytest.mark.rule("LISR-2", "FENCE-12")
    def test_a_topic_id_that_differs_from_the_log_is_refused_before_anything_else(self):
        partition = new_partition(log=MemoryLog(ID))
        state = LeaderAndIsrPartitionState(1, 0, (1,), 0, (1,))
        assert partition.decide(state, OTHER_ID) == (E.INCONSISTENT_TOPIC_ID, Step.NOTHING)

    @pytest.mark.rule("LISR-2")
    @pytest.mark.parametrize(("stored", "sent"), [(None, ID), (ID, None), (ID, ID), (None, None)])
    def test_a_missing_topic_id_is_consistent_with_any(self, stored, sent):
        partition = new_partition(log=MemoryLog(stored))
        assert partition.decide(LeaderAndIsrPartitionState(1, 0, (1,), 0, (1,)), sent) == (
            E.NONE,
            Step.LEAD,
        )

    @pytest.mark.rule("LISR-3", "CTRL-6", "FENCE-12")
    def test_the_first_order_makes_a_leader_or_a_follower(self):
        assert (
            new_partition().decide(LeaderAndIsrPartitionState(1, 0, (1,), 0, (1, 2)), ID).step
            is Step.LEAD
        )
        assert (
            new_partition().decide(LeaderAndIsrPartitionState(2, 0, (2,), 0, (1, 2)), ID).step
            is Step.FOLLOW
        )

    @pytest.mark.rule("LISR-4", "FENCE-12")
    def test_an_order_for_others_is_refused(self):
        decision = new_partition().decide(LeaderAndIsrPartitionState(2, 0, (2,), 0, (2, 3)), ID)
        assert decision == (E.UNKNOWN_TOPIC_OR_PARTITION, Step.NOTHING)

    @pytest.mark.rule("LISR-5", "LISR-6", "FENCE-12")
    @pytest.mark.parametrize("epoch", [4, 5])
    def test_an_order_that_does_not_raise_the_leader_epoch_is_stale(self, epoch):
        partition = Leader(epoch=5).partition
        decision = partition.decide(LeaderAndIsrPartitionState(1, epoch, (1,), 11, (1, 2, 3)), ID)
        assert decision == (E.STALE_CONTROLLER_EPOCH, Step.NOTHING)

    @pytest.mark.rule("LISR-6", "FENCE-12")
    def test_an_equal_epoch_may_give_an_id_to_a_log_without_one(self):
        leader = Leader()
        leader.log.topic_id = None
        assert leader.partition.decide(leader.state, ID) == (E.NONE, Step.ASSIGN_TOPIC_ID)

    @pytest.mark.rule("LISR-7")
    def test_an_older_partition_epoch_is_skipped_silently(self):
        partition = Leader().partition
        assert partition.decide(LeaderAndIsrPartitionState(1, 6, (1,), 9, (1, 2, 3)), ID) == (
            E.NONE,
            Step.NOTHING,
        )
        assert partition.decide(LeaderAndIsrPartitionState(1, 6, (1,), 10, (1, 2, 3)), ID) == (
            E.NONE,
            Step.LEAD,
        )

    @pytest.mark.rule("LISR-8")
    @pytest.mark.parametrize("leader", [9, -1])
    def test_following_waits_until_the_leader_is_known_to_be_alive(self, leader):
        partition = new_partition()
        state = LeaderAndIsrPartitionState(leader, 3, (2,), 0, (1, 2, leader))
        assert partition.decide(state, ID) == (E.NONE, Step.OPEN_LOG)
        assert partition.leader_epoch == -1

    @pytest.mark.rule("LISR-9")
    def test_a_new_leader_notes_where_its_epoch_begins_even_without_records(self):
        leader = Leader(records=3, epoch=5)
        assert leader.partition.role is Role.LEADER
        assert leader.partition.epoch_start_offset == 3
        assert leader.log.epochs.entries == [(4, 0), (5, 3)]

    @pytest.mark.rule("LISR-9", "HW-4")
    def test_a_leader_alone_in_its_isr_commits_at_once(self):
        leader = Leader(isr=(1,), replicas=(1,), records=3)
        assert leader.log.high_watermark == 3

    @pytest.mark.rule("LISR-11")
    def test_a_follower_forgets_isr_and_followers(self):
        leader = Leader()
        leader.partition.become_follower(
            LeaderAndIsrPartitionState(2, 6, (2, 3), 11, (1, 2, 3)), leader.log
        )
        partition = leader.partition
        assert (partition.role, partition.leader, partition.leader_epoch) == (Role.FOLLOWER, 2, 6)
        assert (partition.isr, partition.followers, partition.epoch_start_offset) == ((), {}, None)

    @pytest.mark.rule("STOP-1", "STOP-5", "FENCE-13")
    @pytest.mark.parametrize(
        ("epoch", "error"),
        [
            (-2, E.NONE),
            (-1, E.NONE),
            (5, E.NONE),
            (6, E.NONE),
            (4, E.FENCED_LEADER_EPOCH),
        ],
    )
    def test_stopping_is_fenced_by_the_leader_epoch(self, epoch, error):
        assert Leader(epoch=5).partition.check_stop(epoch) is error


class TestHighWatermark:
    @pytest.mark.rule("HW-1", "HW-3", "HW-4")
    def test_it_is_what_every_in_sync_replica_has(self):
        leader = Leader()
        assert not leader.append(5)
        assert not leader.fetch(2, 5).high_watermark_rose
        assert leader.log.high_watermark == 0  # broker 3 has not been heard of
        assert leader.fetch(3, 4).high_watermark_rose
        assert leader.log.high_watermark == 4

    def test_it_waits_until_a_replica_that_was_reassigned_away_has_left_the_isr(self):
        # Broker 2 may not fetch any more, but could still be elected.
        leader = Leader(isr=(1, 2, 3), replicas=(1, 3))
        leader.append(5)
        assert not leader.fetch(3, 5).high_watermark_rose
        state = leader.state._replace(leader_epoch=6, isr=(1, 3), partition_epoch=11)
        leader.partition.become_leader(state, leader.log, T0)
        assert leader.log.high_watermark == 5

    @pytest.mark.rule("HW-1")
    def test_it_never_decreases_while_leading(self):
        leader = Leader()
        leader.append(5)
        leader.fetch(2, 5)
        leader.fetch(3, 5)
        leader.fetch(3, 2)
        assert leader.log.high_watermark == 5

    @pytest.mark.rule("HW-2")
    def test_it_stands_still_below_the_minimum(self):
        leader = Leader(isr=(1,), min_isr=2)
        assert not leader.append(now_ms=T0 + 2 * MAX_LAG_MS)
        assert leader.log.high_watermark == 0

    @pytest.mark.rule("HW-2")
    def test_the_minimum_is_bounded_by_the_number_of_replicas(self):
        leader = Leader(isr=(1,), replicas=(1,), min_isr=3)
        assert leader.partition.effective_min_isr == 1
        assert leader.append()

    @pytest.mark.rule("HW-1")
    def test_it_waits_for_a_replica_that_is_about_to_join(self):
        leader = Leader(isr=(1,))
        leader.append(2)
        leader.fetch(2, 1, now_ms=T0)  # behind, but caught up with the past
        leader.partition.followers[2].last_caught_up_ms = T0
        assert leader.log.high_watermark == 2  # broker 2 was not caught up at the append
        leader.append(2)
        assert leader.log.high_watermark == 2
        leader.alive.discard(2)  # a dead replica is not waited for
        leader.append()
        assert leader.log.high_watermark == 5

    @pytest.mark.rule("HW-1", "BISR-5")
    def test_a_pending_addition_counts_already(self):
        leader = Leader(isr=(1,))
        leader.append(2)
        progress = leader.fetch(2, 2)
        assert progress.proposal.isr == (1, 2)
        leader.append(3, now_ms=T0 + 2 * MAX_LAG_MS)
        assert leader.log.high_watermark == 2

    @pytest.mark.rule("BISR-4")
    def test_a_pending_removal_does_not_count_yet(self):
        leader = Leader()
        leader.append()
        proposal = leader.partition.shrink(T0 + MAX_LAG_MS + 1)
        assert proposal.isr == (1,)
        assert leader.log.high_watermark == 0
        assert leader.partition.maximal_isr == {1, 2, 3}
        outcome = leader.accept(proposal, T0 + MAX_LAG_MS + 2)
        assert outcome == IsrOutcome(committed=True, high_watermark_rose=True)
        assert leader.log.high_watermark == 1

    @pytest.mark.rule("HW-6")
    def test_latest_offsets_are_withheld_until_the_predecessors_records_are_committed(self):
        leader = Leader(records=4)
        assert leader.partition.is_lagging_behind_predecessor()
        leader.fetch(2, 4)
        leader.fetch(3, 4)
        assert not leader.partition.is_lagging_behind_predecessor()


class TestInSyncReplicas:
    @pytest.mark.rule("BISR-3")
    def test_a_fetch_at_the_end_is_caught_up_now(self):
        leader = Leader(isr=(1,))
        leader.append(5)
        leader.fetch(2, 5, now_ms=T0 + 10)
        assert leader.partition.followers[2].last_caught_up_ms == T0 + 10

    @pytest.mark.rule("BISR-3")
    def test_a_fetch_at_the_previous_end_was_caught_up_at_the_previous_fetch(self):
        leader = Leader(isr=(1, 2))
        leader.append(5)
        leader.fetch(2, 0, now_ms=T0 + 10)
        leader.append(5)
        leader.fetch(2, 5, now_ms=T0 + 20)
        assert leader.partition.followers[2].last_caught_up_ms == T0 + 10

    @pytest.mark.rule("BISR-3")
    def test_a_fetch_before_the_previous_end_changes_nothing(self):
        leader = Leader(isr=(1, 2))
        leader.append(5)
        leader.fetch(2, 0, now_ms=T0 + 10)
        leader.fetch(2, 4, now_ms=T0 + 20)
        assert leader.partition.followers[2].last_caught_up_ms == T0

    @pytest.mark.rule("BISR-2", "BISR-4")
    def test_who_is_at_the_end_stays_however_long_ago_the_fetch_was(self):
        leader = Leader(isr=(1, 2, 3))
        leader.append(5)
        leader.fetch(2, 5, now_ms=T0)
        leader.fetch(3, 4, now_ms=T0)
        assert leader.partition.shrink(T0 + MAX_LAG_MS) is None
        assert leader.partition.shrink(T0 + MAX_LAG_MS + 1).isr == (1, 2)

    @pytest.mark.rule("BISR-1")
    def test_nothing_else_is_proposed_while_a_change_is_pending(self):
        leader = Leader(isr=(1, 2))
        proposal = leader.fetch(3, 0).proposal
        assert proposal.isr == (1, 2, 3)
        leader.append()
        assert leader.fetch(3, 1).proposal is None
        assert leader.partition.shrink(T0 + 2 * MAX_LAG_MS) is None
        assert leader.partition.pending is proposal

    @pytest.mark.rule("BISR-5", "REPL-13")
    def test_joining_takes_the_high_watermark_and_the_start_of_the_epoch(self):
        leader = Leader(isr=(1,), replicas=(1, 2), records=3)
        leader.partition.followers[2].last_caught_up_ms = T0
        assert leader.log.high_watermark == 3
        assert leader.fetch(2, 2).proposal is None
        proposal = leader.fetch(2, 3).proposal
        assert proposal.is_expansion
        assert (proposal.isr, proposal.leader_epoch, proposal.partition_epoch) == ((1, 2), 5, 10)
        assert proposal.topic_id == ID

    @pytest.mark.rule("BISR-5")
    def test_a_follower_behind_the_start_of_the_epoch_does_not_join(self):
        leader = Leader(isr=(1, 2), records=3)  # the high watermark is still 0
        assert leader.fetch(3, 1).proposal is None
        assert leader.fetch(3, 3).proposal

    @pytest.mark.rule("BISR-5")
    def test_a_broker_that_is_not_alive_does_not_join(self):
        leader = Leader(isr=(1, 2))
        leader.alive.discard(3)
        assert leader.fetch(3, 0).proposal is None

    @pytest.mark.rule("BISR-8")
    def test_success_commits_what_the_controller_returns(self):
        leader = Leader(isr=(1, 2))
        proposal = leader.fetch(3, 0).proposal
        assert leader.accept(proposal).committed
        assert (leader.partition.isr, leader.partition.partition_epoch) == ((1, 2, 3), 11)
        assert leader.partition.pending is None

    @pytest.mark.rule("BISR-8")
    @pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(6, 11), (4, 11), (5, 9)])
    def test_success_for_another_state_is_ignored(self, leader_epoch, partition_epoch):
        leader = Leader(isr=(1, 2))
        proposal = leader.fetch(3, 0).proposal
        response = AlterPartitionResult(E.NONE, leader_epoch, partition_epoch, (1, 2, 3))
        assert leader.partition.on_alter_partition_result(proposal, response, T0) == IsrOutcome()
        assert leader.partition.isr == (1, 2)

    @pytest.mark.rule("BISR-9")
    @pytest.mark.parametrize("error", [E.INELIGIBLE_REPLICA, E.OPERATION_NOT_ATTEMPTED])
    def test_a_refusal_goes_back_to_what_was_committed(self, error):
        leader = Leader(isr=(1, 2))
        proposal = leader.fetch(3, 0).proposal
        assert (
            leader.partition.on_alter_partition_result(proposal, AlterPartitionResult(error), T0)
            == IsrOutcome()
        )
        assert leader.partition.pending is None
        assert leader.partition.maximal_isr == {1, 2}

    @pytest.mark.rule("BISR-9")
    @pytest.mark.parametrize(
        "error",
        [
            E.FENCED_LEADER_EPOCH,
            E.INVALID_UPDATE_VERSION,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.UNKNOWN_TOPIC_ID,
            E.INVALID_REQUEST,
            E.NEW_LEADER_ELECTED,
        ],
    )
    def test_a_fenced_proposal_stays_pending(self, error):
        leader = Leader(isr=(1, 2))
        proposal = leader.fetch(3, 0).proposal
        assert (
            leader.partition.on_alter_partition_result(proposal, AlterPartitionResult(error), T0)
            == IsrOutcome()
        )
        assert leader.partition.pending is proposal

    @pytest.mark.rule("BISR-9")
    def test_any_other_error_is_a_reason_to_ask_again(self):
        leader = Leader(isr=(1, 2))
        proposal = leader.fetch(3, 0).proposal
        response = AlterPartitionResult(E.UNKNOWN_SERVER_ERROR)
        assert leader.partition.on_alter_partition_result(proposal, response, T0) == IsrOutcome(
            resend=True
        )
        assert leader.partition.pending is proposal

    @pytest.mark.rule("BISR-10")
    def test_an_order_replaces_a_pending_proposal_and_its_response_is_late(self):
        leader = Leader(isr=(1, 2))
        proposal = leader.fetch(3, 0).proposal
        leader.partition.become_leader(
            LeaderAndIsrPartitionState(1, 6, (1, 2), 12, (1, 2, 3)), leader.log, T0
        )
        assert leader.accept(proposal) == IsrOutcome()
        assert leader.partition.isr == (1, 2)

    @pytest.mark.rule("BISR-11")
    def test_the_leader_never_leaves(self):
        leader = Leader(isr=(1, 2))
        leader.append()
        assert leader.partition.shrink(T0 + 10 * MAX_LAG_MS).isr == (1,)

    @pytest.mark.rule("BISR-12")
    def test_a_new_leader_knows_nothing_of_its_followers(self):
        leader = Leader(isr=(1, 2))
        leader.append(4)
        leader.fetch(2, 3, now_ms=T0 + 5)
        leader.partition.become_follower(
            LeaderAndIsrPartitionState(2, 6, (2,), 11, (1, 2, 3)), leader.log
        )
        leader.partition.become_leader(
            LeaderAndIsrPartitionState(1, 7, (1, 2), 12, (1, 2, 3)), leader.log, T0 + 9
        )
        two, three = leader.partition.followers[2], leader.partition.followers[3]
        assert (two.end_offset, two.last_caught_up_ms) == (-1, T0 + 9)
        assert (three.end_offset, three.last_caught_up_ms) == (-1, 0)

    @pytest.mark.rule("BISR-12")
    def test_a_leader_that_stays_keeps_what_it_knows(self):
        leader = Leader(isr=(1, 2))
        leader.append(4)
        leader.fetch(2, 3, now_ms=T0 + 5)
        leader.partition.become_leader(
            LeaderAndIsrPartitionState(1, 6, (1, 2), 12, (1, 2, 3)), leader.log, T0 + 9
        )
        two = leader.partition.followers[2]
        assert (two.end_offset, two.last_caught_up_ms) == (3, T0 + 9)

    @pytest.mark.rule("BISR-12")
    def test_a_leader_that_has_missed_an_epoch_acknowledges_nothing_on_old_knowledge(self):
        leader = Leader(isr=(1, 2, 3))
        leader.append(4)
        leader.fetch(2, 4, now_ms=T0 + 5)
        # Broker 3 led in epoch 6, so that broker 2 may have truncated what it had.
        leader.partition.become_leader(
            LeaderAndIsrPartitionState(1, 7, (1, 2), 12, (1, 2, 3)), leader.log, T0 + 9
        )
        two = leader.partition.followers[2]
        assert (two.end_offset, two.last_caught_up_ms) == (-1, T0 + 9)
        assert leader.log.high_watermark == 0
        leader.fetch(2, 4, now_ms=T0 + 10)
        assert leader.log.high_watermark == 4

    @pytest.mark.rule("BMET-12")
    def test_replicas_being_added_are_not_missed(self):
        leader = Leader(isr=(1, 2))
        state = LeaderAndIsrPartitionState(1, 6, (1, 2), 11, (1, 2, 4), adding=(4,), removing=())
        leader.partition.become_leader(state, leader.log, T0)
        assert not leader.partition.is_under_replicated
        assert leader.partition.is_reassigning
        leader.partition.become_leader(state._replace(adding=()), leader.log, T0)
        assert leader.partition.is_under_replicated

    @pytest.mark.rule("BMET-12")
    def test_the_minimum_is_compared_with_the_committed_isr(self):
        partition = Leader(isr=(1,), min_isr=2).partition
        assert partition.is_under_min_isr
        assert not partition.is_at_min_isr
        assert Leader(isr=(1, 2), min_isr=2).partition.is_at_min_isr


class TestProduce:
    @pytest.mark.rule("PROD-2", "EPOCH-3")
    def test_only_a_leader_appends_and_acks_all_needs_the_minimum(self):
        partition = Leader(isr=(1,), min_isr=2).partition
        assert partition.check_append(acks_all=False) is E.NONE
        assert partition.check_append(acks_all=True) is E.NOT_ENOUGH_REPLICAS
        assert new_partition().check_append(acks_all=False) is E.NOT_LEADER_OR_FOLLOWER

    @pytest.mark.rule("PROD-7")
    def test_an_append_is_acknowledged_once_the_high_watermark_has_passed_it(self):
        leader = Leader()
        leader.append(2)
        leader.fetch(2, 2)
        leader.fetch(3, 1)
        assert leader.partition.check_committed(1) is E.NONE
        assert leader.partition.check_committed(2) is None

    @pytest.mark.rule("PROD-7")
    def test_too_few_replicas_at_that_moment_is_an_error_of_its_own(self):
        leader = Leader(isr=(1, 2), min_isr=2)
        leader.append()
        leader.fetch(2, 1)
        proposal = leader.partition.shrink(T0 + 2 * MAX_LAG_MS)
        assert proposal is None  # broker 2 is at the end
        leader.append()
        leader.accept(leader.partition.shrink(T0 + 2 * MAX_LAG_MS))
        assert leader.partition.check_committed(1) is E.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    @pytest.mark.rule("PROD-7")
    def test_lost_leadership_ends_the_wait(self):
        leader = Leader()
        leader.append()
        leader.partition.become_follower(
            LeaderAndIsrPartitionState(2, 6, (2,), 11, (1, 2, 3)), leader.log
        )
        assert leader.partition.check_committed(1) is E.NOT_LEADER_OR_FOLLOWER


class TestFetch:
    @pytest.mark.rule("EPOCH-1")
    @pytest.mark.parametrize(
        ("epoch", "error"),
        [
            (-1, E.NONE),
            (5, E.NONE),
            (4, E.FENCED_LEADER_EPOCH),
            (6, E.UNKNOWN_LEADER_EPOCH),
        ],
    )
    def test_the_epoch_of_a_request_has_to_be_the_current_one(self, epoch, error):
        assert Leader(epoch=5).partition.check_epoch(epoch) is error

    @pytest.mark.rule("EPOCH-1", "REPL-11")
    def test_the_epoch_is_checked_before_the_leadership(self):
        leader = Leader()
        leader.partition.become_follower(
            LeaderAndIsrPartitionState(2, 6, (2,), 11, (1, 2, 3)), leader.log
        )
        view = leader.partition.view(Reader(3), FetchPosition(0, current_leader_epoch=5))
        assert view.error is E.FENCED_LEADER_EPOCH
        view = leader.partition.view(Reader(3), FetchPosition(0, current_leader_epoch=6))
        assert view.error is E.NOT_LEADER_OR_FOLLOWER

    @pytest.mark.rule("REPL-11")
    def test_only_assigned_replicas_are_followers(self):
        partition = Leader().partition
        with_epoch = partition.view(Reader(9), FetchPosition(0, current_leader_epoch=5))
        without = partition.view(Reader(9), FetchPosition(0))
        assert with_epoch.error is E.UNKNOWN_LEADER_EPOCH
        assert without.error is E.NOT_LEADER_OR_FOLLOWER

    @pytest.mark.rule("REPL-11", "REPL-12")
    def test_a_fetch_of_a_followers_former_life_is_refused(self):
        leader = Leader()
        reader = Reader(2, broker_epoch=70)
        leader.partition.record_follower_fetch(reader, 0, 0, 0, T0)
        assert leader.partition.view(reader, FetchPosition(0)).error is E.NONE
        stale = leader.partition.view(Reader(2, broker_epoch=69), FetchPosition(0))
        assert stale.error is E.NOT_LEADER_OR_FOLLOWER
        assert leader.partition.view(Reader(2), FetchPosition(0)).error is E.NONE

    @pytest.mark.rule("REPL-12")
    def test_a_fetch_proves_what_the_follower_holds(self):
        leader = Leader()
        leader.append(5)
        progress = leader.fetch(2, 3, start_offset=1)
        assert (leader.partition.followers[2].end_offset, progress.start_offset_rose) == (3, True)

    @pytest.mark.rule("REPL-14", "FETCH-4", "FETCH-8")
    def test_followers_read_to_the_end_and_consumers_to_the_high_watermark(self):
        leader = Leader()
        leader.append(5)
        leader.fetch(2, 5)
        leader.fetch(3, 4)
        leader.log.open_transaction = 2
        position = FetchPosition(0)
        assert leader.partition.view(Reader(2), position).readable_end == 5
        assert leader.partition.view(Reader(), position).readable_end == 4
        assert leader.partition.view(Reader(read_committed=True), position).readable_end == 2
        view = leader.partition.view(Reader(), FetchPosition(5))
        assert view[:5] == (E.NONE, 4, 2, 0, 5)

    @pytest.mark.rule("FETCH-4")
    @pytest.mark.parametrize("offset", [1, 6])
    def test_offsets_outside_of_the_log_are_out_of_range(self, offset):
        leader = Leader(isr=(1,))
        leader.append(5)
        leader.log.raise_start_offset(2)
        view = leader.partition.view(Reader(), FetchPosition(offset))
        assert view == (E.OFFSET_OUT_OF_RANGE, -1, -1, -1, -1, -1, None)

    @pytest.mark.rule("FETCH-10")
    def test_newer_consumers_are_served_by_any_replica(self):
        leader = Leader()
        leader.partition.become_follower(
            LeaderAndIsrPartitionState(2, 6, (2,), 11, (1, 2, 3)), leader.log
        )
        assert leader.partition.view(Reader(), FetchPosition(0)).error is E.NONE
        refused = leader.partition.view(Reader(leader_only=True), FetchPosition(0))
        assert refused.error is E.NOT_LEADER_OR_FOLLOWER

    @pytest.mark.rule("FETCH-11")
    def test_a_consumer_is_sent_to_the_best_in_sync_follower_of_its_rack(self):
        leader = Leader(isr=(1, 2, 3), replicas=(1, 2, 3, 4))
        leader.append(5)
        for replica, offset in ((2, 3), (3, 4), (4, 5)):
            leader.fetch(replica, offset)
        racks = {1: "a", 2: "b", 3: "b", 4: "b"}
        assert leader.partition.preferred_read_replica(3, "b", racks) == 3
        assert leader.partition.preferred_read_replica(5, "b", racks) is None
        assert leader.partition.preferred_read_replica(3, "c", racks) is None
        assert leader.partition.preferred_read_replica(3, "", racks) is None
        assert leader.partition.preferred_read_replica(3, "b", {1: "a"}) is None

    @pytest.mark.rule("FETCH-11")
    def test_the_leader_is_never_named_and_is_preferred_in_its_own_rack(self):
        leader = Leader()
        leader.fetch(2, 0)
        assert leader.partition.preferred_read_replica(0, "a", {1: "a", 2: "a"}) is None

    @pytest.mark.rule("FETCH-6")
    def test_a_waiting_fetch_counts_bytes_until_there_is_a_reason_not_to_wait(self):
        leader = Leader(isr=(1,), replicas=(1,))
        position = FetchPosition(0, current_leader_epoch=5)
        assert leader.partition.readable_bytes(Reader(), position, enough=9) == 0
        leader.append()
        size = len(leader.log.batches[0].encode())
        assert leader.partition.readable_bytes(Reader(), position, enough=9) == size
        assert leader.partition.readable_bytes(Reader(), position, enough=1) == 1
        leader.partition.become_leader(
            LeaderAndIsrPartitionState(1, 6, (1,), 11, (1,)), leader.log, T0
        )
        assert leader.partition.readable_bytes(Reader(), position, enough=9) is None


class TestDivergence:
    def leader(self):
        """Epoch 1 wrote offsets 0..9, epoch 4 wrote 10..19, epoch 5 nothing."""
        leader = Leader(isr=(1, 2), epoch=5)
        log = leader.log
        log.epochs.entries = []
        for epoch in (1, 4):
            for _ in range(10):
                log.append_as_leader(b"", epoch)
        log.epochs.assign(5, 20)
        return leader.partition

    @pytest.mark.rule("TRUNC-1")
    @pytest.mark.parametrize(
        ("offset", "last_fetched", "diverging"),
        [
            (10, 1, None),
            (12, 1, EpochEnd(1, 10)),
            (15, 2, EpochEnd(1, 10)),
            (20, 4, None),
            (21, 4, EpochEnd(4, 20)),
        ],
    )
    def test_a_follower_is_told_where_its_log_left_this_one(self, offset, last_fetched, diverging):
        partition = self.leader()
        position = FetchPosition(offset, 5, last_fetched)
        view = partition.view(Reader(2), position)
        assert (view.error, view.diverging) == (E.NONE, diverging)

    @pytest.mark.rule("TRUNC-1")
    def test_an_epoch_that_never_was_is_out_of_range(self):
        view = self.leader().view(Reader(2), FetchPosition(20, 5, 6))
        assert view.error is E.OFFSET_OUT_OF_RANGE

    @pytest.mark.rule("TRUNC-1")
    def test_an_offset_before_the_start_is_out_of_range_diverging_or_not(self):
        partition = self.leader()
        partition.log.advance_high_watermark(20)
        partition.log.raise_start_offset(12)
        assert partition.view(Reader(2), FetchPosition(11, 5, 1)).error is E.OFFSET_OUT_OF_RANGE

    @pytest.mark.rule("TRUNC-6")
    def test_the_end_of_an_epoch_is_told_by_the_leader_only(self):
        partition = self.leader()
        assert partition.end_of_epoch(1, 5) == (E.NONE, EpochEnd(1, 10))
        assert partition.end_of_epoch(9, -1) == (E.NONE, UNDEFINED_END)
        assert partition.end_of_epoch(1, 4)[0] is E.FENCED_LEADER_EPOCH
        partition.become_follower(
            LeaderAndIsrPartitionState(2, 6, (2,), 11, (1, 2, 3)), partition.log
        )
        assert partition.end_of_epoch(1, -1) == (E.NOT_LEADER_OR_FOLLOWER, UNDEFINED_END)


class TestDeleteRecords:
    def leader(self):
        leader = Leader(isr=(1, 2, 3))
        leader.append(10)
        leader.fetch(2, 8)
        leader.fetch(3, 8)
        return leader

    @pytest.mark.rule("BADM-9")
    @pytest.mark.parametrize(
        ("offset", "plan"),
        [
            (-1, (E.NONE, 8)),
            (8, (E.NONE, 8)),
            (9, (E.OFFSET_OUT_OF_RANGE, -1)),
            (-2, (E.OFFSET_OUT_OF_RANGE, -1)),
        ],
    )
    def test_only_what_is_committed_can_be_deleted(self, offset, plan):
        assert self.leader().partition.plan_delete_records(offset, may_delete=True) == plan

    @pytest.mark.rule("BADM-9")
    def test_policy_and_leadership_are_checked(self):
        leader = self.leader()
        plan = leader.partition.plan_delete_records(1, may_delete=False)
        assert plan.error is E.POLICY_VIOLATION
        plan = new_partition().plan_delete_records(1, may_delete=True)
        assert plan.error is E.NOT_LEADER_OR_FOLLOWER

    @pytest.mark.rule("BADM-9")
    def test_it_is_done_when_every_live_replica_has_followed(self):
        leader = self.leader()
        leader.log.raise_start_offset(5)
        assert leader.partition.check_deleted(5) is None
        leader.fetch(2, 8, start_offset=5)
        assert (leader.partition.check_deleted(5), leader.partition.low_watermark()) == (None, 0)
        leader.alive.discard(3)
        assert (leader.partition.check_deleted(5), leader.partition.low_watermark()) == (E.NONE, 5)
