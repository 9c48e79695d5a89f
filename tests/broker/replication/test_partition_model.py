"""What replication promises, checked over random histories of three brokers."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from klamm.broker.replication.partition import Role
from klamm.protocol.codes import ErrorCode as E
from tests.support.replication_model import BROKERS, MAX_LAG_MS, Broker, Cluster

brokers = st.sampled_from(BROKERS)


class Replication(RuleBasedStateMachine):
    """Clean elections only: nothing that was acknowledged or shown is ever lost."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.count = 0
        #: Appended with acks=all and not responded to yet: broker, epoch, required offset, payload.
        self.waiting: list[tuple[int, int, int, bytes]] = []
        self.acknowledged: dict[int, bytes] = {}
        self.shown: dict[int, bytes] = {}
        self.watermarks: dict[int, tuple[int, int, int]] = {}
        for number in BROKERS:
            self.cluster.deliver(number)

    def up(self) -> list[Broker]:
        return [self.cluster.brokers[number] for number in sorted(self.cluster.up)]

    @rule(number=brokers, size=st.integers(1, 3))
    def produce(self, number, size):
        broker = self.cluster.brokers[number]
        if number in self.cluster.up and broker.partition.check_append(acks_all=True) is E.NONE:
            self.count += 1
            payload = b"%d" % self.count
            epoch = broker.partition.leader_epoch
            broker.log.append_as_leader(payload, epoch, size)
            broker.partition.on_append(self.cluster.now_ms)
            self.waiting.append((number, epoch, broker.log.end_offset, payload))

    @rule(number=brokers)
    def send_fetch(self, number):
        if number in self.cluster.up:
            self.cluster.brokers[number].send_fetch()

    @rule(number=brokers)
    def take_response(self, number):
        if number in self.cluster.up:
            self.cluster.brokers[number].take_response()

    @rule(number=brokers, times=st.integers(1, 4))
    def follow(self, number, times):
        for _ in range(times):
            self.send_fetch(number)
            self.take_response(number)

    @rule(number=brokers)
    def lose_response(self, number):
        if number in self.cluster.up:
            self.cluster.brokers[number].lose_response()

    @rule(number=brokers)
    def propose(self, number):
        if number in self.cluster.up:
            self.cluster.brokers[number].propose()

    @rule(number=brokers, lost=st.booleans())
    def respond_to_proposal(self, number, lost):
        broker = self.cluster.brokers[number]
        if number in self.cluster.up:
            broker.lose_altered() if lost else broker.take_altered()

    @rule(passed_ms=st.sampled_from([10, 100, MAX_LAG_MS // 2, 2 * MAX_LAG_MS]))
    def pass_time(self, passed_ms):
        self.cluster.now_ms += passed_ms
        for broker in self.up():
            broker.shrink()

    @rule(number=brokers)
    def deliver(self, number):
        self.cluster.deliver(number)

    # What follows is made of the steps above. Left to chance, they would seldom add up to it.

    @rule()
    def deliver_all(self):
        for number in BROKERS:
            self.cluster.deliver(number)

    @rule(gets_response=st.booleans())
    def fall_behind(self, gets_response):
        """Every leader writes something that nobody fetches for long."""
        for number in BROKERS:
            self.produce(number, 1)
        self.pass_time(2 * MAX_LAG_MS)
        self.change_isr(gets_response)

    @rule(number=brokers, gets_response=st.booleans())
    def catch_up(self, number, gets_response):
        self.follow(number, 4)
        self.change_isr(gets_response)

    def change_isr(self, gets_response):
        for broker in self.up():
            broker.propose()
            if gets_response:
                broker.take_altered()

    @rule(number=brokers)
    def checkpoint(self, number):
        broker = self.cluster.brokers[number]
        broker.checkpoint = broker.log.high_watermark

    @precondition(lambda self: len(self.cluster.up) > 1)
    @rule(number=brokers)
    def crash(self, number):
        self.cluster.crash(number)

    @rule(number=brokers)
    def restart(self, number):
        self.cluster.restart(number)

    @precondition(lambda self: not self.cluster.cut_off)
    @rule(number=brokers)
    def cut_off(self, number):
        """The controller holds the broker for dead, which goes on with what it believes."""
        if number in self.cluster.up:
            self.cluster.cut_off.add(number)
            self.cluster.orders.pop(number, None)
            self.cluster.lost(number)

    @precondition(lambda self: self.cluster.cut_off)
    @rule()
    def rejoin(self):
        number = self.cluster.cut_off.pop()
        if number in self.cluster.up:
            self.cluster.returned(number)

    @rule(number=brokers)
    def move_leader(self, number):
        self.cluster.controller.move_leader(number)
        self.cluster.announce()

    @rule(number=brokers)
    def consume(self, number):
        """A consumer reads all that a leader shows."""
        broker = self.cluster.brokers[number]
        if number in self.cluster.up and broker.partition.role is Role.LEADER:
            for batch in broker.log.batches:
                if batch.last_offset < broker.log.high_watermark:
                    shown = self.shown.setdefault(batch.base_offset, batch.payload)
                    assert shown == batch.payload, "a consumer saw what was lost later"

    @invariant()
    def acknowledge_what_is_committed(self):
        still_waiting = []
        for number, epoch, required_offset, payload in self.waiting:
            broker = self.cluster.brokers[number]
            partition = broker.partition
            if number not in self.cluster.up or partition.leader_epoch != epoch:
                continue
            response = partition.check_committed(required_offset)
            if response is E.NONE:
                last = max(b.base_offset for b in broker.log.batches if b.payload == payload)
                self.acknowledged[last] = payload
            elif response is None:
                still_waiting.append((number, epoch, required_offset, payload))
        self.waiting = still_waiting

    @invariant()
    def the_high_watermark_of_a_leader_never_decreases(self):
        for broker in self.up():
            partition = broker.partition
            if partition.role is Role.LEADER:
                reign = (broker.broker_epoch, partition.leader_epoch)
                *known, watermark = self.watermarks.get(broker.number, (*reign, 0))
                assert tuple(known) != reign or broker.log.high_watermark >= watermark
                self.watermarks[broker.number] = (*reign, broker.log.high_watermark)

    @invariant()
    def logs_agree_below_their_high_watermarks(self):
        logs = [broker.log for broker in self.cluster.brokers.values()]
        for one in logs:
            for other in logs:
                end = min(one.high_watermark, other.high_watermark)
                assert [b for b in one.batches if b.last_offset < end] == [
                    b for b in other.batches if b.last_offset < end
                ]

    @invariant()
    def the_elected_leader_has_all_that_was_acknowledged(self):
        leader = self.cluster.controller.leader
        if leader in self.cluster.brokers:
            batches = self.cluster.brokers[leader].log.batches
            held = {batch.base_offset: batch.payload for batch in batches}
            assert self.acknowledged.items() <= held.items()

    def teardown(self):
        self.cluster.settle()
        leader = self.cluster.controller.leader
        logs = {number: broker.log for number, broker in self.cluster.brokers.items()}
        for log in logs.values():
            assert log.batches == logs[leader].batches
            assert log.high_watermark == log.end_offset
        assert set(self.cluster.controller.isr) == set(BROKERS)
        self.acknowledge_what_is_committed()
        self.the_elected_leader_has_all_that_was_acknowledged()


class UncleanReplication(Replication):
    """Unclean elections lose records, but the replicas still end up the same."""

    @rule()
    def elect_unclean(self):
        if self.cluster.controller.leader == -1 and self.cluster.controller.alive:
            self.cluster.controller.elect(unclean=True)
            self.cluster.announce()

    def consume(self, number):
        pass

    def logs_agree_below_their_high_watermarks(self):
        pass

    def the_elected_leader_has_all_that_was_acknowledged(self):
        pass


class Scenario:
    """Named histories, told in the steps of the random ones."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.deliver(*BROKERS)

    def __getitem__(self, number) -> Broker:
        return self.cluster.brokers[number]

    def deliver(self, *numbers):
        for number in numbers:
            self.cluster.deliver(number)

    def produce(self, number, payload):
        broker = self[number]
        broker.log.append_as_leader(payload, broker.partition.leader_epoch)
        broker.partition.on_append(self.cluster.now_ms)
        return broker.log.end_offset

    def follow(self, number, times=1):
        for _ in range(times):
            self[number].send_fetch()
            self[number].take_response()

    def shrink_to(self, *isr):
        """Nobody else fetches until the leader, the first of `isr`, gives them up."""
        leader = self[isr[0]]
        self.produce(isr[0], b"unseen")
        self.cluster.now_ms += 2 * MAX_LAG_MS
        for number in isr[1:]:
            self.follow(number, 2)
        leader.shrink()
        leader.propose()
        leader.take_altered()
        assert self.cluster.controller.isr == isr

    def payloads(self, number):
        return [batch.payload for batch in self[number].log.batches]


@pytest.mark.rule("BISR-5", "DUR-1", "HW-6")
def test_a_follower_without_committed_records_cannot_join_a_leader_whose_watermark_lags():
    scenario = Scenario()
    scenario.shrink_to(1, 2)
    scenario.follow(3)
    end = scenario.produce(1, b"acknowledged")
    scenario.follow(2, 2)
    assert scenario[1].partition.check_committed(end) is E.NONE
    assert scenario[2].log.high_watermark == scenario[3].log.end_offset < end
    scenario.cluster.controller.move_leader(2)
    scenario.cluster.announce()
    scenario.deliver(2, 3)
    scenario[3].send_fetch()
    assert scenario[2].partition.pending is None
    scenario[3].take_response()
    scenario.follow(3, 2)
    assert scenario[2].partition.pending.isr == (1, 2, 3)


@pytest.mark.rule("BISR-9", "DUR-7")
def test_a_fenced_leader_does_not_go_back_to_an_isr_that_may_be_out_of_force():
    scenario = Scenario()
    scenario.shrink_to(1)
    scenario.follow(2, 2)
    scenario[1].propose()  # the controller adds broker 2, but the response is lost
    scenario[1].lose_altered()
    scenario.cluster.controller.move_leader(2)
    scenario.cluster.now_ms += 2 * MAX_LAG_MS
    scenario[1].propose()
    scenario[1].take_altered()
    end = scenario.produce(1, b"never acknowledged")
    assert scenario[1].partition.check_committed(end) is None


@pytest.mark.rule("TRUNC-2", "DUR-6", "REPL-10")
def test_a_restarted_follower_keeps_what_its_watermark_does_not_cover():
    """KIP-101: cutting a log to its high watermark could lose what was acknowledged."""
    scenario = Scenario()
    end = scenario.produce(1, b"acknowledged")
    for number in (2, 3):
        scenario.follow(number, 2)
    assert scenario[1].partition.check_committed(end) is E.NONE
    for number in (2, 3):
        scenario.cluster.crash(number)
        scenario.cluster.restart(number)
        scenario.deliver(number)
        assert scenario[number].log.high_watermark == 0
    scenario.cluster.crash(1)
    scenario.deliver(2, 3)
    assert scenario.payloads(scenario.cluster.controller.leader) == [b"acknowledged"]


@pytest.mark.rule("TRUNC-1", "TRUNC-2", "DUR-5")
def test_logs_that_parted_twice_find_their_common_beginning():
    """KIP-279: after fast successive leader changes one comparison is not enough."""
    scenario = Scenario()
    scenario.produce(1, b"common")
    scenario.follow(2, 2)
    scenario.follow(3, 2)
    scenario.produce(1, b"only 1, epoch 0")
    for number, leader in ((1, 2), (2, 3)):
        scenario.cluster.crash(number)
        scenario.cluster.controller.elect(unclean=True)
        scenario.cluster.announce()
        scenario.deliver(leader)
        scenario.produce(leader, b"only %d" % leader)
    scenario.cluster.settle()
    assert scenario.payloads(1) == scenario.payloads(2) == [b"common", b"only 3"]


TestReplication = pytest.mark.rule(
    "DUR-1", "DUR-2", "DUR-6", "DUR-7", "HW-1", "BISR-8", "TRUNC-2", "REPL-5"
)(Replication.TestCase)
TestReplication.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)

TestUncleanReplication = pytest.mark.rule("DUR-5", "TRUNC-2", "REPL-9")(UncleanReplication.TestCase)
TestUncleanReplication.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
