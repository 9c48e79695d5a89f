"""The options of an ingestion, checked before anything is read or written.

Some need a library of the `ingest` extra, which is imported on first use.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, get_args

from klamm.errors import ConfigError

Kind: TypeAlias = Literal["delta", "iceberg", "parquet"]
Format: TypeAlias = Literal["raw", "json", "avro", "protobuf"]
Mode: TypeAlias = Literal["append", "upsert"]
Action: TypeAlias = Literal["drop", "aside", "fail"]

KINDS: Final[tuple[str, ...]] = get_args(Kind)
FORMATS: Final[tuple[str, ...]] = get_args(Format)
MODES: Final[tuple[str, ...]] = get_args(Mode)
ACTIONS: Final[tuple[str, ...]] = get_args(Action)

DEAD_LETTERS: Final = "_dead_letters"
#: What an upsert of raw records identifies a row by.
RAW_KEY: Final = "key"
_PIP_LINE: Final = "pip install 'klamm[ingest]'"
_TARGET_FORMS: Final = "delta:PATH, iceberg:CATALOG.TABLE or parquet:PATH"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The table: its kind, and its path or its name in a catalog."""

    kind: Kind
    name: str

    @property
    def dead_letters(self) -> "TableTarget":
        """The table beside it, for records that do not parse."""
        return TableTarget(self.kind, self.name.rstrip("/") + DEAD_LETTERS)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition that rows must fulfil, and what becomes of the others."""

    sql: str
    action: Action = "aside"


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """A column of the table to partition by, or the day of a timestamp column."""

    column: str
    by_day: bool = False

    @property
    def name(self) -> str:
        """The partition column in folders' names: a new one for days."""
        return f"{self.column}_day" if self.by_day else self.column


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """One ingestion; the fields are those of `klamm ingest`."""

    topics: tuple[str, ...]
    to: TableTarget
    bootstrap_servers: str
    format: Format = "raw"
    #: The text of the schema file, and its name for messages and for its kind.
    schema: str | None = None
    schema_name: str = ""
    registry: str | None = None
    #: The Protobuf message, where the schema has several.
    message: str | None = None
    key: tuple[str, ...] = ()
    mode: Mode = "append"
    expectations: tuple[Expectation, ...] = ()
    #: The share of records that may fail to parse, of those read by a run.
    max_bad: float | None = None
    checkpoint: str | None = None
    partition_by: tuple[PartitionBy, ...] = ()
    include_headers: bool = False
    starting: str = "earliest"
    #: Whether offsets that are gone before they were read are passed over, with a warning.
    allow_data_loss: bool = False
    #: The most records of one batch, which is one commit.
    batch_records: int = 2_000_000
    #: The size that files are compacted to.
    file_bytes: int = 128 << 20
    #: How long files of old versions of the table are kept; None: for good.
    retain_s: float | None = None
    #: Further options of the Kafka client, without the prefix `kafka.`.
    kafka: Mapping[str, str] = field(default_factory=dict)
    #: Properties of the Iceberg catalog, beside those of pyiceberg's own configuration.
    catalog: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("Name at least one topic.")
        _one_of("format", self.format, FORMATS)
        _one_of("mode", self.mode, MODES)
        if self.format in ("avro", "protobuf") and not (self.schema or self.registry):
            raise ConfigError(
                f"Format {self.format} needs a schema: name a file with --schema or a registry "
                "with --registry."
            )
        if self.schema and self.registry:
            raise ConfigError("Name either --schema or --registry, not both.")
        if self.format == "raw" and (self.schema or self.registry):
            raise ConfigError("Format raw has no schema: remove --schema and --registry.")
        if self.message and self.format != "protobuf":
            raise ConfigError("A message is named for format protobuf only.")
        if self.mode == "upsert" and not self.key_columns:
            raise ConfigError("Mode upsert needs --key COLUMN,...: the columns that name a row.")
        if self.mode == "append" and self.key:
            raise ConfigError("--key is for --mode upsert; mode append keeps every record.")
        if self.max_bad is not None and not 0 <= self.max_bad <= 1:
            raise ConfigError(f"--max-bad is a share from 0 to 1, such as 0.01; not {self.max_bad}")
        if self.include_headers and self.format != "raw":
            raise ConfigError("Headers are kept with format raw only.")
        if self.starting not in ("earliest", "latest"):
            raise ConfigError(f"A query starts at earliest or latest, not at {self.starting!r}.")
        if self.batch_records < 1 or self.file_bytes < 1:
            raise ConfigError("Batches and files have a positive size.")

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that name a row of an upsert."""
        return self.key or ((RAW_KEY,) if self.format == "raw" else ())


def _one_of(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ConfigError(f"Unknown {what} {given!r}; known are {', '.join(known)}.")


def parse_target(text: str) -> TableTarget:
    """`delta:PATH`, `iceberg:CATALOG.TABLE` or `parquet:PATH`."""
    kind, colon, name = text.partition(":")
    name = name.strip()
    if not colon or not name or kind not in KINDS:
        raise ConfigError(f"{text!r} is not a table; expected is {_TARGET_FORMS}.")
    if kind == "iceberg" and not all(re.split(r"\.", name, maxsplit=1)[0:2]):
        raise ConfigError(f"{text!r} is not a table; expected is {_TARGET_FORMS}.")
    if kind == "iceberg" and "." not in name:
        raise ConfigError(f"{text!r} names no catalog; expected is iceberg:CATALOG.TABLE.")
    return TableTarget(kind, name)  # type: ignore[arg-type]  # checked above


def parse_expectation(text: str) -> Expectation:
    """`amount > 0`, or with what becomes of other rows before it: `drop: amount > 0`."""
    head, colon, rest = text.partition(":")
    action = head.strip().lower()
    if colon and action in ACTIONS:
        sql = rest.strip()
        found = Expectation(sql, action)  # type: ignore[arg-type]  # checked above
    else:
        found = Expectation(text.strip())
    if not found.sql:
        raise ConfigError(f"{text!r} is not an expectation; expected is SQL such as 'amount > 0'.")
    return found


def parse_partition(text: str) -> PartitionBy:
    """`country`, or `day(ordered_at)`."""
    found = re.fullmatch(r"\s*(?:day\(\s*(\w+)\s*\)|(\w+))\s*", text)
    if found is None:
        raise ConfigError(f"{text!r} is not a partition; expected is COLUMN or day(COLUMN).")
    return PartitionBy(found[1], by_day=True) if found[1] else PartitionBy(found[2])


def parse_duration_s(text: str) -> float:
    """`7d`, `12h`, `30m` or `45s`."""
    found = re.fullmatch(r"(\d+)\s*([smhd])", text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a duration; expected is a number with s, m, h or d.")
    return float(int(found[1]) * _UNITS_S[found[2]])


def parse_bytes(text: str) -> int:
    """`128m`, `1g`, `4096`."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)b?", text.strip().lower())
    if found is None or not int(found[1]):
        raise ConfigError(f"{text!r} is not a size; expected is a number with k, m or g.")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]


def need(module: str, purpose: str) -> Any:
    """Import a module of the `ingest` extra; the error says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs the package {package}, which cannot be imported ({error}). "
            f"Install it with: {_PIP_LINE}"
        ) from None
