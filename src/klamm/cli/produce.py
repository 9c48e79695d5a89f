"""`klamm produce`: write the lines of stdin as records."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer

from klamm.cli.completion import complete_transactional_id
from klamm.cli.options import (
    BootstrapServer,
    CommandConfig,
    TopicName,
    open_admin,
    security_of,
    settings,
)
from klamm.cli.render import say
from klamm.client import topics
from klamm.client.admin import DEFAULT_BOOTSTRAP
from klamm.errors import KlammError
from klamm.names import counted
from klamm.net.librdkafka import librdkafka_settings

_ANY_PARTITION: Final = -1
_POLL_EVERY: Final = 1000


@dataclass(frozen=True, slots=True)
class Line:
    """One record to be written."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int | None = None


def produce(
    topic: TopicName,
    key_delimiter: Annotated[
        str | None,
        typer.Option("--key-delimiter", "-K", help="The separator of key and value."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="One key for all records.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of all records; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Default: by key, or any.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Lines are objects, as `klamm consume --json` writes them."),
    ] = False,
    empty_is_null: Annotated[
        bool, typer.Option("--null", "-Z", help="Empty values and keys become null.")
    ] = False,
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    acks: Annotated[str, typer.Option(help="all, 1 or 0.")] = "all",
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            autocompletion=complete_transactional_id,
            help="Write all lines in one transaction, or none of them.",
        ),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Write the lines of stdin to a topic, each as a record.

    \b
    Example: seq 10 | klamm produce orders
    Example: seq 10 | klamm produce orders --transactional-id loader
    Example: echo 'alice:{"total": 3}' | klamm produce orders --key-delimiter :
    """
    with open_admin(bootstrap_server, command_config) as admin:
        topics.describe(admin, [topic])  # raises if the topic does not exist
    from confluent_kafka import KafkaException, Producer

    try:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap_server,
                **librdkafka_settings(security_of(command_config)),
                "acks": acks,
                "compression.type": compression,
                "allow.auto.create.topics": False,
                "log_level": 0,
                **({} if transactional_id is None else {"transactional.id": transactional_id}),
            }
        )
    except KafkaException as error:
        raise typer.BadParameter(
            error.args[0].str(), param_hint="--acks / --compression / --transactional-id"
        ) from None
    common: list[tuple[str, bytes | None]] = [
        (name, value.encode()) for name, value in settings(header, "--header").items()
    ]
    failed: list[str] = []
    written = 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal written
        if error is None:
            written += 1
        else:
            failed.append(f"{error.name().lstrip('_')}: {error.str()}")

    if transactional_id is not None:
        with _errors_named():
            producer.init_transactions()
            producer.begin_transaction()
    lines = _parsed(as_json, key_delimiter, None if key is None else key.encode(), empty_is_null)
    for number, line in enumerate(lines, start=1):
        chosen = partition if partition is not None else line.partition
        arguments: dict[str, Any] = (
            {} if line.timestamp_ms is None else {"timestamp": line.timestamp_ms}
        )
        while True:
            try:
                producer.produce(
                    topic,
                    line.value,
                    line.key,
                    _ANY_PARTITION if chosen is None else chosen,
                    on_delivery=delivered,
                    headers=[*common, *line.headers],
                    **arguments,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % _POLL_EVERY == 0:
            producer.poll(0)
        if failed:
            break
    producer.flush()
    if transactional_id is not None:
        with _errors_named():
            if failed:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    if failed:
        raise KlammError(
            f"{failed[0]} ({counted(len(failed), 'record was', 'records were')} not written)"
        )
    say(f"Wrote {counted(written, 'record')} to {topic}.")


@contextmanager
def _errors_named() -> Iterator[None]:
    """Name the Kafka error of a transaction that fails."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as failure:
        error = failure.args[0]
        raise KlammError(f"{error.name().lstrip('_')}: {error.str()}") from None


def _parsed(
    as_json: bool, delimiter: str | None, key: bytes | None, empty_is_null: bool
) -> Iterator[Line]:
    separator = None if delimiter is None else delimiter.encode().decode("unicode_escape").encode()
    for number, raw in enumerate(sys.stdin.buffer, start=1):
        text = raw.rstrip(b"\n")
        if as_json:
            yield _from_json(text, number)
            continue
        own_key = key
        if separator is not None:
            before, found, after = text.partition(separator)
            if found:
                own_key, text = before, after
        if empty_is_null:
            yield Line(text or None, own_key or None)
        else:
            yield Line(text, own_key)


def _from_json(text: bytes, number: int) -> Line:
    try:
        given = json.loads(text)
        return Line(
            _bytes(given.get("value")),
            _bytes(given.get("key")),
            [(name, _bytes(value)) for name, value in given.get("headers") or ()],
            given.get("partition"),
            given.get("timestamp"),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise KlammError(f"Line {number} is not a record: {error}") from None


def _bytes(value: Any) -> bytes | None:
    """Text as it is; anything else as JSON."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
