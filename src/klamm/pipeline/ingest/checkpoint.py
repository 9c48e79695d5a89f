"""What a query remembers: its id, the offsets of each batch, and the files that a batch made.

    query.json          the id of the query, and what it was started with
    schema.json         the columns of the table, where they were inferred or come from a registry
    batches/N.json      the offsets of batch N, written before anything of it is read
    prepared/N.json     the files of batch N, written before any of them is committed

Each file is written once. A batch with offsets and without files is run again with the same
offsets; a batch with files is only committed again, and the table recognises it.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.errors import ConfigError
from klamm.pipeline.ingest.location import Location

_VERSION: Final = 1
_QUERY: Final = "query.json"
_SCHEMA: Final = "schema"
_BATCHES: Final = "batches"
_PREPARED: Final = "prepared"
#: The number of finished batches that the checkpoint keeps, for diagnosis.
_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which offsets a batch has: from one position of the stream to another."""

    number: int
    start: Mapping[str, Any]
    end: Mapping[str, Any]


class Checkpoint:
    """The folder of one query."""

    def __init__(
        self, folder: Location, identity: Mapping[str, Any], *, has_table: bool = True
    ) -> None:
        """Open the query of this folder, or begin one; a query of another identity is refused.

        A query without a table that has written nothing, because its first run failed, gives way to
        one for the same table.
        """
        self.folder = folder
        wanted = {"version": _VERSION, **identity}
        if not has_table:
            self._clear_unused(wanted)
        # Two drivers that begin at the same time agree on the one that was faster.
        if self._read(_QUERY) is None and not folder.is_empty():
            raise ConfigError(
                f"{folder} is not empty and not a checkpoint of klamm ingest; name another folder "
                "with --checkpoint."
            )
        self._write(_QUERY, {"query": str(uuid.uuid4()), **wanted})
        found = self._read(_QUERY) or {}
        for name, value in wanted.items():
            if found.get(name) != value:
                raise ConfigError(
                    f"{folder} is the checkpoint of another query: its {name} is "
                    f"{found.get(name)!r}, not {value!r}. Name another folder with --checkpoint."
                )
        self.query = str(found["query"])
        self._numbers = _numbers(folder / _BATCHES)

    def _clear_unused(self, wanted: Mapping[str, Any]) -> None:
        found = self._read(_QUERY)
        if found is None or found.get("to") != wanted.get("to") or wanted.items() <= found.items():
            return
        if not _numbers(self.folder / _PREPARED):
            self.folder.clear()

    @property
    def last(self) -> BatchPlan | None:
        """The batch that was planned last; None if there was none."""
        return self.plan(self._numbers[-1]) if self._numbers else None

    def plan(self, number: int) -> BatchPlan:
        """A batch that was planned."""
        content = self._read(f"{_BATCHES}/{number}.json")
        if content is None:
            raise ConfigError(f"{self.folder} has no batch {number}; it was changed by hand.")
        return BatchPlan(number, content["start"], content["end"])

    def add_plan(self, plan: BatchPlan) -> BatchPlan:
        """Log a batch before it is read; the plan of a faster driver counts."""
        content = {"start": plan.start, "end": plan.end}
        self._write(f"{_BATCHES}/{plan.number}.json", content)
        self._numbers.append(plan.number)
        self._forget(plan.number - _KEPT)
        return self.plan(plan.number)

    def prepared(self, number: int) -> dict[str, Any] | None:
        """What a batch made, if its tasks have finished."""
        return self._read(f"{_PREPARED}/{number}.json")

    def prepare(self, number: int, made: Mapping[str, Any]) -> dict[str, Any]:
        """Log what the tasks made before it is committed; the log of a faster driver counts."""
        self._write(f"{_PREPARED}/{number}.json", made)
        logged = self.prepared(number)
        assert logged is not None
        return logged

    def schema(self) -> dict[str, Any] | None:
        """The newest schema that was kept."""
        numbers = _numbers(self.folder / _SCHEMA)
        return self._read(f"{_SCHEMA}/{numbers[-1]}.json") if numbers else None

    def keep_schema(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a new version of the schema; the version of a faster driver counts."""
        numbers = _numbers(self.folder / _SCHEMA)
        number = numbers[-1] + 1 if numbers else 0
        self._write(f"{_SCHEMA}/{number}.json", content)
        kept = self._read(f"{_SCHEMA}/{number}.json")
        assert kept is not None
        return kept

    def _forget(self, number: int) -> None:
        for name in (_BATCHES, _PREPARED):
            if number >= 0:
                (self.folder / name).delete(f"{number}.json")

    def _read(self, name: str) -> dict[str, Any] | None:
        content = (self.folder / name).read()
        if content is None:
            return None
        try:
            return dict(json.loads(content))
        except ValueError as error:
            raise ConfigError(f"{self.folder}/{name} cannot be read: {error}") from None

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        try:
            (self.folder / name).write_once(json.dumps(content, indent=1).encode())
        except OSError as error:
            raise ConfigError(f"{self.folder}/{name} cannot be written: {error}") from None


def _numbers(folder: Location) -> list[int]:
    return sorted(
        int(name.removesuffix(".json"))
        for name in folder.names()
        if name.removesuffix(".json").isdecimal()
    )
