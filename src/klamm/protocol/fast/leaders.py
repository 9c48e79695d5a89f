"""Hints at the current leader, which Produce and Fetch answers give to clients that went astray."""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from klamm.protocol.codec.primitives import encode_count, encode_string, encode_tagged

_INT32: Final = struct.Struct(">i")


class LeaderHint(NamedTuple):
    """Who leads a partition, -1 where unknown."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where to find a leader that was hinted at."""

    node_id: int
    host: str
    port: int
    rack: str | None


def encode_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The tagged section that ends an answer, with the endpoints as tag 0 if there are any."""
    if not endpoints:
        return b"\0"
    parts = [encode_count(len(endpoints), is_flexible=True)]
    for node_id, host, port, rack in endpoints:
        parts += (
            _INT32.pack(node_id),
            encode_string(host, is_flexible=True),
            _INT32.pack(port),
            encode_string(rack, is_flexible=True),
            b"\0",
        )
    return encode_tagged([(0, b"".join(parts))])
