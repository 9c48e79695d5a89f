"""SCRAM credentials and quotas for administrators (SEC-4a, 11b)."""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from klamm.broker.handlers.dispatch import Body, Call, Handler, Result, in_slices
from klamm.broker.security.entities import (
    CLIENT,
    IP,
    QUOTA_KEYS,
    USER,
    Entities,
    EntityName,
    ScramCredentials,
)
from klamm.errors import KlammError
from klamm.net.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    credential_of,
    format_credential,
)
from klamm.protocol.acls import AclOperation
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.failures import failure
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps, counted, discard, paced
from klamm.zookeeper.znodes import DEFAULT_ENTITY

_MATCH_EXACT: Final = 0
_MATCH_DEFAULT: Final = 1
_MATCH_ANY: Final = 2
_NO_NAME: Final = "Username must not be empty"
_DESCRIBED_TWICE: Final = (
    "Cannot describe SCRAM credentials for the same user twice in a single request"
)
#: How far a number may be from a whole one and still count as one.
_EPSILON: Final = 1e-6
#: Keys of whole numbers, by Kafka's name for their type.
_WHOLE: Final = {
    "producer_byte_rate": "LONG",
    "consumer_byte_rate": "LONG",
    "connection_creation_rate": "INT",
}
_LARGEST: Final = {"LONG": (1 << 63) - 1, "INT": (1 << 31) - 1}


#: Takes in what other nodes have changed so far: Kafka describes users and quotas as they are in
#: ZooKeeper, so a change that was acknowledged is in what any broker says next.
CatchUp: TypeAlias = Callable[[], Awaitable[None]]


class _Refused(Exception):
    """One item of a request gets this error, and nothing happens to it."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code.name)
        self.code = code
        self.message = message or code.message


class UserHandlers:
    """Users with their SCRAM credentials; changes only on the controller."""

    def __init__(
        self,
        credentials: ScramCredentials,
        entities: Entities,
        is_controller: Callable[[], bool],
        catch_up: CatchUp,
    ) -> None:
        self._credentials = credentials
        self._entities = entities
        self._is_controller = is_controller
        self._catch_up = catch_up

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self._describe,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self._alter,
        }

    @in_slices
    def _describe(self, call: Call) -> Steps[Body]:
        yield self._catch_up()
        described = self._credentials.described()
        counts = yield from counted(each.name for each in call.body.users or ())
        results = []
        for user in counts or described:
            yield None
            code, message = ErrorCode.NONE, ""
            if not user:
                code, message = ErrorCode.RESOURCE_NOT_FOUND, _NO_NAME
            elif counts.get(user, 1) > 1:
                code = ErrorCode.DUPLICATE_RESOURCE
                message = f"{_DESCRIBED_TWICE}: {user}"
            elif user not in described:
                code = ErrorCode.RESOURCE_NOT_FOUND
                message = f"Attempt to describe a user credential that does not exist: {user}"
            infos = described.get(user, {}) if code is ErrorCode.NONE else {}
            results.append(
                {
                    "user": user,
                    "error_code": code,
                    "error_message": message,
                    "credential_infos": [
                        {"mechanism": mechanism, "iterations": iterations}
                        for mechanism, iterations in infos.items()
                    ],
                }
            )
        return {"error_code": ErrorCode.NONE, "error_message": "", "results": results}

    async def _alter(self, call: Call) -> Result:
        if not self._is_controller():
            return _failed(call, ErrorCode.NOT_CONTROLLER)
        if call.access is not None and not call.access.may_on_cluster(AclOperation.ALTER):
            return _failed(call, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        body = call.body
        users: dict[str, tuple[list[Any], list[Any]]] = {}
        for at, changes in enumerate((body.deletions, body.upsertions)):
            async for change in paced(changes):
                users.setdefault(change.name, ([], []))[at].append(change)
        results = []
        async for user, (deletions, upsertions) in paced(users.items()):
            code, message = ErrorCode.NONE, ""
            try:
                await self._alter_user(user, deletions, upsertions)
            except _Refused as refused:
                code, message = refused.code, refused.message
            except KlammError:
                code = ErrorCode.UNKNOWN_SERVER_ERROR
                message = code.message
            results.append({"user": user, "error_code": code, "error_message": message})
        discard(dismantle, users)
        return {"results": results}

    async def _alter_user(self, user: str, deletions: list[Any], upsertions: list[Any]) -> None:
        """Change all of a user's credentials that are named, or none."""
        for each in (*upsertions[::-1], *deletions[::-1]):
            _check_credential(each)
        numbers = [each.mechanism for each in (*deletions, *upsertions)]
        if len(set(numbers)) < len(numbers):
            raise _Refused(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )

        if not all(each.salted_password for each in upsertions):
            raise _Refused(ErrorCode.UNKNOWN_SERVER_ERROR)

        def change(settings: dict[str, str]) -> dict[str, str]:
            for each in deletions:
                name = ScramMechanism(each.mechanism).mechanism_name
                if settings.pop(name, None) is None:
                    raise _Refused(
                        ErrorCode.RESOURCE_NOT_FOUND,
                        "Attempt to delete a user credential that does not exist",
                    )
            for each in upsertions:
                mechanism = ScramMechanism(each.mechanism)
                settings[mechanism.mechanism_name] = format_credential(
                    credential_of(
                        mechanism, bytes(each.salted_password), bytes(each.salt), each.iterations
                    )
                )
            return settings

        await self._entities.change(EntityName(user=user), change)


def _check_credential(change: Any) -> None:
    """Refuse a change of a credential; of several faults, Kafka tells the last one."""
    if not change.name:
        raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, _NO_NAME)
    if change.mechanism not in ScramMechanism._value2member_map_:
        raise _Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    iterations = getattr(change, "iterations", ITERATIONS_MIN)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        amount = "few" if iterations < ITERATIONS_MIN else "many"
        raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {amount} iterations")


