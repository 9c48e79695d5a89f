"""Kafka's znodes, in every version, and what happens to bad content."""

import contextlib
import json
import re
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import MalformedZnodeError
from klamm.zookeeper import znodes
from klamm.zookeeper.znodes import (
    BrokerRegistration,
    FeatureRange,
    FinalizedFeatures,
    LogDirEvent,
    ProducerIdBlock,
    RegisteredEndpoint,
    StateZnode,
    TopicAssignment,
)
from tests.support.state_znodes import encode_state

NOT_JSON = (b"", b"not json", b"{", b"\xff\xfe")
TOPIC_ID = uuid.UUID(bytes=bytes(range(16)))


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.rule("ZK-2", "VER-37")
def test_paths_are_those_of_kafka():
    assert znodes.broker_path(7) == "/brokers/ids/7"
    assert znodes.topic_path("t") == "/brokers/topics/t"
    assert znodes.partitions_path("t") == "/brokers/topics/t/partitions"
    assert znodes.partition_path("t", 3) == "/brokers/topics/t/partitions/3"
    assert znodes.state_path("t", 3) == "/brokers/topics/t/partitions/3/state"
    assert znodes.delete_topic_path("t") == "/admin/delete_topics/t"
    assert znodes.config_path("users/<default>") == "/config/users/<default>"
    assert znodes.PREFERRED_ELECTION == "/admin/preferred_replica_election"
    assert len(znodes.PERSISTENT_PATHS) == 14


# --- the controller -------------------------------------------------------------------------------


@pytest.mark.rule("ZK-5", "VER-20")
def test_the_controller_is_written_in_version_2():
    assert znodes.encode_controller(1, 1700000000000) == (
        b'{"version":2,"brokerid":1,"timestamp":"1700000000000","kraftControllerEpoch":-1}'
    )


@pytest.mark.rule("ZK-5", "VER-20", "ZK-4", "ELEC-14")
@pytest.mark.parametrize(
    "content",
    [
        {"version": 1, "brokerid": 5, "timestamp": "1"},
        {"timestamp": "1", "brokerid": 5, "version": 2, "kraftControllerEpoch": -1},
        {"version": 2, "brokerid": 5, "timestamp": "1", "kraftControllerEpoch": 3},
        {"brokerid": 5, "unknown": []},
    ],
)
def test_the_controller_is_read_in_any_version(content: dict[str, object]):
    assert znodes.decode_controller(as_json(content)) == 5


@pytest.mark.rule("ZK-6")
@pytest.mark.parametrize("data", [None, *NOT_JSON])
def test_a_controller_that_is_not_json_is_none_known(data: bytes | None):
    assert znodes.decode_controller(data) == -1


@pytest.mark.rule("ZK-7")
def test_the_epoch_is_decimal_text():
    assert znodes.encode_controller_epoch(7) == b"7"
    assert znodes.decode_controller_epoch(b"7") == 7


# --- brokers --------------------------------------------------------------------------------------

PLAIN = RegisteredEndpoint("PLAINTEXT", "PLAINTEXT", "h1", 9092)
SSL = RegisteredEndpoint("SSL", "SSL", "h1", 9093)


@pytest.mark.rule("ZK-10", "ZK-11")
def test_a_registration_is_written_in_version_5():
    registration = BrokerRegistration(1, (SSL, PLAIN), "r1", {"f": FeatureRange(1, 3)})
    assert json.loads(znodes.encode_broker(registration, 1700000000000)) == {
        "version": 5,
        "host": "h1",
        "port": 9092,
        "jmx_port": -1,
        "timestamp": "1700000000000",
        "endpoints": ["SSL://h1:9093", "PLAINTEXT://h1:9092"],
        "rack": "r1",
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT", "SSL": "SSL"},
        "features": {"f": {"min_version": 1, "max_version": 3}},
    }


@pytest.mark.rule("ZK-11")
def test_without_a_plaintext_endpoint_there_is_no_host_and_without_a_rack_no_rack():
    written = json.loads(znodes.encode_broker(BrokerRegistration(1, (SSL,)), 0))
    assert (written["host"], written["port"]) == (None, -1)
    assert "rack" not in written


