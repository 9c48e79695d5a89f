"""Configuration of topics, brokers and loggers: DescribeConfigs, AlterConfigs and
IncrementalAlterConfigs (section 11.3)."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from klamm.broker.handlers.dispatch import Body, Call, Handler, in_slices
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.security.password_encoder import decode_settings, encode_settings
from klamm.config.broker import BrokerConfig
from klamm.config.broker_keys import KAFKA_KEYS
from klamm.config.definitions import InvalidValueError, ValueType
from klamm.config.describe import (
    DescribedConfig,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
)
from klamm.config.dynamic import Change, Operation, altered, validate_broker_config
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.config.topics import validate_topic_config
from klamm.errors import ConfigError
from klamm.names import complaint_about
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps, aside, counted, finish, paced
from klamm.zookeeper import znodes
from klamm.zookeeper.configs import read_config, write_config
from klamm.zookeeper.store import Store

_TOPIC: Final = 2
_BROKER: Final = 4
_BROKER_LOGGER: Final = 8
#: The API that replaces all settings, which a logger does not have.
_REPLACING: Final = ApiKey.ALTER_CONFIGS
_LOGGER_SOURCE: Final = 6

_UNKNOWN_TYPE: Final = 0
#: More settings than a resource has.
_MANY: Final = 500

_ROOT_LOGGER: Final = "root"
_LOGGERS: Final = "klamm"
_LEVELS: Final[Mapping[str, int]] = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_LEVEL_NAMES: Final = {level: name for name, level in _LEVELS.items()}


T = TypeVar("T")


class _Refused(Exception):
    """The error for one resource of the request, which is left unchanged."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def _unknown(resource: "_Resource") -> _Refused:
    return _Refused(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type}")


class _Resource(NamedTuple):
    """The resource that a part of a request describes or changes."""

    type: int
    name: str


