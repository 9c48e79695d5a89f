"""Quotas of users, clients and addresses: set, list, remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from klamm.client.admin import Admin, check
from klamm.protocol.apis import ApiKey


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """A user, a client, a user's client or an address; `<default>` stands for all others."""

    user: str | None = None
    client: str | None = None
    ip: str | None = None

    def values(self) -> list[dict[str, str | None]]:
        named = {"user": self.user, "client-id": self.client, "ip": self.ip}
        return [
            {"entity_type": kind, "entity_name": None if name == DEFAULT else name}
            for kind, name in named.items()
            if name is not None
        ]


@dataclass(frozen=True, slots=True)
class QuotaSetting:
    """The quotas of one entity."""

    user: str | None
    client: str | None
    ip: str | None
    quotas: dict[str, float]


DEFAULT = "<default>"


def alter(
    admin: Admin, entity: QuotaEntity, values: Mapping[str, float], removed: Iterable[str] = ()
) -> None:
    """Set and remove quotas of an entity."""
    changes = [{"key": key, "value": value, "remove": False} for key, value in values.items()]
    changes += [{"key": key, "value": 0.0, "remove": True} for key in removed]
    response = admin.ask_any(
        ApiKey.ALTER_CLIENT_QUOTAS,
        {"entries": [{"entity": entity.values(), "ops": changes}], "validate_only": False},
    )
    for entry in response.entries:
        check(entry.error_code, entry.error_message)


def remove(admin: Admin, entity: QuotaEntity, keys: Iterable[str] = ()) -> list[str]:
    """Remove the named quotas of an entity, or all that it has; their keys."""
    chosen = list(keys) or sorted(
        key
        for each in describe(admin)
        if (each.user, each.client, each.ip) == (entity.user, entity.client, entity.ip)
        for key in each.quotas
    )
    alter(admin, entity, {}, chosen)
    return chosen


def describe(admin: Admin) -> list[QuotaSetting]:
    """The quotas of every entity."""
    response = admin.ask_any(ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
    check(response.error_code, response.error_message)
    found = []
    for entry in response.entries or ():
        names = {
            each.entity_type: DEFAULT if each.entity_name is None else each.entity_name
            for each in entry.entity
        }
        found.append(
            QuotaSetting(
                names.get("user"),
                names.get("client-id"),
                names.get("ip"),
                {each.key: each.value for each in entry.values},
            )
        )
    return found