@pytest.mark.rule("ZK-10", "ZK-11")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"version": 1, "host": "h1", "port": 9092, "jmx_port": 9999, "timestamp": "1"},
            BrokerRegistration(1, (PLAIN,), jmx_port=9999),
        ),
        (
            {"version": 2, "jmx_port": -1, "endpoints": ["PLAINTEXT://h1:9092", "SSL://h1:9093"]},
            BrokerRegistration(1, (PLAIN, SSL)),
        ),
        (
            {"version": 3, "jmx_port": -1, "endpoints": ["PLAINTEXT://h1:9092"], "rack": "r1"},
            BrokerRegistration(1, (PLAIN,), "r1"),
        ),
        (
            {
                "version": 4,
                "jmx_port": -1,
                "endpoints": ["CLIENT://[::1]:9092"],
                "listener_security_protocol_map": {"CLIENT": "SSL"},
                "rack": None,
            },
            BrokerRegistration(1, (RegisteredEndpoint("CLIENT", "SSL", "::1", 9092),)),
        ),
        (
            {
                "version": 5,
                "jmx_port": -1,
                "endpoints": ["PLAINTEXT://h1:9092"],
                "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
                "features": {"f": {"min_version": 1, "max_version": 2}},
            },
            BrokerRegistration(1, (PLAIN,), features={"f": FeatureRange(1, 2)}),
        ),
    ],
)
def test_a_registration_is_read_in_any_version(
    content: dict[str, object], expected: BrokerRegistration
):
    assert znodes.decode_broker(1, as_json(content)) == expected


@given(
    st.integers(0, 2**31 - 1),
    st.lists(
        st.builds(
            RegisteredEndpoint,
            st.sampled_from(["PLAINTEXT", "SSL", "CLIENTS", "INTER_BROKER", "X"]),
            st.sampled_from(["PLAINTEXT", "SSL", "SASL_SSL"]),
            st.sampled_from(["h1", "10.0.0.1", "::1", "fe80::1%eth0", "a-b.example.org"]),
            st.integers(1, 65535),
        ),
        min_size=1,
        unique_by=lambda endpoint: endpoint.listener,
    ),
    st.none() | st.text(),
    st.dictionaries(st.text(), st.builds(FeatureRange, st.integers(0, 99), st.integers(0, 99))),
)
def test_a_registration_survives_the_journey(
    broker: int,
    endpoints: list[RegisteredEndpoint],
    rack: str | None,
    features: dict[str, FeatureRange],
):
    registration = BrokerRegistration(broker, tuple(endpoints), rack, features)
    assert znodes.decode_broker(broker, znodes.encode_broker(registration, 0)) == registration


# --- topics ---------------------------------------------------------------------------------------


@pytest.mark.rule("ZK-12", "ZK-15", "VER-15")
def test_a_topic_is_written_in_version_3():
    assignment = TopicAssignment(
        TOPIC_ID, {0: [4, 1, 2], 1: [2, 3, 1]}, adding={0: [4], 1: []}, removing={0: [1]}
    )
    assert znodes.encode_topic(assignment) == (
        b'{"partitions":{"0":[4,1,2],"1":[2,3,1]},"topic_id":"AAECAwQFBgcICQoLDA0ODw",'
        b'"adding_replicas":{"0":[4]},"removing_replicas":{"0":[1]},"version":3}'
    )
    assert json.loads(znodes.encode_topic(TopicAssignment(None, {0: [1]}))) == {
        "version": 3,
        "partitions": {"0": [1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }


@pytest.mark.rule("ZK-13", "VER-15", "ZK-4")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"version": 1, "partitions": {"0": [1, 2]}}, TopicAssignment(None, {0: [1, 2]})),
        (
            {
                "version": 2,
                "partitions": {"0": [4, 1]},
                "adding_replicas": {"0": [4]},
                "removing_replicas": {"0": [1]},
            },
            TopicAssignment(None, {0: [4, 1]}, {0: [4]}, {0: [1]}),
        ),
        (
            {"topic_id": "AAECAwQFBgcICQoLDA0ODw", "partitions": {"1": []}, "version": 3, "x": 1},
            TopicAssignment(TOPIC_ID, {1: []}),
        ),
    ],
)
def test_a_topic_is_read_in_any_version(content: dict[str, object], expected: TopicAssignment):
    assert znodes.decode_topic("t", as_json(content)) == expected


@pytest.mark.rule("ZK-13")
@pytest.mark.parametrize("data", [None, *NOT_JSON])
def test_a_topic_that_is_not_json_has_no_partitions(data: bytes | None):
    assert znodes.decode_topic("t", data) == TopicAssignment(None, {})


