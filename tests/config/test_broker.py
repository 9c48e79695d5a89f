"""From a server.properties to typed settings, or to one sentence about what is wrong with it."""

import typing
from dataclasses import fields
from pathlib import Path
from types import NoneType

import pytest

from klamm.config.broker import KEYS_WITH_EFFECT, BrokerConfig, retention_ms
from klamm.config.broker_keys import KAFKA_KEYS, KEYS
from klamm.config.definitions import ValueType
from klamm.config.endpoints import ListenerEndpoint
from klamm.config.ibp import Ibp
from klamm.errors import ConfigError

_LEAST = {"zookeeper.connect": "localhost:2181", "broker.id": "1"}


def config(**properties: str) -> BrokerConfig:
    """A configuration of the least that is needed and these keys, dots written as underscores."""
    named = {name.replace("_", "."): text for name, text in properties.items()}
    return BrokerConfig.from_properties({**_LEAST, **named})


def refusal(**properties: str) -> str:
    with pytest.raises(ConfigError) as refused:
        config(**properties)
    return str(refused.value)


@pytest.mark.rule("VER-1", "VER-2", "VER-3", "VER-4", "VER-24")
def test_what_is_not_given_has_the_default_of_kafka_3_9():
    defaults = config()
    assert defaults.unclean_leader_election_enable is False
    assert defaults.delete_topic_enable is True
    assert defaults.auto_leader_rebalance_enable is True
    assert defaults.controlled_shutdown_enable is True
    assert defaults.zookeeper_session_timeout_ms == 18000
    assert defaults.zookeeper_connection_timeout_ms == 18000
    assert defaults.replica_lag_time_max_ms == 30000
    assert defaults.offsets_topic_replication_factor == 3
    assert defaults.leader_imbalance_check_interval_seconds == 300
    assert defaults.leader_imbalance_per_broker_percentage == 10
    assert defaults.inter_broker_protocol_version == Ibp.parse("3.9")
    assert defaults.klamm_roles == ("broker", "controller")
    assert retention_ms(defaults.layers) == 7 * 24 * 3600 * 1000


def test_a_file_is_read_and_the_command_line_replaces_its_keys(tmp_path: Path):
    path = tmp_path / "server.properties"
    path.write_text("broker.id=3\nzookeeper.connect=zk:2181/kafka\nnum.partitions=4\n")
    loaded = BrokerConfig.load(path, {"num.partitions": "8"})
    assert (loaded.broker_id, loaded.num_partitions) == (3, 8)
    assert loaded.zookeeper_connect == "zk:2181/kafka"


def test_every_field_has_the_type_of_its_key():
    python_types = {
        ValueType.BOOLEAN: bool,
        ValueType.INT: int,
        ValueType.SHORT: int,
        ValueType.LONG: int,
        ValueType.STRING: str,
        ValueType.LIST: tuple[str, ...],
    }
    made_of_several = {
        "layers",
        "inter_broker_protocol_version",
        "listeners",
        "advertised_listeners",
        "inter_broker_listener_name",
        "zookeeper_connect",
        "zookeeper_connection_timeout_ms",
        "log_dirs",
        "klamm_history_dir",
    }
    hints = typing.get_type_hints(BrokerConfig)
    for field in fields(BrokerConfig):
        if field.name in made_of_several:
            continue
        key = KEYS[field.name.replace("_", ".")]
        expected = python_types[key.type]
        assert hints[field.name] == (expected if key.default is not None else expected | NoneType)


def test_a_known_key_without_effect_is_accepted_and_listed_in_order():
    given = config(num_io_threads="4", num_partitions="2", background_threads="5")
    assert given.without_effect == ("num.io.threads", "background.threads")


def test_every_key_of_kafka_is_accepted_at_its_default_unless_it_promises_security():
    security = ("ssl.", "sasl.", "zookeeper.ssl.", "principal.builder.class")
    given = {
        name: key.default
        for name, key in KAFKA_KEYS.items()
        if key.default is not None and not name.startswith(security)
    }
    accepted = BrokerConfig.from_properties({**given, **_LEAST, "node.id": "1"})
    assert len(accepted.layers.static) > 200
    assert accepted.num_partitions == 1


