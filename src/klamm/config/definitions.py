"""What a configuration key is: its type, its default and the values it accepts.

Values travel as strings, in files, in znodes and in requests alike, and are read the way Kafka
reads them, down to the wording of a refusal: operators search for these sentences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Protocol, TypeAlias

from klamm.errors import ConfigError

Value: TypeAlias = bool | int | float | str | tuple[str, ...]


class ValueType(IntEnum):
    """The type of a key; the number is the one in DescribeConfigs responses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(Enum):
    """How far a broker key can be changed while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


#: type: the number of bits that a Java integer of that type has.
_BITS: Final = {ValueType.SHORT: 16, ValueType.INT: 32, ValueType.LONG: 64}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_COMMA: Final = re.compile(r"\s*,\s*")


class Validator(Protocol):
    """A limit on the value of a key, beyond its type."""

    def complaint(self, value: Value) -> str | None:
        """Describe what would be accepted, or None if `value` is."""


@dataclass(frozen=True, slots=True)
class Between:
    """A number with bounds, both of them included."""

    least: int
    most: int | float | None = None

    def complaint(self, value: Value) -> str | None:
        if not isinstance(value, int | float):
            return None
        if value < self.least:
            return f"Value must be at least {self.least}"
        if self.most is not None and value > self.most:
            return f"Value must be no more than {self.most}"
        return None


@dataclass(frozen=True, slots=True)
class BetweenOr:
    """A number with bounds, or one value outside of them that has a meaning of its own."""

    least: int
    most: int | None
    other: int

    def complaint(self, value: Value) -> str | None:
        if not isinstance(value, int) or value == self.other:
            return None
        if value >= self.least and (self.most is None or value <= self.most):
            return None
        if self.most is None:
            return f"Value must be at least {self.least} or equal to {self.other}"
        return f"Value must be between {self.least} and {self.most} or equal to {self.other}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words; a list may hold only these."""

    words: tuple[str, ...]
    ignore_case: bool = False

    def complaint(self, value: Value) -> str | None:
        for word in value if isinstance(value, tuple) else (str(value),):
            known = word.upper() if self.ignore_case else word
            if known not in self.words:
                manner = " (case insensitive)" if self.ignore_case else ""
                return f"String must be one of{manner}: {', '.join(self.words)}"
        return None


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A text with at least one visible character."""

    def complaint(self, value: Value) -> str | None:
        return None if value else "String may not be empty"


class InvalidValueError(ConfigError):
    """A value that its key cannot have; Kafka's responses word this error in their own way."""


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key as Kafka defines it; `default` is in the form a file would have."""

    name: str
    type: ValueType
    default: str | None
    mode: UpdateMode = UpdateMode.READ_ONLY
    check: Validator | None = None
    internal: bool = False

    def parse(self, text: str) -> Value:
        """The typed value of `text`, or a `ConfigError` in Kafka's words."""
        value = self._convert(text)
        complaint = self.check.complaint(value) if self.check is not None else None
        if complaint is not None:
            shown = self._offender(value)
            raise self._refusal(shown, complaint)
        return value

    @property
    def default_value(self) -> Value | None:
        return None if self.default is None else self.parse(self.default)

    @property
    def sensitive(self) -> bool:
        return self.type is ValueType.PASSWORD

    def _convert(self, text: str) -> Value:
        trimmed = text.strip()
        match self.type:
            case ValueType.BOOLEAN:
                if trimmed.lower() not in ("true", "false"):
                    raise self._refusal(text, "Expected value to be either true or false")
                return trimmed.lower() == "true"
            case ValueType.INT | ValueType.SHORT | ValueType.LONG:
                limit = 1 << (_BITS[self.type] - 1)
                if not _INTEGER.fullmatch(trimmed) or not -limit <= int(trimmed) < limit:
                    raise self._refusal(text, f"Not a number of type {self.type.name}")
                return int(trimmed)
            case ValueType.DOUBLE:
                try:
                    return float(trimmed)
                except ValueError:
                    raise self._refusal(text, "Not a number of type DOUBLE") from None
            case ValueType.LIST:
                return tuple(_COMMA.split(trimmed)) if trimmed else ()
            case _:
                return trimmed

    def _offender(self, value: Value) -> str:
        """The value as a refusal shows it; of a list of words, the first that is not accepted."""
        if isinstance(value, tuple) and isinstance(self.check, OneOf):
            return next(word for word in value if self.check.complaint(word) is not None)
        return f"[{', '.join(value)}]" if isinstance(value, tuple) else format_value(value)

    def _refusal(self, text: str, reason: str) -> ConfigError:
        return InvalidValueError(f"Invalid value {text} for configuration {self.name}: {reason}")


def format_value(value: Value) -> str:
    """The text that DescribeConfigs shows for a typed value, which is what Java would print."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_double(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _format_double(value: float) -> str:
    """Java's notation: plain between 0.001 and ten million, otherwise `d.dddEn`."""
    if math.isinf(value) or math.isnan(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = _decimal_parts(value)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _decimal_parts(value: float) -> tuple[str, str, int]:
    """Sign, the shortest digits that identify the number, and the exponent of the first one."""
    mantissa, exponent = f"{value:.17e}".split("e")
    for precision in range(17):
        short = f"{value:.{precision}e}"
        if float(short) == value:
            mantissa, exponent = short.split("e")
            break
    sign = "-" if mantissa.startswith("-") else ""
    return sign, mantissa.lstrip("-").replace(".", ""), int(exponent)


def by_name(keys: Iterable[Key]) -> Mapping[str, Key]:
    """The keys by their names."""
    return {key.name: key for key in keys}
