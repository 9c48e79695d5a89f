"""Random and hostile bytes for every API and version, before authentication (SEC-15).

`KLAMM_FUZZ_ROUNDS=1000` makes a long run; the seed is `KLAMM_FUZZ_SEED`.
"""

import contextlib
import os
import random
import socket
import struct
import tracemalloc

import pytest

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import decode_request, encode_request
from klamm.protocol.codec.headers import RequestHeader

pytestmark = [pytest.mark.rule("SEC-15"), pytest.mark.timeout(0)]

ROUNDS = int(os.environ.get("KLAMM_FUZZ_ROUNDS", "3"))
SEED = os.environ.get("KLAMM_FUZZ_SEED", "1")
VERSIONS = [
    (key, version)
    for key, api in APIS.items()
    for version in range(api.min_version, api.max_version + 1)
]
#: Counts and lengths that promise far more than a frame can hold, in both encodings.
HOSTILE = (
    b"\x7f\xff\xff\xff",
    b"\x00\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x7f\xff",
)
FRAME_BYTES = 2048
MEMORY_BYTES_MAX = 16 << 20


def header(key: int, version: int) -> bytes:
    """The bytes of a request's header, without a body."""
    asked = RequestHeader(ApiKey(18), 0, 7, "fuzz")
    plain = encode_request(asked, {})[4:]
    name = plain[8:]
    flexible = b"\0" if APIS[ApiKey(key)].first_flexible <= version else b""
    return struct.pack(">hhi", key, version, 7) + name + flexible


def bodies(chance: random.Random) -> bytes:
    """Zeros, noise, or counts that are too high, and mixtures of them."""
    parts = []
    while sum(map(len, parts)) < chance.randrange(FRAME_BYTES):
        parts.append(chance.choice((bytes(chance.randrange(1, 9)), chance.randbytes(8), *HOSTILE)))
    return b"".join(parts)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_decoding_ends_with_a_request_or_an_error_and_takes_little_memory(key: int, version: int):
    chance = random.Random(f"{SEED}/{key}/{version}")
    frames = [header(key, version) + bodies(chance) for _ in range(ROUNDS)]
    frames += [header(key, version) + each * 8 for each in HOSTILE]
    tracemalloc.start()
    try:
        for frame in frames:
            with contextlib.suppress(RemoteProtocolError):
                decode_request(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX


@pytest.mark.real
def test_strangers_are_served_nothing_and_stop_nobody(secured):
    chance = random.Random(SEED)
    for key, version in VERSIONS:
        frame = header(key, version) + bodies(chance)
        with socket.create_connection(("127.0.0.1", secured.ports["SASL_PLAINTEXT"]), 20) as link:
            link.sendall(struct.pack(">i", len(frame)) + frame)
            if key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE):
                continue  # these may be answered
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(1) == b"", (key, version)
    with secured.raw("admin") as raw:
        assert raw.metadata().brokers
