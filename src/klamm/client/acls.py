"""ACLs: add, list, remove."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from klamm.client.admin import Admin, check
from klamm.protocol.acls import (
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


@dataclass(frozen=True, slots=True)
class AclRow:
    """One ACL as it is shown."""

    resource_type: str
    name: str
    pattern: str
    principal: str
    permission: str
    operation: str
    host: str

    @classmethod
    def of(cls, binding: AclBinding) -> AclRow:
        pattern, entry = binding.pattern, binding.entry
        return cls(
            pattern.type.word,
            pattern.name,
            pattern.pattern.word,
            entry.principal,
            entry.permission.word,
            entry.operation.word,
            entry.host,
        )


def add(admin: Admin, bindings: Iterable[AclBinding]) -> None:
    """Store ACLs; those that exist already stay."""
    creations = [
        {
            "resource_type": each.pattern.type,
            "resource_name": each.pattern.name,
            "resource_pattern_type": each.pattern.pattern,
            "principal": each.entry.principal,
            "host": each.entry.host,
            "operation": each.entry.operation,
            "permission_type": each.entry.permission,
        }
        for each in bindings
    ]
    # Any broker can write them. The controller is asked, so that its response is in force there.
    response = admin.ask_controller(ApiKey.CREATE_ACLS, {"creations": creations})
    for result in response.results:
        check(result.error_code, result.error_message)


def describe(admin: Admin, wanted: AclFilter | None = None) -> list[AclBinding]:
    """The ACLs that a filter matches, or all."""
    values = _filter_values(wanted or AclFilter())
    response = admin.ask_controller(ApiKey.DESCRIBE_ACLS, values)
    check(response.error_code, response.error_message)
    return sorted(
        _binding(resource, acl) for resource in response.resources for acl in resource.acls
    )


def remove(admin: Admin, wanted: AclFilter) -> list[AclBinding]:
    """Remove the ACLs that a filter matches; what was removed."""
    response = admin.ask_controller(ApiKey.DELETE_ACLS, {"filters": [_filter_values(wanted)]})
    removed: list[AclBinding] = []
    for result in response.filter_results:
        check(result.error_code, result.error_message)
        for acl in result.matching_acls:
            check(acl.error_code, acl.error_message)
            removed.append(_binding(acl, acl))
    return sorted(removed)


def _binding(resource: Any, acl: Any) -> AclBinding:
    return AclBinding(
        ResourcePattern(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
        ),
        AccessControlEntry(
            acl.principal,
            acl.host,
            AclOperation(acl.operation),
            AclPermission(acl.permission_type),
        ),
    )


def _filter_values(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }
