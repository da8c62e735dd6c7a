"""The codecs: other people's encoders, broken data, and data that grows without end."""

import gzip
import io
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
import snappy  # type: ignore[import-untyped]
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import ApiError, ErrorCode
from headrace.record import compression, zstd_contexts
from headrace.record.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    compress,
    decompress,
)
from tests.unit.record.batch_scenario import codecs

SIZE_MAX = 1 << 24
TEXT = b"".join(b'{"user": %d, "path": "/a/%d"}\n' % (i * 7919, i % 97) for i in range(20_000))
XERIAL = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2


def xerial(data: bytes, block_size: int = 32 * 1024) -> bytes:
    out = XERIAL
    for at in range(0, len(data), block_size):
        block = bytes(snappy.compress(data[at : at + block_size]))
        out += len(block).to_bytes(4, "big") + block
    return out


def named_gzip(data: bytes) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile("batch.bin", "wb", fileobj=out) as file:
        file.write(data)
    return out.getvalue()


def lz4_frame(data: bytes, **options: object) -> bytes:
    return bytes(lz4.frame.compress(data, block_linked=False, **options))


def zstd_raw_frame(data: bytes, window_log: int) -> bytes:
    """One raw block under a window of this size."""
    window = (window_log - 10 << 3).to_bytes(1, "little")
    block = (len(data) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\x00" + window + block + data


def refused(codec: int, data: bytes, size_max: int = SIZE_MAX) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        decompress(codec, data, size_max)
    return caught.value.code


SMALL = b"some plain text, some plain text"
FOREIGN = {
    "gzip": (GZIP, gzip.compress(TEXT), TEXT),
    "gzip, several members": (GZIP, gzip.compress(TEXT) + gzip.compress(SMALL), TEXT + SMALL),
    "gzip with a file name": (GZIP, named_gzip(SMALL), SMALL),
    "snappy": (SNAPPY, bytes(snappy.compress(TEXT)), TEXT),
    "snappy, nothing in it": (SNAPPY, bytes(snappy.compress(b"")), b""),
    "snappy as Java frames it": (SNAPPY, xerial(TEXT), TEXT),
    "snappy, one small block": (SNAPPY, xerial(SMALL), SMALL),
    "snappy, no block": (SNAPPY, xerial(b""), b""),
    "snappy, two streams": (SNAPPY, xerial(TEXT) + xerial(SMALL), TEXT + SMALL),
    "lz4": (LZ4, lz4_frame(TEXT), TEXT),
    "lz4 without a size": (LZ4, lz4_frame(TEXT, store_size=False), TEXT),
    "lz4 with checksums": (
        LZ4,
        lz4_frame(TEXT, content_checksum=True, block_checksum=True),
        TEXT,
    ),
    "lz4 in 4 MiB blocks": (LZ4, lz4_frame(TEXT, block_size=lz4.frame.BLOCKSIZE_MAX4MB), TEXT),
    "lz4, several frames": (LZ4, lz4_frame(TEXT) + lz4_frame(SMALL), TEXT + SMALL),
    "zstd": (ZSTD, zstandard.ZstdCompressor().compress(TEXT), TEXT),
    "zstd without a size": (
        ZSTD,
        zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(TEXT),
        TEXT,
    ),
    "zstd, several frames": (
        ZSTD,
        zstandard.ZstdCompressor().compress(TEXT) + zstandard.ZstdCompressor().compress(SMALL),
        TEXT + SMALL,
    ),
    "zstd, a raw block": (ZSTD, zstd_raw_frame(SMALL, 20), SMALL),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_another_encoder_made_is_read(name: str) -> None:
    codec, data, plain = FOREIGN[name]
    assert decompress(codec, data, SIZE_MAX) == plain
    assert decompress(codec, memoryview(b"x" + data)[1:], SIZE_MAX) == plain
    assert decompress(codec, data, len(plain)) == plain


@pytest.mark.parametrize("name", FOREIGN)
def test_one_byte_more_than_is_allowed_is_too_large(name: str) -> None:
    codec, data, plain = FOREIGN[name]
    if plain:
        assert refused(codec, data, len(plain) - 1) == ErrorCode.MESSAGE_TOO_LARGE
        assert refused(codec, data, 1) == ErrorCode.MESSAGE_TOO_LARGE


@given(codec=codecs, data=st.binary(max_size=100_000), level=st.sampled_from([None, 1, 9]))
@settings(max_examples=60, deadline=None)
def test_what_is_compressed_decompresses_to_the_same(
    codec: int, data: bytes, level: int | None
) -> None:
    assert decompress(codec, compress(codec, data, level), SIZE_MAX) == data


def test_what_we_compress_others_read() -> None:
    assert gzip.decompress(compress(GZIP, TEXT)) == TEXT
    assert lz4.frame.decompress(compress(LZ4, TEXT)) == TEXT
    assert zstandard.ZstdDecompressor().decompress(compress(ZSTD, TEXT)) == TEXT
    assert compress(SNAPPY, TEXT)[:16] == XERIAL
    assert compress(NONE, TEXT) is TEXT


@pytest.mark.parametrize("level", [None, 1, 9, 12])
def test_our_lz4_blocks_are_independent_because_java_reads_no_others(level: int | None) -> None:
    frame = compress(LZ4, TEXT, level)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0xE0 == 0x60


@settings(max_examples=300)
@given(
    data=st.sampled_from(
        [b"", SMALL, TEXT[:70_000], TEXT, bytes(3_000_000), random.Random(1).randbytes(500)]
    ),
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=2),
    cut=st.one_of(st.none(), st.integers(0, 1 << 20)),
    more=st.sampled_from([b"", b"\0", lz4_frame(SMALL, store_size=False)]),
    size_max=st.sampled_from([1, len(SMALL), 65_536, SIZE_MAX]),
)
def test_lz4_frames_of_clients_are_read_as_by_the_decoder_of_all_frames(
    data: bytes, changes: list[tuple[int, int]], cut: int | None, more: bytes, size_max: int
) -> None:
    """Such frames have blocks of 64 KiB without checksums, and take a shorter path."""
    frame = bytearray(lz4_frame(data, store_size=False) + more)
    for at, value in changes:
        frame[at % len(frame)] = value
    if cut is not None:
        del frame[cut % len(frame) :]

    def outcome() -> bytes | str:
        try:
            return decompress(LZ4, bytes(frame), size_max)
        except ApiError as error:
            return str(error)

    short = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_decompress_plain_lz4", lambda *_: None)
        assert short == outcome()


@pytest.mark.parametrize("data", [SMALL, TEXT])
def test_lz4_frames_of_clients_take_the_shorter_path(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = lz4_frame(data, store_size=False)
    monkeypatch.setattr(compression, "_decompress_growing", None)
    assert decompress(LZ4, frame, SIZE_MAX) == data


@settings(max_examples=300, deadline=None)
@given(
    data=st.sampled_from([b"", SMALL, TEXT[:30_000], TEXT[:65_536], bytes(65_536), TEXT[:70_000]]),
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=2),
    cut=st.one_of(st.none(), st.integers(0, 1 << 20)),
    size_max=st.sampled_from([1, len(SMALL), 65_536, SIZE_MAX]),
    fill=st.sampled_from([b"\0", b"\xff", b"x"]),
)
def test_the_reused_buffer_of_lz4_gives_the_results_of_a_new_one(
    data: bytes, changes: list[tuple[int, int]], cut: int | None, size_max: int, fill: bytes
) -> None:
    """Output of an earlier batch is never part of a result."""
    frame = bytearray(lz4_frame(data, store_size=False))
    for at, value in changes:
        frame[at % len(frame)] = value
    if cut is not None:
        del frame[cut % len(frame) :]

    def result() -> bytes | str:
        try:
            return decompress(LZ4, bytes(frame), size_max)
        except ApiError as error:
            return str(error)

    compression._lz4_buffers[:] = [memoryview(bytearray(fill * 65_536))]
    reused = result()
    assert len(compression._lz4_buffers) == 1
    compression._lz4_buffers.clear()
    assert reused == result()


def zstd_stream(data: bytes, level: int = 3) -> bytes:
    """A frame without the size of its content, as Java and librdkafka write it."""
    compressor = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


ZSTD_CONTENTS = [
    b"",
    SMALL,
    TEXT[:17_000],
    TEXT,
    bytes(3_000_000),
    random.Random(2).randbytes(300_000) * 2,
]


@settings(max_examples=400, deadline=None)
@given(
    data=st.sampled_from(ZSTD_CONTENTS),
    encode=st.sampled_from([zstd_stream, zstandard.ZstdCompressor(write_checksum=True).compress]),
    changes=st.lists(
        st.tuples(st.integers(0, 12) | st.integers(0, 1 << 20), st.integers(0, 255)), max_size=2
    ),
    cut=st.one_of(st.none(), st.integers(0, 1 << 20)),
    more=st.sampled_from([b"", b"\0", zstd_stream(SMALL), b"\x50\x2a\x4d\x18\0\0\0\0"]),
    size_max=st.sampled_from([1, len(SMALL), 65_536, SIZE_MAX]),
    fill=st.sampled_from([b"\0", b"\xff", b"x"]),
)
def test_zstd_with_a_reused_context_gives_the_results_of_cramjam(
    data: bytes,
    encode: Callable[[bytes], bytes],
    changes: list[tuple[int, int]],
    cut: int | None,
    more: bytes,
    size_max: int,
    fill: bytes,
) -> None:
    """Also if an earlier batch has left other bytes in the output buffer."""
    frame = bytearray(encode(data) + more)
    for at, value in changes:
        frame[at % len(frame)] = value
    if cut is not None:
        del frame[cut % len(frame) :]

    def result() -> bytes | str:
        try:
            return decompress(ZSTD, bytes(frame), size_max)
        except ApiError as error:
            return str(error)

    for context in zstd_contexts._contexts:
        context.buffer[:] = fill * len(context.buffer)
    reused = result()
    assert len(zstd_contexts._contexts) <= 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zstd_contexts, "_library", None)
        assert reused == result()


