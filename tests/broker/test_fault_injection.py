"""What an injected fault means for one request: where its error stands, and what is served."""

import asyncio
import inspect
import uuid
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.broker.fault_injection import Fault, FaultInjection
from klamm.broker.handlers.dispatch import Call, EncodedResponse
from klamm.broker.security.denials import message_values
from klamm.errors import ConfigError
from klamm.net.server import CLOSE, CloseConnection
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.failures import error_codes
from klamm.protocol.codec.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from klamm.protocol.fast.fetch_response import encode_fetch_response as encode_fetch
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import values

ORDERS_ID = uuid.UUID(int=7)
BETWEEN_BROKERS = {
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "ControlledShutdown",
    "AlterPartition",
    "UpdateFeatures",
    "AllocateProducerIds",
}
VERSIONS = [
    (key, version)
    for key, api in APIS.items()
    for version in range(api.first_decoded, api.max_version + 1)
    if api.name not in BETWEEN_BROKERS
]


def parsed(api, error="REQUEST_TIMED_OUT", **only):
    options = dict.fromkeys(("topic", "partition", "group", "client_id"))
    given_options = {"delay_ms": 0, "disconnect": False, **options, **only}
    return Fault.parse(1, api=api, error=error, **given_options)


class Broker:
    """Handlers behind faults, which keep what has reached them."""

    def __init__(self, *faults, grants=1000):
        self.grants = grants
        self.claims = []
        self.served = []
        self.connection = SimpleNamespace(hold=0.0)
        self.injection = FaultInjection(self._claim, {ORDERS_ID: "orders"}.get, self._intercept)
        self.injection.use(faults)

    def _intercept(self, apis, serve):
        self.intercepted, self.serve = apis, serve

    async def _claim(self, fault, client_id):
        self.claims.append((fault, client_id))
        self.grants -= 1
        return self.grants >= 0

    def ask(self, api, version, body, client_id="a client", handled=None):
        """The response as the client reads it; `handled` is what the handler returns."""
        header = RequestHeader(api, version, 1, client_id)
        frame = memoryview(encode_request(header, body))[4:]
        request = decode_request(frame)
        call = Call(self.connection, request.header, request.body, frame, None, 0, 0)

        def handle(call):
            self.served.append(call.body)
            return handled(call.body) if callable(handled) else handled

        result = self.serve(handle, call) if api in self.intercepted else handle(call)
        if inspect.isawaitable(result):
            result = asyncio.run(_wait(result))
        if isinstance(result, EncodedResponse):
            encoded = b"".join(result.parts)
        else:
            encoded = encode_response(header, result)
        response = decode_response(header, encoded[4:])
        return response if isinstance(response, tuple) else message_values(response)


async def _wait(result):
    return await result


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@given(data=st.data())
@settings(max_examples=1, deadline=None)
def test_every_request_of_a_client_can_be_told_any_error(key, version, data):
    body = data.draw(values(message_schema(key, version, "request")))
    broker = Broker(parsed(APIS[key].name, "NOT_COORDINATOR"))
    header = RequestHeader(key, version, 1, "a client")
    request = decode_request(encode_request(header, body)[4:]).body
    is_spared = key == ApiKey.FETCH and request.replica_id >= 0
    if key in (ApiKey.METADATA,) or is_spared:
        return  # see below
    if key == ApiKey.PRODUCE and request.acks == 0:
        with pytest.raises(CloseConnection):
            broker.ask(key, version, body)
        return
    broker.ask(key, version, body, handled={})
    has_items = not (key == ApiKey.FETCH and version < 7 and not request.topics)
    assert len(broker.claims) == has_items


def produce(*topics):
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [
            {"name": name, "partition_data": [{"index": index, "records": b""} for index in found]}
            for name, found in topics
        ],
    }


