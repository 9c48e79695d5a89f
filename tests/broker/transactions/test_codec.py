"""Requests of transactions as they are read."""

from types import SimpleNamespace

import pytest

from klamm.broker.transactions.codec import additions
from klamm.names import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode


@pytest.mark.rule("SEC-9")
def test_one_topic_that_may_not_be_written_keeps_a_transaction_from_all_of_them():
    names = ("allowed", "denied", "missing")
    body = SimpleNamespace(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[SimpleNamespace(name=name, partitions=[0]) for name in names],
    )
    header = RequestHeader(ApiKey.ADD_PARTITIONS_TO_TXN, 3, 1, "")
    (addition,) = additions(
        header, body, lambda each: each.topic != "missing", may_write=lambda name: name != "denied"
    )
    assert addition.refused == {
        TopicPartition("allowed", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        TopicPartition("denied", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        TopicPartition("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
