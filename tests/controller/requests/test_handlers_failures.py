"""Requests for the controller that end in the middle, because its session does."""

import asyncio
import logging
from typing import Any

import pytest

from klamm.controller.requests.handlers import ControllerRequests
from klamm.errors import SessionLostError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import Request, decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode

HEADER = RequestHeader(ApiKey.CREATE_TOPICS, 7, 1, "somebody")
TOPIC = {
    "name": "orders",
    "num_partitions": 1,
    "replication_factor": 1,
    "assignments": [],
    "configs": [],
}


class EndingTopics:
    """Carries requests out, in part, until something happens."""

    def __init__(self, ending: Exception) -> None:
        self.asked = 0
        self._ending = ending

    async def create_topics(self, request: Request) -> Any:
        self.asked += 1
        raise self._ending

    delete_topics = create_partitions = create_topics


def answer_to_create(topics: EndingTopics) -> Any:
    requests = ControllerRequests(None, None, topics)  # type: ignore[arg-type]
    frame = encode_request(HEADER, {"topics": [TOPIC], "timeout": 0, "validate_only": False})
    return decode_response(HEADER, asyncio.run(requests.handle(frame[4:]))[4:])


@pytest.mark.rule("FRM-7")
@pytest.mark.parametrize("ending", [SessionLostError("the session is gone"), ValueError("a bug")])
def test_a_request_that_ends_in_the_middle_is_answered_and_not_tried_again(
    ending: Exception, caplog: pytest.LogCaptureFixture
):
    topics = EndingTopics(ending)
    with caplog.at_level(logging.ERROR):
        (created,) = answer_to_create(topics).topics
    assert (created.name, created.error_code) == ("orders", ErrorCode.UNKNOWN_SERVER_ERROR)
    assert topics.asked == 1
    assert str(ending) in caplog.text
    assert ("Traceback" in caplog.text) == isinstance(ending, ValueError)