@pytest.mark.rule("ZK-14")
@given(st.binary(min_size=16, max_size=16))
def test_a_topic_id_is_a_version_4_uuid_of_22_characters(random: bytes):
    topic_id = znodes.new_topic_id(lambda _: random if random[0] >> 2 != 62 else bytes(16))
    text = znodes.encode_topic_id(topic_id)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", text)
    assert topic_id.version == 4
    assert topic_id.int not in (0, 1)
    assert znodes.decode_topic_id("/t", text) == topic_id


@pytest.mark.rule("ZK-14")
def test_a_topic_id_that_looks_like_an_option_is_drawn_again():
    draws = iter([b"\xf8" + bytes(15), b"\xf9" + bytes(15), b"\x00" + bytes(15)])
    topic_id = znodes.new_topic_id(lambda _: next(draws))
    assert topic_id.bytes[0] == 0


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.rule("ZK-16")
def test_a_state_is_written_as_kafka_does():
    assert encode_state(2, 1, [2, 3], 1) == (
        b'{"controller_epoch":1,"leader":2,"version":1,"leader_epoch":1,"isr":[2,3]}'
    )
    assert encode_state(2, 3, [2], 1, recovery=1) == (
        b'{"controller_epoch":1,"leader":2,"version":1,"leader_recovery_state":1,'
        b'"leader_epoch":3,"isr":[2]}'
    )


@pytest.mark.rule("ZK-16")
def test_columns_of_states_are_written_row_by_row_without_what_fills_their_isrs_up():
    assert list(
        znodes.encode_states([1, -1, 1], [4, 5, 6], [(1, -1), (2, -1), (1, -1)], [0, 1, 0], 7)
    ) == [
        b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":4,"isr":[1]}',
        b'{"controller_epoch":7,"leader":-1,"version":1,"leader_recovery_state":1,'
        b'"leader_epoch":5,"isr":[2]}',
        b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":6,"isr":[1]}',
    ]


@pytest.mark.rule("ZK-16", "VER-18")
@given(
    st.integers(-2, 2**31 - 1),
    st.integers(-1, 2**31 - 1),
    st.lists(st.integers(0, 2**31 - 1)),
    st.integers(0, 2**31 - 1),
    st.integers(0, 1),
)
def test_a_state_survives_the_journey(
    leader: int, leader_epoch: int, isr: list[int], controller_epoch: int, recovery: int
):
    data = encode_state(leader, leader_epoch, isr, controller_epoch, recovery)
    expected = StateZnode(leader, leader_epoch, isr, controller_epoch, recovery)
    assert znodes.decode_state("/state", data) == expected
    assert ("leader_recovery_state" in json.loads(data)) == (recovery != 0)


@pytest.mark.rule("ZK-16")
@pytest.mark.parametrize("data", [None, *NOT_JSON])
def test_a_state_that_is_not_json_is_no_leadership_info(data: bytes | None):
    assert znodes.decode_state("/state", data) is None


@pytest.mark.rule("ZK-16", "PSM-17")
@given(st.data())
def test_many_states_are_read_as_they_would_be_one_by_one(data: st.DataObject):
    sound = st.builds(
        encode_state,
        st.integers(-1, 9),
        st.integers(0, 9),
        st.lists(st.integers(0, 9)),
        st.integers(0, 9),
        st.integers(0, 1),
    )
    unsound = st.sampled_from(
        [
            None,
            b"",
            b"{",
            b"7",
            b"[]",
            b"{}",
            as_json({"leader": 1, "isr": [1]}),
            as_json({"leader": 1, "leader_epoch": 1, "isr": ["1"], "controller_epoch": 1}),
            as_json({"leader": 1, "leader_epoch": True, "isr": [1], "controller_epoch": 1}),
        ]
    )
    rows = data.draw(st.lists(st.one_of(sound, unsound) if data.draw(st.booleans()) else sound))
    paths = [f"/{i}" for i in range(len(rows))]
    states = znodes.decode_states(paths, rows)
    expected: dict[int, StateZnode] = {}
    refused: list[str] = []
    for i, (path, row) in enumerate(zip(paths, rows, strict=True)):
        try:
            state = znodes.decode_state(path, row)
        except MalformedZnodeError as error:
            refused.append(str(error))
        else:
            if state is not None:
                expected[i] = state
            elif row is not None:
                # One by one it counts as no state; among many, somebody wants to hear of it.
                refused.append(f"{path}: JSON is expected, not {row!r}")
    at, *columns, errors = states
    assert dict(zip(at, map(StateZnode, *columns), strict=True)) == expected
    assert [str(error) for error in errors] == refused


# --- the others -----------------------------------------------------------------------------------