def test_keys_of_one_listener_and_of_plug_ins_are_known():
    given = BrokerConfig.from_properties(
        {**_LEAST, "listener.name.plaintext.max.connections": "5", "rsm.config.anything": "x"}
    )
    assert given.without_effect == ("rsm.config.anything",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("authorizer.class.name", "com.example.Authorizer"),
        ("principal.builder.class", "com.example.PrincipalBuilder"),
        ("ssl.engine.factory.class", "com.example.Factory"),
        ("delegation.token.secret.key", "s3cret"),
        ("listener.name.internal.plain.sasl.server.callback.handler.class", "com.example.Handler"),
        ("client.quota.callback.class", "com.example.Quotas"),
    ],
)
@pytest.mark.rule("SEC-13")
def test_a_key_that_promises_what_klamm_does_not_do_refuses_the_start(name: str, text: str):
    with pytest.raises(ConfigError, match="promises") as refused:
        BrokerConfig.from_properties({**_LEAST, name: text})
    assert name in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"listeners": "SSL://h:9093", "inter.broker.listener.name": "SSL"}, "ssl.keystore"),
        (
            {"listeners": "SASL_PLAINTEXT://h:1", "inter.broker.listener.name": "SASL_PLAINTEXT"},
            "not GSSAPI",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://h:1",
                "inter.broker.listener.name": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
            },
            "listener.name.sasl_plaintext.plain.sasl.jaas.config has to be set",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://h:1",
                "inter.broker.listener.name": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
            },
            "has to be one of sasl.enabled.mechanisms",
        ),
    ],
)
@pytest.mark.rule("SEC-18")
def test_a_secured_listener_that_lacks_something_refuses_the_start(given, complaint):
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties({**_LEAST, **given})
    assert complaint in str(refused.value)


def test_kraft_is_refused():
    assert "ZooKeeper mode only" in refusal(process_roles="broker")
    assert "ZooKeeper mode only" in refusal(zookeeper_metadata_migration_enable="true")


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("num.partition", "num.partitions"),
        ("log.retention.hour", "log.retention.hours"),
        ("klamm.metric.port", "klamm.metrics.port"),
    ],
)
def test_a_key_that_nobody_knows_is_refused_with_the_nearest_one(typo: str, meant: str):
    with pytest.raises(ConfigError, match=f"{typo} is not a key .* the nearest is {meant}"):
        BrokerConfig.from_properties({**_LEAST, typo: "1"})


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("num.partitions", "0", "Value must be at least 1"),
        ("num.partitions", "many", "Not a number of type INT"),
        ("socket.request.max.bytes", "3000000000", "Not a number of type INT"),
        ("auto.create.topics.enable", "yes", "Expected value to be either true or false"),
        ("log.segment.bytes", "13", "Value must be at least 14"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("log.cleanup.policy", "shrink", "String must be one of: compact, delete"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "Value must be no more than 1"),
        ("inter.broker.protocol.version", "9.9", "Version 9.9 is not a valid version"),
        ("klamm.metrics.port", "70000", "Value must be no more than 65535"),
        ("klamm.roles", "broker,observer", "String must be one of: broker, controller"),
    ],
)
def test_a_bad_value_names_key_value_and_what_would_do(name: str, text: str, accepted: str):
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties({**_LEAST, name: text})
    shown = "observer" if "observer" in text else text
    assert str(refused.value) == f"Invalid value {shown} for configuration {name}: {accepted}"


def test_a_node_needs_a_zookeeper():
    with pytest.raises(ConfigError, match=r"Missing required configuration `zookeeper\.connect`"):
        BrokerConfig.from_properties({"broker.id": "1"})


