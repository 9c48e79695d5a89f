"""Frames that stock clients and Apache Kafka 3.9.1 exchanged, and what the tests do with them."""

import base64
import io
import json
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from klamm.protocol.apis import APIS
from klamm.protocol.schema._kio import entity_writer

_DATA = Path(__file__).parents[1] / "data"
_FILES = (_DATA / "exchanges.jsonl", _DATA / "transactions.jsonl")


class Exchange(NamedTuple):
    client: str
    api: str
    key: int
    version: int
    request: bytes
    response: bytes | None

    def __str__(self) -> str:
        return f"{self.api}-{self.version}-{self.client}".replace(" ", "-")


def _load() -> list[Exchange]:
    exchanges = []
    for line in (line for file in _FILES for line in file.read_text().splitlines()):
        raw = json.loads(line)
        response = raw["response"]
        exchanges.append(
            Exchange(
                raw["client"],
                raw["api"],
                raw["key"],
                raw["version"],
                base64.b64decode(raw["request"]),
                None if response is None else base64.b64decode(response),
            )
        )
    return [exchange for exchange in exchanges if exchange.key in APIS]


EXCHANGES = _load()

#: Every schema that klamm can be asked for: all advertised versions, and the controller's APIs in
#: the versions that only old brokers are sent.
SCHEMAS = [
    (key, version, kind)
    for key, api in APIS.items()
    for version in range(0 if key in (4, 5, 6) else api.first_decoded, api.max_version + 1)
    for kind in ("request", "response")
]


def schema_id(schema: tuple[int, int, str]) -> str:
    key, version, kind = schema
    return f"{APIS[key].name}-{version}-{kind}"


def kio_bytes(body: Any) -> bytes:
    """What kio's own writer makes of a dataclass."""
    buffer = io.BytesIO()
    entity_writer(type(body))(buffer, body)
    return buffer.getvalue()


def values_of(value: Any) -> Any:
    """A dataclass as the mapping that klamm's encoder takes."""
    if is_dataclass(value):
        return {
            each.name: values_of(getattr(value, each.name))
            for each in fields(value)
            if "tag" not in each.metadata or getattr(value, each.name) != each.default
        }
    if isinstance(value, tuple):
        return [values_of(item) for item in value]
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return value
