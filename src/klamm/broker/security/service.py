"""The security of one broker: its parts, wired to each other and to ZooKeeper."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from klamm.broker.handlers.dispatch import Handler
from klamm.broker.security.acl_handlers import AclHandlers
from klamm.broker.security.acl_store import CHANGE_ROOTS, AclStore
from klamm.broker.security.authentication import Authentication, SaslHandlers
from klamm.broker.security.authorizer import AclAuthorizer
from klamm.broker.security.connection_quotas import (
    ConnectionLimits,
    ConnectionQuotas,
    parse_overrides,
)
from klamm.broker.security.entities import Entities, ScramCredentials
from klamm.broker.security.guard import Guard
from klamm.broker.security.principals import parse_super_users
from klamm.broker.security.quotas import ClientQuotas, QuotaWindow
from klamm.broker.security.throttle import Throttle, TopicSizes
from klamm.broker.security.user_handlers import CatchUp, QuotaHandlers, UserHandlers
from klamm.config.broker import BrokerConfig
from klamm.config.broker_security import listener_lookup
from klamm.config.endpoints import ListenerEndpoint
from klamm.errors import ConfigError
from klamm.metrics.requests import RequestMeter
from klamm.net.server import Dispatch, Listener
from klamm.protocol.apis import ApiKey
from klamm.zookeeper.store import Store

log = logging.getLogger("klamm.broker.security")


class SecurityService:
    """Authentication, authorization and quotas of this broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        is_controller: Callable[[], bool],
        topics: TopicSizes,
        catch_up: CatchUp,
    ) -> None:
        self._config = config
        self.credentials = ScramCredentials()
        self.quotas = ClientQuotas(
            QuotaWindow(config.quota_window_num, config.quota_window_size_seconds * 1000),
            QuotaWindow(
                config.controller_quota_window_num,
                config.controller_quota_window_size_seconds * 1000,
            ),
        )
        self.throttle = Throttle(self.quotas, topics)
        self.connections = ConnectionQuotas(
            connection_limits(config),
            inter_broker=config.inter_broker_listener_name,
            window=self.quotas.window,
        )
        self.entities = Entities(store, self.credentials, self.quotas, self.connections)
        self.acls: AclStore | None = None
        self._guard: Guard | None = None
        if config.authorizer_class_name:
            authorizer = AclAuthorizer(
                super_users=parse_super_users(config.layers.text("super.users") or ""),
                allow_everyone_if_no_acl_found=(
                    config.layers.text("allow.everyone.if.no.acl.found") or "false"
                )
                .strip()
                .lower()
                == "true",
            )
            self.acls = AclStore(store, authorizer)
            self._guard = Guard(authorizer, topics.name_of)
        self._authentication = Authentication(
            self.credentials, frame_bytes_max=config.socket_request_max_bytes
        )
        self._parts = (
            SaslHandlers(),
            AclHandlers(self.acls),
            UserHandlers(self.credentials, self.entities, is_controller, catch_up),
            QuotaHandlers(self.entities, catch_up),
        )

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The APIs of security itself."""
        return {key: each for part in self._parts for key, each in part.handlers().items()}

    def protect(self, handlers: Mapping[ApiKey, Handler]) -> Mapping[ApiKey, Handler]:
        """The handlers behind the authorizer, if there is one, and behind the quotas."""
        counted = self.throttle.protect(handlers)
        return counted if self._guard is None else self._guard.protect(counted)

    async def load(self) -> None:
        """Read credentials, ACLs and quotas; only then may anything be served (SEC-21)."""
        await self.entities.load()
        if self.acls is not None:
            await self.acls.load()
        for endpoint in self._config.listeners:
            await self._authentication.start(self._config.listener_security(endpoint))

    def listener(
        self, endpoint: ListenerEndpoint, dispatch: Dispatch, meter: RequestMeter
    ) -> Listener:
        """The server's settings of a listener."""
        security = self._config.listener_security(endpoint)
        return self._authentication.listener(endpoint.name, security, dispatch, meter)

    def check_change(self, config: BrokerConfig) -> None:
        """Refuse a change of the configuration whose stores or limits cannot be used (SEC-17)."""
        connection_limits(config)
        for endpoint in config.listeners:
            before = self._config.listener_security(endpoint)
            after = config.listener_security(endpoint)
            if before.mechanisms != after.mechanisms:
                raise ConfigError(
                    f"the SASL settings of the listener {endpoint.name} are read at the start:"
                    " change server.properties and start the broker again"
                )
            old, new = before.tls, after.tls
            if old is not None and new is not None:
                text = listener_lookup(config.layers, endpoint.name)
                self._authentication.check_tls(
                    endpoint.name,
                    old,
                    new,
                    dn=text("ssl.allow.dn.changes") == "true",
                    san=text("ssl.allow.san.changes") == "true",
                )

    def config_changed(self, config: BrokerConfig) -> None:
        """Use new stores and limits for new connections; those that exist go on."""
        self._config = config
        self.connections.limits = connection_limits(config)
        for endpoint in config.listeners:
            tls = config.listener_security(endpoint).tls
            if tls is not None:
                try:
                    self._authentication.use_tls(endpoint.name, tls)
                except ConfigError as error:
                    log.error("listener %s keeps its certificate: %s", endpoint.name, error)

    def watches(self, path: str) -> bool:
        """Whether a change below `path` is a change of ACLs."""
        return self.acls is not None and path in CHANGE_ROOTS

    async def on_acl_changes(self, root: str) -> None:
        """ACLs were changed, by this broker or by another."""
        if self.acls is not None:
            await self.acls.on_changes(root)

    async def on_new_session(self) -> None:
        """Read everything again: what changed without a session was not announced."""
        await self.entities.load()
        if self.acls is not None:
            await self.acls.load()

    def close(self) -> None:
        self._authentication.close()


def connection_limits(config: BrokerConfig) -> ConnectionLimits:
    """The limits on connections, with those of single listeners (SEC-19)."""
    of_listener: dict[str, int] = {}
    rates: dict[str, int] = {}
    for endpoint in config.listeners:
        prefix = f"listener.name.{endpoint.name.lower()}."
        for key, limits in (
            ("max.connections", of_listener),
            ("max.connection.creation.rate", rates),
        ):
            text = config.layers.text(prefix + key)
            if text is not None:
                limits[endpoint.name.lower()] = int(text)
    return ConnectionLimits(
        config.max_connections,
        config.max_connections_per_ip,
        parse_overrides(config.max_connections_per_ip_overrides),
        config.max_connection_creation_rate,
        of_listener,
        rates,
    )