def test_a_list_of_partitions_is_read_in_its_order():
    rows = [{"topic": "t", "partition": 0}, {"topic": "ü", "partition": 12}]
    data = json.dumps({"version": 1, "partitions": rows}).encode()
    assert znodes.decode_partitions("/isr_change", data) == [("t", 0), ("ü", 12)]


@pytest.mark.rule("REASG-1")
def test_reassignments_survive_the_journey_and_are_none_if_not_json():
    targets = {("t", 0): [4, 5, 6], ("t", 1): [1]}
    data = znodes.encode_reassignment(targets)
    assert json.loads(data)["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "replicas": [4, 5, 6],
    }
    assert znodes.decode_reassignment(data) == targets
    for bad in NOT_JSON:
        assert znodes.decode_reassignment(bad) == {}


def test_log_dir_events_survive_the_journey():
    data = znodes.encode_log_dir_event(LogDirEvent(2))
    assert data == b'{"version":1,"broker":2,"event":1}'
    assert znodes.decode_log_dir_event("/log_dir_event", data) == LogDirEvent(2, 1)


@pytest.mark.rule("ZK-18")
def test_configurations_survive_the_journey():
    config = {"unclean.leader.election.enable": "true"}
    data = znodes.encode_config(config)
    assert data == b'{"version":1,"config":{"unclean.leader.election.enable":"true"}}'
    assert znodes.decode_config("/config/topics/t", data) == config
    assert znodes.decode_config("/config/topics/t", None) == {}
    assert znodes.decode_config("/config/topics/t", b'{"version":1}') == {}
    assert znodes.config_path(f"brokers/{znodes.DEFAULT_ENTITY}") == "/config/brokers/<default>"


@pytest.mark.rule("ZK-19")
def test_configuration_changes_are_read_in_both_versions():
    data = znodes.encode_config_change("topics/T")
    assert data == b'{"version":2,"entity_path":"topics/T"}'
    assert znodes.decode_config_change("/c", data) == "topics/T"
    old = as_json({"version": 1, "entity_type": "topics", "entity_name": "T"})
    assert znodes.decode_config_change("/c", old) == "topics/T"


def test_the_cluster_id_survives_the_journey():
    data = znodes.encode_cluster_id("9ZMXjD8gRoKdX2GmMWnD2A")
    assert data == b'{"version":"1","id":"9ZMXjD8gRoKdX2GmMWnD2A"}'
    assert znodes.decode_cluster_id(data) == "9ZMXjD8gRoKdX2GmMWnD2A"


@pytest.mark.rule("ZK-20")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("enabled", [True, False])
def test_features_survive_the_journey_in_both_versions(version: int, enabled: bool):
    features = FinalizedFeatures(enabled, {"f": 3}, version)
    written = json.loads(znodes.encode_features(features))
    level = {"max_version_level": 3} | ({"min_version_level": 3} if version == 1 else {})
    assert written == {"version": version, "status": int(enabled), "features": {"f": level}}
    assert znodes.decode_features(as_json(written)) == features


@pytest.mark.rule("ZK-21")
def test_producer_ids_are_given_in_blocks_of_a_thousand():
    assert znodes.decode_producer_id_block(None) is None
    first = znodes.next_producer_id_block(None, broker=1)
    assert first == ProducerIdBlock(1, 0, 999)
    second = znodes.next_producer_id_block(first, broker=2)
    data = znodes.encode_producer_id_block(second)
    assert data == b'{"version":1,"broker":2,"block_start":"1000","block_end":"1999"}'
    assert znodes.decode_producer_id_block(data) == second


# --- bad content ----------------------------------------------------------------------------------

STATE = "/brokers/topics/t/partitions/0/state"
BROKER = {"version": 5, "jmx_port": -1, "endpoints": ["PLAINTEXT://h:1"]}