class TestIdentity:
    def test_without_an_id_one_is_to_be_generated(self):
        generated = BrokerConfig.from_properties({"zookeeper.connect": "zk"})
        assert generated.broker_id == -1
        assert generated.broker_id_generation_enable
        assert generated.reserved_broker_max_id == 1000
        named = generated.with_broker_id(1001)
        assert named.broker_id == 1001
        assert named.with_dynamic(default={}, broker={}).broker_id == 1001

    def test_node_id_is_another_name_for_it(self):
        named = BrokerConfig.from_properties({"zookeeper.connect": "zk", "node.id": "2"})
        assert named.broker_id == 2
        assert "same value" in refusal(node_id="2")

    def test_ids_above_the_reserved_ones_are_left_to_generation(self):
        assert "not greater than reserved.broker.max.id" in refusal(broker_id="1001")
        assert "greater than or equal to -1" in refusal(broker_id="-2")
        fixed = config(broker_id="1001", broker_id_generation_enable="false")
        assert fixed.broker_id == 1001
        assert "or equal to 0" in refusal(broker_id="-1", broker_id_generation_enable="false")


class TestListeners:
    def test_one_plaintext_listener_on_all_addresses_is_the_default(self):
        assert config().listeners == (ListenerEndpoint("PLAINTEXT", "", 9092),)
        assert config().inter_broker_listener_name == "PLAINTEXT"

    def test_names_are_in_capitals_and_ipv6_is_read_and_written_in_brackets(self):
        (endpoint,) = config(listeners="plaintext://[::1]:9092").listeners
        assert (endpoint.name, endpoint.host, endpoint.port) == ("PLAINTEXT", "::1", 9092)
        assert str(endpoint) == "PLAINTEXT://[::1]:9092"

    def test_several_listeners_with_names_of_their_own(self):
        given = BrokerConfig.from_properties(
            {
                **_LEAST,
                "listeners": "CLIENT://h:1,INTERNAL://h:2,CONTROL://h:3",
                "advertised.listeners": "CLIENT://out:1,INTERNAL://h:2,CONTROL://h:3",
                "listener.security.protocol.map": (
                    "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROL:PLAINTEXT"
                ),
                "inter.broker.listener.name": "internal",
                "control.plane.listener.name": "CONTROL",
            }
        )
        assert given.inter_broker_listener_name == "INTERNAL"
        assert given.control_plane_listener_name == "CONTROL"
        assert given.advertised_listeners[0] == ListenerEndpoint("CLIENT", "out", 1)
        assert given.endpoint("CLIENT") == ListenerEndpoint("CLIENT", "h", 1)
        assert given.endpoint("OTHER") is None

    def test_open_hosts_and_ports_are_filled_in_for_the_registration(self):
        (endpoint,) = config(listeners="PLAINTEXT://:0").advertised_endpoints(
            hostname="h1", bound_ports={"PLAINTEXT": 31337}
        )
        assert str(endpoint) == "PLAINTEXT://h1:31337"

    @pytest.mark.parametrize(
        ("listeners", "complaint"),
        [
            ("h:9092", "Unable to parse h:9092 to a broker endpoint"),
            ("PLAINTEXT://h:1,PLAINTEXT://h:2", "Each listener must have a different name"),
            ("PLAINTEXT://h:1,X://h:2", "No security protocol defined for listener X"),
            ("PLAINTEXT://h:70000", "port 70000 is not in 0 to 65535"),
            ("PLAINTEXT://0.0.0.0:9092", "nonroutable meta-address"),
            ("", "at least one broker advertised listener"),
        ],
    )
    def test_listeners_that_make_no_sense_are_refused(self, listeners: str, complaint: str):
        assert complaint in refusal(listeners=listeners)

    def test_two_listeners_share_a_port_only_as_ipv4_and_ipv6(self):
        both = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:PLAINTEXT"}
        apart = {"listeners": "PLAINTEXT://127.0.0.1:1,A://[::1]:1"}
        assert len(BrokerConfig.from_properties({**_LEAST, **both, **apart}).listeners) == 2
        same = {"listeners": "PLAINTEXT://127.0.0.1:1,A://127.0.0.2:1"}
        with pytest.raises(ConfigError, match="Each listener must have a different port"):
            BrokerConfig.from_properties({**_LEAST, **both, **same})

    def test_what_is_advertised_has_to_be_listened_to(self):
        both = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:PLAINTEXT"}
        other = {"advertised.listeners": "PLAINTEXT://h:1,A://h:2"}
        with pytest.raises(ConfigError, match="equal to or a subset"):
            BrokerConfig.from_properties({**_LEAST, **both, **other})

    def test_brokers_talk_over_a_listener_that_is_advertised(self):
        only = {"listeners": "A://h:1", "listener.security.protocol.map": "A:PLAINTEXT"}
        with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name must be"):
            BrokerConfig.from_properties({**_LEAST, **only})
        assert "not found in listener" in refusal(inter_broker_listener_name="Z")
        assert "Only one of" in refusal(
            inter_broker_listener_name="PLAINTEXT", security_inter_broker_protocol="PLAINTEXT"
        )

    def test_the_control_plane_has_a_listener_to_itself(self):
        assert "different value" in refusal(control_plane_listener_name="PLAINTEXT")
        assert "not found in listener" in refusal(control_plane_listener_name="Z")

    @pytest.mark.parametrize("text", ["A:B", "A"])
    def test_the_protocol_map_names_protocols_that_exist(self, text: str):
        complaint = refusal(listener_security_protocol_map=text)
        assert "listener.security.protocol.map" in complaint


