"""The znodes of Kafka's AclAuthorizer: paths, JSON and notifications (SEC-7).

Brokers of Apache Kafka and of klamm share these znodes, so their form is Kafka's. This only
translates; reading, writing and watching is done by the store's users.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from klamm.errors import ConfigError, MalformedZnodeError
from klamm.protocol.acls import (
    RESOURCE_TYPES,
    AccessControlEntry,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
    parse_word,
)

LITERAL_ROOT: Final = "/kafka-acl"
EXTENDED_ROOT: Final = "/kafka-acl-extended"
PREFIXED_ROOT: Final = f"{EXTENDED_ROOT}/prefixed"
LITERAL_CHANGES: Final = "/kafka-acl-changes"
EXTENDED_CHANGES: Final = "/kafka-acl-extended-changes"
CHANGE_PREFIX: Final = "acl_changes_"
#: Changes are removed after this time by the broker that sees them.
CHANGE_LIFE_MS: Final = 15 * 60 * 1000
_VERSION: Final = 1
_ROOTS: Final = {PatternType.LITERAL: LITERAL_ROOT, PatternType.PREFIXED: PREFIXED_ROOT}
#: Every path that has to exist before ACLs are read, parents first.
STRUCTURE: Final = (
    LITERAL_ROOT,
    EXTENDED_ROOT,
    PREFIXED_ROOT,
    LITERAL_CHANGES,
    EXTENDED_CHANGES,
    *(f"{root}/{each.word}" for root in _ROOTS.values() for each in RESOURCE_TYPES),
)


def type_path(pattern: PatternType, type_: ResourceType) -> str:
    """The parent of the patterns of one type."""
    return f"{_ROOTS[pattern]}/{type_.word}"


def acl_path(pattern: ResourcePattern) -> str:
    """Where the entries of one pattern are kept; names are not encoded, so `/` cannot be."""
    if "/" in pattern.name:
        raise ConfigError("the name of a resource in an ACL cannot contain /")
    return f"{type_path(pattern.pattern, pattern.type)}/{pattern.name}"


def encode_entries(entries: Iterable[AccessControlEntry]) -> bytes:
    """The data of a pattern's znode."""
    acls = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission.word,
            "operation": entry.operation.word,
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    text = json.dumps({"version": _VERSION, "acls": acls}, separators=(",", ":"))
    return text.encode()


def decode_entries(data: bytes, path: str) -> frozenset[AccessControlEntry]:
    """The entries in a pattern's znode; an error for what cannot be read, never fewer entries."""
    if not data:
        return frozenset()
    try:
        root = json.loads(data)
        if root["version"] != _VERSION:
            raise MalformedZnodeError(f"{path}: version {root['version']!r} is not {_VERSION}")
        return frozenset(_entry(item) for item in root["acls"])
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise MalformedZnodeError(f"{path}: it does not hold ACLs: {error}") from error


def _entry(item: Any) -> AccessControlEntry:
    principal, host = item["principal"], item["host"]
    if not isinstance(principal, str) or not isinstance(host, str):
        raise TypeError("principal and host have to be text")
    return AccessControlEntry(
        principal,
        host,
        parse_word(AclOperation, item["operation"]),
        parse_word(AclPermission, item["permissionType"]),
    )


def changes_root(pattern: PatternType) -> str:
    """Where a change of such a pattern is announced."""
    return LITERAL_CHANGES if pattern is PatternType.LITERAL else EXTENDED_CHANGES


def encode_change(pattern: ResourcePattern) -> bytes:
    """The notification that tells other brokers to read a pattern again."""
    if pattern.pattern is PatternType.LITERAL:
        return f"{pattern.type.name}:{pattern.name}".encode()
    change = {
        "version": _VERSION,
        "resourceType": pattern.type.name,
        "name": pattern.name,
        "patternType": pattern.pattern.name,
    }
    return json.dumps(change, separators=(",", ":")).encode()


def decode_change(data: bytes, path: str) -> ResourcePattern:
    """The pattern that a notification is about."""
    try:
        if path.startswith(EXTENDED_CHANGES):
            change = json.loads(data)
            return ResourcePattern(
                ResourceType[change["resourceType"]],
                change["name"],
                PatternType[change["patternType"]],
            )
        type_name, _, name = data.decode().partition(":")
        # Kafka before 2.0 wrote the word of the znode in place of the constant's name.
        return ResourcePattern(parse_word(ResourceType, type_name), name)
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise MalformedZnodeError(f"{path}: it does not announce a change: {error}") from error
