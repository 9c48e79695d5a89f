"""DescribeAcls, CreateAcls and DeleteAcls (SEC-7a)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from klamm.broker.handlers.dispatch import Body, Call, Handler, Result, refused
from klamm.broker.security.acl_store import AclStore, Entries
from klamm.broker.security.principals import Principal
from klamm.errors import ConfigError, KlammError
from klamm.protocol.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.slices import paced

_E = TypeVar("_E", ResourceType, PatternType, AclOperation, AclPermission)


class AclHandlers:
    """Answers from the authorizer, writes to its store; SECURITY_DISABLED where there is none."""

    def __init__(self, acls: AclStore | None) -> None:
        self._acls = acls

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_ACLS: self._describe,
            ApiKey.CREATE_ACLS: self._create,
            ApiKey.DELETE_ACLS: self._delete,
        }

    def _describe(self, call: Call) -> Result | Awaitable[Result]:
        if self._acls is None:
            return refused(call, ErrorCode.SECURITY_DISABLED)
        try:
            wanted = _filter(call.body)
        except ConfigError as error:
            return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": str(error)}
        by_pattern: dict[ResourcePattern, list[AccessControlEntry]] = {}
        for binding in self._acls.authorizer.find(wanted):
            by_pattern.setdefault(binding.pattern, []).append(binding.entry)
        return {
            "error_code": ErrorCode.NONE,
            "error_message": "",
            "resources": [
                {
                    **_pattern_values(pattern),
                    "acls": [_entry_values(entry) for entry in entries],
                }
                for pattern, entries in by_pattern.items()
            ],
        }

    def _create(self, call: Call) -> Result | Awaitable[Result]:
        if self._acls is None:
            return refused(call, ErrorCode.SECURITY_DISABLED)
        return self._create_all(call)

    async def _create_all(self, call: Call) -> Result:
        results: list[tuple[ErrorCode, str | None]] = []
        wanted: dict[ResourcePattern, set[AccessControlEntry]] = {}
        patterns: list[ResourcePattern | None] = []
        async for creation in paced(call.body.creations):
            try:
                binding = _binding(creation)
            except ConfigError as error:
                results.append((ErrorCode.INVALID_REQUEST, str(error)))
                patterns.append(None)
            else:
                results.append((ErrorCode.NONE, ""))
                patterns.append(binding.pattern)
                wanted.setdefault(binding.pattern, set()).add(binding.entry)
        failed = await self._change_all({p: (frozenset(e), frozenset()) for p, e in wanted.items()})
        for at, pattern in enumerate(patterns):
            if pattern in failed:
                results[at] = (ErrorCode.UNKNOWN_SERVER_ERROR, None)
        return {
            "results": [{"error_code": code, "error_message": message} for code, message in results]
        }

    def _delete(self, call: Call) -> Result | Awaitable[Result]:
        if self._acls is None:
            return refused(call, ErrorCode.SECURITY_DISABLED)
        return self._delete_all(call, self._acls)

    async def _delete_all(self, call: Call, acls: AclStore) -> Result:
        found: list[Sequence[AclBinding] | str] = []
        unwanted: dict[ResourcePattern, set[AccessControlEntry]] = {}
        async for each in paced(call.body.filters):
            try:
                matching = acls.authorizer.find(_filter(each))
            except ConfigError as error:
                found.append(str(error))
                continue
            found.append(matching)
            for binding in matching:
                unwanted.setdefault(binding.pattern, set()).add(binding.entry)
        failed = await self._change_all(
            {p: (frozenset(), frozenset(e)) for p, e in unwanted.items()}
        )
        return {"filter_results": [_filter_result(each, failed) for each in found]}

    async def _change_all(
        self, changes: Mapping[ResourcePattern, tuple[Entries, Entries]]
    ) -> set[ResourcePattern]:
        """Add and remove entries, pattern by pattern; the patterns that could not be changed."""
        assert self._acls is not None
        failed: set[ResourcePattern] = set()
        for pattern, (added, removed) in changes.items():
            try:
                await self._acls.update(pattern, partial(_changed, added=added, removed=removed))
            except KlammError:
                failed.add(pattern)
        return failed


def _changed(held: Entries, *, added: Entries, removed: Entries) -> Entries:
    return (held | added) - removed


def _filter_result(found: Sequence[AclBinding] | str, failed: set[ResourcePattern]) -> Body:
    if isinstance(found, str):
        return {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": found,
            "matching_acls": [],
        }
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "matching_acls": [
            {
                "error_code": (
                    ErrorCode.UNKNOWN_SERVER_ERROR if binding.pattern in failed else ErrorCode.NONE
                ),
                "error_message": None,
                **_pattern_values(binding.pattern),
                **_entry_values(binding.entry),
            }
            for binding in found
        ],
    }


def _pattern_values(pattern: ResourcePattern) -> dict[str, Any]:
    return {
        "resource_type": pattern.type,
        "resource_name": pattern.name,
        "pattern_type": pattern.pattern,
    }


def _entry_values(entry: AccessControlEntry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


def _member(kind: type[_E], number: int, *, least: int) -> _E:
    if number < least or number not in kind._value2member_map_:
        raise ConfigError(f"{number} is no {kind.__name__} that can be used here")
    return kind(number)


def _filter(wanted: Any) -> AclFilter:
    return AclFilter(
        _member(ResourceType, wanted.resource_type_filter, least=ResourceType.ANY),
        wanted.resource_name_filter,
        _member(PatternType, wanted.pattern_type_filter, least=PatternType.ANY),
        wanted.principal_filter,
        wanted.host_filter,
        _member(AclOperation, wanted.operation, least=AclOperation.ANY),
        _member(AclPermission, wanted.permission_type, least=AclPermission.ANY),
    )


def _binding(creation: Any) -> AclBinding:
    """One ACL of a request, or a ConfigError that says why it cannot be stored."""
    type_ = _member(ResourceType, creation.resource_type, least=ResourceType.TOPIC)
    pattern = _member(PatternType, creation.resource_pattern_type, least=PatternType.LITERAL)
    operation = _member(AclOperation, creation.operation, least=AclOperation.ALL)
    permission = _member(AclPermission, creation.permission_type, least=AclPermission.DENY)
    name = creation.resource_name
    if type_ is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise ConfigError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        raise ConfigError("Invalid empty resource name")
    if "/" in name:
        raise ConfigError("Failed to create ACL")
    if not creation.host:
        raise ConfigError("the host is an address, or * for any")
    principal = str(Principal.parse(creation.principal))
    return AclBinding(
        ResourcePattern(type_, name, pattern),
        AccessControlEntry(principal, creation.host, operation, permission),
    )
