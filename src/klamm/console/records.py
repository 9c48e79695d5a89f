"""The records of a topic: a bounded scan with a filter, a live tail, export, and producing one."""

import asyncio
import csv
import io
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from klamm.client import groups, topics
from klamm.client.admin import Admin
from klamm.console.filters import Filter, compile_filter
from klamm.console.requests import failure, parse_number, route
from klamm.console.session import Session
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.names import EARLIEST, LATEST, TopicPartition
from klamm.net.librdkafka import record_as_json

_SCANNED_MAX: Final = 1_000_000
_FOUND_MAX: Final = 100_000
_SHOWN: Final = 200
#: What a page shows of a record; an export has all of it.
_TEXT_MAX: Final = 20_000
_POLL_S: Final = 0.2
_PROGRESS_S: Final = 0.2
_TOGETHER: Final = 500
_STALLED_S: Final = 15.0
_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_FORMATS: Final = {
    "json": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True, slots=True)
class RecordScan:
    """A request for records: the start and end, the filter, and the limits."""

    topic: str
    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    wanted: Filter
    limit: int
    is_tail: bool = False
    total: int = field(default=0)


def parse_scan(session: Session, request: Request, limit: int, limit_max: int) -> RecordScan:
    """The scan that a query asks for."""
    admin, _ = session.online()
    query = request.query_params
    topic = request.path_params["name"]
    (found,) = topics.describe(admin, [topic]).topics
    known = [each.partition for each in found.partitions]
    chosen = known
    if query.get("partition"):
        chosen = [parse_number(query["partition"], "partition")]
        if chosen[0] not in known:
            raise ConfigError(f"Topic {topic} has partitions 0 to {known[-1]}, not {chosen[0]}.")
    names = [TopicPartition(topic, number) for number in chosen]
    wanted = compile_filter(query.get("filter", ""))
    asked = min(parse_number(query.get("limit") or str(limit), "limit"), limit_max)
    last = groups.offsets_at(admin, names, LATEST)
    if query.get("tail"):
        return RecordScan(topic, last, {}, wanted, asked, is_tail=True)
    starts = find_starts(admin, names, query.get("from", "-50"))
    starts = {name: at for name, at in starts.items() if at < last.get(name, 0)}
    total = sum(last[name] - at for name, at in starts.items())
    return RecordScan(topic, starts, last, wanted, asked, total=total)


def find_starts(
    admin: Admin, names: Sequence[TopicPartition], where: str
) -> dict[TopicPartition, int]:
    """Offsets to begin at: beginning, an offset, -N from the end, or @MILLISECONDS."""
    first = groups.offsets_at(admin, names, EARLIEST)
    if where in ("", "beginning"):
        return first
    last = groups.offsets_at(admin, names, LATEST)
    if where.startswith("@"):
        return groups.offsets_at(admin, names, parse_number(where[1:], "from"))
    if where.startswith("-"):
        back = parse_number(where[1:], "from")
        return {name: max(first[name], last[name] - back) for name in first if name in last}
    number = parse_number(where, "from")
    return {name: max(first[name], number) for name in first}


