"""The stories of transactional ids and of administrative requests."""

from typing import Any

import pytest

from klamm.errors import KlammError
from klamm.history.broker_story import requests_about, transaction_story


def transition(seq: int, what: str, **fields: Any) -> dict[str, Any]:
    return {
        "at": f"2026-11-16T20:21:{seq:02d}.500000Z",
        "broker": 1,
        "run": 1,
        "seq": seq,
        "kind": "transaction",
        "what": what,
        "transactional_id": "pay-1",
        "state": "Ongoing",
        "producer_id": 7,
        "producer_epoch": 0,
        "timeout_ms": 60_000,
        "partitions": ["orders-0"],
        "state_partition": 0,
        "coordinator_epoch": 3,
        "principal": "User:alice",
        "address": "10.0.0.1",
        "client_id": "app",
        "api": "EndTxn",
    } | fields


def told(*rows: dict[str, Any]) -> list[str]:
    return [row["text"].partition(": ")[2] for row in transaction_story(rows, "pay-1")]


def test_a_transaction_is_told_from_its_producer_to_its_end():
    assert told(
        transition(1, "initialized", partitions=[]),
        transition(2, "began"),
        transition(3, "added", partitions=["orders-1"]),
        transition(4, "decided", state="PrepareCommit", partitions=["orders-0", "orders-1"]),
        transition(5, "completed", state="CompleteCommit", principal=None),
        transition(6, "expired", principal=None),
    ) == [
        "User:alice at 10.0.0.1 (client id app) was given producer id 7 with epoch 0.",
        "User:alice at 10.0.0.1 (client id app) began a transaction with orders-0.",
        "User:alice at 10.0.0.1 (client id app) added orders-1.",
        "User:alice at 10.0.0.1 (client id app) asked to commit: orders-0, orders-1.",
        "all markers are written, the commit is complete.",
        "the id was idle for too long and is removed.",
    ]


def test_the_story_says_who_fenced_whom():
    fenced, renewed, refused = told(
        transition(1, "initialized"),
        transition(2, "fenced", principal="User:bob", producer_epoch=1, state="PrepareAbort"),
        transition(3, "initialized", principal="User:bob", producer_epoch=2),
        transition(4, "refused", producer_epoch=2),
    )[1:]
    assert fenced.startswith("the transaction is aborted, because User:bob at 10.0.0.1")
    assert "producer id 7 with epoch 0 is fenced: orders-0" in fenced
    assert renewed.endswith("was given producer id 7 with epoch 2.")
    assert "was refused as fenced (EndTxn): producer id 7 with epoch 2 has the id" in refused


def test_a_renewed_id_fences_its_idle_producer():
    (_, renewed) = told(
        transition(1, "initialized"), transition(2, "initialized", producer_epoch=1)
    )
    assert renewed.endswith("; producer id 7 with epoch 0 is fenced.")


def test_coordinators_are_told_in_the_order_of_their_epochs_not_of_their_clocks():
    later = transition(1, "loaded", broker=2, coordinator_epoch=4)
    timed_out = transition(2, "timed_out", broker=2, coordinator_epoch=4, principal=None)
    first, second, third = told(later, timed_out, transition(9, "began"))
    assert "began" in first
    assert second.startswith("broker 2 became the coordinator and found the transaction Ongoing")
    assert "open for longer than 60000 ms" in third


def test_an_id_without_a_story_is_an_error():
    with pytest.raises(KlammError, match="says nothing about the transactional id 'pay-2'"):
        transaction_story([transition(1, "began")], "pay-2")


def request(**fields: Any) -> dict[str, Any]:
    return {
        "at": "2026-11-16T20:21:02.319000Z",
        "broker": 2,
        "seq": 1,
        "kind": "request",
        "api": "CreateTopics",
        "principal": "User:alice",
        "address": "10.0.0.1",
        "client_id": None,
        "is_trial": False,
        "subjects": [
            {"type": "topic", "name": "orders", "wanted": "3 partitions"},
            {"type": "topic", "name": "prices", "wanted": ""},
        ],
        "errors": [{"name": "prices", "error": "TOPIC_ALREADY_EXISTS"}],
    } | fields


def test_a_request_is_told_with_who_asked_and_what_was_refused():
    (row,) = requests_about([request(), transition(1, "began")])
    assert row["text"] == (
        "2026-11-16 20:21:02.319 broker 2 #1: User:alice at 10.0.0.1 asked for CreateTopics: topic "
        "orders (3 partitions); topic prices; refused: TOPIC_ALREADY_EXISTS (prices)."
    )


def test_the_story_of_a_topic_has_only_its_own_part_of_a_request():
    (row,) = requests_about([request()], "orders")
    assert row["text"].endswith("asked for CreateTopics: topic orders (3 partitions).")
    (trial,) = requests_about([request(is_trial=True)], "prices")
    assert trial["text"].endswith(
        "topic prices, as a trial; refused: TOPIC_ALREADY_EXISTS (prices)."
    )
    assert requests_about([request()], "payments") == []