@pytest.mark.parametrize(
    ("decode", "path", "bad"),
    [
        (znodes.decode_controller, "/controller", [{}, {"brokerid": "1"}, [1]]),
        (lambda data: znodes.decode_broker(1, data), "/brokers/ids/1", [
            {**BROKER, "version": 0},
            {**BROKER, "jmx_port": None},
            {"version": 5, "jmx_port": -1},
            {"version": 1, "jmx_port": -1, "host": "h"},
            {**BROKER, "endpoints": ["nonsense"]},
            {**BROKER, "endpoints": [7]},
            {**BROKER, "rack": 7},
            {**BROKER, "listener_security_protocol_map": {"OTHER": "SSL"}},
            {**BROKER, "listener_security_protocol_map": []},
            {**BROKER, "features": {"f": {"min_version": 1}}},
            {**BROKER, "features": {"f": 1}},
        ]),
        (lambda data: znodes.decode_topic("t", data), "/brokers/topics/t", [
            [],
            {"partitions": []},
            {"partitions": {"x": [1]}},
            {"partitions": {"0": 1}},
            {"partitions": {"0": ["1"]}},
            {"partitions": {"0": ""}},
            {"partitions": {"0": [True]}},
            {"partitions": {}, "adding_replicas": {"0": [None]}},
            {"partitions": {}, "topic_id": "short"},
            {"partitions": {}, "topic_id": 7},
        ]),
        (lambda data: znodes.decode_state(STATE, data), STATE, [
            [],
            7,
            {},
            {"leader": 1, "leader_epoch": 0, "isr": [1]},
            {"leader": "1", "leader_epoch": 0, "isr": [1], "controller_epoch": 1},
            {"leader": 1, "leader_epoch": 0, "isr": 1, "controller_epoch": 1},
            {"leader": 1, "leader_epoch": 0, "isr": [1.5], "controller_epoch": 1},
        ]),
        (lambda data: znodes.decode_partitions("/p", data), "/p", [
            {},
            {"partitions": {}},
            {"partitions": [1]},
            {"partitions": [{"topic": 1, "partition": 0}]},
            {"partitions": [{"topic": "t"}]},
        ]),
        (znodes.decode_reassignment, "/admin/reassign_partitions", [
            {},
            {"partitions": [{"topic": "t", "partition": 0}]},
            {"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]},
        ]),
        (lambda data: znodes.decode_log_dir_event("/l", data), "/l", [{}, {"broker": 1}]),
        (lambda data: znodes.decode_config("/c", data), "/c", [[], {"config": {"a": 1}}]),
        (lambda data: znodes.decode_config_change("/c", data), "/c", [
            {},
            {"version": 3, "entity_path": "x"},
            {"version": 2},
            {"version": 1, "entity_type": "topics"},
        ]),
        (znodes.decode_cluster_id, "/cluster/id", [{}, {"id": 7}]),
        (znodes.decode_features, "/feature", [
            {"version": 0, "status": 1, "features": {}},
            {"version": 2, "status": 2, "features": {}},
            {"version": 2, "status": 1},
            {"version": 2, "features": {}},
            {"version": 2, "status": 1, "features": {"f": {}}},
        ]),
        (znodes.decode_producer_id_block, "/latest_producer_id_block", [
            {},
            {"broker": 1, "block_start": 0, "block_end": "999"},
            {"broker": 1, "block_start": "x", "block_end": "999"},
        ]),
    ],
)  # fmt: skip
def test_bad_content_is_an_error_that_names_the_path(
    decode: Callable[[bytes], object], path: str, bad: list[object]
):
    for content in bad:
        with pytest.raises(MalformedZnodeError, match=f"^{re.escape(path)}: ."):
            decode(as_json(content))


@pytest.mark.parametrize(
    "decode",
    [
        lambda data: znodes.decode_broker(1, data),
        lambda data: znodes.decode_partitions("/p", data),
        lambda data: znodes.decode_log_dir_event("/l", data),
        lambda data: znodes.decode_config_change("/c", data),
        znodes.decode_controller_epoch,
        znodes.decode_cluster_id,
        znodes.decode_features,
    ],
)
def test_where_no_rule_is_lenient_data_that_is_not_json_is_an_error(
    decode: Callable[[bytes | None], object],
):
    for data in (None, *NOT_JSON):
        with pytest.raises(MalformedZnodeError, match=r"^/\w+"):
            decode(data)


@given(st.binary(max_size=40) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["version", "partitions", "leader", "isr", "0", "endpoints"]), inner
    ),
).map(as_json))  # fmt: skip
def test_no_content_whatever_leads_to_another_error(data: bytes):
    for decode in (
        znodes.decode_controller,
        znodes.decode_controller_epoch,
        lambda data: znodes.decode_broker(1, data),
        lambda data: znodes.decode_topic("t", data),
        lambda data: znodes.decode_state("/s", data),
        lambda data: znodes.decode_partitions("/p", data),
        znodes.decode_reassignment,
        lambda data: znodes.decode_log_dir_event("/l", data),
        lambda data: znodes.decode_config("/c", data),
        lambda data: znodes.decode_config_change("/c", data),
        znodes.decode_cluster_id,
        znodes.decode_features,
        znodes.decode_producer_id_block,
    ):
        with contextlib.suppress(MalformedZnodeError):
            decode(data)
