"""A folder of Parquet files with a manifest, which promises what a table format promises.

`_manifest/N.json` is version N of the folder: the files that it adds and removes, and the batch
that it is. A version is written once, and only after its files are in place; files wait for that
under `_pending`, where no reader of Parquet looks. So a reader that lists the folder sees rows that
are committed or about to be, each once; a reader of the manifest sees whole commits.
"""

import base64
import contextlib
import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from klamm.errors import ConfigError
from klamm.pipeline.ingest.evolution import merged_schema
from klamm.pipeline.ingest.files import PENDING, DataFile, Layout
from klamm.pipeline.ingest.location import Location, locate
from klamm.pipeline.ingest.options import PartitionBy
from klamm.pipeline.ingest.tables.table import Commit, CommitConflictError

MANIFEST: Final = "_manifest"
_INTENT: Final = "replacing-"
#: One version in this many lists all files, so that opening a folder reads few versions.
_WHOLE_EVERY: Final = 20


class ParquetFiles:
    """A Parquet folder that has a manifest."""

    def __init__(self, folder: Location, versions: Sequence[Mapping[str, Any]]) -> None:
        self._folder = folder
        self._state = _State()
        for each in versions:
            self._state.apply(each)
        # A driver that was killed after its commit may have left files that it was to delete.
        self._delete(versions[-1])

    @classmethod
    def open(cls, path: str, _: Mapping[str, str]) -> "ParquetFiles | None":
        folder = locate(path)
        if versions := read_versions(folder):
            table = cls(folder, versions)
            table.finish_replacements()
            return table
        if folder.is_local and not folder.is_empty():
            raise ConfigError(f"{folder} is not empty and has no manifest of klamm ingest.")
        return None

    @classmethod
    def create(
        cls,
        path: str,
        catalog: Mapping[str, str],
        schema: pa.Schema,
        partition_by: tuple[PartitionBy, ...],
        owner: str,
    ) -> "ParquetFiles":
        folder = locate(path)
        columns = Layout(folder, schema, partition_by).table_schema
        _write_version(folder, 0, {"query": owner, "schema": _encode(columns), "files": []})
        created = cls.open(path, catalog)
        assert created is not None
        return created

    @property
    def owner(self) -> str | None:
        return self._state.query

    @property
    def last_batch(self) -> int | None:
        self._refresh()
        return self._state.batch

    def schema(self) -> pa.Schema:
        return self._state.schema

    def layout(self, schema: pa.Schema, partition_by: tuple[PartitionBy, ...]) -> Layout:
        return Layout(self._folder, schema, partition_by, is_pending=True)

    def evolve(self, schema: pa.Schema) -> None:
        merged = merged_schema(self.schema(), schema)
        if not merged.equals(self.schema()):
            self._add_version({"schema": _encode(merged)})

    def files(self) -> list[DataFile]:
        self._refresh()
        return list(self._state.files.values())

    def commit(self, change: Commit) -> None:
        intent = self._announce(change) if change.remove else None
        for each in change.add:
            self._folder.move(each.pending_path, each.path)
        content: dict[str, Any] = {
            "add": [each.to_json() for each in change.add],
            "remove": [each.path for each in change.remove],
            "notes": dict(change.notes),
        }
        if change.batch is not None:
            content["batch"] = change.batch
        try:
            self._add_version(content)
            self._delete(content)
        except CommitConflictError:
            if intent is not None:  # what is only added is committed again; this is not
                self._withdraw([each.to_json() for each in change.add])
            raise
        finally:
            if intent is not None:
                (self._folder / MANIFEST).delete(intent)

    def expire(self, older_than_s: float) -> None:
        """Delete files of attempts that failed; what a version removes is deleted with it."""
        pending = self._folder / PENDING
        for name in pending.names_older_than(older_than_s):
            pending.delete(name)

    def finish_replacements(self) -> None:
        """Undo what a driver that was killed had put in place of files that are still there.

        The version that it was about to write is taken first: should that driver be alive after
        all, its commit is refused.
        """
        manifest = self._folder / MANIFEST
        for name in manifest.names():
            if not name.startswith(_INTENT):
                continue
            content = json.loads((manifest / name).read() or b"{}")
            if content.get("version") == self._state.version + 1:
                with contextlib.suppress(CommitConflictError):
                    self._add_version({})
                self._refresh()
            self._withdraw(content.get("add", ()))
            manifest.delete(name)

    def _announce(self, change: Commit) -> str:
        """Note which files are about to take the place of others, so that it can be undone."""
        version = self._state.version + 1
        content = {"version": version, "add": [each.to_json() for each in change.add]}
        name = f"{_INTENT}{version:012d}-{uuid.uuid4().hex}.json"
        (self._folder / MANIFEST / name).write_once(json.dumps(content).encode())
        return name

    def _withdraw(self, added: Sequence[Mapping[str, Any]]) -> None:
        """Hide files that no version has."""
        self._refresh()
        for each in map(DataFile.from_json, added):
            if each.path not in self._state.files and (self._folder / each.path).exists():
                self._folder.move(each.path, each.pending_path)

    def _refresh(self) -> None:
        for each in read_versions(self._folder, after=self._state.version):
            self._state.apply(each)

    def _add_version(self, content: Mapping[str, Any]) -> None:
        number = self._state.version + 1
        version = {"query": self._state.query, "batch": self._state.batch, **content}
        if number % _WHOLE_EVERY == 0:
            after = self._state.copy()
            after.apply({**version, "version": number})
            version["files"] = [each.to_json() for each in after.files.values()]
            version["schema"] = _encode(after.schema)
        _write_version(self._folder, number, version)
        self._refresh()

    def _delete(self, version: Mapping[str, Any]) -> None:
        for path in version.get("remove", ()):
            self._folder.delete(path)


