"""Runs a coordinator against a log in memory, in a time that passes only when told to."""

import itertools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from klamm.broker.groups.coordinator import GroupCoordinator, group_partition
from klamm.broker.groups.effects import Append, Effect, SendResponse
from klamm.broker.groups.membership import GroupConfig
from klamm.broker.groups.messages import (
    FetchedOffset,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetToCommit,
    SyncRequest,
)
from klamm.broker.groups.records import GroupRecord
from klamm.broker.groups.replay import ReplayBatch
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

START_MS = 1_700_000_000_000
PARTITIONS = 4
SESSION_MS = 10_000
REBALANCE_MS = 60_000
INITIAL_DELAY_MS = 3_000
GROUP = "orders"


def subscription(*topics: str) -> bytes:
    """What a consumer tells about itself, version 0."""
    names = (topic.encode() for topic in topics)
    parts = (struct.pack(">h", len(name)) + name for name in names)
    return struct.pack(">hi", 0, len(topics)) + b"".join(parts) + struct.pack(">i", -1)


def protocols(*names: str, topics: Iterable[str] = ("t",)) -> tuple[GroupProtocol, ...]:
    """Preferences of a consumer, best first."""
    return tuple(GroupProtocol(name, subscription(*topics)) for name in names)


RANGE = protocols("range")


@dataclass
class Client:
    """A member as it sees itself."""

    member_id: str
    generation: int
    leader: str
    instance_id: str | None = None
    protocols: tuple[GroupProtocol, ...] = RANGE
    protocol: str | None = None


