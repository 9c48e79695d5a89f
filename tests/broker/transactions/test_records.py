"""The records of `__transaction_state` are Kafka's, byte for byte."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.transactions.records import (
    ENTERED_FROM,
    StoredTransaction,
    TransactionState,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    is_storable,
)
from klamm.errors import RemoteProtocolError
from klamm.names import TopicPartition

S = TransactionState
ONGOING = StoredTransaction(
    4000,
    0,
    60_000,
    S.ONGOING,
    (TopicPartition("orders", 0), TopicPartition("orders", 1)),
    0x18BCFE5687B,
    0x18BCFE56864,
)
EMPTY = StoredTransaction(4000, 0, 60_000, S.EMPTY, (), 0x18BCFE56800, -1)

partitions = st.lists(
    st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 9)), unique=True, max_size=6
)


@pytest.mark.rule("TXN-2")
def test_a_key_is_a_version_and_the_id():
    assert encode_key("pay-1").hex() == "000000057061792d31"
    assert decode_key(bytes.fromhex("000000057061792d31")) == "pay-1"


@pytest.mark.rule("TXN-2")
def test_an_ongoing_transaction_lists_its_partitions_by_topic():
    expected = (
        "0000 0000000000000fa0 0000 0000ea60 01 00000001 0006 6f7264657273 00000002 00000000"
        "00000001 0000018bcfe5687b 0000018bcfe56864"
    )
    assert encode_value(ONGOING) == bytes.fromhex(expected)
    assert decode_value(bytes.fromhex(expected)) == ONGOING


@pytest.mark.rule("TXN-2")
def test_an_empty_transaction_has_no_partitions_and_no_start():
    expected = "0000 0000000000000fa0 0000 0000ea60 00 ffffffff 0000018bcfe56800 ffffffffffffffff"
    assert encode_value(EMPTY) == bytes.fromhex(expected)
    assert decode_value(bytes.fromhex(expected)) == EMPTY


@pytest.mark.rule("TXN-2")
def test_a_complete_transaction_has_an_empty_list():
    done = ONGOING._replace(state=S.COMPLETE_COMMIT, partitions=())
    assert encode_value(done)[17:21] == bytes(4)
    assert decode_value(encode_value(done)) == done


@pytest.mark.rule("TXN-2")
def test_the_flexible_version_is_read():
    value = bytes.fromhex(
        "0001 0000000000000fa0 0000 0000ea60 01 02 07 6f7264657273 03 00000000 00000001 00"
        "0000018bcfe5687b 0000018bcfe56864 01 00 08 0000000000000f00"
    )
    assert decode_value(value) == ONGOING


@given(
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.sampled_from([S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_ABORT]),
    partitions,
)
def test_what_is_written_is_read_again(producer_id, epoch, state, members):
    stored = StoredTransaction(producer_id, epoch, 1, state, tuple(members), 5, 4)
    found = decode_value(encode_value(stored))
    assert found._replace(partitions=()) == stored._replace(partitions=())
    assert set(found.partitions) == set(members)


@pytest.mark.parametrize(
    "value", ["0002", "0000", "0000 0000000000000fa0 0000 0000ea60 09 ffffffff" + "00" * 16, "00"]
)
def test_other_versions_and_broken_values_are_errors(value):
    with pytest.raises(RemoteProtocolError):
        decode_value(bytes.fromhex(value))


@pytest.mark.parametrize("key", ["0001000161", "0000ffff", "00000005", ""])
def test_other_keys_are_errors(key):
    with pytest.raises(RemoteProtocolError):
        decode_key(bytes.fromhex(key))


@given(st.binary(max_size=80))
def test_garbage_is_an_error_and_nothing_else(data):
    for decode in (decode_key, decode_value):
        with contextlib.suppress(RemoteProtocolError):
            decode(data)


def test_ids_that_do_not_fit_into_a_key_are_known():
    assert is_storable("x" * 32767)
    assert not is_storable("x" * 32768)
    assert not is_storable("\ud800")


def test_the_table_of_transitions_has_every_state():
    assert set(ENTERED_FROM) == set(S)
    assert all(sources <= set(S) for sources in ENTERED_FROM.values())


def test_labels_are_kafkas():
    assert [state.label for state in S] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
