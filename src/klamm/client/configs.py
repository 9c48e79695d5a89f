"""The settings of topics and brokers: every key with its value and its source."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.client.admin import Admin, check, suggestion
from klamm.client.topics import unknown_topic
from klamm.config.broker_keys import KEYS
from klamm.config.broker_security import mechanism_key
from klamm.config.layers import base_name
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError

_TOPIC: Final = 2
_BROKER: Final = 4
_SET: Final = 0
_DELETE: Final = 1

_SOURCES: Final = {
    1: "topic",
    2: "broker, dynamic",
    3: "brokers, dynamic default",
    4: "broker, static",
    5: "default",
}
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic or a broker; a broker without a name stands for the defaults of all brokers."""

    kind: int
    name: str

    @classmethod
    def topic(cls, name: str) -> "ConfigResource":
        return cls(_TOPIC, name)

    @classmethod
    def broker(cls, broker: int | None) -> "ConfigResource":
        """A broker, or (None) the defaults of all brokers."""
        return cls(_BROKER, "" if broker is None else str(broker))

    def __str__(self) -> str:
        if self.kind == _TOPIC:
            return f"topic {self.name}"
        return f"broker {self.name}" if self.name else "the default of all brokers"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a resource. Brokers do not send the value of a sensitive key."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool


def source_name(source: int) -> str:
    """Where a value came from, in words."""
    return _SOURCES.get(source, "unknown")


def describe(admin: Admin, resource: ConfigResource) -> list[ConfigEntry]:
    """Every setting of a resource, by name."""
    asked = {
        "resources": [
            {
                "resource_type": resource.kind,
                "resource_name": resource.name,
                "configuration_keys": None,
            }
        ],
        "include_synonyms": False,
        "include_documentation": False,
    }
    response = _ask(admin, resource, ApiKey.DESCRIBE_CONFIGS, asked)
    (result,) = response.results
    _check_found(admin, resource, result)
    return sorted(
        (
            ConfigEntry(
                each.name,
                each.value,
                source_name(each.config_source),
                each.read_only,
                each.is_sensitive,
            )
            for each in result.configs
        ),
        key=lambda setting: setting.name,
    )


def alter(
    admin: Admin, resource: ConfigResource, changes: Mapping[str, str], removals: Sequence[str] = ()
) -> None:
    """Set some keys, and remove others so that they return to their defaults."""
    configs: list[dict[str, Any]] = [
        *({"name": k, "config_operation": _SET, "value": v} for k, v in changes.items()),
        *({"name": k, "config_operation": _DELETE, "value": None} for k in removals),
    ]
    asked = {
        "resources": [
            {"resource_type": resource.kind, "resource_name": resource.name, "configs": configs}
        ],
        "validate_only": False,
    }
    response = _ask(admin, resource, ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)
    (result,) = response.responses
    if result.error_code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
        for name in unknown_names(resource, [*changes, *removals]):
            raise unknown_key(resource, name)
    _check_found(admin, resource, result)


def unknown_names(resource: ConfigResource, names: Iterable[str]) -> list[str]:
    """The names that are no key of Kafka 3.9 or klamm; they may be keys of a plug-in."""
    return [
        name
        for name in names
        if base_name(name) not in _known(resource) and mechanism_key(name) is None
    ]


def unknown_key(resource: ConfigResource, name: str) -> KafkaError:
    """The error for a key that a resource does not have, with the nearest known key."""
    nearest = suggestion(name, _known(resource)) or "."
    return KafkaError(ErrorCode.INVALID_CONFIG, f"{resource} has no setting {name}{nearest}")


def _known(resource: ConfigResource) -> Collection[str]:
    return TOPIC_KEYS if resource.kind == _TOPIC else KEYS


def _ask(admin: Admin, resource: ConfigResource, api: ApiKey, asked: Mapping[str, Any]) -> Any:
    if resource.kind == _BROKER and resource.name:
        # Only the broker itself knows the settings of its file.
        return admin.ask_broker(int(resource.name), api, asked)
    return admin.ask_any(api, asked)


def _check_found(admin: Admin, resource: ConfigResource, result: Any) -> None:
    if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and resource.kind == _TOPIC:
        raise unknown_topic(admin, resource.name)
    check(result.error_code, result.error_message)
