"""JAAS: the one line of Java syntax in which Kafka keeps credentials.

    org.apache.kafka.common.security.plain.PlainLoginModule required \
        username="admin" password="admin-secret" user_alice="alice-secret";

A text holds one login module. Error messages never repeat the text, because it holds passwords.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.errors import ConfigError

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN: Final = re.compile(r'\s+|"((?:[^"\\]|\\.)*)"|([A-Za-z0-9_.$@+/\-]+)|([=;])', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module with its options; the options stay out of `repr`."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def users(self) -> dict[str, str]:
        """Name and password of each `user_<name>` option."""
        return {
            name.removeprefix("user_"): password
            for name, password in self.options.items()
            if name.startswith("user_")
        }


def parse_jaas(text: str, key: str = "sasl.jaas.config") -> JaasEntry:
    """Read the login module that `key` holds."""
    words = list(_words(text, key))
    if len(words) < 3 or words[-1] != (";", False):
        raise ConfigError(f"{key}: the login module has to end with a semicolon")
    (module, _), (flag, _), *rest = words[:-1]
    if flag.lower() not in _FLAGS:
        raise ConfigError(
            f"{key}: the login module {module} needs a control flag after its name,"
            f" which is one of {', '.join(sorted(_FLAGS))}"
        )
    options: dict[str, str] = {}
    while rest:
        if len(rest) < 3 or rest[1] != ("=", False) or rest[2] in (("=", False), (";", False)):
            raise ConfigError(f'{key}: option {len(options) + 1} is not of the form name="value"')
        options[rest[0][0]] = rest[2][0]
        rest = rest[3:]
    return JaasEntry(module, options)


def format_jaas(module: str, options: Mapping[str, str]) -> str:
    """The line that `parse_jaas` reads back as the same module and options."""
    shown = "".join(
        f' {name}="{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for name, value in options.items()
    )
    return f"{module} required{shown};"


def _words(text: str, key: str) -> Iterator[tuple[str, bool]]:
    """The words of the line, each with whether it stood in quotes."""
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ConfigError(
                f"{key}: character {at + 1} cannot be read; a value with other characters than"
                " letters, digits and . _ - $ @ + / has to stand in double quotes"
            )
        at = token.end()
        quoted, bare, sign = token.groups()
        if quoted is not None:
            yield _ESCAPE.sub(lambda each: _ESCAPED.get(each[1], each[1]), quoted), True
        elif bare or sign:
            yield bare or sign, False