class ConfigHandlers:
    """Describes and changes settings.

    A change is written to ZooKeeper and takes effect from there.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        metadata: MetadataCache,
        store: Store,
        check_change: Callable[[BrokerConfig], None] = lambda _: None,
    ) -> None:
        """`check_change` refuses settings of a broker that others could not carry out."""
        self._check_change = check_change
        self._config = config
        self._metadata = metadata
        self._store = store
        # A change reads, modifies and writes settings, so changes on this broker take turns.
        self._turn = asyncio.Lock()

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {
            ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
            ApiKey.ALTER_CONFIGS: self._alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._incremental_alter_configs,
        }

    # DescribeConfigs

    @in_slices
    def _describe_configs(self, call: Call) -> Steps[Body]:
        # A resource that is named again is described in the same way.
        described: dict[_Resource, Body] = {}
        results = []
        for wanted in call.body.resources:
            resource = _Resource(wanted.resource_type, wanted.resource_name)
            if resource not in described:
                described[resource] = yield from self._describe(call.body, resource)
            response = described[resource]
            if wanted.configuration_keys and response["configs"]:
                names = {each["name"] for each in response["configs"]}
                asked = set()
                for key in wanted.configuration_keys:
                    if key in names:
                        asked.add(key)
                    yield None
                shown = [each for each in response["configs"] if each["name"] in asked]
                response = {**response, "configs": shown}
            results.append(response)
            yield None
        return {"results": results}

    def _describe(self, body: Any, resource: _Resource) -> Steps[Body]:
        response = {"resource_type": resource.type, "resource_name": resource.name}
        try:
            if resource.type == _BROKER_LOGGER:
                self._check_own(resource)
                configs = _loggers()
            elif self._needs_no_store(resource):
                configs = [_entry(each, body.include_synonyms) for each in self._own(resource)]
            else:
                overrides = yield read_config(self._store, f"topics/{resource.name}")
                known = {name: text for name, text in overrides.items() if name in TOPIC_KEYS}
                entries = describe_topic(known, self._config())
                configs = [_entry(each, body.include_synonyms) for each in entries]
        except _Refused as refused:
            return {
                **response,
                "error_code": refused.code,
                "error_message": refused.message,
                "configs": [],
            }
        return {**response, "error_code": ErrorCode.NONE, "error_message": "", "configs": configs}

    def _needs_no_store(self, resource: _Resource) -> bool:
        """Whether this is not a topic that exists; refuse a topic that does not."""
        if resource.type != _TOPIC:
            return True
        complaint = complaint_about(resource.name)
        if complaint is not None:
            raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
        if not self._is_known(resource.name):
            raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        return False

    def _own(self, resource: _Resource) -> Sequence[DescribedConfig]:
        config = self._config()
        if resource.type == _BROKER:
            if not resource.name:
                return describe_broker_defaults(config)
            self._check_own(resource, "Broker", or_else=" or empty string")
            return describe_broker(config)
        raise _Refused(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST.message)

    def _is_known(self, topic: str) -> bool:
        return self._metadata.snapshot.topic(topic) is not None

    def _check_own(self, resource: _Resource, called: str = "Node", or_else: str = "") -> None:
        own = self._config().broker_id
        try:
            asked = int(resource.name)
        except ValueError:
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                f"{called} id must be an integer, but it is: {resource.name}",
            ) from None
        if asked != own:
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {own}{or_else}, but received {asked}",
            )

    # AlterConfigs and IncrementalAlterConfigs

    async def _alter_configs(self, call: Call) -> Body:
        def replaced(resource: Any, current: dict[str, str]) -> dict[str, str]:
            _check_values(resource.configs)
            return {each.name: each.value for each in resource.configs}

        return await self._alter(call, replaced)

    async def _incremental_alter_configs(self, call: Call) -> Body:
        def changed(resource: Any, current: dict[str, str]) -> dict[str, str]:
            _check_values(
                each for each in resource.configs if each.config_operation != Operation.DELETE
            )
            try:
                changes = [
                    Change(each.name, Operation(each.config_operation), each.value)
                    for each in resource.configs
                ]
            except ValueError:
                raise _Refused(ErrorCode.INVALID_REQUEST, "Unknown operation") from None
            keys = TOPIC_KEYS if resource.resource_type == _TOPIC else KAFKA_KEYS
            try:
                return altered(current, changes, keys)
            except ConfigError as error:
                raise _Refused(ErrorCode.INVALID_CONFIG, str(error)) from error

        return await self._alter(call, changed)

    async def _alter(
        self, call: Call, change: Callable[[Any, dict[str, str]], dict[str, str]]
    ) -> Body:
        body = call.body
        asked = await finish(
            counted((each.resource_type, each.resource_name) for each in body.resources)
        )
        responses = []
        async with self._turn:
            async for wanted in paced(body.resources):
                resource = _Resource(wanted.resource_type, wanted.resource_name)
                code, message = ErrorCode.NONE, None
                try:
                    if asked[resource] > 1:
                        raise _Refused(
                            ErrorCode.INVALID_REQUEST, "Each resource must appear at most once"
                        )
                    await _checked(wanted, lambda wanted: _check_unique(wanted.configs))
                    if resource.type == _BROKER_LOGGER and call.header.api_key == _REPLACING:
                        raise _unknown(resource)
                    await self._change(resource, wanted, change, body.validate_only)
                except _Refused as refused:
                    code, message = refused.code, refused.message
                except ConfigError as error:
                    code, message = _refusal(resource, error)
                responses.append(
                    {
                        "error_code": code,
                        "error_message": message,
                        "resource_type": resource.type,
                        "resource_name": resource.name,
                    }
                )
        return {"responses": responses}

    async def _change(
        self,
        resource: _Resource,
        wanted: Any,
        change: Callable[[Any, dict[str, str]], dict[str, str]],
        validate_only: bool,
    ) -> None:
        if resource.type == _BROKER_LOGGER:
            self._check_own(resource)
            _change_loggers(wanted.configs, validate_only)
            return
        entity_path = self._entity_path(resource)
        stored = await read_config(self._store, entity_path)

        def settled(wanted: Any) -> dict[str, str]:
            if resource.type == _TOPIC:
                settings = change(wanted, stored)
                validate_topic_config(settings)
                return settings
            readable, _ = decode_settings(stored, self._config())
            settings = change(wanted, readable)
            self._validate_broker(resource, settings)
            return encode_settings(settings, self._config())

        settings = await _checked(wanted, settled)
        if not validate_only:
            await write_config(self._store, entity_path, settings)

    def _entity_path(self, resource: _Resource) -> str:
        if resource.type == _TOPIC:
            if not resource.name:
                raise _Refused(
                    ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."
                )
            if not self._is_known(resource.name):
                raise _Refused(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"The topic '{resource.name}' does not exist.",
                )
            return f"topics/{resource.name}"
        if resource.type == _BROKER:
            if not resource.name:
                return f"brokers/{znodes.DEFAULT_ENTITY}"
            self._check_own(resource)
            return f"brokers/{self._config().broker_id}"
        raise _unknown(resource)

    def _validate_broker(self, resource: _Resource, settings: dict[str, str]) -> None:
        config = self._config()
        validate_broker_config(settings, per_broker=bool(resource.name))
        layers = config.layers
        changed = config.with_dynamic(
            default=layers.dynamic_default if resource.name else settings,
            broker=settings if resource.name else layers.dynamic_broker,
        )
        self._check_change(changed)


def _refusal(resource: _Resource, error: ConfigError) -> tuple[ErrorCode, str]:
    """The response that Kafka gives to settings that are wrong for a resource."""
    if resource.type != _TOPIC:
        return ErrorCode.INVALID_REQUEST, str(error)
    if isinstance(error, InvalidValueError):
        where = f"ConfigResource(type=TOPIC, name='{resource.name}')"
        return ErrorCode.INVALID_CONFIG, f"Invalid config value for resource {where}: {error}"
    return ErrorCode.INVALID_CONFIG, str(error)


async def _checked(wanted: Any, check: Callable[[Any], T]) -> T:
    """The result of checking a resource's settings; large ones are checked in another thread."""
    return check(wanted) if len(wanted.configs) < _MANY else await aside(check, wanted)


