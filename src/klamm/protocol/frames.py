"""Requests and answers as whole frames.

A frame on the wire is an int32 size and that many bytes. What is decoded here has already lost its
size, because whoever reads the socket needs it first; what is encoded here begins with it, so that
it can be sent as it is.
"""

from typing import Any, Final, NamedTuple

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.encoding import Values, encode_parts
from klamm.protocol.fetch import decode_fetch_response, fetch_request
from klamm.protocol.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    framed,
)
from klamm.protocol.produce import decode_produce_request
from klamm.protocol.schemas import Kind, message_reader, message_schema
from klamm.protocol.unknown_tags import without_unknown_tags

#: Cleaning is slow, so that it must not be worth an attacker's while.
_CLEANED_BYTES_MAX: Final = 1 << 20


class Request(NamedTuple):
    """A request that was read.

    `body` is the dataclass of the message in the request's version, except for Produce and Fetch,
    whose requests have a form of their own that does not depend on the version. It is None only
    for an ApiVersions request of a version that is not known, which is answered all the same
    (API-5).
    """

    header: RequestHeader
    body: Any


def decode_request(frame: bytes | memoryview) -> Request:
    """Read one request; raises RemoteProtocolError for whatever cannot be read.

    Bytes after the body are ignored (FRM-5). The records of a Produce request are not copied: they
    are good for as long as `frame` is left alone.
    """
    view = memoryview(frame).toreadonly()
    header, at = decode_request_header(view)
    key, version = header.api_key, header.api_version
    if version > APIS[key].max_version:
        return Request(header, None)
    if key == ApiKey.PRODUCE:
        return Request(header, decode_produce_request(view, at, version))
    body = _read_body(view, at, header, "request")
    return Request(header, fetch_request(body, version) if key == ApiKey.FETCH else body)


def encode_request(header: RequestHeader, values: Values) -> bytes:
    """A whole request, size first, from values as `klamm.protocol.encoding` describes them."""
    parts = [encode_request_header(header)]
    schema = message_schema(header.api_key, header.api_version, "request")
    encode_parts(schema, values, parts.append)
    return framed(parts)


def decode_response(header: RequestHeader, frame: bytes | memoryview) -> Any:
    """The body of the answer to a request of ours, with Fetch in its own form."""
    view = memoryview(frame).toreadonly()
    at = decode_response_header(header, view)
    if header.api_key == ApiKey.FETCH:
        return decode_fetch_response(view, at, header.api_version)
    return _read_body(view, at, header, "response")


def encode_response(header: RequestHeader, values: Values) -> bytes:
    """A whole answer to the request with this header, size first.

    Produce and Fetch have `encode_produce_response` and `encode_fetch_response`.
    """
    key, version = header.api_key, header.api_version
    if version > APIS[key].max_version:
        version = 0  # an ApiVersions request from the future is answered in the oldest form
    parts = [encode_response_header(header)]
    encode_parts(message_schema(key, version, "response"), values, parts.append)
    return framed(parts)


def _read_body(view: memoryview, at: int, header: RequestHeader, kind: Kind) -> Any:
    key, version = header.api_key, header.api_version
    read = message_reader(key, version, kind)
    try:
        try:
            body, _ = read(view, at)
        except KeyError:  # a tag that kio does not know
            if len(view) > _CLEANED_BYTES_MAX:
                raise
            schema = message_schema(key, version, kind)
            body, _ = read(without_unknown_tags(schema, view, at), 0)
    except Exception as error:  # kio raises a handful of unrelated types for bytes it cannot read
        raise RemoteProtocolError(
            f"{APIS[key].name} {kind} version {version} cannot be read: {error}"
        ) from error
    return body