@dataclass
class Driver:
    """One broker's coordinator, with the log it writes to."""

    config: GroupConfig = field(default_factory=GroupConfig)
    #: What becomes of appends; None leaves them to `acknowledge`.
    append_error: ErrorCode | None = ErrorCode.NONE
    owned: Iterable[int] = range(PARTITIONS)

    def __post_init__(self) -> None:
        self.now_ms = START_MS
        self.responses: dict[int, Any] = {}
        self.appends: list[Append] = []
        self.log: dict[int, list[Append]] = {partition: [] for partition in range(PARTITIONS)}
        self.unacknowledged: list[Append] = []
        self._tickets = itertools.count(1)
        self._uuids = itertools.count(1)
        self.epoch = 0
        self.coordinator = self._new_coordinator()
        self.lead(*self.owned)

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, lambda: f"uuid{next(self._uuids)}", PARTITIONS)

    # Partitions

    def lead(self, *partitions: int) -> None:
        for partition in partitions:
            assert self.coordinator.begin_load(partition, self.epoch)
            self.replay(partition)
            assert self.coordinator.finish_load(partition, self.epoch, self.now_ms) is not None

    def replay(self, partition: int) -> None:
        batches = (ReplayBatch(append.records) for append in self.log[partition])
        assert self.coordinator.load(partition, self.epoch, batches)

    def fail_over(self) -> None:
        """The broker dies and another one, which has the same log, takes over."""
        self.epoch += 1
        self.unacknowledged.clear()
        self.coordinator = self._new_coordinator()
        self.lead(*range(PARTITIONS))

    # Effects

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendResponse(ticket, response):
                    assert ticket not in self.responses, "answered twice"
                    self.responses[ticket] = response
                case Append(partition=partition):
                    self.appends.append(effect)
                    self.unacknowledged.append(effect)
                    if self.append_error in (None, ErrorCode.NONE):
                        self.log[partition].append(effect)
        if self.append_error is not None:
            self.acknowledge(self.append_error)

    def acknowledge(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Report what became of all appends so far."""
        while self.unacknowledged:
            append = self.unacknowledged.pop(0)
            self.carry_out(self.coordinator.appended(append.number, error, self.now_ms))

    def records(self) -> list[GroupRecord]:
        """Everything that was written, in order."""
        return [record for append in self.appends for record in append.records]

    # Time

    def advance(self, by_ms: int) -> None:
        """Let time pass, acting on each deadline when it comes."""
        end_ms = self.now_ms + by_ms
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.coordinator.tick(self.now_ms))
        self.now_ms = end_ms

    # Requests; those that may be parked return a ticket

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        instance_id: str | None = None,
        client_id: str = "client",
        protocols: tuple[GroupProtocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session_timeout_ms: int = SESSION_MS,
        rebalance_timeout_ms: int = REBALANCE_MS,
        version: int = 3,
    ) -> int:
        ticket = next(self._tickets)
        request = JoinRequest(
            group_id=group,
            member_id=member_id,
            instance_id=instance_id,
            client_id=client_id,
            client_host="/127.0.0.1",
            protocol_type=protocol_type,
            protocols=protocols,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            version=version,
        )
        self.carry_out(self.coordinator.join(ticket, request, self.now_ms))
        return ticket

    def sync(
        self,
        client: Client,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group: str = GROUP,
        protocol_type: str | None = None,
        protocol: str | None = None,
        version: int = 3,
    ) -> int:
        ticket = next(self._tickets)
        request = SyncRequest(
            group_id=group,
            member_id=client.member_id,
            instance_id=client.instance_id,
            generation=client.generation,
            protocol_type=protocol_type,
            protocol=protocol,
            assignments=assignments or {},
            version=version,
        )
        self.carry_out(self.coordinator.sync(ticket, request, self.now_ms))
        return ticket

    def heartbeat(self, client: Client, group: str = GROUP) -> ErrorCode:
        return self.coordinator.heartbeat(
            HeartbeatRequest(
                group_id=group,
                member_id=client.member_id,
                generation=client.generation,
                instance_id=client.instance_id,
            ),
            self.now_ms,
        )

    def leave(self, *members: MemberIdentity | Client, group: str = GROUP) -> Any:
        ticket = next(self._tickets)
        identities = tuple(
            MemberIdentity(m.member_id, m.instance_id) if isinstance(m, Client) else m
            for m in members
        )
        request = LeaveRequest(group_id=group, members=identities)
        self.carry_out(self.coordinator.leave(ticket, request, self.now_ms))
        return self.responses[ticket]

    def commit(
        self,
        offsets: Mapping[tuple[str, int], int | OffsetToCommit],
        client: Client | None = None,
        *,
        group: str = GROUP,
        retention_ms: int | None = None,
    ) -> int:
        ticket = next(self._tickets)
        request = OffsetCommitRequest(
            group_id=group,
            member_id=client.member_id if client else "",
            generation=client.generation if client else -1,
            instance_id=client.instance_id if client else None,
            offsets={
                TopicPartition(*partition): OffsetToCommit(offset)
                if isinstance(offset, int)
                else offset
                for partition, offset in offsets.items()
            },
            retention_ms=retention_ms,
        )
        self.carry_out(self.coordinator.commit_offsets(ticket, request, self.now_ms))
        return ticket

    def commit_error(self, client: Client | None = None, **kwargs: Any) -> ErrorCode:
        """The one error of a commit of one offset."""
        response = self.responses[self.commit({("t", 0): 5}, client, **kwargs)]
        (error,) = response.errors.values()
        return error

    def fetch(
        self, *partitions: tuple[str, int], group: str = GROUP, require_stable: bool = False
    ) -> dict[TopicPartition, FetchedOffset]:
        """All offsets if no partition is named."""
        response = self.coordinator.fetch_offsets(
            OffsetFetchRequest(
                group_id=group,
                partitions=tuple(TopicPartition(*p) for p in partitions) or None,
                require_stable=require_stable,
            )
        )
        assert response.error is ErrorCode.NONE
        return dict(response.offsets)

    def offsets(self, group: str = GROUP) -> dict[tuple[str, int], int]:
        return {partition: fetched.offset for partition, fetched in self.fetch(group=group).items()}

    def delete_offsets(self, *partitions: tuple[str, int], group: str = GROUP) -> Any:
        ticket = next(self._tickets)
        request = OffsetDeleteRequest(
            group_id=group, partitions=tuple(TopicPartition(*p) for p in partitions)
        )
        self.carry_out(self.coordinator.delete_offsets(ticket, request, self.now_ms))
        return self.responses[ticket]

    def delete_groups(self, *groups: str) -> Any:
        ticket = next(self._tickets)
        self.carry_out(self.coordinator.delete_groups(ticket, groups, self.now_ms))
        return self.responses[ticket].errors

    def delete_partitions(self, *partitions: tuple[str, int]) -> None:
        gone = [TopicPartition(*p) for p in partitions]
        self.carry_out(self.coordinator.partitions_deleted(gone, self.now_ms))

    def state(self, group: str = GROUP) -> str:
        return self.coordinator.describe_group(group).state

    # Whole procedures

    def joined(self, ticket: int, **details: Any) -> Client:
        """The member that a successful response to a JoinGroup speaks of."""
        response = self.responses[ticket]
        assert response.error is ErrorCode.NONE
        client = Client(response.member_id, response.generation, response.leader, **details)
        client.protocol = response.protocol
        return client

    def form_group(self, count: int = 1, **kwargs: Any) -> list[Client]:
        """A stable group of dynamic members, the leader first, with assignments b"0", b"1", ..."""
        tickets = [self.join(**kwargs) for _ in range(count)]
        return self.settle(tickets, kwargs.get("group", GROUP))

    def form_static_group(self, *instances: str, **kwargs: Any) -> list[Client]:
        tickets = [self.join(instance_id=instance, **kwargs) for instance in instances]
        return self.settle(tickets, kwargs.get("group", GROUP), instances)

    def settle(
        self, tickets: list[int], group: str = GROUP, instances: Iterable[str | None] = ()
    ) -> list[Client]:
        """End the join phase and have everyone sync; the leader comes first in what is returned."""
        while tickets[0] not in self.responses:
            self.advance(INITIAL_DELAY_MS)
        clients = [self.joined(ticket) for ticket in tickets]
        for client, instance in zip(clients, instances, strict=False):
            client.instance_id = instance
        assignments = {client.member_id: str(i).encode() for i, client in enumerate(clients)}
        syncs = [
            self.sync(client, assignments if client.member_id == client.leader else {}, group=group)
            for client in clients
        ]
        for i, sync in enumerate(syncs):
            assert self.responses[sync].error is ErrorCode.NONE
            assert self.responses[sync].assignment == str(i).encode()
        return sorted(clients, key=lambda client: client.member_id != client.leader)


def partition_of(group: str) -> int:
    return group_partition(group, PARTITIONS)
