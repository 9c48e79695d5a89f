"""The decision about one operation on one resource, from the ACLs (SEC-8, 8a).

ACLs are indexed by type and name; entries are kept as bit masks by principal and host. A decision
looks up the literal `*`, the literal name and the prefixes of the lengths that exist, so it costs
microseconds however many ACLs there are. Decisions are remembered until an ACL changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from klamm.protocol.acls import (
    ANY_HOST,
    ANYBODY,
    CLUSTER_NAME,
    IMPLIES,
    OPERATIONS,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
    operation_bits,
)

_EVERY_OPERATION: Final = sum(1 << operation for operation in OPERATIONS)
_REMEMBERED_MAX: Final = 50_000


@dataclass(slots=True)
class _Entries:
    """The entries of one pattern: (principal, host) -> operations denied and allowed, as bits."""

    entries: frozenset[AccessControlEntry]
    masks: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in self.entries:
            key = (entry.principal, entry.host)
            denied, allowed = self.masks.get(key, (0, 0))
            if entry.permission is AclPermission.ALLOW:
                self.masks[key] = denied, allowed | _allowed_bits(entry.operation)
            else:
                self.masks[key] = denied | _denied_bits(entry.operation), allowed

    def judge(self, principal: str, host: str) -> tuple[int, int]:
        """The operations denied and allowed to a principal."""
        denied = allowed = 0
        get = self.masks.get
        for key in (
            (principal, host),
            (principal, ANY_HOST),
            (ANYBODY, host),
            (ANYBODY, ANY_HOST),
        ):
            found = get(key)
            if found is not None:
                denied |= found[0]
                allowed |= found[1]
        return denied, allowed


def _denied_bits(operation: AclOperation) -> int:
    return _EVERY_OPERATION if operation is AclOperation.ALL else 1 << operation


def _allowed_bits(operation: AclOperation) -> int:
    if operation is AclOperation.ALL:
        return _EVERY_OPERATION
    implied = IMPLIES.get(operation)
    return 1 << operation | (0 if implied is None else 1 << implied)


class _Patterns:
    """The patterns of one type of resource."""

    def __init__(self) -> None:
        self.literal: dict[str, _Entries] = {}
        self.prefixed: dict[str, _Entries] = {}
        #: The lengths of the prefixes, ascending: only these have to be looked up.
        self.lengths: tuple[int, ...] = ()

    def covering(self, name: str) -> Iterator[_Entries]:
        """The entries of every pattern that covers `name`."""
        for literal in (WILDCARD, name) if name != WILDCARD else (WILDCARD,):
            found = self.literal.get(literal)
            if found is not None:
                yield found
        for length in self.lengths:
            if length > len(name):
                return
            found = self.prefixed.get(name[:length])
            if found is not None:
                yield found


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with the ACLs that made it."""

    is_allowed: bool
    reason: str
    deciding: tuple[AclBinding, ...] = ()
    #: Every ACL on a pattern that covers the resource, for all principals.
    considered: tuple[AclBinding, ...] = ()

    def describe(self) -> dict[str, Any]:
        """As `klamm acls explain --json`."""
        return {
            "allowed": self.is_allowed,
            "reason": self.reason,
            "deciding": [str(each) for each in self.deciding],
            "considered": [str(each) for each in self.considered],
        }


