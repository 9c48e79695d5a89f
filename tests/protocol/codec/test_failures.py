import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.failures import failure
from klamm.protocol.codec.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import values

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
    response = failure(request.header, request.body, ErrorCode.UNKNOWN_SERVER_ERROR)
    if key == ApiKey.PRODUCE and request.body.acks == 0:
        assert response is None
        return
    assert response is not None
    assert decode_response(header, encode_response(header, response)[4:]) is not None


@pytest.mark.parametrize(
    ("key", "version", "asked", "field"),
    [
        (
            ApiKey.CREATE_TOPICS,
            version,
            {
                "topics": [
                    {
                        "name": "t",
                        "num_partitions": 1,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                ],
                "timeout": 0,
                "validate_only": False,
            },
            "topics",
        )
        for version in (2, 5, 7)
    ]
    + [
        (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout": 0}, "responses"),
        (
            ApiKey.DELETE_TOPICS,
            6,
            {"topics": [{"name": "t", "topic_id": None}], "timeout": 0},
            "responses",
        ),
        (
            ApiKey.CREATE_PARTITIONS,
            3,
            {
                "topics": [{"name": "t", "count": 2, "assignments": None}],
                "timeout": 0,
                "validate_only": False,
            },
            "results",
        ),
    ],
)
@pytest.mark.rule("FRM-7")
def test_every_topic_of_a_failed_request_is_named_with_the_error(key, version, asked, field):
    header = RequestHeader(key, version, 1, "")
    request = decode_request(encode_request(header, asked)[4:])
    response = failure(request.header, request.body, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert response is not None
    decoded = decode_response(header, encode_response(header, response)[4:])
    (topic,) = getattr(decoded, field)
    assert (topic.name, topic.error_code) == ("t", ErrorCode.UNKNOWN_SERVER_ERROR)
