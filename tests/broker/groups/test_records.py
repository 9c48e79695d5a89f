"""The bytes in `__consumer_offsets`; the examples were written by Apache Kafka 3.9.1's own code."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    subscribed_topics,
)
from klamm.errors import RemoteProtocolError
from tests.broker.groups.driver import subscription

OFFSET_VALUES = {
    0: "00000000001cbe991a1400056dc3a974610000018bcfe56800",
    1: "00010000001cbe991a1400056dc3a974610000018bcfe568000000018bcfee8fc0",
    2: "00020000001cbe991a1400056dc3a974610000018bcfe56800",
    3: "00030000001cbe991a140000000500056dc3a974610000018bcfe56800",
    4: "00040000001cbe991a1400000005066dc3a974610000018bcfe5680000",
}
GROUP_VALUES = {
    0: "00000008636f6e73756d657200000004000572616e67650003632d31000000020003632d31000163000a2f31"
    "32372e302e302e310000271000000002010200000001030003632d32000163000a2f3132372e302e302e3100"
    "00271000000002010200000000",
    1: "00010008636f6e73756d657200000004000572616e67650003632d31000000020003632d31000163000a2f31"
    "32372e302e302e310000ea600000271000000002010200000001030003632d32000163000a2f3132372e302e"
    "302e310000ea600000271000000002010200000000",
    2: "00020008636f6e73756d657200000004000572616e67650003632d310000018bcfe56801000000020003632d"
    "31000163000a2f3132372e302e302e310000ea600000271000000002010200000001030003632d3200016300"
    "0a2f3132372e302e302e310000ea600000271000000002010200000000",
    3: "00030008636f6e73756d657200000004000572616e67650003632d310000018bcfe56801000000020003632d"
    "31000169000163000a2f3132372e302e302e310000ea600000271000000002010200000001030003632d32ff"
    "ff000163000a2f3132372e302e302e310000ea600000271000000002010200000000",
    4: "000409636f6e73756d6572000000040672616e676504632d310000018bcfe568010304632d31026902630b2f"
    "3132372e302e302e310000ea600000271003010202030004632d320002630b2f3132372e302e302e310000ea"
    "6000002710030102010000",
}
EMPTY_GROUP_VALUES = {
    0: "00000008636f6e73756d657200000005ffffffff00000000",
    2: "00020008636f6e73756d657200000005ffffffff0000018bcfe5680100000000",
    3: "00030008636f6e73756d657200000005ffffffff0000018bcfe5680100000000",
    4: "000409636f6e73756d65720000000500000000018bcfe568010100",
}

texts = st.text(st.characters(codec="utf-8"), max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    StoredMember,
    texts,
    st.none() | texts,
    texts,
    texts,
    int32s,
    int32s,
    st.binary(max_size=20),
    st.binary(max_size=20),
)
groups = st.builds(
    StoredGroup,
    texts,
    int32s,
    st.none() | texts,
    st.none() | texts,
    st.none() | st.integers(0, 2**63 - 1),
    st.lists(members, max_size=4).map(tuple),
)


def kafkas_offset(version: int) -> CommittedOffset:
    return CommittedOffset(
        offset=123456789012,
        leader_epoch=5 if version >= 3 else -1,
        metadata="méta",
        commit_timestamp_ms=1_700_000_000_000,
        expire_timestamp_ms=1_700_000_600_000 if version == 1 else None,
    )


def kafkas_group(version: int) -> StoredGroup:
    first = StoredMember(
        member_id="c-1",
        instance_id="i" if version >= 3 else None,
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=60_000 if version >= 1 else 10_000,
        session_timeout_ms=10_000,
        subscription=b"\1\2",
        assignment=b"\3",
    )
    second = StoredMember(
        member_id="c-2",
        instance_id=None,
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=first.rebalance_timeout_ms,
        session_timeout_ms=10_000,
        subscription=b"\1\2",
        assignment=b"",
    )
    since_ms = 1_700_000_000_001 if version >= 2 else None
    return StoredGroup("consumer", 4, "range", "c-1", since_ms, (first, second))


@pytest.mark.rule("OFF-8")
def test_offset_key_is_written_in_version_1_and_read_in_version_0_too():
    key = OffsetKey("g", "tö", 7)
    assert encode_offset_key(key).hex() == "0001000167000374c3b600000007"
    assert decode_key(bytes.fromhex("0001000167000374c3b600000007")) == key
    assert decode_key(bytes.fromhex("0000000167000374c3b600000007")) == key


@pytest.mark.rule("OFF-9")
def test_group_key_is_version_2():
    assert encode_group_key("g").hex() == "0002000167"
    assert decode_key(bytes.fromhex("0002000167")) == GroupKey("g")


@pytest.mark.rule("OFF-9")
@pytest.mark.parametrize("version", [3, 11, -1])
def test_key_of_an_unknown_version_is_nothing_we_know(version):
    assert decode_key(version.to_bytes(2, "big", signed=True) + b"\0\1g") is None


@pytest.mark.rule("OFF-8")
@pytest.mark.parametrize("version", OFFSET_VALUES)
def test_offset_value_of_every_version_is_read(version):
    assert decode_offset_value(bytes.fromhex(OFFSET_VALUES[version])) == kafkas_offset(version)


@pytest.mark.rule("OFF-8")
def test_offset_value_is_written_in_version_3():
    assert encode_offset_value(kafkas_offset(3)).hex() == OFFSET_VALUES[3]


@pytest.mark.rule("OFF-8")
def test_offset_value_with_an_expiry_of_its_own_is_written_in_version_1():
    assert encode_offset_value(kafkas_offset(1)).hex() == OFFSET_VALUES[1]


@pytest.mark.rule("OFF-9")
@pytest.mark.parametrize("version", GROUP_VALUES)
def test_group_value_of_every_version_is_read(version):
    assert decode_group_value(bytes.fromhex(GROUP_VALUES[version])) == kafkas_group(version)


@pytest.mark.rule("OFF-9")
def test_group_value_is_written_in_version_3():
    assert encode_group_value(kafkas_group(3)).hex() == GROUP_VALUES[3]


@pytest.mark.rule("OFF-9")
@pytest.mark.parametrize("version", EMPTY_GROUP_VALUES)
def test_empty_group_has_neither_protocol_nor_leader(version):
    since_ms = 1_700_000_000_001 if version >= 2 else None
    group = StoredGroup("consumer", 5, None, None, since_ms, ())
    assert decode_group_value(bytes.fromhex(EMPTY_GROUP_VALUES[version])) == group
    if version == 3:
        assert encode_group_value(group).hex() == EMPTY_GROUP_VALUES[3]


@given(groups)
def test_a_group_reads_as_it_was_written(group):
    assert decode_group_value(encode_group_value(group)) == group


@given(
    st.builds(CommittedOffset, int64s, int32s, texts, int64s)
    | st.builds(CommittedOffset, int64s, st.just(-1), texts, int64s, int64s)
)
def test_an_offset_reads_as_it_was_written(committed):
    assert decode_offset_value(encode_offset_value(committed)) == committed


@given(st.sampled_from([decode_key, decode_group_value, decode_offset_value]), st.data())
def test_damaged_bytes_are_refused_and_do_nothing_worse(decode, data):
    whole = bytes.fromhex(data.draw(st.sampled_from([*GROUP_VALUES.values(), "0001000167000374"])))
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + data.draw(st.binary(max_size=6))
    with contextlib.suppress(RemoteProtocolError):
        decode(damaged)


@pytest.mark.parametrize("decode", [decode_group_value, decode_offset_value])
def test_value_of_an_unknown_version_is_refused(decode):
    with pytest.raises(RemoteProtocolError, match="unknown version 5"):
        decode(b"\0\5" + bytes(60))


def test_later_fields_of_a_flexible_value_are_skipped():
    value = bytes.fromhex(EMPTY_GROUP_VALUES[4][:-2]) + b"\1\0\2ab"
    assert decode_group_value(value).generation == 5


def test_subscription_is_read_up_to_its_topics():
    assert subscribed_topics(subscription("a", "b") + b"whatever comes later") == {"a", "b"}