@pytest.mark.parametrize("encode", [zstd_stream, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("data", [SMALL, TEXT])
def test_zstd_frames_of_clients_are_decompressed_with_a_reused_context(
    encode: Callable[[bytes], bytes], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert zstd_contexts._library is not None, "This test needs the system's libzstd."
    monkeypatch.setattr(compression, "_decompress_growing", None)
    assert decompress(ZSTD, encode(data), SIZE_MAX) == data
    assert len(zstd_contexts._contexts) == 1


def test_a_zstd_frame_that_refers_to_data_before_its_window_is_corrupt() -> None:
    """Consumers keep only the window, so they could not read such a batch."""
    data = random.Random(2).randbytes(400_000) * 2
    frame = bytearray(zstd_stream(data))
    assert frame[5] == 21 - 10 << 3
    assert decompress(ZSTD, bytes(frame), SIZE_MAX) == data
    frame[5] = 17 - 10 << 3
    assert refused(ZSTD, bytes(frame)) == ErrorCode.CORRUPT_MESSAGE


def test_lz4_with_dependent_blocks_is_rejected_because_java_could_not_read_it() -> None:
    frame = bytes(lz4.frame.compress(TEXT, block_linked=True))
    assert refused(LZ4, frame) == ErrorCode.CORRUPT_MESSAGE


def test_plain_data_is_bounded_too() -> None:
    assert decompress(NONE, b"12345", 5) == b"12345"
    assert refused(NONE, b"123456", 5) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [5, 6, 7, -1, 99])
def test_a_codec_that_is_not_known_is_named_as_such(codec: int) -> None:
    assert refused(codec, b"x") == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(ApiError) as caught:
        compress(codec, b"x")
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("data", [b"", b"\x00", b"garbage garbage", b"\xff" * 100, SMALL])
def test_garbage_is_corrupt(codec: int, data: bytes) -> None:
    if codec == SNAPPY and data == b"\x00":
        assert decompress(codec, data, SIZE_MAX) == b""
    else:
        assert refused(codec, data) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_data_that_is_cut_off_or_followed_by_garbage_is_corrupt(codec: int) -> None:
    data = compress(codec, SMALL * 3)
    for size in range(1, len(data)):
        if codec == SNAPPY and size == len(XERIAL):
            continue
        assert refused(codec, data[:size]) == ErrorCode.CORRUPT_MESSAGE
    assert refused(codec, data + b"garbage!") == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("block", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x09x"])
def test_a_xerial_block_that_leaves_its_frame_is_corrupt(block: bytes) -> None:
    assert refused(SNAPPY, XERIAL + block) == ErrorCode.CORRUPT_MESSAGE


def test_a_snappy_block_that_announces_gigabytes_is_rejected_before_they_are_taken() -> None:
    assert refused(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 10) == ErrorCode.CORRUPT_MESSAGE
    assert refused(SNAPPY, b"\xff\xff\xff\xff\xff\xff\xff") == ErrorCode.CORRUPT_MESSAGE


def test_a_gzip_stream_that_refers_to_before_its_beginning_is_corrupt() -> None:
    """Some decoders find zeros there; zlib, and so every consumer, finds an error."""
    # A fixed block: the length 258 at the distance 1 as the first symbol, then the end.
    block = bytes.fromhex("1b0500")
    trailer = struct.pack("<II", zlib.crc32(bytes(258)), 258)
    assert refused(GZIP, gzip.compress(b"")[:10] + block + trailer) == ErrorCode.CORRUPT_MESSAGE


def test_a_version_of_xerials_framing_that_java_rejects_is_corrupt() -> None:
    framed = bytearray(compress(SNAPPY, SMALL))
    framed[8:12] = bytes(4)
    assert refused(SNAPPY, bytes(framed)) == ErrorCode.CORRUPT_MESSAGE


def test_a_gzip_trailer_that_lies_about_its_size_is_corrupt() -> None:
    data = gzip.compress(SMALL)[:-4] + b"\xff\xff\xff\x7f"
    assert refused(GZIP, data) == ErrorCode.CORRUPT_MESSAGE


def test_an_lz4_frame_that_announces_a_terabyte_is_corrupt() -> None:
    compressor = lz4.frame.LZ4FrameCompressor(block_linked=False)
    frame = compressor.begin(source_size=1 << 40) + compressor.compress(SMALL)
    frame += b"\x00\x00\x00\x00"
    assert refused(LZ4, frame) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("window_log", [28, 31, 38])
def test_a_zstd_window_of_gigabytes_is_corrupt(window_log: int) -> None:
    frame = zstd_raw_frame(SMALL, window_log)
    assert refused(ZSTD, frame) == ErrorCode.CORRUPT_MESSAGE
    assert refused(ZSTD, zstd_stream(SMALL) + frame) == ErrorCode.CORRUPT_MESSAGE


def test_a_zstd_frame_that_announces_a_terabyte_is_corrupt() -> None:
    single_segment = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little")
    assert refused(ZSTD, single_segment + b"\x01\x00\x00") == ErrorCode.CORRUPT_MESSAGE


EXPECTED_OUTCOMES = (ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


def outcome(codec: int, data: bytes, size_max: int) -> ErrorCode:
    try:
        plain = decompress(codec, data, size_max)
    except ApiError as error:
        return error.code
    assert len(plain) <= size_max
    return ErrorCode.NONE


@given(codec=codecs.filter(bool), data=st.binary(max_size=400))
@settings(max_examples=150, deadline=None)
def test_random_bytes_give_bytes_or_a_code(codec: int, data: bytes) -> None:
    assert outcome(codec, data, 1 << 16) in EXPECTED_OUTCOMES


@given(
    codec=codecs.filter(bool),
    flips=st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_a_mutation_gives_bytes_or_a_code(codec: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(compress(codec, TEXT[:3000]))
    for position, mask in flips:
        data[position % len(data)] ^= mask
    assert outcome(codec, bytes(data), 1 << 16) in EXPECTED_OUTCOMES


def bomb(codec: int, size: int) -> bytes:
    zeros = bytes(size)
    if codec == GZIP:
        return zlib.compress(zeros, 1, wbits=31)
    if codec == SNAPPY:
        return bytes(snappy.compress(zeros))
    if codec == LZ4:
        return lz4_frame(zeros, store_size=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    return zstandard.ZstdCompressor(level=1).compress(zeros)


MEASURE = """
import resource, sys
from headrace.model.errors import ApiError
from headrace.record.compression import compress, decompress

codec, size_max, paths = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
decompress(codec, compress(codec, b"warm"), 100)
bombs = [open(path, "rb").read() for path in paths]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
codes = []
for data in bombs:
    try:
        codes.append(str(len(decompress(codec, data, size_max))))
    except ApiError as error:
        codes.append(error.code.name)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, *codes)
"""


def measured(codec: int, size_max: int, bombs: list[bytes], where: Path) -> tuple[int, list[str]]:
    """Decompress in a separate process; return the growth of its peak memory and the outcomes."""
    paths = []
    for number, data in enumerate(bombs):
        path = where / f"bomb-{number}"
        path.write_bytes(data)
        paths.append(str(path))
    command = [sys.executable, "-c", MEASURE, str(codec), str(size_max), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, *codes = done.stdout.split()
    return int(grown) * 1024, codes


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=CODEC_NAMES[1:])
def test_a_bomb_takes_no_more_memory_than_its_limit(codec: int, tmp_path: Path) -> None:
    size_max = 4 << 20
    bombs = [bomb(codec, 64 << 20)]
    if codec == SNAPPY:
        bombs.append(xerial(bytes(32 << 20)))
    grown, codes = measured(codec, size_max, bombs, tmp_path)
    assert set(codes) == {"MESSAGE_TOO_LARGE"}
    # The decoder also needs memory: lz4 has two blocks of 4 MiB.
    assert grown <= size_max + (10 << 20)


def test_a_zstd_window_takes_no_memory_that_is_not_used(tmp_path: Path) -> None:
    frames = [zstd_raw_frame(SMALL, log) for log in (27, 31)]
    grown, codes = measured(ZSTD, 1 << 20, frames, tmp_path)
    assert codes == [str(len(SMALL)), "CORRUPT_MESSAGE"]
    assert grown <= 8 << 20


def test_the_library_still_says_that_a_buffer_is_full_in_the_words_we_look_for() -> None:
    with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
        cramjam.zstd.decompress_into(compress(ZSTD, SMALL), bytearray(3))
