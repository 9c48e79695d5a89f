"""Users, clients and addresses below `/config`: SCRAM credentials and quotas (SEC-11).

`Entities` holds their settings, which other modules enforce; a change made here is written to
ZooKeeper, announced, and in force at once on this broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from klamm.broker.security.connection_quotas import ConnectionQuotas
from klamm.broker.security.quotas import ClientQuotas, Quota
from klamm.errors import ConfigError
from klamm.net.scram import ScramCredential, ScramMechanism, parse_credential
from klamm.zookeeper import znodes
from klamm.zookeeper.configs import read_config, write_config
from klamm.zookeeper.store import NoNodeError, NotEmptyError, Store

log = logging.getLogger("klamm.broker.security")

USER: Final = "user"
CLIENT: Final = "client-id"
IP: Final = "ip"
CONNECTION_RATE: Final = "connection_creation_rate"
#: By kind of entity, the quotas that it can have.
QUOTA_KEYS: Final = {
    USER: tuple(quota.value for quota in Quota),
    CLIENT: tuple(quota.value for quota in Quota),
    IP: (CONNECTION_RATE,),
}
_ALL_QUOTA_KEYS: Final = frozenset({*QUOTA_KEYS[USER], CONNECTION_RATE})


@dataclass(frozen=True, slots=True)
class EntityName:
    """A user, a client, a user's client or an address; `<default>` stands for all others."""

    user: str | None = None
    client: str | None = None
    ip: str | None = None

    @property
    def path(self) -> str:
        """The path below `/config`."""
        if self.ip is not None:
            return f"ips/{_encoded(self.ip)}"
        if self.user is None:
            return f"clients/{_encoded(self.client or '')}"
        own = f"users/{_encoded(self.user)}"
        return own if self.client is None else f"{own}/clients/{_encoded(self.client)}"

    @classmethod
    def of_path(cls, path: str) -> EntityName | None:
        """The entity that a path below `/config` is about; None for topics and brokers."""
        match [unquote(part) for part in path.split("/")]:
            case ["users", user]:
                return cls(user=user)
            case ["users", user, "clients", client]:
                return cls(user=user, client=client)
            case ["clients", client]:
                return cls(client=client)
            case ["ips", ip]:
                return cls(ip=ip)
        return None

    def parts(self) -> dict[str, str]:
        """The types of entity with their names."""
        named = {USER: self.user, CLIENT: self.client, IP: self.ip}
        return {kind: name for kind, name in named.items() if name is not None}


def _encoded(name: str) -> str:
    """A name in a path, as Kafka's Sanitizer writes it."""
    if name == znodes.DEFAULT_ENTITY:
        return name
    return quote(name, safe="").replace("~", "%7E")


class ScramCredentials:
    """SCRAM credentials by user and mechanism (SEC-4); one that cannot be read is left out."""

    def __init__(self) -> None:
        self._of_user: dict[str, dict[ScramMechanism, ScramCredential]] = {}

    def put(self, user: str, settings: Mapping[str, str]) -> None:
        """Replace the credentials of a user by those of the user's znode."""
        held: dict[ScramMechanism, ScramCredential] = {}
        for mechanism in ScramMechanism:
            text = settings.get(mechanism.mechanism_name)
            if text is None:
                continue
            try:
                held[mechanism] = parse_credential(text)
            except ConfigError as error:
                log.error("%s of user %r: %s", mechanism.mechanism_name, user, error)
        if held:
            self._of_user[user] = held
        else:
            self._of_user.pop(user, None)

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._of_user.get(user, {}).get(mechanism)

    def described(self) -> dict[str, dict[ScramMechanism, int]]:
        """The iterations of every credential, by user in order; keys are never shown."""
        return {
            user: {mechanism: held[mechanism].iterations for mechanism in sorted(held)}
            for user, held in sorted(self._of_user.items())
        }


class Entities:
    """Users, clients and addresses with their settings."""

    def __init__(
        self,
        store: Store,
        credentials: ScramCredentials,
        quotas: ClientQuotas,
        connections: ConnectionQuotas,
    ) -> None:
        self._store = store
        self._credentials = credentials
        self._quotas = quotas
        self._connections = connections
        self._settings: dict[EntityName, dict[str, str]] = {}
        self._turn = asyncio.Lock()

    async def load(self) -> None:
        """Read all entities there are (SEC-21)."""
        for kind in ("users", "clients", "ips"):
            for name in await self._children(f"/config/{kind}"):
                await self._load(f"{kind}/{name}")
                if kind == "users":
                    for client in await self._children(f"/config/users/{name}/clients"):
                        await self._load(f"users/{name}/clients/{client}")

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []

    async def _load(self, path: str) -> None:
        self.apply(path, await read_config(self._store, path))

    def apply(self, path: str, settings: Mapping[str, str]) -> None:
        """Put the settings of the entity at `path` below `/config` into force."""
        name = EntityName.of_path(path)
        if name is None:
            return
        if settings:
            self._settings[name] = dict(settings)
        else:
            self._settings.pop(name, None)
        if name.ip is not None:
            self._apply_rate(name.ip, settings)
            return
        self._quotas.put((name.user, name.client), settings)
        if name.user is not None and name.client is None:
            self._credentials.put(name.user, settings)

    def _apply_rate(self, ip: str, settings: Mapping[str, str]) -> None:
        try:
            self._connections.ip_rates[ip] = float(settings[CONNECTION_RATE])
        except (KeyError, ValueError):
            self._connections.ip_rates.pop(ip, None)

    def quotas(self) -> Iterator[tuple[EntityName, dict[str, float]]]:
        """The quotas of every entity that has any."""
        for name, settings in self._settings.items():
            values: dict[str, float] = {}
            for key in sorted(_ALL_QUOTA_KEYS & settings.keys()):
                with contextlib.suppress(ValueError):
                    values[key] = float(settings[key])
            if values:
                yield name, values

    async def change(
        self, name: EntityName, change: Callable[[dict[str, str]], Mapping[str, str]]
    ) -> None:
        """Write the settings that `change` makes of the present ones, and announce them."""
        async with self._turn:
            settings = dict(change(await read_config(self._store, name.path)))
            await write_config(self._store, name.path, settings)
            if not settings:
                await self._remove_empty(name)
            self.apply(name.path, settings)

    async def _remove_empty(self, name: EntityName) -> None:
        """Remove the znode of an entity without settings, and of its user if that is empty too."""
        with contextlib.suppress(NoNodeError, NotEmptyError):
            await self._store.delete(znodes.config_path(name.path))
        if name.user is None or name.client is None:
            return
        user = EntityName(user=name.user)
        with contextlib.suppress(NoNodeError, NotEmptyError):
            await self._store.delete(znodes.config_path(f"{user.path}/clients"))
            if user not in self._settings:
                await self._store.delete(znodes.config_path(user.path))
