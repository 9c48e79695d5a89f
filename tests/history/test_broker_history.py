"""The records of a broker: lines in files, shipped to a topic, read back in order and once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from klamm.config.broker import BrokerConfig
from klamm.history.broker_history import (
    DIRECTORY,
    SUFFIX,
    BrokerHistory,
    JsonLines,
    in_order,
    read_broker_spool,
    read_lines,
)
from klamm.history.shipping import Shipper, TooLargeError
from klamm.history.spool import spool_files


def config(directory: Path, **settings: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "zookeeper.connect": "127.0.0.1:2181",
            "log.dirs": str(directory / "log"),
            "klamm.history.dir": str(directory / "history"),
        }
        | settings
    )


def kept(directory: Path, *names: str) -> Path:
    """The spool of a broker that noted these."""
    history = BrokerHistory(config(directory), 1)
    for at, name in enumerate(names):
        history.note(lambda name=name: {"kind": "test", "name": name}, 1_700_000_000.5 + at)
    asyncio.run(history.close())
    return directory / "history"


def test_what_was_noted_is_read_back(tmp_path: Path):
    spool = kept(tmp_path, "a", "b")
    first, second = read_broker_spool(spool)
    assert (first["at"], first["broker"], first["seq"], first["name"]) == (
        "2023-11-14T22:13:20.500000Z",
        1,
        1,
        "a",
    )
    assert (second["seq"], second["name"]) == (2, "b")


def test_a_torn_end_costs_only_the_last_record(tmp_path: Path):
    spool = kept(tmp_path, "a", "b")
    (path,) = spool_files(spool / DIRECTORY, SUFFIX)
    path.write_bytes(path.read_bytes()[:-10])
    assert [row["name"] for row in read_broker_spool(spool)] == ["a"]


def test_a_record_that_cannot_be_made_does_not_cost_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    history = BrokerHistory(config(tmp_path), 1)
    history.note(lambda: {"kind": "test", "name": object()})
    history.note(lambda: {"kind": "test", "name": "b"})
    asyncio.run(history.close())
    assert [row["name"] for row in read_broker_spool(tmp_path / "history")] == ["b"]
    assert "record 1 of the broker's history is lost" in caplog.text


def test_without_retention_nothing_is_kept(tmp_path: Path):
    history = BrokerHistory(config(tmp_path, **{"klamm.history.retention.bytes": "0"}), 1)
    assert not history.is_kept
    history.note(lambda: {"kind": "test"})
    asyncio.run(history.close())
    assert not (tmp_path / "history").exists()


def test_records_are_shipped_in_messages_that_fit(tmp_path: Path):
    spool = kept(tmp_path, "a", "b", "c") / DIRECTORY
    sent: list[tuple[bytes, bytes]] = []

    async def send(value: bytes, key: bytes) -> None:
        if value.count(b"\n") > 1:
            raise TooLargeError("one line at a time")
        sent.append((value, key))

    asyncio.run(Shipper(spool, "topic", send, JsonLines()).ship())
    rows: list[Any] = [row for value, _ in sent for row in read_lines(value)]
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    assert sent[0][1] == b"1-%d-1" % rows[0]["run"]
    sent.clear()
    asyncio.run(Shipper(spool, "topic", send, JsonLines()).ship())
    assert sent == []


def test_duplicates_are_dropped_and_time_orders_brokers():
    def row(broker: int, seq: int, at: str) -> dict[str, Any]:
        return {"broker": broker, "run": 7, "seq": seq, "at": at}

    rows = [row(2, 1, "10:02"), row(1, 1, "10:01"), row(2, 1, "10:02"), row(1, 2, "10:03")]
    assert [(each["broker"], each["seq"]) for each in in_order(rows)] == [(1, 1), (2, 1), (1, 2)]
