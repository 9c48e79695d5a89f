"""Principals: who is at the other end of a connection, as ACLs and quotas name it (SEC-6).

With TLS alone a principal is the subject of the client's certificate, in the text that Java makes
of it (RFC 2253), passed through `ssl.principal.mapping.rules`. With SASL it is the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from klamm.errors import ConfigError

USER_TYPE: Final = "User"
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
#: DER tag: the encoding of the text in it. Java shows values with any other tag in hex.
_STRINGS: Final = {
    12: "utf-8",
    19: "ascii",
    20: "latin-1",
    22: "ascii",
    27: "latin-1",
    28: "utf-32-be",
    30: "utf-16-be",
}
_VERSION_TAG: Final = 0xA0
_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Principal:
    """A type and a name; klamm's own authenticators make only principals of type User."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Read `User:alice`; the type is in front of the first colon."""
        type_, colon, name = text.partition(":")
        if not colon or not type_ or not name:
            raise ConfigError(f"{text!r} is not a principal of the form User:name")
        return cls(type_, name)


ANONYMOUS: Final = Principal(USER_TYPE, "ANONYMOUS")


def parse_super_users(text: str) -> frozenset[str]:
    """Read `super.users`: principals separated by semicolons, because names hold commas."""
    return frozenset(str(Principal.parse(item.strip())) for item in text.split(";") if item.strip())


# Mapping rules


@dataclass(frozen=True, slots=True)
class MappingRule:
    """One rule: a pattern that has to match all of the name, and what the name becomes."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The name that the rule makes of `name`, or None if the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        result = self.pattern.sub(self._expand, name)
        return {"L": result.lower, "U": result.upper}.get(self.case, result.__str__)()

    def _expand(self, match: re.Match[str]) -> str:
        groups = match.re.groups

        def expand(reference: re.Match[str]) -> str:
            if reference[1] is not None:
                return reference[1]
            # Java takes as many digits as still name a group; `$9` of two groups is text.
            digits = reference[2]
            taken = next(
                (end for end in range(len(digits), 0, -1) if int(digits[:end]) <= groups), 0
            )
            if taken == 0:
                return f"${digits}"
            return (match[int(digits[:taken])] or "") + digits[taken:]

        return _REFERENCE.sub(expand, self.replacement)


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """Read `ssl.principal.mapping.rules`: rules separated by commas."""
    rules: list[MappingRule] = []
    rest = text.strip()
    while rest:
        match = _RULE.match(rest)
        if match is None:
            raise ConfigError(
                f"Invalid value {text} for configuration ssl.principal.mapping.rules: rule"
                f" {len(rules) + 1} is neither DEFAULT nor RULE:pattern/replacement/[LU]"
            )
        rules.append(_rule_of(match, text))
        rest = rest[match.end() :].lstrip()
        if rest and not rest.startswith(","):
            raise ConfigError(
                f"Invalid value {text} for configuration ssl.principal.mapping.rules:"
                f" a comma has to follow rule {len(rules)}"
            )
        rest = rest.removeprefix(",").lstrip()
    return tuple(rules) or (MappingRule(None),)


def _rule_of(match: re.Match[str], text: str) -> MappingRule:
    is_default, pattern, replacement, case = match.groups()
    if is_default:
        return MappingRule(None)
    try:
        # Java writes a named group as (?<name>...); (?<= and (?<! are the same in both.
        compiled = re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", pattern))
    except re.error as error:
        raise ConfigError(
            f"Invalid value {text} for configuration ssl.principal.mapping.rules:"
            f" the pattern {pattern} cannot be read: {error}"
        ) from error
    return MappingRule(compiled, replacement, case)


def principal_of_name(name: str, rules: tuple[MappingRule, ...]) -> Principal | None:
    """The principal of a certificate's subject: the first rule that matches decides, or None."""
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return Principal(USER_TYPE, mapped)
    return None


# Distinguished names


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER) as Java's RFC 2253 text: last attribute first."""
    _, inside, _ = _element(certificate, 0)
    _, fields, _ = _element(inside, 0)
    parts = [(tag, value) for tag, value, _ in _elements(fields) if tag != _VERSION_TAG]
    # serial number, algorithm, issuer, validity, subject
    _, name = parts[4]
    sets = [value for _, value, _ in _elements(name)]
    return ",".join("+".join(_attributes(each)) for each in reversed(sets))


def _attributes(rdn: bytes) -> Iterator[str]:
    for _, attribute, _ in _elements(rdn):
        (_, oid_bytes, _), (tag, value, whole) = _elements(attribute)
        oid = _oid(oid_bytes)
        keyword = _KEYWORDS.get(oid)
        encoding = _STRINGS.get(tag)
        if keyword is None or encoding is None:
            yield f"{keyword or oid}=#{whole.hex()}"
        else:
            yield f"{keyword}={_escaped(value.decode(encoding, 'replace'))}"


def _escaped(text: str) -> str:
    shown = re.sub(r'([,=+"\\<>#;])', r"\\\1", text)
    inner = shown.strip(" ")
    leading = len(shown) - len(shown.lstrip(" "))
    trailing = len(shown) - leading - len(inner)
    return "\\ " * leading + inner + "\\ " * trailing


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at < len(data):
        tag, value, end = _element(data, at)
        yield tag, value, data[at:end]
        at = end


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag, value and end of the DER element at `at`."""
    tag, length, start = data[at], data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(data[start : start + size])
        start += size
    return tag, data[start : start + length], start + length


def _oid(data: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
