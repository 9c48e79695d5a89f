"""The configuration of one node, from its file, its command line and its znodes.

The fields of `BrokerConfig` are the keys that take effect, dots written as underscores; any other
key of Kafka's is accepted and listed in `without_effect`. Keys that neither Kafka nor klamm knows
are refused, and so are keys that promise security which this broker does not provide.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from klamm.config.broker_keys import KEYS, SYNONYMS
from klamm.config.broker_security import (
    AUTHORIZER_KEYS,
    PASSWORD_ENCODER_KEYS,
    SECURITY_KEYS,
    ListenerSecurity,
    channel_security,
    check_promises,
    is_security_key,
    listener_security,
    mechanism_key,
    zookeeper_login,
    zookeeper_tls,
)
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.config.definitions import Value
from klamm.config.endpoints import ListenerEndpoint
from klamm.config.ibp import Ibp
from klamm.config.layers import Layers, base_name, key_of
from klamm.config.listeners import Listeners
from klamm.config.properties import read_properties
from klamm.config.security import TlsSettings
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.errors import ConfigError

_KRAFT_KEYS: Final = frozenset({"process.roles", "zookeeper.metadata.migration.enable"})
#: Settings of plug-ins begin with these; no table can know how they go on.
_PLUGIN_PREFIXES: Final = ("rlmm.config.", "rsm.config.")
#: Keys that are read, though not under a field of their own name.
_READ_BY_OTHER_NAMES: Final = frozenset(
    {"listener.security.protocol.map", "log.dir", "node.id", "security.inter.broker.protocol"}
)
_UNITS_MS: Final = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of a node that take effect, with their types."""

    layers: Layers

    broker_id: int
    broker_id_generation_enable: bool
    reserved_broker_max_id: int
    broker_rack: str | None
    klamm_roles: tuple[str, ...]
    inter_broker_protocol_version: Ibp

    listeners: tuple[ListenerEndpoint, ...]
    advertised_listeners: tuple[ListenerEndpoint, ...]
    inter_broker_listener_name: str
    control_plane_listener_name: str | None
    authorizer_class_name: str
    connections_max_idle_ms: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    quota_window_num: int
    quota_window_size_seconds: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int

    zookeeper_connect: str
    zookeeper_connection_timeout_ms: int
    zookeeper_session_timeout_ms: int

    controlled_shutdown_enable: bool
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    controller_socket_timeout_ms: int
    request_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    socket_connection_setup_timeout_ms: int

    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    default_replication_factor: int
    delete_topic_enable: bool
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    num_partitions: int
    unclean_leader_election_enable: bool

    log_dirs: tuple[Path, ...]
    log_cleaner_backoff_ms: int
    log_cleaner_enable: bool
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
    log_retention_check_interval_ms: int
    producer_id_expiration_check_interval_ms: int
    producer_id_expiration_ms: int

    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    num_replica_fetchers: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    replica_socket_timeout_ms: int

    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    offset_metadata_max_bytes: int
    offsets_commit_required_acks: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_compression_codec: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_load_buffer_size: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int

    klamm_history_dir: Path
    klamm_history_retention_bytes: int
    klamm_history_topic: str | None
    klamm_metrics_host: str | None
    klamm_metrics_port: int | None

    @classmethod
    def load(cls, path: Path, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Read the file at `path`; a key in `overrides` replaces the file's."""
        return cls.from_properties({**read_properties(path), **(overrides or {})})

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Parse and check settings; ConfigError names the key, the value and what is accepted."""
        for name, text in properties.items():
            _check_known(name, text)
        return cls._from_layers(Layers(_with_both_ids(properties)))

    @classmethod
    def _from_layers(cls, layers: Layers) -> BrokerConfig:
        special = _special_values(layers)
        plain: dict[str, Any] = {
            field: layers.value(name) for field, name in _FIELD_KEYS.items() if field not in special
        }
        config = cls(layers=layers, **special, **plain)
        _check_together(config)
        return config

    def with_dynamic(
        self, *, default: Mapping[str, str], broker: Mapping[str, str]
    ) -> BrokerConfig:
        """The configuration under these dynamic settings, which replace those there were.

        Both maps have to hold accepted settings: `klamm.config.dynamic.sift` takes out the others.
        """
        changed = self._from_layers(Layers(self.layers.static, dict(default), dict(broker)))
        # An id that was generated is in no layer.
        return replace(changed, broker_id=self.broker_id)

    def with_broker_id(self, broker_id: int) -> BrokerConfig:
        """The configuration once a node without an id has been given one."""
        return replace(self, broker_id=broker_id)

    def with_metrics_port(self, port: int) -> BrokerConfig:
        """The configuration once the metrics have a port, which takes the place of port 0."""
        static = {**self.layers.static, "klamm.metrics.port": str(port)}
        return replace(self, klamm_metrics_port=port, layers=replace(self.layers, static=static))

    def endpoint(self, name: str) -> ListenerEndpoint | None:
        """The listener of that name, where the broker accepts connections."""
        return next((endpoint for endpoint in self.listeners if endpoint.name == name), None)

    @property
    def zookeeper_tls(self) -> TlsSettings | None:
        """How this broker connects to ZooKeeper; None without TLS."""
        return zookeeper_tls(self.layers)

    @property
    def zookeeper_login(self) -> tuple[str, str] | None:
        """User and password of this broker towards ZooKeeper; None without a login."""
        return zookeeper_login(self.layers)

    def listener_security(self, endpoint: ListenerEndpoint) -> ListenerSecurity:
        """How the listener at `endpoint` knows who connects."""
        return listener_security(self.layers, endpoint)

    def channel_security(self, listener: str) -> ClientSecurity:
        """How this broker connects to that listener of the others."""
        endpoint = self.endpoint(listener)
        return PLAINTEXT if endpoint is None else channel_security(self.layers, endpoint)

    def advertised_endpoints(
        self, *, hostname: str, bound_ports: Mapping[str, int]
    ) -> tuple[ListenerEndpoint, ...]:
        """What to register: an open host becomes `hostname`, port 0 the one that was bound."""
        return tuple(
            replace(
                endpoint,
                host=endpoint.host or hostname,
                port=endpoint.port or bound_ports[endpoint.name],
            )
            for endpoint in self.advertised_listeners
        )

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The keys that were given and change nothing, in the order they were given."""
        return tuple(
            name
            for name in self.layers.static
            if base_name(name) not in KEYS_WITH_EFFECT and not is_security_key(name)
        )


_FIELD_KEYS: Final = {
    field.name: field.name.replace("_", ".")
    for field in fields(BrokerConfig)
    if field.name != "layers"
}
#: Topic keys that are accepted, described and left alone.
_TOPIC_KEYS_WITHOUT_EFFECT: Final = frozenset(
    {
        "local.retention.bytes",
        "local.retention.ms",
        "message.downconversion.enable",
        "message.format.version",
    }
)
_SECURITY_KEYS: Final = (SECURITY_KEYS | PASSWORD_ENCODER_KEYS) - AUTHORIZER_KEYS
KEYS_WITH_EFFECT: Final = frozenset(
    {*_FIELD_KEYS.values(), *_READ_BY_OTHER_NAMES, *_SECURITY_KEYS}
    | {
        synonym
        for topic_key in TOPIC_KEYS.values()
        if topic_key.broker_key and topic_key.name not in _TOPIC_KEYS_WITHOUT_EFFECT
        for synonym in SYNONYMS.get(topic_key.broker_key, (topic_key.broker_key,))
    }
)


def duration_ms(layers: Layers, name: str) -> Value | None:
    """The value of a key that has coarser synonyms, in milliseconds: the finest one decides."""
    for synonym in SYNONYMS[name]:
        value = layers.value(synonym)
        if isinstance(value, int):
            return value * _UNITS_MS[synonym.rpartition(".")[2]]
    return None


def retention_ms(layers: Layers) -> int:
    """How long records are kept; a negative value means without limit."""
    value = duration_ms(layers, "log.retention.ms")
    return value if isinstance(value, int) and value >= 0 else -1


def _check_known(name: str, text: str) -> None:
    check_promises(name, text)
    key = key_of(name)
    if key is not None:
        key.parse(text)
    elif (key_of_mechanism := mechanism_key(name)) is not None:
        KEYS[key_of_mechanism].parse(text)
    elif not name.startswith(_PLUGIN_PREFIXES) and name not in AUTHORIZER_KEYS:
        nearest = difflib.get_close_matches(name, KEYS, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"{name} is not a key that Kafka or klamm knows; the nearest is {nearest}"
        )
    if name in _KRAFT_KEYS and text.strip().lower() not in ("", "false"):
        raise ConfigError(
            f"{name}={text} asks for KRaft; klamm works in ZooKeeper mode only: remove the key"
        )


def _with_both_ids(properties: Mapping[str, str]) -> dict[str, str]:
    """`broker.id` and `node.id` are one number: either key sets both."""
    known = dict(properties)
    for name, other in (("broker.id", "node.id"), ("node.id", "broker.id")):
        if name in known:
            known.setdefault(other, known[name])
    return known


def _special_values(layers: Layers) -> dict[str, Any]:
    """The fields whose value is more than the text of one key."""
    version = Ibp.parse(str(layers.text("inter.broker.protocol.version")))
    session_timeout_ms = layers.value("zookeeper.session.timeout.ms")
    if not (layers.text("zookeeper.connect") or "").strip():
        raise ConfigError(
            "Missing required configuration `zookeeper.connect` which has no default value."
        )
    log_dirs = _log_dirs(layers)
    listeners = Listeners.of(layers)
    return {
        "broker_id": _broker_id(layers),
        "inter_broker_protocol_version": version,
        "zookeeper_connection_timeout_ms": (
            session_timeout_ms
            if (timeout_ms := layers.value("zookeeper.connection.timeout.ms")) is None
            else timeout_ms
        ),
        "log_dirs": log_dirs,
        "klamm_history_dir": _history_dir(layers, log_dirs),
        "listeners": listeners.bound,
        "advertised_listeners": listeners.advertised,
        "inter_broker_listener_name": listeners.inter_broker,
        "control_plane_listener_name": listeners.control_plane,
    }


def _broker_id(layers: Layers) -> Value | None:
    if layers.value("node.id") != layers.value("broker.id"):
        raise ConfigError("You must set `node.id` to the same value as `broker.id`.")
    return layers.value("broker.id")


def _log_dirs(layers: Layers) -> tuple[Path, ...]:
    text = layers.text("log.dirs")
    listed = (layers.text("log.dir") if text is None else text) or ""
    log_dirs = tuple(Path(item.strip()) for item in listed.split(",") if item.strip())
    if not log_dirs:
        raise ConfigError("At least one log directory must be defined via log.dirs or log.dir.")
    return log_dirs


def _history_dir(layers: Layers, log_dirs: tuple[Path, ...]) -> Path:
    text = layers.text("klamm.history.dir")
    if text is None:
        return log_dirs[0].with_name(log_dirs[0].name + "-history")
    history_dir = Path(text.strip())
    for log_dir in log_dirs:
        # A broker takes what lies in a log directory for a partition.
        if history_dir.absolute().is_relative_to(log_dir.absolute()):
            raise ConfigError(
                f"Invalid value {text} for configuration klamm.history.dir:"
                f" it must not be inside of the log directory {log_dir}"
            )
    return history_dir


def _check_together(config: BrokerConfig) -> None:
    """Refuse values that are fine one by one and make no sense beside each other."""
    if config.broker_id_generation_enable:
        if not -1 <= config.broker_id <= config.reserved_broker_max_id:
            raise ConfigError(
                f"Invalid value {config.broker_id} for configuration broker.id: broker.id must be"
                " greater than or equal to -1 and not greater than reserved.broker.max.id"
                f" ({config.reserved_broker_max_id})"
            )
    elif config.broker_id < 0:
        raise ConfigError(
            f"Invalid value {config.broker_id} for configuration broker.id:"
            " broker.id must be greater than or equal to 0"
        )
    if not config.klamm_roles:
        raise ConfigError(
            "Invalid value  for configuration klamm.roles: it needs broker, controller or both"
        )
    zookeeper_tls(config.layers)
    for endpoint in config.listeners:
        listener_security(config.layers, endpoint)
    for name in (config.inter_broker_listener_name, config.control_plane_listener_name):
        channel = None if name is None else config.endpoint(name)
        if channel is not None:
            channel_security(config.layers, channel)
    if retention_ms(config.layers) == 0:
        raise ConfigError("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
    if duration_ms(config.layers, "log.roll.ms") == 0:
        raise ConfigError("log.roll.ms must be greater than or equal to 1")
    if config.replica_fetch_wait_max_ms > config.replica_socket_timeout_ms:
        raise ConfigError(
            "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to"
            " prevent unnecessary socket timeouts"
        )
    if config.replica_fetch_wait_max_ms > config.replica_lag_time_max_ms:
        raise ConfigError(
            "replica.fetch.wait.max.ms should always be less than or equal to"
            " replica.lag.time.max.ms to prevent frequent changes in ISR"
        )
    if not -1 <= config.offsets_commit_required_acks <= config.offsets_topic_replication_factor:
        raise ConfigError(
            "offsets.commit.required.acks must be greater or equal to -1 and less or equal to"
            " offsets.topic.replication.factor"
        )
