"""Listeners: the addresses that a broker binds, and those that it advertises.

listeners=PLAINTEXT://:9092,INTERNAL://10.0.0.1:9093
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.errors import ConfigError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_FORM: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")


@dataclass(frozen=True, slots=True)
class ListenerEndpoint:
    """One listener; an empty host stands for every address of the machine."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        """The form that registrations hold: `NAME://host:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """Read `listener.security.protocol.map`: the security protocol of each listener name."""
    key = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for pair in _comma_separated(text):
        name, colon, protocol = pair.rpartition(":")
        if not colon:
            raise ConfigError(
                f"Invalid value {text} for configuration {key}:"
                f" {pair} is not of the form NAME:PROTOCOL"
            )
        if protocol.upper() not in PROTOCOLS:
            raise ConfigError(f"Invalid security protocol `{protocol}` defined in {key}")
        protocols[name.strip().upper()] = protocol.upper()
    return protocols


def parse_endpoints(
    key: str, text: str, protocols: Mapping[str, str]
) -> tuple[ListenerEndpoint, ...]:
    """Read the listeners that `key` holds; names are in capitals and occur once."""
    endpoints = []
    for item in _comma_separated(text):
        form = _FORM.fullmatch(item)
        if form is None:
            raise ConfigError(
                f"Invalid value {text} for configuration {key}:"
                f" Unable to parse {item} to a broker endpoint of the form NAME://host:port"
            )
        name, host, port = form[1].upper(), form[2], int(form[3])
        if name not in protocols:
            raise ConfigError(
                f"Invalid value {text} for configuration {key}: No security protocol defined for"
                f" listener {name}; listener.security.protocol.map names one for each listener"
            )
        if not 0 <= port <= 65535:
            raise ConfigError(
                f"Invalid value {text} for configuration {key}: port {port} is not in 0 to 65535"
            )
        endpoints.append(ListenerEndpoint(name, host, port, protocols[name]))
    if len({endpoint.name for endpoint in endpoints}) < len(endpoints):
        raise ConfigError(f"Each listener must have a different name, {key}: {text}")
    return tuple(endpoints)


def check_ports(key: str, endpoints: tuple[ListenerEndpoint, ...]) -> None:
    """Refuse two listeners on one port, unless one has an IPv4 and the other an IPv6 address."""
    by_port: dict[int, list[ListenerEndpoint]] = {}
    for endpoint in endpoints:
        if endpoint.port != 0:
            by_port.setdefault(endpoint.port, []).append(endpoint)
    for port, sharing in by_port.items():
        families = sorted(_address_family(endpoint.host) for endpoint in sharing)
        if len(sharing) > 1 and families != [4, 6]:
            names = ", ".join(str(endpoint) for endpoint in sharing)
            raise ConfigError(
                f"Each listener must have a different port unless exactly one listener has an IPv4"
                f" address and the other an IPv6 address, {key}: {names} share {port}"
            )


def _address_family(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _comma_separated(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
