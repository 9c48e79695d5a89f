"""The listeners that a broker binds, advertises, and uses for other brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from klamm.config.endpoints import (
    ListenerEndpoint,
    check_ports,
    parse_endpoints,
    parse_protocol_map,
)
from klamm.config.layers import Layers
from klamm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners of one broker, checked against one another."""

    bound: tuple[ListenerEndpoint, ...]
    advertised: tuple[ListenerEndpoint, ...]
    inter_broker: str
    control_plane: str | None

    @classmethod
    def of(cls, layers: Layers) -> Listeners:
        """Read the six keys that speak of listeners."""
        protocols = parse_protocol_map(layers.text("listener.security.protocol.map") or "")
        bound = parse_endpoints("listeners", layers.text("listeners") or "", protocols)
        check_ports("listeners", bound)
        advertised_text = layers.text("advertised.listeners")
        advertised = (
            bound
            if advertised_text is None
            else parse_endpoints("advertised.listeners", advertised_text, protocols)
        )
        inter_broker = _inter_broker_listener(layers, protocols)
        control_plane = _control_plane_listener(layers, protocols, inter_broker)
        listeners = cls(bound, advertised, inter_broker, control_plane)
        listeners._check()
        return listeners

    def _check(self) -> None:
        if not self.advertised:
            raise ConfigError("There must be at least one broker advertised listener.")
        names = [endpoint.name for endpoint in self.bound]
        advertised = [endpoint.name for endpoint in self.advertised]
        if not set(advertised) <= set(names):
            raise ConfigError(
                "advertised.listeners listener names must be equal to or a subset of the ones"
                f" defined in listeners. Found {','.join(advertised)}. The valid options based on"
                f" the current configuration are {','.join(names)}"
            )
        _check_advertised("inter.broker.listener.name", self.inter_broker, advertised)
        if self.control_plane is not None:
            _check_advertised("control.plane.listener.name", self.control_plane, advertised)
        if any(endpoint.host == "0.0.0.0" for endpoint in self.advertised):
            raise ConfigError(
                "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0."
                " Use a routable IP address."
            )


def _check_advertised(key: str, name: str, advertised: list[str]) -> None:
    if name not in advertised:
        raise ConfigError(
            f"{key} must be a listener name defined in advertised.listeners. The valid options"
            f" based on currently configured listeners are {','.join(advertised)}"
        )


def _inter_broker_listener(layers: Layers, protocols: Mapping[str, str]) -> str:
    name = layers.text("inter.broker.listener.name")
    if name is None:
        return str(layers.text("security.inter.broker.protocol")).strip().upper()
    if layers.is_set("security.inter.broker.protocol"):
        raise ConfigError(
            "Only one of inter.broker.listener.name and security.inter.broker.protocol"
            " should be set."
        )
    if name.strip().upper() not in protocols:
        raise ConfigError(
            f"Listener with name {name} defined in inter.broker.listener.name"
            " not found in listener.security.protocol.map."
        )
    return name.strip().upper()


def _control_plane_listener(
    layers: Layers, protocols: Mapping[str, str], inter_broker: str
) -> str | None:
    text = layers.text("control.plane.listener.name")
    if text is None:
        return None
    name = text.strip().upper()
    if name not in protocols:
        raise ConfigError(
            f"Listener with {name} defined in control.plane.listener.name"
            " not found in listener.security.protocol.map."
        )
    if name == inter_broker:
        raise ConfigError(
            "control.plane.listener.name, when defined, should have a different value from the"
            f" inter broker listener name. Currently they both have the value {name}"
        )
    return name
