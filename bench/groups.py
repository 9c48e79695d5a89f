"""Consumer groups beside Apache Kafka 3.9.1: commits of 1,000 members, and a rebalance of 200.

    make bench BENCH=groups
    python -m bench.groups [--rounds 3] [--seconds 8] [--groups 50] [--members 20]

Members are connections of one process that sends prepared requests, the same to both clusters:
50 groups of 20 members, each with a heartbeat every 3 s and a commit every second, spread evenly.
The offsets topic has 50 partitions and three replicas. A rebalance is 200 members of one group that
join again at the same time: it takes until the last of them has its assignment.
"""

import argparse
import asyncio
import statistics
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

from bench.side_by_side import load
from bench.side_by_side.duel import Figures, duel
from klamm.net.connection import ClientConnection
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader

HEARTBEAT_S = 3.0
COMMIT_S = 1.0
REBALANCED = 200
REBALANCES = 5
_TIMEOUT_S = 60.0
#: Where a frame has its correlation id: after the size, the API key and the version.
_CORRELATION_ID_AT = 8
#: Where a response has its error code: after the correlation id, the tags and the throttle time.
_CODE_AT = 9
_MEMBER_ID_REQUIRED = 79
#: ILLEGAL_GENERATION and REBALANCE_IN_PROGRESS.
_JOIN_AGAIN = (22, 27)
#: How often a member that waits for others of its group asks whether to join again.
_SETTLING_HEARTBEAT_S = 1.0
#: Stands for the generation in a prepared request.
_ANY_GENERATION = b"?gen"
#: An assignment of the consumer protocol, version 0: no topics, no user data.
_ASSIGNMENT = struct.pack(">hii", 0, 0, -1)
#: The size of the user data of a subscription, one number.
_USER_DATA = 4
_PROTOCOL = {"protocol_type": "consumer", "protocol_name": "range"}