def _check_unique(configs: Iterable[Any]) -> None:
    if any(count > 1 for count in Counter(each.name for each in configs).values()):
        raise _Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def _check_values(configs: Iterable[Any]) -> None:
    missing = [each.name for each in configs if each.value is None]
    if missing:
        raise _Refused(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(missing)}"
        )


def _entry(entry: DescribedConfig, include_synonyms: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.sensitive,
        "synonyms": [
            {"name": each.name, "value": each.value, "source": each.source}
            for each in (entry.synonyms if include_synonyms else ())
        ],
        "config_type": _UNKNOWN_TYPE if entry.type is None else entry.type,
        "documentation": None,
    }


# Loggers


def _loggers() -> list[dict[str, Any]]:
    names = [name for name in logging.root.manager.loggerDict if name.startswith(_LOGGERS)]
    return [
        {
            "name": name,
            "value": _LEVEL_NAMES.get(_logger(name).getEffectiveLevel(), "INFO"),
            "read_only": False,
            "config_source": _LOGGER_SOURCE,
            "is_sensitive": False,
            "synonyms": [],
            "config_type": ValueType.STRING,
            "documentation": None,
        }
        for name in (_ROOT_LOGGER, *sorted(names))
    ]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == _ROOT_LOGGER else name)


def _change_loggers(configs: Sequence[Any], validate_only: bool) -> None:
    levels: dict[str, int] = {}
    for each in configs:
        operation = getattr(each, "config_operation", Operation.SET)
        if operation == Operation.DELETE:
            levels[each.name] = logging.NOTSET if each.name != _ROOT_LOGGER else logging.INFO
        elif operation == Operation.SET and each.value in _LEVELS:
            levels[each.name] = _LEVELS[each.value]
        else:
            raise _Refused(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {each.name} to {each.value} as it is not a "
                f"supported log level. Valid log levels are {', '.join(_LEVELS)}",
            )
    if not validate_only:
        for name, level in levels.items():
            _logger(name).setLevel(level)
