"""What an observer infers from states alone, beside a scalar twin and as whole stories."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.cluster import LeaderAndIsrs, RegisteredBroker, TopicRead
from klamm.core.columns import NO_BROKER, padded
from klamm.history.observed import KINDS, ControllerSeen, ObservedCluster, infer_kinds
from klamm.history.records import EventRecord

BROKERS = range(1, 5)
lists = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True)
leaders = st.sampled_from([NO_BROKER, *BROKERS])


@dataclass(frozen=True)
class Pair:
    """A partition in two looks."""

    old_leader: int
    old_isr: list[int]
    leader: int
    isr: list[int]
    replicas: list[int]
    is_new: bool
    is_moving: bool


pairs = st.builds(Pair, leaders, lists, leaders, lists, lists, st.booleans(), st.booleans())


def kind_of(pair: Pair, live: Sequence[int]) -> str:
    """The scalar twin of `infer_kinds`."""
    if pair.is_new:
        return "created"
    if pair.leader != pair.old_leader:
        if pair.leader == NO_BROKER:
            return "none"
        if pair.leader not in pair.old_isr:
            return "unclean"
        if pair.is_moving:
            return "reassignment"
        if pair.old_leader in live and pair.old_leader not in pair.isr:
            return "controlled_shutdown"
        if pair.old_leader in live and pair.leader == pair.replicas[0]:
            return "preferred"
        return "clean"
    if pair.isr != pair.old_isr:
        left = set(pair.old_isr) - set(pair.isr)
        return "isr_changed" if left <= set(live) else "replica_offline"
    return "epoch_raised"


def states(rows: Sequence[int], leader: Sequence[int], isr: Sequence[list[int]], version: int = 0):
    count = len(rows)
    return LeaderAndIsrs(
        np.array(rows, np.int32),
        np.array(leader, np.int32),
        np.full(count, version, np.int32),
        padded(isr),
        np.zeros(count, np.int8),
        np.ones(count, np.int32),
        np.full(count, version, np.int32),
    )


@given(st.lists(pairs, min_size=1), st.sets(st.sampled_from(BROKERS)))
def test_inferred_kinds_agree_with_their_scalar_twin(rows: list[Pair], live: set[int]):
    at = range(len(rows))
    kinds = infer_kinds(
        states(at, [row.old_leader for row in rows], [row.old_isr for row in rows]),
        states(at, [row.leader for row in rows], [row.isr for row in rows]),
        is_new=np.array([row.is_new for row in rows]),
        is_moving=np.array([row.is_moving for row in rows]),
        replicas=padded(row.replicas for row in rows),
        live=sorted(live),
    )
    assert [KINDS[code] for code in kinds] == [kind_of(row, sorted(live)) for row in rows]


class Looks:
    """An observed cluster of brokers 1 to 3, whose controller is broker 1."""

    def __init__(self, resumed_at: tuple[int, int] | None = None) -> None:
        self.cluster = ObservedCluster("cluster", resumed_at)
        self.at = 0
        self.version = 0

    def look(
        self,
        *,
        controller: ControllerSeen | None = None,
        brokers: Sequence[int] | None = None,
        topics: dict[str, TopicRead | None] | None = None,
        deletions: set[str] | None = None,
        leaders: dict[str, tuple[int, list[int]]] | None = None,
    ) -> list[EventRecord]:
        """One look; `leaders` has leader and ISR of partition 0 of topics."""
        self.at += 1
        self.cluster.begin(self.at)
        if controller is not None:
            self.cluster.see_controller(controller)
        if brokers is not None:
            self.cluster.see_brokers({id: RegisteredBroker(id, id) for id in brokers})
        if topics is not None:
            self.cluster.see_topics(topics)
        if deletions is not None:
            self.cluster.see_deletions(deletions)
        if leaders is not None:
            self.version += 1
            rows = [self.cluster.state.row(topic, 0) for topic in leaders]
            known = [row for row in rows if row is not None]
            leader = [leader for leader, _ in leaders.values()]
            isr = [isr for _, isr in leaders.values()]
            self.cluster.see_states(states(known, leader, isr, self.version))
        return self.cluster.end()

    def begin(self) -> list[EventRecord]:
        return self.look(
            controller=ControllerSeen(1, 5),
            brokers=[1, 2, 3],
            topics={"orders": read([2, 3]), "single": read([2])},
            leaders={"orders": (2, [2, 3]), "single": (2, [2])},
        )


def read(replicas: list[int], **moves: list[int]) -> TopicRead:
    return TopicRead(None, {0: replicas}, **{name: {0: ids} for name, ids in moves.items()})


def decided(record: EventRecord) -> dict[str, str]:
    return {
        each.topics[topic]: each.kinds[kind]
        for each in record.decisions
        for topic, kind in zip(each.topic, each.kind, strict=True)
    }


def test_the_first_look_begins_a_term_and_decides_nothing():
    [record] = Looks().begin()
    assert (record.term, record.controller, record.controller_epoch, record.seq) == (
        "began",
        1,
        5,
        1,
    )
    assert [each.change for each in record.broker_changes] == ["present"] * 3
    assert record.decisions == []


def test_a_partition_that_the_first_look_finds_without_a_leader_is_recorded():
    looks = Looks()
    [record] = looks.look(
        controller=ControllerSeen(1, 5),
        brokers=[1],
        topics={"orders": read([2, 3])},
        leaders={"orders": (NO_BROKER, [2])},
    )
    assert decided(record) == {"orders": "none"}


def test_a_lost_broker_explains_the_elections_that_follow_it():
    looks = Looks()
    looks.begin()
    [gone] = looks.look(brokers=[1, 3])
    [elected] = looks.look(leaders={"orders": (3, [3]), "single": (NO_BROKER, [2])})
    assert [(each.broker, each.change) for each in gone.broker_changes] == [(2, "failed")]
    assert decided(elected) == {"orders": "clean", "single": "none"}
    assert (elected.caused_by, elected.cause) == (gone.seq, "broker 2 had disappeared")
    assert [(each.broker, each.alive_at) for each in elected.lost] == [(2, gone.at)]


def test_a_broker_that_is_back_explains_nothing_any_more():
    looks = Looks()
    looks.begin()
    looks.look(brokers=[1, 3])
    looks.look(brokers=[1, 2, 3])
    [elected] = looks.look(leaders={"orders": (3, [2, 3])})
    assert (elected.kind, elected.caused_by, elected.lost) == ("BrokerChange", None, [])


def test_a_new_controller_ends_a_term_and_begins_another_with_what_is_there():
    looks = Looks()
    looks.begin()
    ended, began = looks.look(controller=ControllerSeen(3, 6))
    assert (ended.term, ended.controller, ended.controller_epoch) == ("ended", 1, 5)
    assert (began.term, began.controller, began.controller_epoch, began.seq) == ("began", 3, 6, 1)
    assert [each.change for each in began.broker_changes] == ["present"] * 3


def test_a_controller_that_is_gone_ends_its_term_once():
    looks = Looks()
    looks.begin()
    [ended] = looks.look(controller=ControllerSeen(None, 5))
    assert ended.term == "ended"
    assert looks.look(controller=ControllerSeen(None, 5)) == []
    [began] = looks.look(controller=ControllerSeen(2, 6))
    assert began.term == "began"


def test_topics_are_created_expanded_and_deleted():
    looks = Looks()
    looks.begin()
    [created] = looks.look(topics={"new": read([1, 2])}, leaders={"new": (1, [1, 2])})
    assert [(each.topic, each.change) for each in created.topic_changes] == [("new", "created")]
    assert decided(created) == {"new": "created"}
    [queued] = looks.look(deletions={"new"})
    assert [each.change for each in queued.topic_changes] == ["deletion_queued"]
    assert looks.look(leaders={"new": (NO_BROKER, [1])}) == []
    [deleted] = looks.look(topics={"new": None}, deletions=set())
    assert [(each.topic, each.change) for each in deleted.topic_changes] == [("new", "deleted")]


def test_a_topic_without_a_request_to_delete_it_has_vanished():
    looks = Looks()
    looks.begin()
    [vanished] = looks.look(topics={"orders": None})
    assert [each.change for each in vanished.topic_changes] == ["vanished"]


def test_a_reassignment_is_followed_to_its_end():
    looks = Looks()
    looks.begin()
    [started] = looks.look(topics={"orders": read([1, 2, 3], adding=[1], removing=[2])})
    assert [each.phase for each in started.moves] == ["started"]
    [moved] = looks.look(leaders={"orders": (3, [3, 1])})
    assert decided(moved) == {"orders": "reassignment"}
    [completed] = looks.look(topics={"orders": read([1, 3])})
    assert [(each.phase, each.replicas) for each in completed.moves] == [("completed", (1, 3))]


def test_a_look_that_finds_nothing_new_leaves_no_record():
    looks = Looks()
    looks.begin()
    looks.version -= 1
    assert looks.look(brokers=[1, 2, 3], leaders={"orders": (2, [2, 3])}) == []


def test_an_observer_that_resumes_leaves_out_a_number():
    [record] = Looks(resumed_at=(5, 7)).begin()
    assert record.seq == 9
    [record] = Looks(resumed_at=(4, 7)).begin()
    assert record.seq == 1