class QuotaHandlers:
    """Quotas of users, clients and addresses, on any broker."""

    def __init__(self, entities: Entities, catch_up: CatchUp) -> None:
        self._entities = entities
        self._catch_up = catch_up

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self._describe,
            ApiKey.ALTER_CLIENT_QUOTAS: self._alter,
        }

    @in_slices
    def _describe(self, call: Call) -> Steps[Body]:
        yield self._catch_up()
        try:
            _check_components(call.body.components)
        except _Refused as refused:
            return {
                "error_code": refused.code,
                "error_message": refused.message,
                "entries": None,
            }
        return {
            "error_code": ErrorCode.NONE,
            "error_message": "",
            "entries": [
                {
                    "entity": _entity_values(name.parts()),
                    "values": [{"key": key, "value": value} for key, value in values.items()],
                }
                for name, values in self._entities.quotas()
                if _matches(name, call.body.components, strict=call.body.strict)
            ],
        }

    async def _alter(self, call: Call) -> Result:
        entries = []
        async for entry in paced(call.body.entries):
            code, message = ErrorCode.NONE, None
            try:
                await self._alter_entity(entry, validate_only=call.body.validate_only)
            except _Refused as refused:
                code, message = refused.code, refused.message
            except KlammError:
                code = ErrorCode.UNKNOWN_SERVER_ERROR
            entries.append(
                {
                    "error_code": code,
                    "error_message": message,
                    "entity": [
                        {"entity_type": each.entity_type, "entity_name": each.entity_name}
                        async for each in paced(entry.entity)
                    ],
                }
            )
        return {"entries": entries}

    async def _alter_entity(self, entry: Any, *, validate_only: bool) -> None:
        name = _entity(entry.entity)
        if name.ip not in (None, DEFAULT_ENTITY) and not await _is_resolvable(str(name.ip)):
            shown = quote(str(name.ip), safe="")
            raise _invalid(f"{shown} is not a valid IP or resolvable host.")
        values = {each.key: _checked_value(name, each) for each in entry.ops}
        if validate_only:
            return

        def change(settings: dict[str, str]) -> dict[str, str]:
            for key, value in values.items():
                if value is None:
                    settings.pop(key, None)
                else:
                    settings[key] = value
            return settings

        await self._entities.change(name, change)


def _entity(parts: Any) -> EntityName:
    """The entity that a request names."""
    named: dict[str, str] = {}
    for part in parts:
        if part.entity_type not in QUOTA_KEYS:
            raise _invalid(f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_type in named:
            raise _invalid(f"Duplicate entity type: {part.entity_type}")
        if part.entity_name == "":
            raise _invalid(f"Empty {part.entity_type} not supported")
        name = part.entity_name
        named[part.entity_type] = DEFAULT_ENTITY if name is None else name
    if not named:
        raise _invalid("Invalid empty client quota entity")
    if IP in named and len(named) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity should not be used with user/client ID"
            " entity."
        )
    return EntityName(named.get(USER), named.get(CLIENT), named.get(IP))


async def _is_resolvable(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            await asyncio.get_running_loop().getaddrinfo(host, None)
        except (OSError, UnicodeError):
            return False
    return True


def _checked_value(name: EntityName, change: Any) -> str | None:
    if change.remove:
        return None
    kind = next(iter(name.parts()))
    if change.key not in QUOTA_KEYS[kind]:
        raise _invalid(f"Invalid configuration key {change.key}")
    value = float(change.value)
    kind_of_number = _WHOLE.get(change.key)
    if kind_of_number is not None:
        whole = min(int(value + _EPSILON), _LARGEST[kind_of_number]) if math.isfinite(value) else -1
        if whole < 0 or abs(whole - value) > _EPSILON:
            raise _invalid(f"Configuration {change.key} must be a {kind_of_number} value")
        return str(whole)
    if not math.isfinite(value) or value < 0:
        raise _invalid(f"Invalid value for {change.key}: it has to be a number of at least 0")
    return repr(value)


def _check_components(components: Any) -> None:
    kinds: list[str] = []
    for each in components:
        if not each.entity_type:
            raise _invalid("Unexpected empty filter component entity type")
        if each.entity_type not in QUOTA_KEYS:
            raise _Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Custom entity type '{each.entity_type}' not supported",
            )
        if each.match_type not in (_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_ANY):
            raise _invalid(f"Unexpected match type: {each.match_type}")
        if each.entity_type in kinds:
            name = "client" if each.entity_type == CLIENT else each.entity_type
            raise _invalid(f"Duplicate {name} filter component entity type")
        kinds.append(each.entity_type)
    if IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination, IP filter component should not be used"
            " with user or clientId filter component."
        )


def _matches(name: EntityName, components: Any, *, strict: bool) -> bool:
    parts = name.parts()
    if strict and len(parts) != len(components):
        return False
    for each in components:
        held = parts.get(each.entity_type)
        if held is None:
            return False
        if each.match_type == _MATCH_EXACT and held != each.match:
            return False
        if each.match_type == _MATCH_DEFAULT and held != DEFAULT_ENTITY:
            return False
    return True


def _entity_values(parts: Mapping[str, str]) -> list[dict[str, str | None]]:
    return [
        {"entity_type": kind, "entity_name": None if name == DEFAULT_ENTITY else name}
        for kind, name in parts.items()
    ]


def _invalid(message: str) -> _Refused:
    return _Refused(ErrorCode.INVALID_REQUEST, message)


def _failed(call: Call, code: ErrorCode) -> Body:
    response = failure(call.header, call.body, code)
    assert response is not None
    return response
