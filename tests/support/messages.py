"""Messages as bytes, for tests of what reads them."""

from typing import Any

from klamm.protocol.codec.encoding import Values, encode_parts


def encode_struct(schema: Any, values: Values) -> bytes:
    """The bytes of one message, without its header."""
    parts: list[bytes] = []
    encode_parts(schema, values, parts.append)
    return b"".join(parts)