def produced(body):
    return {
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [
                    {"index": each.partition, "error_code": 0, "base_offset": 5}
                    for each in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


def produce_results(response):
    return {
        (topic["name"], each["index"]): (each["error_code"], each["base_offset"])
        for topic in response["responses"]
        for each in topic["partition_responses"]
    }


@pytest.mark.parametrize("version", [3, 8, 11])
def test_the_rest_of_a_produce_request_is_appended(version):
    broker = Broker(parsed("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", partition=1))
    body = produce(("orders", [0, 1]), ("other", [0]))
    response = broker.ask(ApiKey.PRODUCE, version, body, handled=produced)
    assert produce_results(response) == {
        ("orders", 0): (0, 5),
        ("orders", 1): (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        ("other", 0): (0, 5),
    }
    (served,) = broker.served
    assert [(topic.name, len(topic.partitions)) for topic in served.topics] == [
        ("orders", 1),
        ("other", 1),
    ]


def test_a_request_that_names_nothing_of_a_fault_is_neither_changed_nor_counted():
    broker = Broker(parsed("Produce", topic="orders"))
    response = broker.ask(ApiKey.PRODUCE, 9, produce(("other", [0])), handled=produced)
    assert produce_results(response) == {("other", 0): (0, 5)}
    assert broker.claims == []


def test_a_fault_that_is_used_up_changes_nothing():
    broker = Broker(parsed("Produce"), grants=1)
    body = produce(("orders", [0]))
    first = broker.ask(ApiKey.PRODUCE, 9, body, handled=produced)
    second = broker.ask(ApiKey.PRODUCE, 9, body, handled=produced)
    assert produce_results(first) == {("orders", 0): (ErrorCode.REQUEST_TIMED_OUT, -1)}
    assert produce_results(second) == {("orders", 0): (0, 5)}


def fetch(version, *, epoch=-1, replica=-1, topics=(("orders", [0]), ("other", [0]))):
    ids = {"orders": ORDERS_ID, "other": uuid.UUID(int=8)}
    return {
        "replica_id": replica,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 3 if epoch > 0 else 0,
        "session_epoch": epoch,
        "topics": [
            {
                "topic": name,
                "topic_id": ids[name],
                "partitions": [
                    {
                        "partition": each,
                        "current_leader_epoch": -1,
                        "fetch_offset": 0,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                    for each in partitions
                ],
            }
            for name, partitions in topics
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def fetched(version):
    def handled(body):
        topics = [
            FetchTopicResponse(
                topic.name,
                topic.topic_id,
                [FetchPartitionResponse(each.partition, 0, 9, 9, 0, b"records")
                 for each in topic.partitions],
            )
            for topic in body.topics
        ]  # fmt: skip
        header = RequestHeader(ApiKey.FETCH, version, 1, "a client")
        return EncodedResponse(encode_fetch(header, FetchResponse(topics, session_id=4)))

    return handled


@pytest.mark.parametrize("version", [4, 11, 12, 13, 16])
def test_a_fetch_gets_the_error_at_its_partition_and_the_records_of_the_others(version):
    broker = Broker(parsed("Fetch", "OFFSET_OUT_OF_RANGE", topic="orders"))
    response = broker.ask(ApiKey.FETCH, version, fetch(version), handled=fetched(version))
    found = [
        (each.error_code, bytes(each.records)) for t in response.topics for each in t.partitions
    ]
    assert found == [(0, b"records"), (ErrorCode.OFFSET_OUT_OF_RANGE, b"")]
    assert response.error_code == 0
    assert broker.served[0].max_wait_ms == 0, "the error does not wait for records of others"


def test_a_fetch_session_is_given_up_before_its_partitions_fail():
    broker = Broker(parsed("Fetch", "OFFSET_OUT_OF_RANGE", topic="orders"))
    in_session = fetch(12, epoch=5, topics=())
    response = broker.ask(ApiKey.FETCH, 12, in_session, handled=fetched(12))
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.claims == [], "no hit: clients ask again, with all partitions"
    broker.ask(ApiKey.FETCH, 12, fetch(12, epoch=0), handled=fetched(12))
    assert broker.served[0].session_epoch == -1, "a new session would lack the failed partitions"
    assert len(broker.claims) == 1


def test_a_session_error_stands_at_the_top_of_a_fetch_response():
    broker = Broker(parsed("Fetch", "INVALID_FETCH_SESSION_EPOCH"))
    response = broker.ask(ApiKey.FETCH, 12, fetch(12, epoch=5, topics=()))
    assert (response.error_code, response.topics) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])


def test_followers_and_the_cluster_itself_are_spared():
    broker = Broker(parsed("Fetch"), parsed("Produce"))
    broker.ask(ApiKey.FETCH, 12, fetch(12, replica=2), "broker-2-fetcher-1", fetched(12))
    for client in ("klamm-cluster", "klamm-history-1", "2"):
        body = produce(("orders", [0]))
        response = broker.ask(ApiKey.PRODUCE, 9, body, client, produced)
        assert produce_results(response) == {("orders", 0): (0, 5)}
    assert broker.claims == []


def test_a_fault_may_be_for_one_client_and_one_group():
    broker = Broker(parsed("Heartbeat", "NOT_COORDINATOR", group="g", client_id="a"))
    body = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    sound = {"error_code": 0}
    assert broker.ask(ApiKey.HEARTBEAT, 4, body, "b", sound)["error_code"] == 0
    other = {**body, "group_id": "h"}
    assert broker.ask(ApiKey.HEARTBEAT, 4, other, "a", sound)["error_code"] == 0
    hit = broker.ask(ApiKey.HEARTBEAT, 4, body, "a", sound)
    assert hit["error_code"] == ErrorCode.NOT_COORDINATOR
    assert broker.claims == [(1, "a")]


@pytest.mark.parametrize("version", [1, 9, 12])
def test_metadata_keeps_its_brokers_and_gets_the_error_at_the_topic(version):
    def topic(name):
        partition = {
            "error_code": 0,
            "partition_index": 0,
            "leader_id": 1,
            "leader_epoch": 0,
            "replica_nodes": [1],
            "isr_nodes": [1],
            "offline_replicas": [],
        }
        return {
            "error_code": 0,
            "name": name,
            "topic_id": None,
            "is_internal": False,
            "partitions": [partition],
        }

    handled = {
        "brokers": [{"node_id": 1, "host": "h", "port": 1, "rack": None}],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [topic("orders"), topic("other")],
    }
    ask_all = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    broker = Broker(parsed("Metadata", "LEADER_NOT_AVAILABLE", topic="orders"))
    response = broker.ask(ApiKey.METADATA, version, ask_all, handled=handled)
    assert [each["node_id"] for each in response["brokers"]] == [1]
    assert [(t["error_code"], len(t["partitions"])) for t in response["topics"]] == [
        (ErrorCode.LEADER_NOT_AVAILABLE, 0),
        (0, 1),
    ]
    broker.injection.use([parsed("Metadata", "LEADER_NOT_AVAILABLE", topic="orders", partition=0)])
    response = broker.ask(ApiKey.METADATA, version, ask_all, handled=handled)
    (partition,) = response["topics"][0]["partitions"]
    assert (partition["error_code"], partition["leader_id"]) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    broker.injection.use([parsed("Metadata", topic="unknown")])
    response = broker.ask(ApiKey.METADATA, version, ask_all, handled=handled)
    assert len(broker.claims) == 2, "a response without the topic does not count"


def test_offset_fetch_has_errors_of_groups_above_and_errors_of_partitions_below():
    offset = {"committed_offset": 3, "committed_leader_epoch": 0, "metadata": "", "error_code": 0}
    topics = [{"name": "orders", "partitions": [{"partition_index": 0, **offset}]}]
    handled = {"groups": [{"group_id": "g", "topics": topics, "error_code": 0}]}
    body = {
        "groups": [{"group_id": "g", "topics": None, "member_id": None, "member_epoch": -1}],
        "require_stable": False,
    }
    for error, above, below in (
        ("NOT_COORDINATOR", ErrorCode.NOT_COORDINATOR, []),
        ("UNSTABLE_OFFSET_COMMIT", 0, [(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)]),
    ):
        broker = Broker(parsed("OffsetFetch", error))
        (group,) = broker.ask(ApiKey.OFFSET_FETCH, 9, body, handled=handled)["groups"]
        assert group["error_code"] == above
        assert below == [
            (each["error_code"], each["committed_offset"])
            for topic in group["topics"]
            for each in topic["partitions"]
        ]


def test_a_transaction_takes_all_partitions_or_none():
    broker = Broker(parsed("AddPartitionsToTxn", "INVALID_TXN_STATE", topic="orders"))
    body = {
        "v3_and_below_transactional_id": "t",
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [
            {"name": "orders", "partitions": [0]},
            {"name": "other", "partitions": [0]},
        ],
    }
    response = broker.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, body)
    found = {
        topic["name"]: topic["results_by_partition"][0]["partition_error_code"]
        for topic in response["results_by_topic_v3_and_below"]
    }
    assert found == {
        "orders": ErrorCode.INVALID_TXN_STATE,
        "other": ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
    assert broker.served == []


@pytest.mark.parametrize(
    ("api", "version", "body", "handled"),
    [
        (
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            {
                "timeout": 1000,
                "topics": [
                    {"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]}
                    for name in ("orders", "other")
                ],
            },
            {"error_code": 0, "responses": [{"name": "other", "partitions": []}]},
        ),
        (
            ApiKey.OFFSET_DELETE,
            0,
            {
                "group_id": "g",
                "topics": [
                    {"name": name, "partitions": [{"partition_index": 0}]}
                    for name in ("orders", "other")
                ],
            },
            {"error_code": 0, "topics": [{"name": "other", "partitions": []}]},
        ),
        (
            ApiKey.ELECT_LEADERS,
            2,
            {
                "election_type": 0,
                "timeout": 1000,
                "topic_partitions": [
                    {"topic": name, "partitions": [0]} for name in ("orders", "other")
                ],
            },
            {"error_code": 0, "replica_election_results": []},
        ),
        (
            ApiKey.DELETE_TOPICS,
            5,
            {"topic_names": ["orders", "other"], "timeout": 1000},
            {"responses": []},
        ),
        (
            ApiKey.DELETE_TOPICS,
            6,
            {
                "topics": [
                    {"name": None, "topic_id": ORDERS_ID},
                    {"name": "other", "topic_id": None},
                ],
                "timeout": 1000,
            },
            {"responses": []},
        ),
        (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            {
                "resources": [
                    {"resource_type": kind, "resource_name": "orders", "configs": []}
                    for kind in (2, 4)
                ],
                "validate_only": False,
            },
            {"responses": []},
        ),
    ],
)
def test_administration_fails_for_the_named_topic_alone(api, version, body, handled):
    broker = Broker(parsed(APIS[api].name, "POLICY_VIOLATION", topic="orders"))
    response = broker.ask(api, version, body, handled={"throttle_time": 0, **handled})
    assert response.get("error_code", 0) == 0
    assert list(error_codes(response)).count(ErrorCode.POLICY_VIOLATION) == 1
    (served,) = broker.served
    assert "orders" not in repr(served).replace("resource_type=4, resource_name='orders'", "")


def test_a_request_for_everything_fails_as_a_whole():
    broker = Broker(parsed("ElectLeaders", "POLICY_VIOLATION"))
    body = {"election_type": 0, "timeout": 1000, "topic_partitions": None}
    response = broker.ask(ApiKey.ELECT_LEADERS, 2, body)
    assert response["error_code"] == ErrorCode.POLICY_VIOLATION


def test_a_delay_comes_before_the_request_is_carried_out():
    broker = Broker(parsed("Produce", None, delay_ms=1))
    response = broker.ask(ApiKey.PRODUCE, 9, produce(("orders", [0])), handled=produced)
    assert produce_results(response) == {("orders", 0): (0, 5)}
    assert len(broker.claims) == 1


def test_a_connection_can_be_lost_instead_of_a_response():
    broker = Broker(parsed("Produce", None, disconnect=True))
    with pytest.raises(CloseConnection, match="as injected: Produce: disconnect"):
        broker.ask(ApiKey.PRODUCE, 9, produce(("orders", [0])), handled=produced)
    assert broker.served == []


def test_faults_add_up_in_the_order_in_which_they_were_injected():
    broker = Broker(parsed("Produce", None, delay_ms=1), parsed("Produce", topic="orders"))
    response = broker.ask(ApiKey.PRODUCE, 9, produce(("orders", [0])), handled=produced)
    assert produce_results(response) == {("orders", 0): (ErrorCode.REQUEST_TIMED_OUT, -1)}
    assert len(broker.claims) == 2


def test_a_connection_whose_authentication_fails_is_closed():
    broker = Broker(parsed("SaslAuthenticate", "SASL_AUTHENTICATION_FAILED"))
    broker.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b""})
    assert broker.connection.hold == CLOSE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"api": "Prodduce"}, "is not a Kafka API; do you mean Produce?"),
        ({"api": "LeaderAndIsr"}, "only brokers send LeaderAndIsr"),
        ({"api": "Produce", "error": "NOT_LEADER"}, "do you mean NOT_LEADER_OR_FOLLOWER?"),
        ({"api": "Produce", "error": "NONE"}, "is not one of Kafka's errors"),
        ({"api": "Produce", "error": None}, "needs error=, delay_ms= or disconnect=True"),
        ({"api": "Produce", "disconnect": True}, "exclude each other"),
        ({"api": "Produce", "delay_ms": -1}, "not a number of milliseconds"),
        ({"api": "Heartbeat", "topic": "t"}, "Heartbeat requests name no topics"),
        ({"api": "Produce", "partition": 0}, "it needs topic="),
        ({"api": "CreateTopics", "topic": "t", "partition": 0}, "an API that names partitions"),
        ({"api": "Produce", "group": "g"}, "Produce requests name no groups"),
    ],
)
def test_a_fault_that_could_never_take_effect_is_refused(options, said):
    with pytest.raises(ConfigError) as refused:
        parsed(**options)
    assert said in str(refused.value)


def test_a_fault_travels_over_the_link_and_reads_as_a_sentence():
    fault = parsed("produce", "not_leader_or_follower", topic="orders", delay_ms=5)
    assert Fault.from_json(fault.to_json()) == fault
    assert str(fault) == "Produce: NOT_LEADER_OR_FOLLOWER, 5 ms late (topic orders)"
