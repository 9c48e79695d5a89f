import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.failures import failure
from klamm.protocol.frames import decode_request, decode_response, encode_request, encode_response
from klamm.protocol.headers import RequestHeader
from klamm.protocol.schemas import message_schema

from .test_encoding import values

VERSIONS = [
    (key, version)
    for key, api in APIS.items()
    for version in range(api.first_decoded, api.max_version + 1)
]


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@given(data=st.data())
@settings(max_examples=1, deadline=None)
@pytest.mark.rule("FRM-7")
def test_every_request_can_be_told_that_it_failed(key, version, data):
    header = RequestHeader(key, version, 1, "")
    given_values = data.draw(values(message_schema(key, version, "request")))
    request = decode_request(encode_request(header, given_values)[4:])
    answer = failure(request.header, request.body, ErrorCode.UNKNOWN_SERVER_ERROR)
    if key == ApiKey.PRODUCE and request.body.acks == 0:
        assert answer is None
        return
    assert answer is not None
    assert decode_response(header, encode_response(header, answer)[4:]) is not None
