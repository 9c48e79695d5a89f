"""Groups and offsets on the wire: every version, from bytes to the coordinator and back."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from klamm.broker.groups import codec as groups
from klamm.broker.groups.messages import (
    FetchedOffset,
)
from klamm.names import TopicPartition
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import GROUP, INITIAL_DELAY_MS, Driver, partition_of, subscription
from tests.support.event_loop import result_of

SIZE_BYTES = 4


def versions(key: ApiKey, first: int = 0) -> pytest.MarkDecorator:
    api = APIS[key]
    return pytest.mark.parametrize(
        "version", range(max(first, api.min_version), api.max_version + 1)
    )


class Wire:
    """A coordinator as seen through bytes; the topics `t` and `u` exist, with partition 0 each."""

    def __init__(self) -> None:
        self.driver = Driver()
        self._ticket = 1000

    def ask(self, key: ApiKey, version: int, **values: Any) -> Any:
        """Send a request; returns its response, or a ticket for `read` if it has to wait."""
        sent = encode_request(RequestHeader(key, version, 7, "client"), values)
        header, body = decode_request(sent[SIZE_BYTES:])
        response = self._handle(key, header, body)
        return (
            response
            if response is None or isinstance(response, int)
            else self._reread(header, response)
        )

    def read(self, key: ApiKey, version: int, ticket: int) -> Any:
        """The response to a request that had to wait."""
        header = RequestHeader(key, version, 7, "client")
        return self._reread(header, self._body(key, header, None, self.driver.responses[ticket]))

    @staticmethod
    def _reread(header: RequestHeader, body: Mapping[str, Any]) -> Any:
        return decode_response(header, encode_response(header, body)[SIZE_BYTES:])

    def _handle(self, key: ApiKey, header: RequestHeader, body: Any) -> Any:
        coordinator, now_ms = self.driver.coordinator, self.driver.now_ms
        match key:
            case ApiKey.HEARTBEAT:
                request = groups.heartbeat_request(body)
                return groups.heartbeat_body(coordinator.heartbeat(request, now_ms))
            case ApiKey.OFFSET_FETCH:
                requests = groups.offset_fetch_requests(header, body)
                responses = [coordinator.fetch_offsets(request) for request in requests]
                return groups.offset_fetch_body(header, requests, responses)
            case ApiKey.DESCRIBE_GROUPS:
                descriptions = [*map(coordinator.describe_group, body.groups)]
                return groups.describe_groups_body(body, descriptions)
            case ApiKey.LIST_GROUPS:
                listed = result_of(coordinator.list_groups(*groups.list_groups_filters(body)))
                return groups.list_groups_body(listed)
        self._ticket += 1
        effects = self._submit(key, header, body)(self._ticket)
        self.driver.carry_out(effects)
        if self._ticket not in self.driver.responses:
            return self._ticket
        return self._body(key, header, body, self.driver.responses[self._ticket])

    def _submit(self, key: ApiKey, header: RequestHeader, body: Any) -> Callable[[int], Any]:
        coordinator, now_ms = self.driver.coordinator, self.driver.now_ms
        match key:
            case ApiKey.JOIN_GROUP:
                join = groups.join_request(header, body, "10.0.0.1")
                return lambda ticket: coordinator.join(ticket, join, now_ms)
            case ApiKey.SYNC_GROUP:
                sync = groups.sync_request(header, body)
                return lambda ticket: coordinator.sync(ticket, sync, now_ms)
            case ApiKey.LEAVE_GROUP:
                leave = groups.leave_request(header, body)
                return lambda ticket: coordinator.leave(ticket, leave, now_ms)
            case ApiKey.OFFSET_COMMIT:
                commit = groups.offset_commit_request(body, _exists)
                return lambda ticket: coordinator.commit_offsets(ticket, commit, now_ms)
            case ApiKey.OFFSET_DELETE:
                delete = groups.offset_delete_request(body, _exists)
                return lambda ticket: coordinator.delete_offsets(ticket, delete, now_ms)
            case ApiKey.DELETE_GROUPS:
                return lambda ticket: coordinator.delete_groups(ticket, body.groups_names, now_ms)
        raise AssertionError(key)

    @staticmethod
    def _body(key: ApiKey, header: RequestHeader, body: Any, response: Any) -> Mapping[str, Any]:
        match key:
            case ApiKey.JOIN_GROUP:
                return groups.join_body(header, response)
            case ApiKey.SYNC_GROUP:
                return groups.sync_body(response)
            case ApiKey.LEAVE_GROUP:
                return groups.leave_body(header, response)
            case ApiKey.OFFSET_COMMIT:
                return groups.offset_commit_body(body, response)
            case ApiKey.OFFSET_DELETE:
                return groups.offset_delete_body(body, response)
            case ApiKey.DELETE_GROUPS:
                return groups.delete_groups_body(response)
        raise AssertionError(key)

    # Conversations

    def join(self, version: int, member_id: str = "", **values: Any) -> Any:
        protocol = {"name": "range", "metadata": subscription("t")}
        return self.ask(
            ApiKey.JOIN_GROUP,
            version,
            group_id=GROUP,
            session_timeout=10_000,
            rebalance_timeout=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[protocol],
            **values,
        )

    def joined(self, version: int, **values: Any) -> Any:
        """The response to the JoinGroup of the first member."""
        ticket = self.join(version, **values)
        if not isinstance(ticket, int):
            assert ticket.error_code == ErrorCode.MEMBER_ID_REQUIRED
            ticket = self.join(version, ticket.member_id, **values)
        self.driver.advance(INITIAL_DELAY_MS)
        return self.read(ApiKey.JOIN_GROUP, version, ticket)

    def sync(self, version: int, joined: Any, **values: Any) -> Any:
        assignment = {"member_id": joined.member_id, "assignment": b"all"}
        return self.ask(
            ApiKey.SYNC_GROUP,
            version,
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[assignment],
            **{"protocol_type": "consumer", "protocol_name": "range"} | values,
        )

    def settled(self, **values: Any) -> Any:
        """The only member of a stable group, as it heard of it in JoinGroup 5."""
        joined = self.joined(5, **values)
        assert self.sync(3, joined, **values).error_code == ErrorCode.NONE
        return joined


def _exists(partition: TopicPartition) -> bool:
    return partition in {("t", 0), ("u", 0)}


@pytest.fixture
def wire() -> Wire:
    return Wire()


# JoinGroup, SyncGroup, Heartbeat, LeaveGroup


@pytest.mark.rule("GRP-12")
@versions(ApiKey.JOIN_GROUP)
def test_first_member_hears_that_it_leads(wire, version):
    response = wire.joined(version)
    assert (response.error_code, response.generation_id) == (ErrorCode.NONE, 1)
    assert response.leader == response.member_id == "client-uuid1"
    assert response.protocol_name == "range"
    (member,) = response.members
    assert (member.member_id, member.metadata) == (response.member_id, subscription("t"))
    if version >= 7:
        assert response.protocol_type == "consumer"
    described = wire.driver.coordinator.describe_group(GROUP).members[0]
    assert (described.client_id, described.client_host) == ("client", "/10.0.0.1")


@pytest.mark.rule("GRP-12")
@versions(ApiKey.JOIN_GROUP)
def test_refused_join_names_no_generation_leader_or_protocol(wire, version):
    response = wire.join(version, "stranger")
    assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (response.generation_id, response.leader, response.members) == (-1, "", ())
    assert response.member_id == "stranger"
    assert response.protocol_name == ("" if version < 7 else None)


@pytest.mark.rule("GRP-12", "GRP-19")
@versions(ApiKey.JOIN_GROUP, first=5)
def test_instance_ids_go_both_ways(wire, version):
    response = wire.joined(version, group_instance_id="i")
    assert response.member_id == "i-uuid1"
    assert response.members[0].group_instance_id == "i"


@pytest.mark.rule("GRP-19")
def test_skip_assignment_reaches_a_restarted_leader(wire):
    wire.settled(group_instance_id="i")
    assert wire.join(9, group_instance_id="i").skip_assignment
    assert not hasattr(wire.join(8, group_instance_id="i"), "skip_assignment")


@pytest.mark.rule("GRP-9")
def test_version_0_of_join_has_the_session_timeout_for_everything(wire):
    wire.join(0)
    (member,) = wire.driver.coordinator._groups[GROUP].members.values()
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10_000, 10_000)


@pytest.mark.rule("GRP-14")
@versions(ApiKey.SYNC_GROUP)
def test_leader_hands_in_the_assignment_and_gets_its_own(wire, version):
    response = wire.sync(version, wire.joined(3))
    assert (response.error_code, response.assignment) == (ErrorCode.NONE, b"all")
    if version >= 5:
        assert (response.protocol_type, response.protocol_name) == ("consumer", "range")


@pytest.mark.rule("GRP-14")
def test_sync_without_protocol_is_refused_in_version_5_only(wire):
    joined = wire.joined(3)
    refused = wire.sync(5, joined, protocol_type=None)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (refused.protocol_type, refused.protocol_name, refused.assignment) == (None, None, b"")
    assert wire.sync(4, joined, protocol_type=None).error_code == ErrorCode.NONE


@pytest.mark.rule("GRP-17")
@versions(ApiKey.HEARTBEAT)
def test_heartbeat_of_a_member_and_of_a_stranger(wire, version):
    joined = wire.settled()
    about = {"group_id": GROUP, "generation_id": 1, "group_instance_id": None}
    response = wire.ask(ApiKey.HEARTBEAT, version, member_id=joined.member_id, **about)
    assert response.error_code == ErrorCode.NONE
    response = wire.ask(ApiKey.HEARTBEAT, version, member_id="x", **about)
    assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.rule("GRP-20")
@versions(ApiKey.LEAVE_GROUP)
def test_errors_of_leaving_members_stand_at_the_top_below_version_3(wire, version):
    joined = wire.settled()
    for member_id, error in (
        ("stranger", ErrorCode.UNKNOWN_MEMBER_ID),
        (joined.member_id, ErrorCode.NONE),
    ):
        member = {"member_id": member_id, "group_instance_id": None}
        response = wire.ask(
            ApiKey.LEAVE_GROUP, version, group_id=GROUP, member_id=member_id, members=[member]
        )
        if version < 3:
            assert response.error_code == error
        else:
            assert response.error_code == ErrorCode.NONE
            assert [(m.member_id, m.error_code) for m in response.members] == [(member_id, error)]
    assert wire.driver.state() == "Empty"


@pytest.mark.rule("GRP-20", "GRP-6")
@versions(ApiKey.LEAVE_GROUP)
def test_error_of_the_whole_request_stands_at_the_top_in_every_version(wire, version):
    member = {"member_id": "m", "group_instance_id": None}
    response = wire.ask(ApiKey.LEAVE_GROUP, version, group_id="", member_id="m", members=[member])
    assert response.error_code == ErrorCode.INVALID_GROUP_ID


# OffsetCommit, OffsetFetch, OffsetDelete


def commit(wire: Wire, version: int, **values: Any) -> Any:
    def partition(index: int, offset: int, metadata: str | None = "") -> dict[str, Any]:
        return {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": 2,
            "committed_metadata": metadata,
        }

    topics = [
        {"name": "t", "partitions": [partition(0, 5, "note"), partition(1, 6)]},
        {"name": "gone", "partitions": [partition(0, 7)]},
        {"name": "u", "partitions": [partition(0, 8, None)]},
    ]
    about = {"group_id": GROUP, "member_id": "", "topics": topics}
    return wire.ask(ApiKey.OFFSET_COMMIT, version, **about | values)


def fetch(wire: Wire, version: int, topics: Any, group: str = GROUP, **values: Any) -> Any:
    """The part of the response that is about one group."""
    if version < 8:
        return wire.ask(ApiKey.OFFSET_FETCH, version, group_id=group, topics=topics, **values)
    asked = [{"group_id": group, "topics": topics}]
    (response,) = wire.ask(ApiKey.OFFSET_FETCH, version, groups=asked, **values).groups
    assert response.group_id == group
    return response


def errors(response: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, each.partition_index): int(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }


@pytest.mark.rule("OFF-1")
@versions(ApiKey.OFFSET_COMMIT)
def test_unknown_partitions_fail_and_the_others_are_committed(wire, version):
    response = commit(wire, version)
    assert errors(response) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.NONE,
    }
    assert wire.driver.fetch() == {
        ("t", 0): FetchedOffset(ErrorCode.NONE, 5, 2 if version >= 6 else -1, "note"),
        ("u", 0): FetchedOffset(ErrorCode.NONE, 8, 2 if version >= 6 else -1, ""),
    }


@pytest.mark.rule("OFF-1")
@versions(ApiKey.OFFSET_COMMIT)
def test_error_of_the_group_is_that_of_every_partition(wire, version):
    response = commit(wire, version, generation_id_or_member_epoch=3, member_id="m")
    known = [errors(response)[partition] for partition in (("t", 0), ("u", 0))]
    assert known == [ErrorCode.ILLEGAL_GENERATION] * 2


@pytest.mark.rule("OFF-6")
@pytest.mark.parametrize("version", [2, 3, 4])
def test_retention_time_counts_unless_it_is_minus_one(wire, version):
    commit(wire, version, retention_time=-1)
    committed = wire.driver.coordinator._groups[GROUP].offsets.committed()
    assert committed["t", 0].expire_timestamp_ms is None
    commit(wire, version, retention_time=5_000)
    committed = wire.driver.coordinator._groups[GROUP].offsets.committed()
    assert committed["t", 0].expire_timestamp_ms == wire.driver.now_ms + 5_000


@pytest.mark.rule("OFF-5")
@versions(ApiKey.OFFSET_FETCH)
def test_offsets_are_fetched_by_name(wire, version):
    commit(wire, 6)
    topics = [
        {"name": "u", "partition_indexes": [0]},
        {"name": "t", "partition_indexes": [1, 0]},
    ]
    response = fetch(wire, version, topics)
    found = [
        (topic.name, each.partition_index, each.committed_offset, each.metadata)
        for topic in response.topics
        for each in topic.partitions
    ]
    assert found == [("u", 0, 8, ""), ("t", 1, -1, ""), ("t", 0, 5, "note")]
    if version >= 5:
        assert response.topics[1].partitions[1].committed_leader_epoch == 2
        assert response.topics[1].partitions[0].committed_leader_epoch == -1


@pytest.mark.rule("OFF-5")
@versions(ApiKey.OFFSET_FETCH, first=2)
def test_null_asks_for_all_offsets(wire, version):
    commit(wire, 6)
    wire.driver.commit({("t", 1): 9})
    assert errors(fetch(wire, version, None)) == {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}


@pytest.mark.rule("OFF-5")
@versions(ApiKey.OFFSET_FETCH)
def test_error_of_the_group_stands_where_the_version_has_it(wire, version):
    wire.driver.coordinator.unload(partition_of(GROUP), None, wire.driver.now_ms)
    response = fetch(wire, version, [{"name": "t", "partition_indexes": [0, 3]}])
    if version < 2:
        assert errors(response) == dict.fromkeys([("t", 0), ("t", 3)], ErrorCode.NOT_COORDINATOR)
        assert response.topics[0].partitions[0].committed_offset == -1
    else:
        assert response.error_code == ErrorCode.NOT_COORDINATOR
        assert response.topics == ()


@pytest.mark.rule("OFF-5")
@versions(ApiKey.OFFSET_FETCH, first=7)
def test_stable_offsets_can_be_asked_for(wire, version):
    wire.driver.append_error = None
    wire.driver.commit({("t", 0): 1})
    topics = [{"name": "t", "partition_indexes": [0]}]
    unstable = {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
    assert errors(fetch(wire, version, topics, require_stable=True)) == unstable
    assert errors(fetch(wire, version, topics, require_stable=False)) == {("t", 0): 0}


@pytest.mark.rule("OFF-5")
def test_several_groups_are_answered_each_for_itself(wire):
    commit(wire, 9)
    asked = [{"group_id": GROUP, "topics": None}, {"group_id": "other", "topics": None}]
    response = wire.ask(ApiKey.OFFSET_FETCH, 9, groups=asked)
    assert [(g.group_id, len(g.topics)) for g in response.groups] == [(GROUP, 2), ("other", 0)]
    assert wire.ask(ApiKey.OFFSET_FETCH, 8, groups=[]).groups == ()


@pytest.mark.rule("GRP-22")
def test_offsets_are_deleted_where_nobody_reads_them(wire):
    commit(wire, 9)
    wire.settled()
    topics = [
        {"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 1}]},
        {"name": "u", "partitions": [{"partition_index": 0}]},
    ]
    response = wire.ask(ApiKey.OFFSET_DELETE, 0, group_id=GROUP, topics=topics)
    assert response.error_code == ErrorCode.NONE
    assert errors(response) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): ErrorCode.NONE,
    }
    response = wire.ask(ApiKey.OFFSET_DELETE, 0, group_id="x", topics=topics)
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, ())


# DescribeGroups, ListGroups, DeleteGroups, FindCoordinator


@pytest.mark.rule("GRP-21")
@versions(ApiKey.DESCRIBE_GROUPS)
def test_groups_are_described(wire, version):
    joined = wire.settled(group_instance_id="i")
    response = wire.ask(
        ApiKey.DESCRIBE_GROUPS, version, groups=[GROUP, "x"], include_authorized_operations=True
    )
    stable, dead = response.groups
    assert (stable.group_id, stable.group_state, stable.protocol_type) == (
        GROUP,
        "Stable",
        "consumer",
    )
    assert stable.protocol_data == "range"
    (member,) = stable.members
    assert (member.member_id, member.client_id) == (joined.member_id, "client")
    assert (member.client_host, member.member_assignment) == ("/10.0.0.1", b"all")
    assert (dead.error_code, dead.group_state, dead.members) == (ErrorCode.NONE, "Dead", ())
    if version >= 3:
        assert stable.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8
    if version >= 4:
        assert member.group_instance_id == "i"


@pytest.mark.rule("GRP-21", "API-13")
def test_operations_are_told_to_those_who_ask(wire):
    response = wire.ask(
        ApiKey.DESCRIBE_GROUPS, 5, groups=["x"], include_authorized_operations=False
    )
    assert response.groups[0].authorized_operations == -(1 << 31)


@pytest.mark.rule("GRP-21")
@versions(ApiKey.LIST_GROUPS)
def test_groups_are_listed(wire, version):
    wire.settled()
    commit(wire, 9, group_id="offsets")
    response = wire.ask(ApiKey.LIST_GROUPS, version, states_filter=["STABLE"], types_filter=[])
    listed = {group.group_id: group for group in response.groups}
    assert listed[GROUP].protocol_type == "consumer"
    if version >= 4:
        assert set(listed) == {GROUP}
        assert listed[GROUP].group_state == "Stable"
    else:
        assert set(listed) == {GROUP, "offsets"}
    if version >= 5:
        assert listed[GROUP].group_type == "classic"


@pytest.mark.rule("GRP-22")
@versions(ApiKey.DELETE_GROUPS)
def test_groups_are_deleted(wire, version):
    wire.settled()
    commit(wire, 9, group_id="offsets")
    response = wire.ask(ApiKey.DELETE_GROUPS, version, groups_names=[GROUP, "offsets", "x"])
    assert [(result.group_id, result.error_code) for result in response.results] == [
        (GROUP, ErrorCode.NON_EMPTY_GROUP),
        ("offsets", ErrorCode.NONE),
        ("x", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


@pytest.mark.rule("GRP-3")
@versions(ApiKey.FIND_COORDINATOR)
def test_coordinators_are_found_by_one_key_or_by_many(version):
    asked = {"key": "g", "key_type": 0, "coordinator_keys": ["g", "h"]}
    header = RequestHeader(ApiKey.FIND_COORDINATOR, version, 7, "client")
    _, body = decode_request(encode_request(header, asked)[SIZE_BYTES:])
    assert groups.find_coordinator_keys(header, body) == (
        0,
        ("g",) if version < 4 else ("g", "h"),
    )
    found = [
        groups.FoundCoordinator("g", ErrorCode.NONE, 3, "host", 9092),
        groups.FoundCoordinator("h", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]
    encoded = encode_response(header, groups.find_coordinator_body(header, found))
    response = decode_response(header, encoded[SIZE_BYTES:])
    coordinators = response.coordinators if version >= 4 else [response]
    first = coordinators[0]
    assert (first.error_code, first.node_id, first.host, first.port) == (0, 3, "host", 9092)
    if version >= 4:
        second = coordinators[1]
        assert (second.key, second.node_id, second.host, second.port) == ("h", -1, "", -1)
        assert second.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert second.error_message == ""