class AclAuthorizer:
    """Decides like Kafka's AclAuthorizer; a change of ACLs calls `put`."""

    def __init__(
        self,
        *,
        super_users: frozenset[str] = frozenset(),
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        #: Grows with each change of the ACLs: decisions hold while it stays the same.
        self.generation = 0
        self._super_users = super_users
        self._allow_everyone = allow_everyone_if_no_acl_found
        self._of_type: dict[ResourceType, _Patterns] = {}
        self._remembered: dict[tuple[str, str, int, int, str], bool] = {}

    # The ACLs there are

    def put(self, pattern: ResourcePattern, entries: Iterable[AccessControlEntry]) -> None:
        """Replace the entries of one pattern; none removes it."""
        patterns = self._of_type.setdefault(pattern.type, _Patterns())
        is_prefix = pattern.pattern is PatternType.PREFIXED
        table = patterns.prefixed if is_prefix else patterns.literal
        held = frozenset(entries)
        if held:
            table[pattern.name] = _Entries(held)
        else:
            table.pop(pattern.name, None)
        if is_prefix:
            patterns.lengths = tuple(sorted({len(name) for name in patterns.prefixed}))
        self._remembered.clear()
        self.generation += 1

    def entries(self, pattern: ResourcePattern) -> frozenset[AccessControlEntry]:
        """The entries of one pattern."""
        patterns = self._of_type.get(pattern.type)
        if patterns is None:
            return frozenset()
        is_prefix = pattern.pattern is PatternType.PREFIXED
        found = (patterns.prefixed if is_prefix else patterns.literal).get(pattern.name)
        return frozenset() if found is None else found.entries

    def patterns(self) -> Iterator[ResourcePattern]:
        """Every pattern that has entries."""
        for type_, patterns in self._of_type.items():
            for name in patterns.literal:
                yield ResourcePattern(type_, name, PatternType.LITERAL)
            for name in patterns.prefixed:
                yield ResourcePattern(type_, name, PatternType.PREFIXED)

    def find(self, wanted: AclFilter) -> list[AclBinding]:
        """The ACLs that a filter matches, sorted."""
        return sorted(
            binding
            for pattern in self.patterns()
            if wanted.matches_pattern(pattern)
            for entry in self.entries(pattern)
            if wanted.matches(binding := AclBinding(pattern, entry))
        )

    # Decisions

    def allows(
        self, principal: str, host: str, operation: AclOperation, type_: ResourceType, name: str
    ) -> bool:
        """Whether the principal, from that address, may do this to that resource."""
        if principal in self._super_users:
            return True
        key = (principal, host, int(operation), int(type_), name)
        remembered = self._remembered.get(key)
        if remembered is None:
            remembered = self._decide(principal, host, operation, type_, name)
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[key] = remembered
        return remembered

    def _decide(
        self, principal: str, host: str, operation: AclOperation, type_: ResourceType, name: str
    ) -> bool:
        patterns = self._of_type.get(type_)
        denied = allowed = 0
        is_any = False
        for entries in patterns.covering(name) if patterns is not None else ():
            is_any = True
            of_entries = entries.judge(principal, host)
            denied |= of_entries[0]
            allowed |= of_entries[1]
        if not is_any:
            return self._allow_everyone
        bit = 1 << operation
        return not denied & bit and bool(allowed & bit)

    def allows_on_any(
        self, principal: str, host: str, operation: AclOperation, type_: ResourceType
    ) -> bool:
        """Whether the operation is allowed on some resource of this type (SEC-8a)."""
        if principal in self._super_users:
            return True
        patterns = self._of_type.get(type_)
        if patterns is None:
            return self._allow_everyone
        bit = 1 << operation

        def judged(table: dict[str, _Entries]) -> tuple[set[str], set[str]]:
            verdicts = {name: each.judge(principal, host) for name, each in table.items()}
            return (
                {name for name, (denied, _) in verdicts.items() if denied & bit},
                {name for name, (_, allowed) in verdicts.items() if allowed & bit},
            )

        denied_names, allowed_names = judged(patterns.literal)
        denied_prefixes, allowed_prefixes = judged(patterns.prefixed)
        if WILDCARD in denied_names:
            return False
        if self._allow_everyone or WILDCARD in allowed_names:
            return True
        return any(
            not any(name[:end] in denied_prefixes for end in range(1, len(name) + 1))
            for name in (allowed_names - denied_names) | allowed_prefixes
        )

    def authorized_operations(
        self, principal: str, host: str, type_: ResourceType, name: str
    ) -> int:
        """The operations that a principal may do on a resource, as responses' bit field."""
        return operation_bits(
            {
                operation
                for operation in SUPPORTED_OPERATIONS[type_]
                if self.allows(principal, host, operation, type_, name)
            }
        )

    def explain(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        type_: ResourceType,
        name: str,
    ) -> Explanation:
        """The decision that `allows` makes, with the ACLs that make it."""
        considered = tuple(self.find(AclFilter(type_, name, PatternType.MATCH)))
        if principal in self._super_users:
            return Explanation(True, f"{principal} is one of super.users", (), considered)
        if not considered:
            verdict = "allows" if self._allow_everyone else "does not allow"
            return Explanation(
                self._allow_everyone,
                f"no ACL covers {type_.word} {name}, and allow.everyone.if.no.acl.found"
                f" {verdict} everyone then",
            )
        bit = 1 << operation
        mine = [
            each
            for each in considered
            if each.entry.principal in (principal, ANYBODY) and each.entry.host in (host, ANY_HOST)
        ]
        denying = tuple(
            each
            for each in mine
            if each.entry.permission is AclPermission.DENY
            and _denied_bits(each.entry.operation) & bit
        )
        if denying:
            return Explanation(False, f"an ACL denies it: {denying[0]}", denying, considered)
        allowing = tuple(
            each
            for each in mine
            if each.entry.permission is AclPermission.ALLOW
            and _allowed_bits(each.entry.operation) & bit
        )
        if allowing:
            how = _implied(allowing[0].entry.operation, operation)
            return Explanation(True, f"an ACL allows it{how}: {allowing[0]}", allowing, considered)
        return Explanation(
            False,
            f"no ACL that covers {type_.word} {name} allows {operation.word} to {principal} from"
            f" {host}",
            (),
            considered,
        )


def explain_access(
    bindings: Iterable[AclBinding],
    principal: str,
    host: str,
    operation: AclOperation,
    type_: ResourceType,
    name: str,
) -> Explanation:
    """The decision about a principal that is no super user, from these ACLs alone."""
    by_pattern: dict[ResourcePattern, set[AccessControlEntry]] = {}
    for binding in bindings:
        by_pattern.setdefault(binding.pattern, set()).add(binding.entry)
    authorizer = AclAuthorizer()
    for pattern, entries in by_pattern.items():
        authorizer.put(pattern, entries)
    return authorizer.explain(principal, host, operation, type_, name)


def _implied(held: AclOperation, asked: AclOperation) -> str:
    if held in (asked, AclOperation.ALL):
        return ""
    return f", because {held.word} implies {asked.word}"


#: The resource of operations on the cluster itself.
CLUSTER: Final = (ResourceType.CLUSTER, CLUSTER_NAME)


class Access(NamedTuple):
    """A principal at an address, before an authorizer."""

    authorizer: AclAuthorizer
    principal: str
    host: str

    def may(self, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        return self.authorizer.allows(self.principal, self.host, operation, resource, name)

    def may_on_cluster(self, operation: AclOperation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_on_topic(self, operation: AclOperation) -> Callable[[str], bool]:
        """A test for topics by name."""
        return lambda name: self.may(operation, ResourceType.TOPIC, name)

    def may_on_any_topic(self, operation: AclOperation) -> bool:
        return self.authorizer.allows_on_any(
            self.principal, self.host, operation, ResourceType.TOPIC
        )

    def operations(self, resource: ResourceType, name: str) -> int:
        """The authorized operations on a resource, as bits."""
        return self.authorizer.authorized_operations(self.principal, self.host, resource, name)
