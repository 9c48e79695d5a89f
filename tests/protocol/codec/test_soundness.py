import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import decode_request
from klamm.protocol.codec.headers import RequestHeader, encode_request_header
from klamm.protocol.codec.soundness import check_sound
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import encode_struct, values
from tests.support.recorded_exchanges import SCHEMAS, schema_id


@pytest.mark.parametrize("schema", SCHEMAS[::9], ids=schema_id)
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_a_message_cut_anywhere_is_not_sound(schema, data):
    message = message_schema(*schema)
    written = encode_struct(message, data.draw(values(message)))
    for end in range(len(written)):
        with pytest.raises(RemoteProtocolError):
            check_sound(message, memoryview(written[:end]), 0)


#: Each of these had kio ask for tens of gigabytes, and the process end.
@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (ApiKey.ALTER_PARTITION, 0, "51253851650ae168bad59779d480e1c810ccb008218e698b638b45"),
        (ApiKey.LIST_GROUPS, 5, "c98ef8c968bfeee7ebab0c61633402edc6a3d65bfaea7d7f43045c2c"),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, "1609ffc4908287b73d1b8dbf19ef8d0f8c53de90"),
    ],
)
@pytest.mark.rule("FRM-4")
def test_a_forged_count_is_refused_before_memory_is_reserved_for_it(key, version, body):
    head = encode_request_header(RequestHeader(key, version, 0, ""))
    with pytest.raises(RemoteProtocolError):
        decode_request(head[:-1] + bytes.fromhex("00" + body))


@pytest.mark.rule("FRM-4")
def test_an_array_is_null_only_where_its_schema_says_so():
    legacy, compact = b"\xff\xff\xff\xff", b"\0"
    for version, null in ((1, legacy), (2, compact)):
        deletion = message_schema(ApiKey.DELETE_RECORDS, version, "request")
        with pytest.raises(RemoteProtocolError, match="topics is null"):
            check_sound(deletion, memoryview(null + bytes(5)), 0)
    for version, null in ((1, legacy), (9, compact)):
        metadata = message_schema(ApiKey.METADATA, version, "request")
        assert check_sound(metadata, memoryview(null + bytes(4)), 0) <= 5


@pytest.mark.parametrize("key", sorted(APIS))
@pytest.mark.rule("FRM-4")
def test_nothing_but_a_header_is_read_or_refused(key):
    api = APIS[key]
    for version in range(api.first_decoded, api.max_version + 1):
        message = message_schema(key, version, "request")
        for filler in (b"\xff", b"\x7f", b"\x00", b"\x01", b"\x80"):
            try:
                end = check_sound(message, memoryview(filler * 64), 0)
            except RemoteProtocolError:
                continue
            assert end <= 64