class _State:
    """The folder after some of its versions."""

    def __init__(self) -> None:
        self.version = -1
        self.query: str | None = None
        self.batch: int | None = None
        self.schema: pa.Schema = pa.schema([])
        self.files: dict[str, DataFile] = {}

    def apply(self, version: Mapping[str, Any]) -> None:
        self.version = version["version"]
        self.query = version["query"]
        self.batch = version.get("batch", self.batch)
        if "schema" in version:
            self.schema = _decode(version["schema"])
        if "files" in version:
            self.files = {each["path"]: DataFile.from_json(each) for each in version["files"]}
            return
        for each in version.get("add", ()):
            self.files[each["path"]] = DataFile.from_json(each)
        for path in version.get("remove", ()):
            self.files.pop(path, None)

    def copy(self) -> "_State":
        other = _State()
        other.version, other.query, other.batch = self.version, self.query, self.batch
        other.schema, other.files = self.schema, dict(self.files)
        return other


def read_manifest(path: str) -> list[str]:
    """The files of a folder as of its last version, for a reader that wants whole commits."""
    folder = locate(path)
    state = _State()
    for each in read_versions(folder):
        state.apply(each)
    if state.version < 0:
        raise ConfigError(f"{folder} has no manifest of klamm ingest.")
    return [str(folder / name) for name in sorted(state.files)]


def read_versions(folder: Location, after: int = -1) -> list[dict[str, Any]]:
    """The versions that the state of the folder follows from, or those after one."""
    manifest = folder / MANIFEST
    numbers = sorted(number for name in manifest.names() if (number := _number(name)) is not None)
    if after < 0 and numbers:
        after = max(numbers[-1] // _WHOLE_EVERY * _WHOLE_EVERY, numbers[0]) - 1
    return [_read_version(manifest, number) for number in numbers if number > after]


def _number(name: str) -> int | None:
    stem = name.removesuffix(".json")
    return int(stem) if stem.isdecimal() else None


def _read_version(manifest: Location, number: int) -> dict[str, Any]:
    content = (manifest / _name(number)).read()
    try:
        return dict(json.loads(content or b""))
    except ValueError as error:
        raise ConfigError(f"{manifest}/{_name(number)} cannot be read: {error}") from None


def _write_version(folder: Location, number: int, content: Mapping[str, Any]) -> None:
    at = datetime.datetime.now(datetime.UTC).isoformat()
    text = json.dumps({"version": number, "at": at, **content}, indent=1)
    try:
        is_written = (folder / MANIFEST / _name(number)).write_once(text.encode())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}") from None
    if not is_written:
        raise CommitConflictError(f"{folder}: another writer has made version {number}.")


def _name(number: int) -> str:
    return f"{number:012d}.json"


def _encode(schema: pa.Schema) -> dict[str, str]:
    serialized = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return {"columns": schema.to_string(), "arrow": serialized}


def _decode(content: Mapping[str, str]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["arrow"])))
