"""Whatever happens in whatever order: what is always true stays true, and it ends well.

The world checks each write as it is made (no ISR is emptied, no epoch goes back, no two leaders in
one epoch) and each announcement (it says what ZooKeeper holds); the invariants of the cluster are
checked after each event.
"""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from klamm.core import events
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.events import RequestedElection
from klamm.core.invariants import regressions, violations
from klamm.core.procedures.dispatch import handle
from tests.support.procedure_store import DELETIONS, REASSIGN, Crash, state_path
from tests.support.procedure_world import World

BROKERS = (1, 2, 3, 4)
TOPICS = ("a", "b")
PARTITIONS = [(topic, partition) for topic in TOPICS for partition in range(3)]

brokers = st.sampled_from(BROKERS)
partitions = st.sampled_from(PARTITIONS)
replica_lists = st.lists(brokers, min_size=1, max_size=3, unique=True)


class Controllers(RuleBasedStateMachine):
    """One controller after the other, on one ZooKeeper."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.before = self.world.cluster.leadership(self.world.cluster.all_rows())
        self.names: list[tuple[str, int]] = []

    @initialize(unclean=st.booleans(), rebalance=st.booleans())
    def begin(self, unclean: bool, rebalance: bool) -> None:
        self.world = World(BROKERS, Settings(unclean_default=unclean, auto_rebalance=rebalance))
        self.world.fail_over()

    # What happens in the cluster

    @rule(broker=brokers)
    def broker_dies(self, broker: int) -> None:
        if broker in self.world.registrations:
            self.world.lose(broker)

    @rule(broker=brokers)
    def broker_starts(self, broker: int) -> None:
        if broker not in self.world.registrations:
            self.world.register(broker)

    @rule(broker=brokers)
    def broker_bounces(self, broker: int) -> None:
        if broker in self.world.registrations:
            self.world.bounce(broker)

    @rule(broker=brokers)
    def broker_shuts_down(self, broker: int) -> None:
        known = self.world.registrations.get(broker)
        if known is not None:
            self.world.queue.append(events.ControlledShutdown(broker, known.epoch))

    @rule(broker=brokers, tp=partitions, is_lost=st.booleans())
    def directory_changes(self, broker: int, tp: tuple[str, int], is_lost: bool) -> None:
        if is_lost:
            self.world.storage_errors.add((broker, tp))
        else:
            self.world.storage_errors.discard((broker, tp))
        self.world.notify_log_dir(broker)

    @rule(tp=partitions, isr=replica_lists)
    def leader_changes_isr(self, tp: tuple[str, int], isr: list[int]) -> None:
        row = self.world.cluster.row(*tp)
        if row is None or not self.world.cluster.has_leadership[row]:
            return
        leader = int(self.world.cluster.leader[row])
        if leader in self.world.registrations:
            assigned = self.world.cluster.assignment(row).replicas
            others = [broker for broker in isr if broker != leader and broker in assigned]
            self.world.report_isr(tp[0], [leader, *others], partition=tp[1])

    # What people ask for

    @rule(topic=st.sampled_from(TOPICS), lists=st.lists(replica_lists, min_size=1, max_size=3))
    def topic_is_created(self, topic: str, lists: list[list[int]]) -> None:
        marked = f"{DELETIONS}/{topic}" in self.world.nodes
        if f"/brokers/topics/{topic}" not in self.world.nodes and not marked:
            self.world.create_topic(topic, dict(enumerate(lists)))

    @rule(topic=st.sampled_from(TOPICS), replicas=replica_lists)
    def topic_grows(self, topic: str, replicas: list[int]) -> None:
        node = self.world.nodes.get(f"/brokers/topics/{topic}")
        if node is not None and len(node.data["partitions"]) < 3:
            self.world.expand_topic(topic, {len(node.data["partitions"]): replicas})

    @rule(topic=st.sampled_from(TOPICS))
    def topic_is_deleted(self, topic: str) -> None:
        self.world.request_deletion(topic)

    @rule(tp=partitions, wanted=st.none() | replica_lists)
    def partition_is_reassigned(self, tp: tuple[str, int], wanted: list[int] | None) -> None:
        self.world.queue.append(events.ApiReassignment({tp: wanted}))

    @rule(moves=st.dictionaries(partitions, replica_lists, max_size=2))
    def partitions_are_reassigned_by_znode(self, moves: dict[tuple[str, int], list[int]]) -> None:
        if REASSIGN not in self.world.nodes:
            self.world.request_reassignment(moves)

    @rule(tp=partitions, kind=st.sampled_from(RequestedElection))
    def leaders_are_elected(self, tp: tuple[str, int], kind: RequestedElection) -> None:
        self.world.queue.append(events.ElectLeaders(kind, [tp]))

    @rule()
    def leaders_are_rebalanced(self) -> None:
        self.world.queue.append(events.AutoRebalance())

    # What goes wrong

    @rule(tp=partitions, outcome=st.sampled_from([WriteOutcome.BAD_VERSION, WriteOutcome.FAILED]))
    def write_is_refused(self, tp: tuple[str, int], outcome: WriteOutcome) -> None:
        self.world.faults.refuse[state_path(*tp)] = [outcome]

    @rule(broker=brokers, is_silent=st.booleans())
    def broker_stops_answering(self, broker: int, is_silent: bool) -> None:
        if is_silent:
            self.world.silent.add(broker)
        else:
            self.world.silent.discard(broker)

    @rule(broker=brokers)
    def controller_moves(self, broker: int) -> None:
        self.world.fail_over(broker)

    @rule(writes=st.integers(1, 4))
    def controller_crashes(self, writes: int) -> None:
        self.world.faults.crash_after = writes
        try:
            self.world.settle()
        except Crash:
            self.world.fail_over()
        self.world.faults.crash_after = None

    # What the controller does

    @precondition(lambda self: self.world.queue)
    @rule()
    def event_is_handled(self) -> None:
        self.world.run(handle(self.world.ctx, self.world.queue.popleft()))

    @rule()
    def events_are_handled(self) -> None:
        self.world.settle()

    @invariant()
    def nothing_is_violated(self) -> None:
        assert violations(self.world.cluster) == []
        assert self.world.breakdowns() == []

    @invariant()
    def nothing_goes_back(self) -> None:
        cluster = self.world.cluster
        rows = cluster.all_rows()
        rows = rows[cluster.has_leadership[rows]]
        names = [cluster.name(row) for row in rows.tolist()]
        if names == self.names and len(self.before) == len(rows):
            assert regressions(self.before, cluster.leadership(rows)) == []
        self.before, self.names = cluster.leadership(rows), names

    def teardown(self) -> None:
        """The faults stop, everybody is there, and the cluster comes to rest in agreement."""
        world = self.world
        world.faults.refuse.clear()
        world.silent.clear()
        world.storage_errors.clear()
        for broker in BROKERS:
            if broker not in world.registrations:
                world.register(broker)
        world.queue = deque()
        world.fail_over()
        world.settle()
        wrong = [what for what in world.disagreements() if "still has" not in what]
        assert wrong == []
        rows = world.cluster.all_rows()
        led = world.cluster.leader[rows[~world.cluster.is_queued(rows)]]
        assert (led >= 0).all(), "somebody has no leader although everybody is there"
        assert world.cluster.queued_for_deletion <= _moving_topics(world)


def _moving_topics(world: World) -> set[str]:
    return {world.cluster.topic(row).name for row in world.cluster.being_reassigned}


TestControllers = pytest.mark.rule("RSM-23", "FENCE-7", "PSM-23", "REASG-U2")(Controllers.TestCase)
TestControllers.settings = settings(
    max_examples=max(40, settings.default.max_examples // 10), stateful_step_count=40
)