def read_records(
    client: Mapping[str, Any], scan: RecordScan, stopping: threading.Event
) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Portions of wanted records, each with how many were scanned so far."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Position

    if not scan.starts:
        return
    consumer = Consumer(
        {
            **client,
            "group.id": "klamm-console",  # librdkafka wants one; no group is joined
            "client.id": "klamm-console",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 32_768,
            "log_level": 0,
        }
    )
    try:
        consumer.assign(
            [Position(name.topic, name.partition, at) for name, at in scan.starts.items()]
        )
        left = {name for name, at in scan.starts.items() if scan.is_tail or at < scan.ends[name]}
        scanned = found = 0
        told = heard = time.monotonic()
        portion: list[dict[str, Any]] = []
        while left and not stopping.is_set() and scanned < _SCANNED_MAX and found < scan.limit:
            messages = consumer.consume(_TOGETHER, timeout=_POLL_S)
            if messages:
                heard = time.monotonic()
            for message in messages:
                name = TopicPartition(message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None:
                    if not scan.is_tail and error.name() == "_PARTITION_EOF":
                        left.discard(name)
                    elif error.name() != "_PARTITION_EOF":
                        raise UnavailableError(error.str())
                    continue
                offset = message.offset() or 0
                if not scan.is_tail and offset >= scan.ends[name] - 1:
                    left.discard(name)
                    if offset >= scan.ends[name]:
                        continue  # written since
                scanned += 1
                record = record_as_json(message)
                if found < scan.limit and scan.wanted(record):
                    found += 1
                    portion.append(record)
            now = time.monotonic()
            if portion or now - told > _PROGRESS_S:
                yield portion, scanned
                portion, told = [], now
            if not scan.is_tail and now - heard > _STALLED_S:
                raise UnavailableError(f"Nothing comes from {scan.topic} any more.")
        yield portion, scanned
    finally:
        consumer.close()


# Endpoints


async def scan(request: Request) -> Response:
    """The scan as server-sent events: records, progress, and its end; closing it stops it."""
    session: Session = request.app.state.session
    try:
        asked = await asyncio.to_thread(parse_scan, session, request, _SHOWN, 2000)
    except KlammError as error:
        return failure(error)
    return StreamingResponse(_scanned(session, asked), media_type="text/event-stream")


async def _scanned(session: Session, asked: RecordScan) -> AsyncIterator[bytes]:
    stopping = threading.Event()
    client = session.background.client_settings()
    total = min(asked.total, _SCANNED_MAX)
    found = scanned = 0
    try:
        yield _frame({"scanned": 0, "total": total, "found": 0})
        async for portion, scanned in iterate_in_threadpool(read_records(client, asked, stopping)):
            if session.stopping.is_set():
                return
            found += len(portion)
            shown = [_shortened(record) for record in portion]
            progress = {"scanned": scanned, "total": total, "found": found, "records": shown}
            yield _frame(progress)
        yield _frame({"scanned": scanned, "total": total, "found": found, "end": True})
    except KlammError as error:
        yield _frame({"error": str(error), "end": True})
    finally:
        stopping.set()


def _shortened(record: dict[str, Any]) -> dict[str, Any]:
    value = record["value"]
    if value is not None and len(value) > _TEXT_MAX:
        return record | {"value": value[:_TEXT_MAX] + " …", "cut": len(value)}
    return record


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def export(session: Session, request: Request, _: Any) -> Response:
    """The records of a scan as a file."""
    form = request.query_params.get("format", "json")
    if form not in _FORMATS:
        raise ConfigError(f"An export is {', '.join(_FORMATS)}, not {form!r}.")
    asked = parse_scan(session, request, 10_000, _FOUND_MAX)
    if asked.is_tail:
        raise ConfigError("What has no end cannot be exported.")
    rows = [
        record
        for portion, _ in read_records(
            session.background.client_settings(), asked, threading.Event()
        )
        for record in portion
    ]
    content = {"json": _as_json, "csv": _as_csv, "parquet": _as_parquet}[form](rows)
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in asked.topic)
    headers = {"content-disposition": f'attachment; filename="{safe}.{form}"'}
    return Response(content, media_type=_FORMATS[form], headers=headers)


def _as_json(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def _as_csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS)
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {"headers": orjson.dumps(row["headers"]).decode()})
    return out.getvalue().encode()


def _as_parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.string()),
            ("value", pa.string()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
        ]
    )
    shaped = [
        row | {"headers": [{"key": name, "value": value} for name, value in row["headers"]]}
        for row in rows
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(shaped, schema), sink)
    return sink.getvalue()


def produce(session: Session, request: Request, body: Any) -> Any:
    """Write one record, and say where it went."""
    from confluent_kafka import Producer

    admin, _ = session.online()
    topic = request.path_params["name"]
    topics.describe(admin, [topic])  # raises when it does not exist
    headers = body.get("headers") or []
    try:
        pairs: list[tuple[str, str | bytes | None]] = [
            (str(name), None if value is None else str(value)) for name, value in headers
        ]
    except (TypeError, ValueError):
        raise ConfigError('Headers are like [["source", "shop"]].') from None
    producer = Producer(
        {
            **session.background.client_settings(),
            "client.id": f"klamm-console/{session.user}",
            "acks": "all",
            "message.timeout.ms": 10_000,
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )
    told: list[Any] = []
    partition = body.get("partition")
    producer.produce(
        topic,
        _bytes(body, "value"),
        _bytes(body, "key"),
        -1 if partition in (None, "") else parse_number(str(partition), "partition"),
        on_delivery=lambda error, message: told.append((error, message)),
        headers=pairs,
    )
    producer.flush(15)
    if not told:
        raise UnavailableError(f"Nobody has taken the record for {topic}.")
    ((error, message),) = told
    if error is not None:
        raise UnavailableError(error.str())
    return {"topic": topic, "partition": message.partition(), "offset": message.offset()}


def _bytes(body: Any, name: str) -> bytes | None:
    value = body.get(name)
    return None if value is None else str(value).encode()


ROUTES: Final = [
    Route("/api/topics/{name}/records", scan, methods=["GET"]),
    route("/api/topics/{name}/records", produce, method="POST", changes=True),
    route("/api/topics/{name}/export", export),
]
