"""The headers of requests and responses."""

import struct
from typing import Final, NamedTuple

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS, ApiKey, request_header_version, response_header_version
from klamm.protocol.codec.primitives import Cursor, encode_string

_HEAD: Final = struct.Struct(">hhi")
#: API key, version and correlation id, and the length of the client id.
_USUAL_HEAD: Final = struct.Struct(">hhih")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
#: The header of a response as nearly all are: without tags.
_NO_TAGS: Final = struct.Struct(">ix")


#: The version of the header by key and version of a request that is decoded.
_HEADER_VERSIONS: Final = {
    (int(key), version): request_header_version(key, version)
    for key, api in APIS.items()
    for version in range(api.max_version + 1)
    if api.decodes(version)
}


class RequestHeader(NamedTuple):
    """The header of a request; it determines how the response is encoded."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


def decode_request_header(view: memoryview) -> tuple[RequestHeader, int]:
    """Decode a request header and find the position of the body; unknown APIs are refused.

    Only ApiVersions is accepted in versions beyond the table, because a client that is newer than
    the broker has to learn the broker's versions (API-5).
    """
    return _decode_usual(view) or _decode_any(view)


def _decode_usual(view: memoryview) -> tuple[RequestHeader, int] | None:
    """Decode a header as nearly all are, with a client id and without tags; None for any other."""
    if len(view) <= _USUAL_HEAD.size:
        return None
    key, version, correlation_id, length = _USUAL_HEAD.unpack_from(view)
    end = _USUAL_HEAD.size + length
    header_version = _HEADER_VERSIONS.get((key, version), 0)
    if not header_version or length < 0 or end >= len(view):
        return None
    client_id = str(view[_USUAL_HEAD.size : end], "utf-8", "replace")
    header = RequestHeader(key, version, correlation_id, client_id)
    if header_version == 1:
        return header, end
    return None if view[end] else (header, end + 1)


def _decode_any(view: memoryview) -> tuple[RequestHeader, int]:
    cursor = Cursor(view, 0, is_flexible=False)
    key, version, correlation_id = cursor.unpack(_HEAD)
    api = APIS.get(key)
    if api is None:
        raise RemoteProtocolError(f"API {key} is not supported")
    if not api.decodes(version) and not (key == ApiKey.API_VERSIONS and version > api.max_version):
        raise RemoteProtocolError(f"{api.name} version {version} is not supported")
    header_version = request_header_version(key, version)
    client_id = b""
    if header_version >= 1:
        # The client id keeps its old form in flexible headers too; null counts as empty (FRM-6).
        (length,) = cursor.unpack(_INT16)
        client_id = bytes(cursor.take(length)) if length != -1 else b""
    if header_version == 2:
        cursor.is_flexible = True
        cursor.tags()
    header = RequestHeader(key, version, correlation_id, client_id.decode(errors="replace"))
    return header, cursor.at


def encode_request_header(header: RequestHeader) -> bytes:
    """The header of a request of ours."""
    key, version, correlation_id, client_id = header
    header_version = request_header_version(key, version)
    head = _HEAD.pack(key, version, correlation_id)
    if header_version == 0:
        return head
    return head + encode_string(client_id, is_flexible=False) + b"\0" * (header_version - 1)


def decode_response_header(header: RequestHeader, view: memoryview) -> int:
    """Find the position of the body in a response; raises if it responds to another request."""
    key, version, awaited, _ = header
    is_flexible = response_header_version(key, version) == 1
    if is_flexible and view[: _NO_TAGS.size] == _NO_TAGS.pack(awaited):
        return _NO_TAGS.size
    cursor = Cursor(view, 0, is_flexible)
    (correlation_id,) = cursor.unpack(_INT32)
    if correlation_id != awaited:
        raise RemoteProtocolError(f"response {correlation_id} came where {awaited} was awaited")
    cursor.tags()
    return cursor.at


def encode_response_header(header: RequestHeader) -> bytes:
    """Encode the header of the response to this request."""
    key, version, correlation_id, _ = header
    return _INT32.pack(correlation_id) + b"\0" * response_header_version(key, version)


def framed(parts: list[bytes]) -> bytes:
    """The parts of a message as one frame, size first."""
    frame = b"".join(parts)
    return _INT32.pack(len(frame)) + frame


def sized(parts: list[bytes]) -> list[bytes]:
    """The parts of a message behind their size, not joined."""
    return [_INT32.pack(sum(map(len, parts))), *parts]
