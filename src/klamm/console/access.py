"""Users, ACLs and quotas in the API, and why something is denied."""

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from klamm.broker.security.authorizer import explain_access
from klamm.client import acls, configs, quotas, users
from klamm.client.acls import AclRow
from klamm.client.configs import ConfigResource
from klamm.client.quotas import QuotaEntity
from klamm.console.requests import check_fields, number_in, route, text_in
from klamm.console.session import Session
from klamm.errors import ConfigError, UnavailableError
from klamm.net.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, ScramMechanism
from klamm.protocol.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
    parse_word,
)

_LOOPBACK: Final = "127.0.0.1"
#: Whom a quota is for.
_ENTITY: Final = ("user", "client", "ip")
_RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}


def security(session: Session, request: Request, _: Any) -> Any:
    """Whether the cluster has an authorizer, and how clients log in, as a broker's settings say."""
    admin, watch = session.online()
    live = watch.moment().columns.live.tolist()
    if not live:
        raise UnavailableError("No broker answers, so nobody knows how the cluster is secured.")
    held = {
        each.name: each.value for each in configs.describe(admin, ConfigResource.broker(live[0]))
    }
    mechanisms = held.get("sasl.enabled.mechanisms") or ""
    return {
        "authorizer": held.get("authorizer.class.name") or None,
        "mechanisms": [each.strip() for each in mechanisms.split(",") if each.strip()],
        "listeners": held.get("listeners"),
        "console_protocol": session.settings.security.protocol,
    }


# Users


def list_users(session: Session, request: Request, _: Any) -> Any:
    """As `klamm users list --json`: nobody is shown a key."""
    return [asdict(each) for each in users.describe(session.online()[0])]


def add_user(session: Session, request: Request, body: Any) -> Any:
    """Add a SCRAM credential, as `klamm users add`."""
    admin, _ = session.online()
    check_fields(body, ("user", "password", "mechanism", "iterations"), "A user")
    name, password = text_in(body, "user"), text_in(body, "password")
    mechanism = _mechanism(body.get("mechanism") or "SCRAM-SHA-512")
    iterations = number_in(body, "iterations", ITERATIONS_MIN)
    users.add(admin, name, password, mechanism, iterations)
    return {"user": name, "mechanism": mechanism.mechanism_name, "iterations": iterations}


def remove_user(session: Session, request: Request, body: Any) -> Any:
    """Remove the credentials of a user, as `klamm users remove`."""
    admin, _ = session.online()
    check_fields(body, ("user", "mechanism"), "A user to be removed")
    name = text_in(body, "user")
    mechanism = None if body.get("mechanism") is None else _mechanism(body["mechanism"])
    return {"user": name, "mechanisms": users.remove_all(admin, name, mechanism)}


def _mechanism(name: Any) -> ScramMechanism:
    found = SCRAM_MECHANISMS.get(name.upper()) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(f"{name!r} is not one of {', '.join(SCRAM_MECHANISMS)}")
    return found


# ACLs


def list_acls(session: Session, request: Request, _: Any) -> Any:
    """As `klamm acls list --json`, with the same filters."""
    query = request.query_params
    resource = _resource(query)
    wanted = AclFilter(principal=query.get("principal") or None)
    if resource is not None:
        wanted = AclFilter(*resource, PatternType.MATCH, principal=wanted.principal)
    return [asdict(AclRow.of(each)) for each in acls.describe(session.online()[0], wanted)]


def explain(session: Session, request: Request, _: Any) -> Any:
    """As `klamm acls explain --json`: whether somebody may, and which ACL decides that."""
    query = request.query_params
    resource = _resource(query)
    if resource is None:
        raise ConfigError(f"Say on what: one of {', '.join(_RESOURCES)}.")
    operation = parse_word(AclOperation, text_in(query, "operation"))
    principal, host = text_in(query, "principal"), query.get("host") or _LOOPBACK
    found = acls.describe(session.online()[0], AclFilter(*resource, PatternType.MATCH))
    return explain_access(found, principal, host, operation, *resource).describe()


