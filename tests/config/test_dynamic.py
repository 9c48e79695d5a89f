"""Changes to the configuration of a running cluster."""

import pytest

from klamm.config.broker import BrokerConfig
from klamm.config.broker_keys import KEYS
from klamm.config.dynamic import (
    Change,
    Operation,
    altered,
    is_dynamic,
    sift,
    validate_broker_config,
)
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.errors import ConfigError

_CONTROLLER_KEYS = (
    "auto.leader.rebalance.enable",
    "control.plane.listener.name",
    "controlled.shutdown.enable",
    "controlled.shutdown.max.retries",
    "controller.socket.timeout.ms",
    "default.replication.factor",
    "delete.topic.enable",
    "inter.broker.protocol.version",
    "leader.imbalance.check.interval.seconds",
    "leader.imbalance.per.broker.percentage",
    "num.partitions",
    "request.timeout.ms",
    "zookeeper.session.timeout.ms",
)


@pytest.mark.rule("CONF-2")
def test_of_the_controllers_keys_only_unclean_election_is_dynamic():
    assert is_dynamic("unclean.leader.election.enable")
    assert not any(is_dynamic(name) for name in _CONTROLLER_KEYS)


@pytest.mark.rule("CFG-5")
@pytest.mark.parametrize(
    ("operation", "value", "expected"),
    [
        (Operation.SET, "delete", {"cleanup.policy": "delete"}),
        (Operation.DELETE, None, {}),
        (Operation.APPEND, "delete,compact", {"cleanup.policy": "compact,delete"}),
        (Operation.SUBTRACT, "compact", {"cleanup.policy": ""}),
        (Operation.SUBTRACT, "delete", {"cleanup.policy": "compact"}),
    ],
)
def test_operations_on_a_list(operation: Operation, value: str | None, expected: dict[str, str]):
    change = Change("cleanup.policy", operation, value)
    assert altered({"cleanup.policy": "compact"}, [change], TOPIC_KEYS) == expected


@pytest.mark.rule("CFG-5")
def test_appending_starts_from_the_default():
    change = Change("cleanup.policy", Operation.APPEND, "compact")
    assert altered({}, [change], TOPIC_KEYS) == {"cleanup.policy": "delete,compact"}
    throttle = Change("leader.replication.throttled.replicas", Operation.APPEND, "0:1")
    assert altered({}, [throttle], TOPIC_KEYS) == {throttle.name: "0:1"}


@pytest.mark.rule("CFG-5")
@pytest.mark.parametrize("operation", [Operation.APPEND, Operation.SUBTRACT])
def test_only_lists_grow_and_shrink(operation: Operation):
    with pytest.raises(ConfigError, match=f"{operation.name.lower()} is not allowed .* segment.ms"):
        altered({}, [Change("segment.ms", operation, "1")], TOPIC_KEYS)
    with pytest.raises(ConfigError, match="Unknown config name: foo"):
        altered({}, [Change("foo", operation, "1")], TOPIC_KEYS)


def test_the_current_settings_are_left_alone():
    current = {"segment.ms": "1"}
    altered(current, [Change("segment.ms", Operation.DELETE, None)], TOPIC_KEYS)
    assert current == {"segment.ms": "1"}


@pytest.mark.rule("CFG-6")
@pytest.mark.parametrize(
    "name",
    [
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_throttle_rates_are_accepted(name: str, per_broker: bool):
    validate_broker_config({name: "1000"}, per_broker=per_broker)
    with pytest.raises(ConfigError, match="Value must be at least 0"):
        validate_broker_config({name: "-1"}, per_broker=per_broker)


@pytest.mark.parametrize(
    ("settings", "per_broker", "message"),
    [
        (
            {"num.partitions": "3", "broker.id": "5"},
            True,
            "Cannot update these configs dynamically: Set(num.partitions, broker.id)",
        ),
        (
            {"listeners": "PLAINTEXT://a:1"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified:"
            " Set(listeners)",
        ),
        (
            {"min.insync.replicas": "0"},
            True,
            "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1",
        ),
        (
            {"ssl.keystore.location": "x"},
            True,
            "These security configs can be dynamically updated only per-listener using the"
            " listener prefix: Set(ssl.keystore.location)",
        ),
    ],
)
def test_what_cannot_be_changed_is_refused_in_kafkas_words(
    settings: dict[str, str], per_broker: bool, message: str
):
    with pytest.raises(ConfigError) as refused:
        validate_broker_config(settings, per_broker=per_broker)
    assert str(refused.value) == message


def test_the_keys_of_plug_ins_are_let_through():
    validate_broker_config({"custom.thing": "x"}, per_broker=True)
    validate_broker_config({"listener.name.a.max.connections": "5"}, per_broker=True)


def test_bad_settings_found_in_zookeeper_are_left_out_with_a_complaint_each():
    usable, complaints = sift(
        {"log.segment.bytes": "x", "min.insync.replicas": "2", "broker.id": "7"}, per_broker=True
    )
    assert usable == {"min.insync.replicas": "2"}
    assert len(complaints) == 2


@pytest.mark.rule("CONF-2")
def test_a_dynamic_setting_replaces_the_files_and_its_removal_brings_the_file_back():
    static = BrokerConfig.from_properties({"zookeeper.connect": "zk", "broker.id": "1"})
    changed = static.with_dynamic(default={"unclean.leader.election.enable": "true"}, broker={})
    assert changed.unclean_leader_election_enable
    assert not changed.with_dynamic(default={}, broker={}).unclean_leader_election_enable


def test_every_dynamic_key_has_a_definition():
    assert all(is_dynamic(name) for name, key in KEYS.items() if key.mode.value == "per-broker")
