"""`inter.broker.protocol.version`: the versions there are, their order, and what each one allows.

A version is written `2.8-IV1`; the short `2.8`, like the full `2.8.1`, means the last of its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final

from klamm.config.definitions import Value
from klamm.errors import ConfigError

#: release line: the number of its inter-broker protocols. Zero: it had one, without a name.
_LINES: Final = {
    "0.8.0": 0, "0.8.1": 0, "0.8.2": 0, "0.9.0": 0, "0.10.0": 2, "0.10.1": 3, "0.10.2": 1,
    "0.11.0": 3, "1.0": 1, "1.1": 1, "2.0": 2, "2.1": 3, "2.2": 2, "2.3": 2, "2.4": 2, "2.5": 1,
    "2.6": 1, "2.7": 3, "2.8": 2, "3.0": 2, "3.1": 1, "3.2": 1, "3.3": 4, "3.4": 1, "3.5": 3,
    "3.6": 3, "3.7": 5, "3.8": 1, "3.9": 1,
}  # fmt: skip
_FORM: Final = re.compile(r"(0\.\d+\.\d+|[1-9]\d*\.\d+)(?:-IV(\d+)|(?:\.\d+)*)")


@total_ordering
@dataclass(frozen=True, slots=True)
class Ibp:
    """One inter-broker protocol version; versions are ordered by age."""

    line: str
    step: int

    @classmethod
    def parse(cls, text: str) -> Ibp:
        """Read a version as an operator writes it."""
        form = _FORM.fullmatch(text.strip())
        if form is None or form[1] not in _LINES:
            raise ConfigError(f"Version {text} is not a valid version")
        last = max(_LINES[form[1]] - 1, 0)
        step = last if form[2] is None else int(form[2])
        if step > last or (form[2] is not None and _LINES[form[1]] == 0):
            raise ConfigError(f"Version {text} is not a valid version")
        return cls(form[1], step)

    def __str__(self) -> str:
        return f"{self.line}-IV{self.step}" if _LINES[self.line] else self.line

    def __lt__(self, other: Ibp) -> bool:
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[tuple[int, ...], int]:
        return tuple(int(part) for part in self.line.split(".")), self.step

    @property
    def has_feature_versioning(self) -> bool:
        """The cluster's finalized features live in `/feature`."""
        return self >= Ibp("2.7", 0)

    @property
    def has_alter_partition(self) -> bool:
        """Leaders ask the controller to change an ISR instead of writing it themselves."""
        return self >= Ibp("2.7", 2)

    @property
    def has_topic_ids(self) -> bool:
        return self >= Ibp("2.8", 0)

    @property
    def feature_znode_version(self) -> int:
        """The version of the JSON in `/feature`."""
        return 2 if self >= Ibp("3.3", 0) else 1

    @property
    def has_leader_recovery_state(self) -> bool:
        return self >= Ibp("3.2", 0)


LATEST: Final = Ibp("3.9", 0)


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """The check of a key that holds a version."""

    def complaint(self, value: Value) -> str | None:
        try:
            Ibp.parse(str(value))
        except ConfigError as error:
            return str(error)
        return None