class TestDirectories:
    def test_log_dirs_go_before_log_dir(self):
        assert config(log_dir="x").log_dirs == (Path("x"),)
        assert config(log_dir="x", log_dirs="a, b,").log_dirs == (Path("a"), Path("b"))
        assert "At least one log directory" in refusal(log_dirs="")

    def test_the_history_lies_beside_the_first_log_directory(self):
        assert config(log_dirs="data/one,data/two").klamm_history_dir == Path("data/one-history")

    def test_the_history_is_never_inside_of_a_log_directory(self):
        inside = refusal(log_dirs="data,more", klamm_history_dir="more/history")
        assert "must not be inside of the log directory more" in inside
        assert config(klamm_history_dir="spool").klamm_history_dir == Path("spool")


class TestValuesTogether:
    @pytest.mark.parametrize(
        ("given", "milliseconds"),
        [
            ({"log_retention_ms": "7", "log_retention_minutes": "5"}, 7),
            ({"log_retention_minutes": "5", "log_retention_hours": "9"}, 300_000),
            ({"log_retention_hours": "9"}, 9 * 3_600_000),
            ({"log_retention_hours": "-1"}, -1),
            ({"log_retention_ms": "-5"}, -1),
        ],
    )
    def test_the_finest_unit_of_retention_decides(self, given: dict[str, str], milliseconds: int):
        assert retention_ms(config(**given).layers) == milliseconds

    @pytest.mark.parametrize(
        ("given", "complaint"),
        [
            ({"log_retention_ms": "0"}, "log.retention.ms must be unlimited (-1)"),
            ({"log_roll_ms": "0"}, "log.roll.ms must be"),
            ({"replica_fetch_wait_max_ms": "40000"}, "replica.socket.timeout.ms should always"),
            ({"replica_lag_time_max_ms": "100"}, "to prevent frequent changes in ISR"),
            ({"offsets_commit_required_acks": "5"}, "offsets.commit.required.acks must be"),
            ({"klamm_roles": ""}, "klamm.roles"),
        ],
    )
    def test_values_that_contradict_one_another_are_refused(
        self, given: dict[str, str], complaint: str
    ):
        assert complaint in refusal(**given)

    def test_connecting_may_take_as_long_as_a_session_unless_said_otherwise(self):
        assert config(zookeeper_session_timeout_ms="7").zookeeper_connection_timeout_ms == 7
        assert config(zookeeper_connection_timeout_ms="9").zookeeper_connection_timeout_ms == 9


def test_keys_with_effect_are_keys_that_exist():
    assert set(KEYS) >= KEYS_WITH_EFFECT
