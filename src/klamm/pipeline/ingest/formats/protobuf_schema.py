"""Protobuf schemas: compiled by protoc, and what of them tasks have to know.

`protoc` comes with the package grpcio-tools. Only the driver needs it; tasks get plain
descriptions.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from klamm.errors import ConfigError
from klamm.pipeline.ingest.options import need

#: By the numbers of FieldDescriptorProto.Type.
_KINDS: Final = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
_ARROW: Final = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int64": pa.int64(),
    "sint64": pa.int64(),
    "sfixed64": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "fixed64": pa.decimal128(20, 0),
    "int32": pa.int32(),
    "sint32": pa.int32(),
    "sfixed32": pa.int32(),
    "uint32": pa.int64(),
    "fixed32": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}
TIMESTAMP: Final = "google.protobuf.Timestamp"
_REPEATED: Final = 3
_PROTO3: Final = "proto3"


@dataclass(frozen=True)
class ProtobufField:
    """A field of a message."""

    name: str
    number: int
    kind: str
    is_repeated: bool = False
    #: Whether a field that is not there is null; otherwise it has its kind's default.
    has_presence: bool = False
    message: "ProtobufMessage | None" = None
    #: Number: name, of an enum.
    values: tuple[tuple[int, str], ...] = ()

    @property
    def is_map(self) -> bool:
        return self.is_repeated and self.message is not None and self.message.is_map_entry

    @property
    def item(self) -> pa.DataType:
        """The type of one value."""
        if self.message is None:
            return _ARROW[self.kind]
        if self.message.name == TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        return self.message.arrow

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column."""
        if self.is_map:
            assert self.message is not None
            key, value = self.message.fields
            return pa.map_(key.item, value.item)
        return pa.list_(self.item) if self.is_repeated else self.item


@dataclass(frozen=True)
class ProtobufMessage:
    """A message type."""

    name: str
    fields: tuple[ProtobufField, ...]
    is_map_entry: bool = False

    @property
    def arrow(self) -> pa.StructType:
        return pa.struct([pa.field(each.name, each.arrow) for each in self.fields])


def read_protobuf_schema(text: str, source: str, message: str | None) -> ProtobufMessage:
    """A message of a `.proto` or of a descriptor set: the named one, or the first."""
    found, file = _descriptors(text, source, {})
    prefix = f"{file.package}." if file.package else ""
    if not file.message_type:
        raise ConfigError(f"{source} has no message.")
    name = file.message_type[0].name if message is None else message.removeprefix(prefix)
    return _MessageReader(found, source).read(prefix + name)


def read_protobuf_messages(
    text: str, source: str, references: Mapping[str, str]
) -> dict[tuple[int, ...], ProtobufMessage]:
    """The messages of a file by their place, as the frame of a registry names it.

    The first number is that of a message of the file, the next ones are those of messages inside of
    it. Messages that contain themselves are left out.
    """
    found, file = _descriptors(text, source, references)
    reader = _MessageReader(found, source)
    messages = {}
    for path, name in _places(file.message_type, file.package, ()):
        try:
            messages[path] = reader.read(name)
        except ConfigError:
            continue
    if (0,) not in messages:
        raise ConfigError(f"{source} has no message that can be rows of a table.")
    return messages


def _places(messages: Any, prefix: str, path: tuple[int, ...]) -> Any:
    for number, each in enumerate(messages):
        name = _joined(prefix, each.name)
        if not each.options.map_entry:
            yield (*path, number), name
        yield from _places(each.nested_type, name, (*path, number))


def _descriptors(text: str, source: str, references: Mapping[str, str]) -> tuple[Any, Any]:
    """The descriptors of a schema and of what it imports, and the file that it is."""
    descriptors = need("google.protobuf.descriptor_pb2", "Format protobuf")
    found = descriptors.FileDescriptorSet()
    if "message" in text and "{" in text:
        content = _compiled(text, source, references)
    else:
        content = _as_bytes(text)
    try:
        found.ParseFromString(content)
        return found, found.file[-1]
    except Exception:
        raise ConfigError(f"{source} is neither a .proto nor a descriptor set.") from None


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _compiled(text: str, source: str, references: Mapping[str, str]) -> bytes:
    tools = need("grpc_tools", "A .proto schema")
    well_known = Path(tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {**references, "schema.proto": text}.items():
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        out = Path(folder) / "schema.descriptors"
        includes = [f"-I{folder}", f"-I{well_known}"]
        if Path(source).is_file():
            includes.append(f"-I{Path(source).parent}")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", *includes, "--include_imports"),
                *(f"--descriptor_set_out={out}", f"{folder}/schema.proto"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reasons = [line for line in done.stderr.splitlines() if "warning" not in line]
            raise ConfigError(f"{source} cannot be compiled: {(reasons or ['?'])[0]}")
        return out.read_bytes()


class _MessageReader:
    def __init__(self, found: Any, source: str) -> None:
        self._source = source
        self._messages: dict[str, tuple[Any, str]] = {}
        self._enums: dict[str, Any] = {}
        for file in found.file:
            self._collect(file, file.package, file.syntax or "proto2", file.message_type)
        self._open: list[str] = []

    def _collect(self, holder: Any, prefix: str, syntax: str, messages: Any) -> None:
        for each in holder.enum_type:
            self._enums[_joined(prefix, each.name)] = each
        for each in messages:
            full = _joined(prefix, each.name)
            self._messages[full] = (each, syntax)
            self._collect(each, full, syntax, each.nested_type)

    def read(self, name: str) -> ProtobufMessage:
        if name not in self._messages:
            known = ", ".join(sorted(self._messages))
            raise ConfigError(f"{self._source} has no message {name}; it has {known}.")
        if name in self._open:
            raise ConfigError(f"{self._source}: {name} contains itself, which no column can.")
        self._open.append(name)
        message, syntax = self._messages[name]
        try:
            fields = tuple(self._field(each, syntax) for each in message.field)
        finally:
            self._open.pop()
        return ProtobufMessage(name, fields, message.options.map_entry)

    def _field(self, field: Any, syntax: str) -> ProtobufField:
        kind = _KINDS.get(field.type)
        if kind is None:
            raise ConfigError(f"{self._source}: field {field.name} is a group; columns have none.")
        is_repeated = field.label == _REPEATED
        type_name = field.type_name.lstrip(".")
        is_explicit = syntax != _PROTO3 or field.proto3_optional or field.HasField("oneof_index")
        values: tuple[tuple[int, str], ...] = ()
        if kind == "enum":
            values = tuple((each.number, each.name) for each in self._enums[type_name].value)
        return ProtobufField(
            field.name,
            field.number,
            kind,
            is_repeated,
            not is_repeated and (is_explicit or kind == "message"),
            self.read(type_name) if kind == "message" else None,
            values,
        )


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