def add_acl(session: Session, request: Request, body: Any) -> Any:
    """Add one ACL, as `klamm acls add`."""
    admin, _ = session.online()
    binding = _binding(body)
    acls.add(admin, [binding])
    return asdict(AclRow.of(binding))


def remove_acl(session: Session, request: Request, body: Any) -> Any:
    """Remove the one ACL that is exactly so."""
    admin, _ = session.online()
    binding = _binding(body)
    pattern, entry = binding.pattern, binding.entry
    wanted = AclFilter(
        pattern.type,
        pattern.name,
        pattern.pattern,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission,
    )
    removed = acls.remove(admin, wanted)
    if not removed:
        raise ConfigError(f"There is no such ACL: {binding}.")
    return [asdict(AclRow.of(each)) for each in removed]


def _resource(query: Mapping[str, str]) -> tuple[ResourceType, str] | None:
    """The resource that parameters name, as the options of `klamm acls` do."""
    given = [(type_, query[name]) for name, type_ in _RESOURCES.items() if query.get(name)]
    if len(given) > 1:
        raise ConfigError(f"Give one of {', '.join(_RESOURCES)}.")
    if not given:
        return None
    type_, name = given[0]
    return type_, CLUSTER_NAME if type_ is ResourceType.CLUSTER else name


def _binding(body: Any) -> AclBinding:
    """An ACL in the words of `klamm acls list --json`."""
    check_fields(body, [each.name for each in fields(AclRow)], "An ACL")
    type_ = parse_word(ResourceType, text_in(body, "resource_type"))
    name = CLUSTER_NAME if type_ is ResourceType.CLUSTER else text_in(body, "name")
    return AclBinding(
        ResourcePattern(type_, name, parse_word(PatternType, body.get("pattern") or "Literal")),
        AccessControlEntry(
            text_in(body, "principal"),
            body.get("host") or ANY_HOST,
            parse_word(AclOperation, text_in(body, "operation")),
            parse_word(AclPermission, body.get("permission") or "Allow"),
        ),
    )


# Quotas


def list_quotas(session: Session, request: Request, _: Any) -> Any:
    """As `klamm quotas list --json`."""
    return [asdict(each) for each in quotas.describe(session.online()[0])]


def set_quotas(session: Session, request: Request, body: Any) -> Any:
    """Set quotas of an entity, as `klamm quotas set`."""
    admin, _ = session.online()
    entity, values = _entity(body), body.get("quotas")
    if not isinstance(values, dict) or not values or not all(map(_is_number, values.values())):
        raise ConfigError('Say how much: {"quotas": {"producer_byte_rate": 1048576}}.')
    quotas.alter(admin, entity, {str(key): float(value) for key, value in values.items()})
    return asdict(entity) | {"quotas": values}


def remove_quotas(session: Session, request: Request, body: Any) -> Any:
    """Remove quotas of an entity, as `klamm quotas remove`."""
    admin, _ = session.online()
    entity = _entity(body)
    return {"removed": quotas.remove(admin, entity, [str(key) for key in body.get("keys") or ()])}


def _entity(body: Any) -> QuotaEntity:
    check_fields(body, (*_ENTITY, "quotas", "keys"), "A quota")
    names = [body.get(kind) for kind in _ENTITY]
    if not any(names) or not all(name is None or isinstance(name, str) for name in names):
        raise ConfigError('Say whose: "user", "client" or "ip"; <default> is all others.')
    return QuotaEntity(*(name or None for name in names))


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


_change = partial(route, method="POST", changes=True)

ROUTES: Final = [
    route("/api/security", security),
    route("/api/users", list_users),
    _change("/api/users/add", add_user),
    _change("/api/users/remove", remove_user),
    route("/api/acls", list_acls),
    route("/api/acls/explain", explain),
    _change("/api/acls/add", add_acl),
    _change("/api/acls/remove", remove_acl),
    route("/api/quotas", list_quotas),
    _change("/api/quotas/set", set_quotas),
    _change("/api/quotas/remove", remove_quotas),
]
