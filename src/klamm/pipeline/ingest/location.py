"""Where files are: a path of this machine, or a URI of an object store."""

import contextlib
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from klamm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Location:
    """A folder; it travels to tasks as text and opens its file system where it is used."""

    uri: str
    #: The settings of the object store's client; if empty, the environment has them.
    store: tuple[tuple[str, str | bool], ...] = field(default=(), repr=False)

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    def open(self) -> tuple[fs.FileSystem, str]:
        """The file system and the path of the folder in it."""
        if self.is_local:
            return fs.LocalFileSystem(), self.uri
        try:
            if self.uri.startswith("s3://"):
                return _s3(dict(self.store)), self.uri.removeprefix("s3://").rstrip("/")
            return fs.FileSystem.from_uri(self.uri)  # type: ignore[no-any-return]
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"{self.uri} cannot be opened: {error}") from None

    def __truediv__(self, name: str) -> "Location":
        return Location(f"{self.uri.rstrip('/')}/{name}", self.store)

    def names(self) -> list[str]:
        """The names of the files of the folder; none if there is no such folder."""
        store, path = self.open()
        listing = store.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(each.base_name for each in listing if each.type == fs.FileType.File)

    def names_older_than(self, age_s: float) -> list[str]:
        """The names of the files of the folder that were last changed so long ago."""
        store, path = self.open()
        listing = store.get_file_info(fs.FileSelector(path, allow_not_found=True))
        limit_ns = time.time_ns() - int(age_s * 1e9)
        return [
            each.base_name
            for each in listing
            if each.type == fs.FileType.File and (each.mtime_ns or 0) <= limit_ns
        ]

    def exists(self) -> bool:
        """Whether there is a file or a folder."""
        store, path = self.open()
        return bool(store.get_file_info(path).type != fs.FileType.NotFound)

    def is_empty(self) -> bool:
        """Whether there is no file or folder in it that a reader of tables would look at."""
        store, path = self.open()
        listing = store.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return not listing

    def read(self) -> bytes | None:
        """The content of the file; None if there is none."""
        store, path = self.open()
        try:
            with store.open_input_file(path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write_once(self, content: bytes) -> bool:
        """Create the file as a whole; False, and no change, if there is one already.

        On this machine the file appears complete or not at all, even if the process is killed.
        Object stores put whole objects; there, the check and the write are two steps.
        """
        store, path = self.open()
        if not self.is_local:
            if self.exists():
                return False
            with store.open_output_stream(path) as file:
                file.write(content)
            return True
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def replace(self, content: bytes, *, by_way_of: "Location | None" = None) -> None:
        """Put a file in the place of the one that is there, if there is one.

        A reader finds the old file or the new one, never a part of it. On this machine it is
        written in the folder `by_way_of` first; None: beside the old one.
        """
        store, path = self.open()
        if not self.is_local:
            store.create_dir(path.rpartition("/")[0], recursive=True)
            with store.open_output_stream(path) as file:
                file.write(content)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        written_in = target.parent if by_way_of is None else Path(by_way_of.uri)
        written_in.mkdir(parents=True, exist_ok=True)
        temporary = written_in / f".{target.name}.{uuid.uuid4().hex}"
        try:
            temporary.write_bytes(content)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def move(self, source: str, target: str) -> None:
        """Move a file within the folder; a file that was moved before stays where it is."""
        store, path = self.open()
        if store.get_file_info(f"{path}/{target}").type != fs.FileType.NotFound:
            return
        store.create_dir(f"{path}/{target}".rpartition("/")[0], recursive=True)
        store.move(f"{path}/{source}", f"{path}/{target}")

    def put_in_place(self, source: str, target: str) -> None:
        """Rename a file below the folder over another; one that was renamed is left alone."""
        store, path = self.open()
        if self.is_local:
            with contextlib.suppress(FileNotFoundError):
                Path(path, source).replace(Path(path, target))
        elif (self / source).exists():
            store.move(f"{path}/{source}", f"{path}/{target}")

    def delete(self, name: str) -> None:
        """Delete a file of the folder, if it is there."""
        store, path = self.open()
        try:
            store.delete_file(f"{path}/{name}")
        except FileNotFoundError:
            return

    def clear(self) -> None:
        """Delete everything in the folder."""
        store, path = self.open()
        store.delete_dir_contents(path)

    def __str__(self) -> str:
        return self.uri


def s3_endpoint() -> str | None:
    """What is in the place of S3, by the variables that other clients know."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _s3(told: Mapping[str, str | bool]) -> fs.FileSystem:
    endpoint = s3_endpoint()
    if "endpoint_override" in told or endpoint is None:
        return fs.S3FileSystem(**told)
    scheme, _, host = endpoint.rpartition("://")
    return fs.S3FileSystem(**told, endpoint_override=host.rstrip("/"), scheme=scheme or "https")


def locate(text: str) -> Location:
    """A user's path or URI; Hadoop's `s3a://` is the same place as `s3://`."""
    if "://" not in text:
        return Location(str(Path(text).expanduser().absolute()))
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        return Location(str(Path("/" + rest.lstrip("/"))))
    return Location(f"{'s3' if scheme == 's3a' else scheme}://{rest}")
