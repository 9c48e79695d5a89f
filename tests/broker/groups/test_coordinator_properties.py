"""Whatever clients, time and the log do, in whatever order, groups stay in order."""

from collections import Counter, defaultdict
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from klamm.broker.groups.group import GroupMetadata, GroupState
from klamm.broker.groups.messages import JoinResponse
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import PARTITIONS, Client, Driver, protocols

GROUPS = ("one", "two")
OFFERS = (protocols("range"), protocols("sticky", "range"), protocols("range", topics=["u"]))
HOUR_MS = 3_600_000

group_ids = st.sampled_from(GROUPS)
partitions = st.tuples(st.sampled_from("tu"), st.integers(0, 1))


def stored_view(group: GroupMetadata) -> dict[str, Any]:
    """What of a group has to outlive its coordinator."""
    return {
        "state": group.state,
        "since": group.state_since_ms if group.state is GroupState.EMPTY else None,
        "generation": group.generation,
        "protocol type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "subscribed": group.subscribed,
        "instances": group.instances,
        "members": [
            (m.id, m.session_timeout_ms, m.metadata(group.protocol), m.assignment)
            for m in group.members.values()
        ],
    }


class Groups(RuleBasedStateMachine):
    """Two groups on a coordinator whose appends succeed or fail, late and together."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(append_error=None)
        self.parked: dict[int, tuple[str, str | None]] = {}  # ticket: group, instance id
        self.clients: list[tuple[str, Client]] = []
        self.generations: dict[int, int] = {}
        self.alive: list[GroupMetadata] = []  # keeps ids of groups from being used twice
        self.leaders: defaultdict[tuple[int, int], set[str]] = defaultdict(set)

    @initialize(faulty=st.booleans())
    def choose_log(self, faulty: bool) -> None:
        self.faulty = faulty

    @property
    def groups(self) -> dict[str, GroupMetadata]:
        return self.driver.coordinator._groups

    def learn(self) -> None:
        """Let clients read the responses to their JoinGroups."""
        for ticket in [ticket for ticket in self.parked if ticket in self.driver.responses]:
            group, instance_id = self.parked.pop(ticket)
            response = self.driver.responses[ticket]
            if not isinstance(response, JoinResponse) or not response.member_id:
                continue
            client = Client(response.member_id, response.generation, response.leader, instance_id)
            self.clients.append((group, client))
            if response.leader == response.member_id:
                term = (id(self.groups.get(group)), response.generation)
                self.leaders[term].add(instance_id or response.member_id)

    def members(self) -> list[tuple[str, Client]]:
        """Everyone who is in a group and knows it."""
        return [
            (name, Client(member.id, group.generation, group.leader or "", member.instance_id))
            for name, group in self.groups.items()
            for member in group.members.values()
        ]

    def some_client(self, data: st.DataObject) -> tuple[str, Client]:
        """A member, or someone who has been one."""
        return data.draw(st.sampled_from(self.members() + self.clients[-4:]))

    # What clients do

    @rule(
        group=group_ids,
        instance_id=st.sampled_from([None, None, "a", "b"]),
        offer=st.sampled_from(OFFERS),
        version=st.sampled_from([3, 9]),
    )
    def join(self, group, instance_id, offer, version):
        ticket = self.driver.join(
            group=group, instance_id=instance_id, protocols=offer, version=version
        )
        self.parked[ticket] = (group, instance_id)
        self.learn()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), offer=st.sampled_from(OFFERS))
    def rejoin(self, data, offer):
        group, client = self.some_client(data)
        ticket = self.driver.join(
            client.member_id, group=group, instance_id=client.instance_id, protocols=offer
        )
        self.parked[ticket] = (group, client.instance_id)
        self.learn()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), assignment=st.binary(max_size=2))
    def sync(self, data, assignment):
        group, client = self.some_client(data)
        members = self.groups[group].members if group in self.groups else ()
        assignments = {member_id: assignment + member_id.encode() for member_id in members}
        self.parked[self.driver.sync(client, assignments, group=group)] = (group, None)

    @rule()
    def things_settle(self):
        """Rebalances that are under way come to their end."""
        self.driver.acknowledge()
        for name, client in self.members():
            if self.driver.heartbeat(client, name) is ErrorCode.REBALANCE_IN_PROGRESS:
                self.offer_again(name, client)
        self.driver.advance(3_000)
        for name, client in self.members():
            ticket = self.driver.sync(client, {client.member_id: b"all"}, group=name)
            self.parked[ticket] = (name, None)
        self.driver.acknowledge()
        self.learn()

    def offer_again(self, name: str, client: Client) -> None:
        member = self.groups[name].members.get(client.member_id)
        if member is None or member.join_ticket is not None:
            return  # lost its place, or has joined already
        ticket = self.driver.join(
            client.member_id,
            group=name,
            instance_id=client.instance_id,
            protocols=member.protocols,
        )
        self.parked[ticket] = (name, client.instance_id)

    @rule()
    def everyone_sends_heartbeats(self):
        for name, client in self.members():
            assert self.driver.heartbeat(client, name) in (
                ErrorCode.NONE,
                ErrorCode.REBALANCE_IN_PROGRESS,
            )

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data):
        group, client = self.some_client(data)
        self.driver.leave(client, group=group)

    @rule(group=group_ids, partition=partitions, offset=st.integers(0, 99))
    def commit_alone(self, group, partition, offset):
        self.parked[self.driver.commit({partition: offset}, group=group)] = (group, None)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), offsets=st.dictionaries(partitions, st.integers(0, 99)))
    def commit(self, data, offsets):
        group, client = self.some_client(data)
        self.parked[self.driver.commit(offsets, client, group=group)] = (group, None)

    # What administrators do

    @rule(group=group_ids)
    def delete_group(self, group):
        self.driver.delete_groups(group)

    @rule(group=group_ids, partition=partitions)
    def delete_offset(self, group, partition):
        self.driver.delete_offsets(partition, group=group)

    @rule(partition=partitions)
    def delete_partition(self, partition):
        self.driver.delete_partitions(partition)

    # What the world does

    @rule(by_ms=st.sampled_from([1, 1_000, 3_000, 9_999, 10_000, 60_000]))
    def time_passes(self, by_ms):
        self.driver.advance(by_ms)
        self.learn()

    @rule()
    def log_acknowledges(self):
        self.driver.acknowledge()
        self.learn()

    @precondition(lambda self: self.faulty)
    @rule(error=st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT]))
    def log_refuses(self, error):
        for append in self.driver.unacknowledged:
            self.driver.log[append.partition].remove(append)
        self.driver.acknowledge(error)
        self.learn()

    @rule()
    def partitions_move_to_the_next_broker(self):
        for partition in range(PARTITIONS):
            effects = self.driver.coordinator.unload(partition, None, self.driver.now_ms)
            self.driver.carry_out(effects)
        self.driver.acknowledge(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.learn()
        assert not self.parked
        self.driver.fail_over()

    # What always holds

    @invariant()
    def counts_are_right(self):
        for group in self.groups.values():
            joined = [m for m in group.members.values() if m.join_ticket is not None]
            assert group.joined == len(joined)
            supporters = Counter(n for m in group.members.values() for n in m.protocol_names)
            assert +group._supporters == supporters
            assert {m.instance_id: m.id for m in group.members.values() if m.is_static} == (
                group.instances
            )
            assert all(name == member.id for name, member in group.members.items())
            assert not group.pending_ids & group.members.keys()
            assert group.unsynced <= group.members.keys()

    @invariant()
    def leader_is_a_member(self):
        for group in self.groups.values():
            assert group.leader in group.members if group.members else group.leader is None
        assert all(len(leaders) <= 1 for leaders in self.leaders.values())

    @invariant()
    def states_fit_their_members(self):
        for group in self.groups.values():
            members = group.members.values()
            assert group.state is not GroupState.DEAD
            if group.state is GroupState.EMPTY:
                assert not members
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                assert members
                assert all(group.protocol in member.protocol_names for member in members)
            if group.state is not GroupState.COMPLETING_REBALANCE:
                assert all(member.sync_ticket is None for member in members)

    @invariant()
    def generations_only_grow(self):
        for group in self.groups.values():
            if id(group) not in self.generations:
                self.alive.append(group)
            assert group.generation >= self.generations.get(id(group), 0)
            self.generations[id(group)] = group.generation

    @invariant()
    def time_is_watched(self):
        deadline_ms = self.driver.coordinator.next_deadline_ms()
        if any(group.members or group.pending_ids for group in self.groups.values()):
            assert deadline_ms is not None

    @invariant()
    def log_tells_the_whole_story(self):
        if self.driver.unacknowledged or self.faulty:
            return
        successor = Driver()
        successor.log, successor.now_ms = self.driver.log, self.driver.now_ms
        successor.fail_over()
        reloaded = successor.coordinator._groups
        for name in GROUPS:
            group = self.groups.get(name, GroupMetadata(name, 0))
            again = reloaded.get(name, GroupMetadata(name, 0))
            assert again.offsets.committed() == group.offsets.committed()
            if group.state in (GroupState.EMPTY, GroupState.STABLE):
                expected, found = stored_view(group), stored_view(again)
                if group.generation == 0:  # nobody ever joined, so it does not matter since when
                    expected["since"] = found["since"] = None
                assert found == expected

    def teardown(self) -> None:
        self.driver.append_error = ErrorCode.NONE
        self.driver.acknowledge()
        self.driver.advance(HOUR_MS)
        self.learn()
        assert not self.parked
        assert all(group.state is GroupState.EMPTY for group in self.groups.values())


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
