"""Requests and responses as whole frames.

A frame on the wire is an int32 size and that many bytes. Decoders take a frame without its size,
which the reader of the socket needs first; encoders return it with its size, ready to be sent.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS, KNOWN_APIS, ApiKey
from klamm.protocol.codec.cleaning import cleaned
from klamm.protocol.codec.encoding import Values, encode_parts
from klamm.protocol.codec.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    framed,
    sized,
)
from klamm.protocol.codec.large import read_large
from klamm.protocol.fast.control_decode import decode_leader_and_isr, decode_update_metadata
from klamm.protocol.fast.fetch import decode_fetch_request, decode_large_fetch_request
from klamm.protocol.fast.fetch_response import decode_fetch_response
from klamm.protocol.fast.produce import decode_produce_request, decode_short_produce_request
from klamm.protocol.schema._kio import InvalidUnicode
from klamm.protocol.schema.declare import Kind
from klamm.protocol.schema.lookup import message_reader, message_schema

Decoder: TypeAlias = Callable[[memoryview, int, int], Any]

#: Messages with a form of their own: body at an offset, version.
_REQUEST_DECODERS: Final[Mapping[int, Decoder]] = MappingProxyType(
    {
        ApiKey.PRODUCE: decode_short_produce_request,
        ApiKey.FETCH: decode_fetch_request,
        ApiKey.LEADER_AND_ISR: decode_leader_and_isr,
        ApiKey.UPDATE_METADATA: decode_update_metadata,
    }
)
#: The same, for requests that are read beside the event loop.
_LARGE_REQUEST_DECODERS: Final[Mapping[int, Decoder]] = MappingProxyType(
    {
        **_REQUEST_DECODERS,
        ApiKey.PRODUCE: decode_produce_request,
        ApiKey.FETCH: decode_large_fetch_request,
    }
)
_RESPONSE_DECODERS: Final[Mapping[int, Decoder]] = MappingProxyType(
    {ApiKey.FETCH: decode_fetch_response}
)

#: A limit for cleaning messages, which is slow and could be used for an attack.
_CLEANED_BYTES_MAX: Final = 1 << 20


#: How many pieces of a large response are joined to one part of it.
_JOINED_PIECES: Final = 4096


class Request(NamedTuple):
    """A decoded request.

    `body` is the dataclass of the message in the request's version. Produce and Fetch have a form
    that does not depend on the version; LeaderAndIsr and UpdateMetadata decode their topics lazily.
    It is None only for an ApiVersions request of an unknown version, which gets a response too
    (API-5).
    """

    header: RequestHeader
    body: Any


def decode_request(frame: bytes | memoryview) -> Request:
    """Decode a request; raises RemoteProtocolError if it is malformed.

    A Produce of many entries raises ManyEntriesError: it is for `decode_large_request`. Bytes after
    the body are ignored (FRM-5). The records of a Produce request are not copied: they are good for
    as long as `frame` is left alone.
    """
    return _decode_request(frame, _REQUEST_DECODERS, _read_with_kio)


def decode_large_request(frame: bytes | memoryview) -> Request:
    """Decode a request that may name very much; for another thread than the event loop's.

    Arrays are lists, which `klamm.protocol.codec.large.dismantle` takes apart afterwards.
    """
    return _decode_request(frame, _LARGE_REQUEST_DECODERS, _read_in_pieces)


def _decode_request(
    frame: bytes | memoryview,
    by_hand: Mapping[int, Decoder],
    read: Callable[[int, Kind], Decoder],
) -> Request:
    view = memoryview(frame).toreadonly()
    header, at = decode_request_header(view)
    key, version = header.api_key, header.api_version
    if version > APIS[key].max_version:
        return Request(header, None)
    decode = by_hand.get(key) or read(key, "request")
    return Request(header, _decode_body(decode, view, at, header, "request"))


def encode_request(header: RequestHeader, values: Values) -> bytes:
    """A whole request, size first; `klamm.protocol.codec.encoding` describes the values."""
    parts = [encode_request_header(header)]
    schema = message_schema(header.api_key, header.api_version, "request")
    encode_parts(schema, values, parts.append)
    return framed(parts)


def decode_response(header: RequestHeader, frame: bytes | memoryview) -> Any:
    """Decode the response to a request that klamm sent; Fetch has its own form."""
    view = memoryview(frame).toreadonly()
    at = decode_response_header(header, view)
    key = header.api_key
    decode = _RESPONSE_DECODERS.get(key) or _read_with_kio(key, "response")
    return _decode_body(decode, view, at, header, "response")


def decode_large_response(header: RequestHeader, frame: bytes | memoryview) -> Any:
    """The same for a response that may name very much; for another thread than the event loop's."""
    view = memoryview(frame).toreadonly()
    at = decode_response_header(header, view)
    return _decode_body(_read_in_pieces(header.api_key, "response"), view, at, header, "response")


def encode_response(header: RequestHeader, values: Values) -> bytes:
    """Encode the response to the request with this header, size included.

    Produce and Fetch have `encode_produce_response` and `encode_fetch_response`.
    """
    key, version = header.api_key, header.api_version
    if version > APIS[key].max_version:
        version = 0  # an ApiVersions request of an unknown version gets a response in version 0
    parts = [encode_response_header(header)]
    encode_parts(message_schema(key, version, "response"), values, parts.append)
    return framed(parts)


def encode_large_response(header: RequestHeader, values: Values) -> list[bytes]:
    """The same in several parts, so that no step of it copies or frees very much at once."""
    joined, pieces = [encode_response_header(header)], list[bytes]()

    def append(piece: bytes) -> None:
        pieces.append(piece)
        if len(pieces) == _JOINED_PIECES:
            joined.append(b"".join(pieces))
            pieces.clear()

    encode_parts(message_schema(header.api_key, header.api_version, "response"), values, append)
    joined.append(b"".join(pieces))
    return sized(joined)


def _decode_body(
    decode: Decoder, view: memoryview, at: int, header: RequestHeader, kind: Kind
) -> Any:
    key, version = header.api_key, header.api_version
    try:
        try:
            return decode(view, at, version)
        except (KeyError, InvalidUnicode):  # a tag that kio does not know, or no UTF-8
            if len(view) > _CLEANED_BYTES_MAX:
                raise
            readable = cleaned(message_schema(key, version, kind), view, at)
            return decode(memoryview(readable), 0, version)
    except RemoteProtocolError:
        raise
    except Exception as error:  # kio raises a handful of unrelated types for bytes it cannot read
        raise RemoteProtocolError(
            f"{KNOWN_APIS[key].name} {kind} version {version} cannot be read: {error}"
        ) from error


def _read_in_pieces(key: int, kind: Kind) -> Decoder:
    return lambda view, at, version: read_large(message_schema(key, version, kind), view, at)


def _read_with_kio(key: int, kind: Kind) -> Decoder:
    return lambda view, at, version: message_reader(key, version, kind)(view, at)[0]
