import os

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.compression import Codec, CompressionError, compress, decompress

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=1000), times=st.sampled_from([1, 100, 1000]))
@settings(max_examples=20, deadline=None)
def test_what_was_compressed_comes_back(codec, data, times):
    assert bytes(decompress(codec, compress(codec, data * times))) == data * times


@pytest.mark.parametrize("codec", COMPRESSING)
def test_nothing_grows_beyond_the_limit(codec):
    bomb = compress(codec, bytes(10 << 20))
    assert len(bomb) < 1 << 20
    assert len(decompress(codec, bomb)) == 10 << 20
    with pytest.raises(CompressionError):
        decompress(codec, bomb, limit=(10 << 20) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.rule("LOG-3")
def test_what_does_not_decompress_is_refused(codec):
    packed = compress(codec, os.urandom(5000))
    for broken in (b"", b"nonsense", packed[:-5], packed[: len(packed) // 2]):
        with pytest.raises(CompressionError):
            decompress(codec, broken)


@pytest.mark.parametrize("codec", [5, 6, 7])
@pytest.mark.rule("LOG-3")
def test_unknown_codecs_are_refused(codec):
    with pytest.raises(CompressionError, match=f"codec {codec} is not known"):
        decompress(codec, b"")


def test_snappy_is_read_framed_as_java_writes_it_and_bare_as_librdkafka_does():
    data = os.urandom(50_000) * 2
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\0")
    assert bytes(decompress(Codec.SNAPPY, framed)) == data
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)))) == data


def test_lz4_blocks_are_independent_because_java_reads_no_others():
    is_independent = 0x20
    framed = compress(Codec.LZ4, bytes(200_000))
    assert framed[4] & is_independent
    assert bytes(cramjam.lz4.decompress(framed)) == bytes(200_000)


def test_frames_of_other_writers_are_read():
    data = os.urandom(1000) * 300
    assert bytes(decompress(Codec.LZ4, bytes(cramjam.lz4.compress(data)))) == data
    assert bytes(decompress(Codec.ZSTD, bytes(cramjam.zstd.compress(data, level=19)))) == data


@pytest.mark.parametrize(
    ("codec", "least", "most"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 17), (Codec.ZSTD, -100, 19)]
)
def test_a_higher_level_compresses_more(codec: Codec, least: int, most: int):
    data = b"".join(b"%d: the offset is %d\n" % (i, i * i % 977) for i in range(5000))
    sizes = []
    for level in (least, most):
        compressed = compress(codec, data, level)
        assert bytes(decompress(codec, compressed)) == data
        sizes.append(len(compressed))
    assert sizes[1] < sizes[0]


def test_the_default_levels_are_those_of_kafka():
    data = bytes(range(256)) * 100
    for codec, level in ((Codec.GZIP, -1), (Codec.LZ4, 9), (Codec.ZSTD, 3)):
        assert compress(codec, data) == compress(codec, data, level)
    assert compress(Codec.GZIP, data, -1) == compress(Codec.GZIP, data, 6)
