"""Whatever arrives is read or refused with RemoteProtocolError, soon and in little room."""

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS
from klamm.protocol.codec.frames import decode_request, decode_response
from klamm.protocol.codec.headers import decode_request_header
from klamm.protocol.fast.control_decode import LeaderAndIsrTopic
from tests.support.recorded_exchanges import EXCHANGES, Exchange

#: Counts and lengths that no frame can hold, as int32, as int16 and as unsigned varint.
FORGERIES = [b"\x7f\xff\xff\xff", b"\x7f\xff", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x08"]


def survives(decode: Callable[[], Any]) -> None:
    try:
        body = decode()
    except RemoteProtocolError:
        return
    for topic in getattr(getattr(body, "body", None), "topic_states", ()):
        if isinstance(topic, LeaderAndIsrTopic):
            assert len(list(topic.partition_states)) == len(topic.partition_states)


@st.composite
def mutated(draw: Any, frames: list[bytes]) -> bytes:
    frame = bytearray(draw(st.sampled_from(frames)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(frame)))
        match draw(st.sampled_from(["flip", "overwrite", "insert", "cut", "drop", "splice"])):
            case "flip":
                frame[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "overwrite":
                forgery = draw(st.sampled_from(FORGERIES))
                frame[at : at + len(forgery)] = forgery
            case "insert":
                frame[at:at] = draw(st.binary(max_size=8))
            case "cut":
                del frame[at:]
            case "drop":
                del frame[at : at + draw(st.integers(1, 8))]
            case "splice":
                other = draw(st.sampled_from(frames))
                frame[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(frame)


@given(frame=mutated([each.request for each in EXCHANGES]))
@settings(max_examples=500, deadline=None)
@pytest.mark.rule("FRM-4")
def test_damaged_requests_are_read_or_refused(frame):
    survives(lambda: decode_request(frame))


@given(frame=st.binary(max_size=100), key=st.sampled_from(sorted(APIS)), data=st.data())
@settings(max_examples=300, deadline=None)
@pytest.mark.rule("FRM-4")
def test_junk_after_a_plausible_header_is_read_or_refused(frame, key, data):
    api = APIS[key]
    version = data.draw(st.integers(api.first_decoded, api.max_version))
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff\0"
    survives(lambda: decode_request(head + frame))


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_responses_are_read_or_refused(data):
    exchange = data.draw(st.sampled_from([each for each in EXCHANGES if each.response]))
    header, _ = decode_request_header(memoryview(exchange.request))
    frame = data.draw(mutated([exchange.response]))
    survives(lambda: decode_response(header, header.correlation_id.to_bytes(4, "big") + frame[4:]))


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.rule("FRM-4")
def test_forged_counts_cost_neither_time_nor_memory(forgery):
    frames = {(each.key, each.version): each.request for each in EXCHANGES}.values()
    for frame in frames:  # so that no schema is imported while we measure
        decode_request(frame)
    tracemalloc.start()
    began = time.process_time()
    count = 0
    for frame in frames:
        for at in range(min(len(frame), 120)):
            forged = frame[:at] + forgery + frame[at + len(forgery) :]
            survives(lambda forged=forged: decode_request(forged))
            count += 1
    seconds = time.process_time() - began
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count > 3000
    assert peak_bytes < 5_000_000
    assert seconds / count < 0.005


@pytest.mark.parametrize("exchange", EXCHANGES[::8], ids=str)
def test_every_byte_may_be_anything(exchange: Exchange):
    for at in range(min(len(exchange.request), 150)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
            changed = bytearray(exchange.request)
            changed[at] = value
            survives(lambda changed=changed: decode_request(bytes(changed)))
