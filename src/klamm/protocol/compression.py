"""Compressing and decompressing the records of a batch, in the formats of Kafka's Java client."""

import enum
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, TypeAlias

import cramjam

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.primitives import Buffer

DecompressInto: TypeAlias = Callable[[Buffer, bytearray | mmap | memoryview], int]

#: The limit of decompression, which is larger than any sensible batch.
DECOMPRESSED_BYTES_MAX: Final = 128 << 20

_SMALL: Final = 16 << 10
_SMALL_DECOMPRESSED: Final = 64 << 10

# xerial's framing of snappy: magic, two version numbers, then blocks with their sizes before them.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 << 10

# An LZ4 frame of independent 64 KiB blocks without checksums, and the checksum of that statement.
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK: Final = 64 << 10
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = bytes(4)

#: The default of `compression.gzip.level`, which stands for the level 6 of zlib.
GZIP_LEVEL_DEFAULT: Final = -1
_ZLIB_LEVEL_DEFAULT: Final = 6
#: The default of `compression.lz4.level`: at this level Kafka uses LZ4's fast compressor, at any
#: other one its high compressor.
LZ4_LEVEL_DEFAULT: Final = 9
#: The range of levels of the high compressor; others are clamped.
_LZ4_HIGH_MIN: Final = 3
_LZ4_HIGH_MAX: Final = 12
ZSTD_LEVEL_DEFAULT: Final = 3
_LEVEL_DEFAULTS: Final = {1: GZIP_LEVEL_DEFAULT, 3: LZ4_LEVEL_DEFAULT, 4: ZSTD_LEVEL_DEFAULT}


class Codec(enum.IntEnum):
    """How the records of a batch are compressed; the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


#: The codecs that can write to memory of the caller's.
_INTO: Final[dict[int, DecompressInto]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


class CompressionError(RemoteProtocolError):
    """An unknown codec, or data that does not decompress (within the limit)."""


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records of one batch, at the codec's default level unless one is given."""
    if level is None:
        level = _LEVEL_DEFAULTS.get(codec, 0)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=_zlib_level(level)))
        case Codec.SNAPPY:
            return b"".join(_xerial_frame(data))
        case Codec.LZ4:
            return b"".join(_lz4_frame(data, level))
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))


def _zlib_level(level: int) -> int:
    return _ZLIB_LEVEL_DEFAULT if level == GZIP_LEVEL_DEFAULT else level


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Decompress the records of one batch; raises CompressionError beyond `limit` bytes."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.SNAPPY:
            return _decompress_snappy(data, limit)
        case Codec.GZIP | Codec.LZ4 | Codec.ZSTD:
            return _decompress(_INTO[codec], data, limit)
        case _:
            raise CompressionError(f"codec {codec} is not known")


def decompress_into(codec: int, data: Buffer, output: memoryview) -> int | None:
    """Decompress the records of one batch to the beginning of `output`; returns their size.

    None if they do not fit there, or do not decompress at all: `decompress` knows the reason.
    """
    into = _INTO.get(codec)
    if into is None:
        return None
    try:
        return into(data, output)
    except cramjam.DecompressionError:
        return None


def _decompress(decompress_into: DecompressInto, data: Buffer, limit: int) -> Buffer:
    def into(output: bytearray | mmap) -> Buffer:
        size = decompress_into(data, output)
        return memoryview(output)[:size].toreadonly()

    # The decompressed size is unknown. Small data gets a small buffer first; otherwise the buffer
    # has the size of the limit, as mapped memory that costs nothing until it is touched.
    if len(data) <= _SMALL:
        with suppress(cramjam.DecompressionError):
            return into(bytearray(min(_SMALL_DECOMPRESSED, limit)))
    try:
        return into(mmap(-1, limit, flags=MAP_PRIVATE | MAP_ANONYMOUS))
    except cramjam.DecompressionError as error:
        raise CompressionError(str(error)) from error


def _decompress_snappy(data: Buffer, limit: int) -> Buffer:
    # Java frames its blocks; librdkafka sends one bare block.
    is_framed = data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
    blocks = _xerial_blocks(data) if is_framed else iter([data])
    decompressed = []
    for block in blocks:
        try:
            limit -= cramjam.snappy.decompress_raw_len(block)
            if limit < 0:
                raise CompressionError("snappy announces more than is allowed")
            decompressed.append(bytes(cramjam.snappy.decompress_raw(block)))
        except cramjam.DecompressionError as error:
            raise CompressionError(str(error)) from error
    return b"".join(decompressed)


def _xerial_blocks(data: Buffer) -> Iterator[Buffer]:
    at = len(_XERIAL_HEADER)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if at + size > len(data):
            raise CompressionError("a snappy block is cut short")
        yield data[at : at + size]
        at += size


def _xerial_frame(data: Buffer) -> Iterator[bytes]:
    yield _XERIAL_HEADER
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        yield struct.pack(">i", len(block))
        yield block


def _lz4_block(block: bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(block, store_size=False))


def _lz4_high_compressor(level: int) -> Callable[[bytes], bytes]:
    """LZ4's slower compressor, which cramjam does not offer.

    pyarrow is imported here because a broker needs it for nothing else, and few topics ask for it.
    """
    import pyarrow as pa

    codec = pa.Codec("lz4_raw", compression_level=min(max(level, _LZ4_HIGH_MIN), _LZ4_HIGH_MAX))
    return lambda block: bytes(codec.compress(block, asbytes=True))


def _lz4_frame(data: Buffer, level: int) -> Iterator[bytes]:
    # cramjam's own frames link each block to the one before, which Java's reader refuses.
    pack = _lz4_block if level == LZ4_LEVEL_DEFAULT else _lz4_high_compressor(level)
    yield _LZ4_HEADER
    for start in range(0, len(data), _LZ4_BLOCK):
        block = bytes(data[start : start + _LZ4_BLOCK])
        packed = pack(block)
        is_smaller = len(packed) < len(block)
        yield struct.pack("<I", len(packed) if is_smaller else len(block) | _LZ4_STORED)
        yield packed if is_smaller else block
    yield _LZ4_END
