"""`klamm consume`: print the records of a topic as lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from klamm.cli.completion import complete_group
from klamm.cli.options import BootstrapServer, CommandConfig, TopicName, open_admin, security_of
from klamm.client import groups, topics
from klamm.client.admin import DEFAULT_BOOTSTRAP, Admin
from klamm.config.client_properties import ClientSecurity
from klamm.errors import KlammError
from klamm.names import EARLIEST, LATEST, TopicPartition
from klamm.net.librdkafka import librdkafka_settings, record_as_json

_POLL_S: Final = 0.5
_ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")
_TOKEN: Final = re.compile(r"%([sSkKhtpoT%])")


def consume(
    topic: TopicName,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="May be repeated; default: all."),
    ] = None,
    offset: Annotated[
        str,
        typer.Option(
            "--offset",
            "-o",
            metavar="WHERE",
            help="beginning, end, an offset, -N from the end, or @TIME (milliseconds or ISO).",
        ),
    ] = "beginning",
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after this number of records.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit", "-e", help="Stop at the present end of the topic.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            autocompletion=complete_group,
            help="Join this group and continue at its offsets.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="%s value, %k key, %h headers, %t topic, %p partition, %o offset, %T time, "
            "%S and %K sizes; \\n and \\t.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each record.")
    ] = False,
    isolation_level: Annotated[
        str,
        typer.Option(
            help="read_committed leaves out what is not committed, or aborted; or read_uncommitted."
        ),
    ] = "read_committed",
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
) -> None:
    """Print the records of a topic, each as a line, until Ctrl-C, --count or --exit.

    \b
    Example: klamm consume orders --exit
    Example: klamm consume orders -o -5 -e --format '%p/%o %T %k: %s %h\\n'
    Example: klamm consume orders --group billing --json
    """
    if isolation_level not in _ISOLATION_LEVELS:
        raise typer.BadParameter(
            f"{isolation_level!r} is not one of {', '.join(_ISOLATION_LEVELS)}",
            param_hint="--isolation-level",
        )
    write = _writer(form, as_json)
    with open_admin(bootstrap_server, command_config) as admin:
        (found,) = topics.describe(admin, [topic]).topics
        known = [each.partition for each in found.partitions]
        for number in partition or ():
            if number not in known:
                raise KlammError(f"Topic {topic} has partitions 0 to {known[-1]}, not {number}.")
        names = [TopicPartition(topic, number) for number in partition or known]
        ends = groups.offsets_at(admin, names, LATEST) if exit_at_end else None
        starts = _starts(admin, names, offset) if group is None else {}
    security = security_of(command_config)
    consumer = _consumer(bootstrap_server, security, topic, group, starts, offset, isolation_level)
    records = _records(consumer, ends)
    try:
        for number, record in enumerate(records, start=1):
            write(record)
            if number == count:
                break
    except KeyboardInterrupt:
        pass  # Ctrl-C ends the command as intended
    finally:
        consumer.close()
        sys.stdout.flush()


def _consumer(
    bootstrap_server: str,
    security: ClientSecurity,
    topic: str,
    group: str | None,
    starts: dict[TopicPartition, int],
    offset: str,
    isolation_level: str,
) -> Any:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_server,
            **librdkafka_settings(security),
            "group.id": group or "klamm-consume",  # librdkafka requires one, and joins no group
            "enable.auto.commit": group is not None,
            "auto.offset.reset": "latest" if offset == "end" else "earliest",
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "log_level": 0,
        }
    )
    if group is not None:
        consumer.subscribe([topic])
    else:
        consumer.assign([confluent_kafka.TopicPartition(*name, at) for name, at in starts.items()])
    return consumer


def _records(consumer: Any, ends: dict[TopicPartition, int] | None) -> Iterator[Any]:
    """Yield records; with `ends`, stop when every assigned partition was read to its end."""
    from confluent_kafka import KafkaError

    done: set[TopicPartition] = set()
    while ends is None or not _all_done(consumer, done):
        message = consumer.poll(0)
        if message is None:
            # Flush before waiting: the reader of a pipe sees each record without delay.
            sys.stdout.flush()
            message = consumer.poll(_POLL_S)
        if message is None:
            continue
        error = message.error()
        name = TopicPartition(message.topic(), message.partition())
        if error is None and (ends is None or message.offset() < ends.get(name, 0)):
            yield message
        elif error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KlammError(f"{error.name().lstrip('_')}: {error.str()}")
        if ends is not None and (error is not None or message.offset() + 1 >= ends.get(name, 0)):
            done.add(name)


def _all_done(consumer: Any, done: set[TopicPartition]) -> bool:
    # A group assigns nothing at first.
    assigned = {(each.topic, each.partition) for each in consumer.assignment()}
    return bool(assigned) and assigned <= done


def _starts(
    admin: Admin, names: Sequence[TopicPartition], offset: str
) -> dict[TopicPartition, int]:
    """The first offset to read of each partition that has a leader."""
    first = groups.offsets_at(admin, names, EARLIEST)
    if offset == "beginning":
        return first
    last = groups.offsets_at(admin, names, LATEST)
    if offset == "end":
        return last
    if offset.startswith("@"):
        return groups.offsets_at(admin, names, _milliseconds(offset[1:]))
    try:
        number = int(offset)
    except ValueError:
        raise typer.BadParameter(
            f"{offset!r} is not beginning, end, an offset, -N or @TIME", param_hint="--offset"
        ) from None
    if number < 0:
        return {name: max(first[name], last[name] + number) for name in first if name in last}
    return {name: min(max(number, at), last[name]) for name, at in first.items() if name in last}


def _milliseconds(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither milliseconds nor a time like 2030-01-31T12:00:00Z",
            param_hint="--offset",
        ) from None


# Records as text


def _writer(form: str | None, as_json: bool) -> Callable[[Any], int]:
    if form is not None and as_json:
        raise typer.BadParameter("give one of them", param_hint="--format / --json")
    out = sys.stdout.buffer
    if as_json:

        def render(record: Any) -> bytes:
            return json.dumps(record_as_json(record), ensure_ascii=False).encode() + b"\n"
    else:
        pieces = _pieces(form if form is not None else r"%s\n")

        def render(record: Any) -> bytes:
            return b"".join(
                piece if isinstance(piece, bytes) else piece(record) for piece in pieces
            )

    return lambda record: out.write(render(record))


def _pieces(form: str) -> list[bytes | Callable[[Any], bytes]]:
    tokens: dict[str, Callable[[Any], bytes]] = {
        "s": lambda r: r.value() or b"",
        "S": lambda r: _number(len(r.value()) if r.value() is not None else -1),
        "k": lambda r: r.key() or b"",
        "K": lambda r: _number(len(r.key()) if r.key() is not None else -1),
        "h": lambda r: b",".join(name.encode() + b"=" + (v or b"") for name, v in _headers(r)),
        "t": lambda r: str(r.topic()).encode(),
        "p": lambda r: _number(r.partition()),
        "o": lambda r: _number(r.offset()),
        "T": lambda r: _number(r.timestamp()[1]),
        "%": lambda _: b"%",
    }
    text = form.encode().decode("unicode_escape").encode("latin-1").decode()
    parts = _TOKEN.split(text)
    return [tokens[part] if at % 2 else part.encode() for at, part in enumerate(parts)]


def _headers(record: Any) -> list[tuple[str, bytes | None]]:
    return record.headers() or []


def _number(value: int) -> bytes:
    return str(value).encode()
