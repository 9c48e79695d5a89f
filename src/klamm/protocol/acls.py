"""ACLs as Kafka's messages, tools and znodes write them.

The numbers are those of the wire. An ACL (`AclBinding`) is a pattern of resources and an entry: who
may, or may not, do what, from where. A filter matches bindings; None in it matches everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from klamm.errors import ConfigError

WILDCARD: Final = "*"
ANY_HOST: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
ANYBODY: Final = "User:*"


class _Word(IntEnum):
    """A number of the wire with the word that tools and znodes have for it."""

    @property
    def word(self) -> str:
        """`TRANSACTIONAL_ID` as it stands in znodes: `TransactionalId`."""
        return self.name.title().replace("_", "")


class ResourceType(_Word):
    """What an ACL is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Word):
    """How the name in an ACL relates to the names of resources; ANY and MATCH only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Word):
    """What is done to a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class AclPermission(_Word):
    """Whether the ACL forbids or allows."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


RESOURCE_TYPES: Final = tuple(each for each in ResourceType if each > ResourceType.ANY)
#: The operations that one ACL can name.
OPERATIONS: Final = tuple(each for each in AclOperation if each > AclOperation.ANY)
_O = AclOperation
#: An allowed operation on the left allows the one on the right as well (SEC-8).
IMPLIES: Final = {
    _O.READ: _O.DESCRIBE,
    _O.WRITE: _O.DESCRIBE,
    _O.DELETE: _O.DESCRIBE,
    _O.ALTER: _O.DESCRIBE,
    _O.ALTER_CONFIGS: _O.DESCRIBE_CONFIGS,
}
#: What "authorized operations" in responses speak of, by resource (SEC-9).
SUPPORTED_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        *(_O.READ, _O.WRITE, _O.CREATE, _O.DESCRIBE, _O.DELETE, _O.ALTER),
        *(_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE),
    ResourceType.CLUSTER: (
        *(_O.CREATE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
        *(_O.IDEMPOTENT_WRITE, _O.ALTER, _O.DESCRIBE),
    ),
}

_W = TypeVar("_W", bound=_Word)


def parse_word(kind: type[_W], text: str) -> _W:
    """The member that `text` names, as `AlterConfigs`, `ALTER_CONFIGS` or `alter-configs`."""
    plain = text.replace("_", "").replace("-", "").lower()
    for each in kind:
        if each.word.lower() == plain and each.value > 1:
            return each
    known = ", ".join(each.word for each in kind if each.value > 1)
    raise ConfigError(f"{text!r} is not one of {known}")


@dataclass(frozen=True, slots=True, order=True)
class ResourcePattern:
    """The resources that an ACL is about."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL

    def covers(self, name: str) -> bool:
        """Whether a resource of this name is among them."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)

    def __str__(self) -> str:
        prefixed = " (prefixed)" if self.pattern is PatternType.PREFIXED else ""
        return f"{self.type.word} {self.name}{prefixed}"


@dataclass(frozen=True, slots=True, order=True)
class AccessControlEntry:
    """Who may, or may not, do what, from where."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def __str__(self) -> str:
        where = "any host" if self.host == ANY_HOST else self.host
        return f"{self.permission.word} {self.operation.word} for {self.principal} from {where}"


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One ACL."""

    pattern: ResourcePattern
    entry: AccessControlEntry

    def __str__(self) -> str:
        return f"{self.entry} on {self.pattern}"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs a request is about; None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, binding: AclBinding) -> bool:
        entry = binding.entry
        return (
            self.matches_pattern(binding.pattern)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (AclPermission.ANY, entry.permission)
        )

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.type):
            return False
        match self.pattern_type:
            case PatternType.ANY:
                return self.resource_name in (None, pattern.name)
            case PatternType.MATCH:
                return self.resource_name is None or pattern.covers(self.resource_name)
            case exact:
                return pattern.pattern is exact and self.resource_name in (None, pattern.name)


def operation_bits(operations: set[AclOperation]) -> int:
    """The bit field that responses carry as authorized operations."""
    return sum(1 << operation for operation in operations)
