"""The fetches of a follower that keeps up: the few bytes that change from one to the next.

One such fetch differs from the one before in its correlation id, in the epoch of its session and in
the positions of the partitions that it names. `SteadyFetchFormat` knows all the rest of it, so that
comparing bytes takes the place of decoding them at the leader, and copying them that of encoding
at the follower.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from klamm.protocol.codec.headers import RequestHeader, framed
from klamm.protocol.codec.primitives import encode_uvarint
from klamm.protocol.fast.fetch import (
    FIRST_WITH_TOPIC_IDS,
    REQUESTED,
    Chunk,
    FetchPartitionResponse,
    FetchRequest,
    FetchTopic,
    Placeholder,
    encode_fetch_request,
    encode_requested,
    request_topics_at,
)
from klamm.protocol.fast.fetch_response import ONE_TOPIC, ONE_TOPIC_END, RESULT

_INT32: Final = struct.Struct(">i")
_SIZE_BYTES: Final = 4
_CORRELATION_ID_AT: Final = 4
_CORRELATION_ID_END: Final = 8
_TOPIC_ID_BYTES: Final = 16
#: Counts of one byte are below this.
_SHORT: Final = 0x80
#: About this many partitions of a topic at most is a response packed.
RESULTS_MAX: Final = _SHORT - 2
#: A request of about 16 partitions.
_REQUEST_BYTES_MAX: Final = 600

#: A response up to its body: the size of the frame, correlation id and no tags.
_RESPONSE_HEAD: Final = struct.Struct(">iix")


class SteadyFetchRequest(NamedTuple):
    """What one request has of its own."""

    correlation_id: int
    session_epoch: int
    #: Topic id, and the fields of `REQUESTED`.
    partitions: list[tuple[bytes, tuple[int, ...]]]


class SteadyFetchFormat:
    """What the fetches of a session have in common, in bytes."""

    __slots__ = ("_end", "_epoch_at", "_head", "_key", "_session_id")

    def __init__(self, header: RequestHeader, request: FetchRequest) -> None:
        """Take everything from one request, but its partitions."""
        assert header.api_version >= FIRST_WITH_TOPIC_IDS
        empty = request._replace(topics=(), forgotten_topics=())
        frame = encode_fetch_request(header, empty)[_SIZE_BYTES:]
        topics_at = request_topics_at(header)
        self._key = frame[:_CORRELATION_ID_AT]
        self._epoch_at = topics_at - _INT32.size
        self._head = frame[_CORRELATION_ID_END : self._epoch_at]
        self._end = frame[topics_at + 1 :]
        self._session_id = request.session_id

    def request(
        self, correlation_id: int, session_epoch: int, topics: Sequence[FetchTopic]
    ) -> bytes:
        """A request that forgets nothing, size included."""
        parts = [
            self._key,
            _INT32.pack(correlation_id),
            self._head,
            _INT32.pack(session_epoch),
            encode_uvarint(len(topics) + 1),
        ]
        for topic in topics:
            parts += encode_requested(topic, FIRST_WITH_TOPIC_IDS)
        parts.append(self._end)
        return framed(parts)

    def read(self, frame: bytes) -> SteadyFetchRequest | None:
        """What is particular in a request; None if it differs in anything else."""
        if not (
            frame.startswith(self._key)
            and frame.startswith(self._head, _CORRELATION_ID_END)
            and frame.endswith(self._end)
            and len(frame) <= _REQUEST_BYTES_MAX
        ):
            return None
        at = self._epoch_at + _INT32.size
        partitions = []
        try:
            (session_epoch,) = _INT32.unpack_from(frame, self._epoch_at)
            topics = frame[at]
            at += 1
            for _ in range(topics - 1):
                topic_id = frame[at : at + _TOPIC_ID_BYTES]
                count = frame[at + _TOPIC_ID_BYTES]
                at += _TOPIC_ID_BYTES + 1
                for _ in range(count - 1):
                    fields = REQUESTED.unpack_from(frame, at)
                    at += REQUESTED.size
                    if fields[-1]:  # tags
                        return None
                    partitions.append((topic_id, fields))
                if not 0 < count < _SHORT or frame[at]:
                    return None
                at += 1
        except (IndexError, struct.error):
            return None
        if not 0 < topics < _SHORT or at + len(self._end) != len(frame):
            return None
        (correlation_id,) = _INT32.unpack_from(frame, _CORRELATION_ID_AT)
        return SteadyFetchRequest(correlation_id, session_epoch, partitions)

    def response(
        self,
        correlation_id: int,
        topic_id: bytes,
        entries: Sequence[tuple[FetchPartitionResponse, Placeholder | None]],
    ) -> list[Chunk]:
        """A response with results of one topic, which are no errors, and their records."""
        chunks: list[Chunk] = []
        pending = ONE_TOPIC.pack(0, 0, self._session_id, 2, topic_id, len(entries) + 1)
        size = _RESPONSE_HEAD.size - _SIZE_BYTES
        for entry, records in entries:
            partition, error, high_watermark, last_stable, log_start = entry[:5]
            pending += RESULT.pack(
                partition, error, high_watermark, last_stable, log_start, 0, -1
            ) + encode_uvarint(1 if records is None else records.size + 1)
            if records is not None:
                chunks += (pending, records)
                size += len(pending) + records.size
                pending = b""
            pending += b"\0"
        chunks.append(pending + ONE_TOPIC_END)
        size += len(pending) + len(ONE_TOPIC_END)
        first = chunks[0]
        assert isinstance(first, bytes), "records come after what is known about them"
        chunks[0] = _RESPONSE_HEAD.pack(size, correlation_id) + first
        return chunks