class Member:
    """One member of a group, with a connection of its own to the coordinator."""

    def __init__(self, group: str, number: int, address: tuple[str, int], topic: str) -> None:
        self.group, self.number, self.address, self.topic = group, number, address, topic
        self.member_id, self.generation = "", -1
        #: User data of the subscription: the coordinator rebalances when it changes. It stays the
        #: same when a member has to join again, or each such member would begin a rebalance.
        self.subscription = 0
        self._connection = ClientConnection(f"member-{number}", _TIMEOUT_S, _TIMEOUT_S)
        self._join = self._sync = self._heartbeat = self._commit = b""

    async def introduce(self) -> None:
        """Get a member id."""
        while not self.member_id:
            joined = await self._connection.send(
                *self.address, ApiKey.JOIN_GROUP, 7, self._joining()
            )
            if joined.error_code == _MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
            else:  # the coordinator is not ready
                await asyncio.sleep(0.1)

    async def join(self) -> None:
        """Join, or join again, until there is an assignment."""
        while True:
            try:
                await self._join_once()
                return
            except GroupError as error:
                if error.code not in _JOIN_AGAIN:
                    raise

    async def settle(self, group: "Sequence[Member]") -> None:
        """Join, and follow rebalances until all members of the group are in one generation."""
        await self.join()
        while len({member.generation for member in group}) > 1:
            await asyncio.sleep(_SETTLING_HEARTBEAT_S)
            try:
                await self.heartbeat()
            except GroupError as error:
                if error.code not in _JOIN_AGAIN:
                    raise
                await self.join()

    async def _join_once(self) -> None:
        generation, others = await self._exchange(ApiKey.JOIN_GROUP, 7, self._join, _read_joined)
        sync = self._sync.replace(_ANY_GENERATION, struct.pack(">i", generation), 1)
        if others:
            assignments = [{"member_id": each, "assignment": _ASSIGNMENT} for each in others]
            sync = self._encode_sync(generation, assignments)
        _check(await self._exchange(ApiKey.SYNC_GROUP, 5, sync))
        self.generation = generation

    def prepare_to_join(self) -> None:
        """Encode what a member sends in a rebalance, but for the generation."""
        self._join = _encode(ApiKey.JOIN_GROUP, 7, self._joining())
        self._sync = self._encode_sync(struct.unpack(">i", _ANY_GENERATION)[0], [])

    def _encode_sync(self, generation: int, assignments: list[dict[str, Any]]) -> bytes:
        identity = {**self._identity("generation_id"), "generation_id": generation}
        values = {**identity, **_PROTOCOL, "assignments": assignments}
        return _encode(ApiKey.SYNC_GROUP, 5, values)

    def _joining(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "session_timeout": 45_000,
            "rebalance_timeout": 60_000,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": self._metadata()}],
        }

    def _metadata(self) -> bytes:
        """A subscription of the consumer protocol, version 0: Apache Kafka's coordinator reads it,
        and one that is none leaves a group without a generation for ever.
        """
        topic = self.topic.encode()
        return struct.pack(
            f">hih{len(topic)}sii", 0, 1, len(topic), topic, _USER_DATA, self.subscription
        )

    def _identity(self, generation: str) -> dict[str, Any]:
        return {
            "group_id": self.group,
            generation: self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
        }

    def prepare_to_live(self) -> None:
        """Encode what a member sends again and again in its present generation."""
        self._heartbeat = self._encode_heartbeat()
        position = {
            "partition_index": self.number % load.PARTITIONS,
            "committed_offset": 1000,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        self._commit = _encode(
            ApiKey.OFFSET_COMMIT,
            8,
            {
                **self._identity("generation_id_or_member_epoch"),
                "topics": [{"name": self.topic, "partitions": [position]}],
            },
        )

    def _encode_heartbeat(self) -> bytes:
        return _encode(ApiKey.HEARTBEAT, 4, self._identity("generation_id"))

    async def heartbeat(self) -> None:
        frame = self._heartbeat or self._encode_heartbeat()
        _check(await self._exchange(ApiKey.HEARTBEAT, 4, frame))

    async def commit(self) -> None:
        code = await self._exchange(ApiKey.OFFSET_COMMIT, 8, self._commit, _read_committed)
        _check(code)

    async def _exchange(
        self,
        key: ApiKey,
        version: int,
        frame: bytes,
        read: "Callable[[RequestHeader, memoryview], Any] | None" = None,
    ) -> Any:
        """Send a prepared request; what `read` makes of the response, by default its error code."""

        def encode(header: RequestHeader) -> Sequence[bytes]:
            number = struct.pack(">i", header.correlation_id)
            return [frame[:_CORRELATION_ID_AT] + number + frame[_CORRELATION_ID_AT + 4 :]]

        def decode(header: RequestHeader, response: memoryview) -> Any:
            if struct.unpack_from(">i", response)[0] != header.correlation_id:
                raise RuntimeError("a response to another request")
            return (read or _read_code)(header, response)

        return await self._connection.exchange(*self.address, key, version, encode, decode)

    def close(self) -> None:
        self._connection.close()


class GroupError(Exception):
    """A response has an error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


def _check(code: int) -> None:
    if code:
        raise GroupError(code)


def _encode(key: ApiKey, version: int, values: dict[str, Any]) -> bytes:
    """A request whose correlation id is set when it is sent."""
    return encode_request(RequestHeader(key, version, 0, "member"), values)


def _read_code(header: RequestHeader, response: memoryview) -> int:
    """The error code, after the header and the throttle time."""
    return int(struct.unpack_from(">h", response, _CODE_AT)[0])


def _read_committed(header: RequestHeader, response: memoryview) -> int:
    """The last field is an error code, but for the empty tags of partition, topic and body."""
    return int(struct.unpack_from(">h", response, len(response) - 5)[0])


def _read_joined(header: RequestHeader, response: memoryview) -> tuple[int, list[str]]:
    """The generation, and all members if this one leads the group; GroupError if it did not join.

    Others get an empty list, which is a 1 before the tags at the end; it is not decoded for them,
    because that would take the client longer than the rest of the rebalance.
    """
    _check(_read_code(header, response))
    (generation,) = struct.unpack_from(">i", response, _CODE_AT + 2)
    if response[-2] == 1:
        return generation, []
    return generation, [each.member_id for each in decode_response(header, response).members]


async def members_of(bootstrap: str, groups: Sequence[str], size: int) -> list[Member]:
    """Members of all groups, which know their coordinators and have joined."""
    topic = load.topic_of(bootstrap, 3)
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    asking = ClientConnection("bench", _TIMEOUT_S, _TIMEOUT_S)
    while True:
        request = {"key_type": 0, "coordinator_keys": list(groups)}
        found = await asking.send(host, int(port), ApiKey.FIND_COORDINATOR, 4, request)
        if not any(each.error_code for each in found.coordinators):
            break
        await asyncio.sleep(0.1)
    asking.close()
    members = [
        Member(each.key, number, (each.host, each.port), topic)
        for each in found.coordinators
        for number in range(size)
    ]
    await asyncio.gather(*(member.introduce() for member in members))
    for member in members:
        member.prepare_to_join()
    by_group: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        by_group[member.group].append(member)
    await asyncio.gather(*(member.settle(by_group[member.group]) for member in members))
    return members


async def commits(bootstrap: str, groups: int, size: int, seconds: float) -> Figures:
    """Latencies of commits, and of heartbeats, while all members send both."""
    members = await members_of(bootstrap, [load.name("group") for _ in range(groups)], size)
    for member in members:
        member.prepare_to_live()
    took: dict[str, list[float]] = {"commit": [], "heartbeat": []}

    async def repeat(kind: str, action: Any, period_s: float, at: float, end: float) -> None:
        while at < end:
            await asyncio.sleep(at - time.perf_counter())
            began = time.perf_counter()
            await action()
            took[kind].append((time.perf_counter() - began) * 1000)
            at += period_s

    async def live(member: Member, share: float, begin: float, end: float) -> None:
        """Send one request at a time, as a connection does; heartbeats between commits."""
        turn = asyncio.Lock()

        async def in_turn(action: Any) -> None:
            async with turn:
                await action()

        commit_at = begin + share * COMMIT_S
        beat_at = begin + share * HEARTBEAT_S + COMMIT_S / 2
        await asyncio.gather(
            repeat("commit", lambda: in_turn(member.commit), COMMIT_S, commit_at, end),
            repeat("heartbeat", lambda: in_turn(member.heartbeat), HEARTBEAT_S, beat_at, end),
        )

    begin = time.perf_counter() + 0.5
    # Neighbours in time belong to different groups.
    shares = [number / len(members) for number in range(len(members))]
    order = sorted(members, key=lambda member: member.number)
    await asyncio.gather(
        *(
            live(member, share, begin, begin + seconds)
            for member, share in zip(order, shares, strict=True)
        )
    )
    for member in members:
        member.close()
    return {
        f"{kind} {quantile} ms": value
        for kind, each in took.items()
        for quantile, value in (
            ("p50", statistics.median(each)),
            ("p99", sorted(each)[int(len(each) * 0.99)]),
        )
    }


async def rebalance(bootstrap: str, size: int) -> Figures:
    """Milliseconds until all members of a group have joined again and have their assignments."""
    members = await members_of(bootstrap, [load.name("group")], size)
    took = []
    for _ in range(REBALANCES):
        for member in members:
            member.subscription += 1
            member.prepare_to_join()
        began = time.perf_counter()
        await asyncio.gather(*(member.join() for member in members))
        took.append((time.perf_counter() - began) * 1000)
    for member in members:
        member.close()
    return {"median ms": statistics.median(took), "slowest ms": max(took)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="of commits, for each round")
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--members", type=int, default=20, help="of each group")
    options = parser.parse_args()
    config = {"offsets.topic.replication.factor": 3, "offsets.topic.num.partitions": 50}
    with duel(options.rounds, config) as contest:
        contest.measure(
            f"{options.groups * options.members} members in {options.groups} groups",
            lambda at: uvloop.run(commits(at, options.groups, options.members, options.seconds)),
        )
        contest.measure(
            f"rebalance of {REBALANCED} members",
            lambda at: uvloop.run(rebalance(at, REBALANCED)),
        )


if __name__ == "__main__":
    main()
