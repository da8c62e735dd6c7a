"""Compresses and decompresses record batches, with bounded memory and in formats that Java reads.

Codec numbers are those of the batch attributes. The codec library is loaded at its first use.

1. `decompress` never returns or buffers more than `size_max` bytes, whatever size the data states.
   The buffer is small at first, and grows only when it is full.
2. Java and librdkafka can read the output of `compress`: lz4 blocks are independent (KIP-57),
   snappy uses xerial's framing.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.model.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from typing_extensions import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

DECOMPRESSED_SIZE_MAX: Final = 128 * 1024 * 1024
"""The default limit of the decompressed size of a batch."""

_FIRST_BUFFER_SIZE_MIN: Final = 64 * 1024
_FIRST_BUFFER_RATIO: Final = 8
_BUFFER_GROWTH: Final = 4

_BUFFER_FULL_TEXT: Final = "failed to write whole buffer"
"""The text of the library's error if the output does not fit. A test checks it."""

_PIECE_BYTES_MAX: Final = 1024 * 1024
_GZIP_ONLY: Final = 31
"""For zlib: the largest window, and a gzip header."""
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCKS_INDEPENDENT: Final = 0x20
_LZ4_PLAIN_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"
"""The header of frames of Java and librdkafka: independent blocks of 64 KiB, no checksums."""
_LZ4_BLOCK_SIZE_MAX: Final = 64 * 1024
_LZ4_BLOCKS_MAX: Final = 16
_LZ4_JAVA_FAST_LEVEL: Final = 9
"""Kafka's default level of lz4. Java uses its fast compressor for it, not level 9."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_VERSION_MIN: Final = 1
_XERIAL_BLOCK_SIZE: Final = 32 * 1024
_SNAPPY_RATIO_MAX: Final = 24
"""The largest valid ratio of a block: three bytes of snappy are at most 64 decompressed bytes."""

_lz4_buffers: Final[list[memoryview]] = []
"""Unused buffers. They are reused, because Python fills new ones with zeros."""


def decompress(codec: int, data: "Buffer", size_max: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    """The decompressed bytes, at most `size_max`.

    The content of consecutive frames or members is concatenated, as by the tools of each format.
    """
    view = memoryview(data)
    if codec == NONE:
        if len(view) > size_max:
            raise _too_large(size_max)
        return bytes(view)
    if codec not in (GZIP, SNAPPY, LZ4, ZSTD):
        raise _unknown_codec(codec)
    if codec == GZIP:
        return _decompress_gzip(view, size_max)
    import cramjam

    try:
        if codec == SNAPPY:
            return _decompress_snappy(view, size_max)
        if codec == ZSTD:
            from headrace.record.zstd_contexts import decompress_frame

            plain = decompress_frame(view, size_max)
            if plain is not None:
                return plain
            return _decompress_growing(cramjam.zstd.decompress_into, view, size_max)
        if codec == LZ4:
            plain = _decompress_plain_lz4(view, size_max)
            if plain is not None:
                return plain
        # Java cannot read dependent blocks (KIP-57). If such a batch were stored, no Java consumer
        # could read beyond it.
        if (
            bytes(view[:4]) == _LZ4_MAGIC
            and len(view) > 4
            and not view[4] & _LZ4_BLOCKS_INDEPENDENT
        ):
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "The lz4 frame has dependent blocks.")
        return _decompress_growing(cramjam.lz4.decompress_into, view, size_max)
    except cramjam.DecompressionError as error:
        raise _corrupt(codec, str(error)) from None


def _decompress_growing(
    decompress_into: Callable[[memoryview, memoryview], int], data: memoryview, size_max: int
) -> bytes:
    import cramjam

    size = min(size_max, max(_FIRST_BUFFER_SIZE_MIN, len(data) * _FIRST_BUFFER_RATIO))
    while True:
        # A BytesIO gives write access to its buffer and then returns it as bytes without a copy.
        output = io.BytesIO(bytes(size))
        try:
            with output.getbuffer() as buffer:
                written = decompress_into(data, buffer)
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL_TEXT not in str(error):
                raise
            if size >= size_max:
                raise _too_large(size_max) from None
            output.close()  # Free its memory before the larger one is allocated.
            size = min(size_max, size * _BUFFER_GROWTH)
            continue
        output.truncate(written)
        return output.getvalue()


def _decompress_plain_lz4(data: memoryview, size_max: int) -> bytes | None:
    """The content of a small frame in the format of Kafka's clients; None for other frames.

    The library's decoder of frames allocates its buffers at each call, which takes longer than
    decompressing the blocks. This decoder is used for all other frames, valid or not.
    """
    import cramjam

    if bytes(data[: len(_LZ4_PLAIN_HEADER)]) != _LZ4_PLAIN_HEADER:
        return None
    blocks: list[memoryview] = []
    at = len(_LZ4_PLAIN_HEADER)
    while size := int.from_bytes(data[at : at + 4], "little"):
        # The highest bit of the size marks a block that is not compressed.
        if size > _LZ4_BLOCK_SIZE_MAX or len(blocks) == _LZ4_BLOCKS_MAX:
            return None
        blocks.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if at + 4 != len(data):
        return None
    try:
        if len(blocks) == 1:
            return _decompress_lz4_block(blocks[0], size_max)
        output = io.BytesIO(bytes(min(size_max, len(blocks) * _LZ4_BLOCK_SIZE_MAX)))
        written = 0
        with output.getbuffer() as buffer:
            for block in blocks:
                end = written + _LZ4_BLOCK_SIZE_MAX
                written += cramjam.lz4.decompress_block_into(block, buffer[written:end])
    except cramjam.DecompressionError:
        return None
    output.truncate(written)
    return output.getvalue()


def _decompress_lz4_block(block: memoryview, size_max: int) -> bytes:
    import cramjam

    try:
        buffer = _lz4_buffers.pop()
    except IndexError:
        buffer = memoryview(bytearray(_LZ4_BLOCK_SIZE_MAX))
    try:
        # This fails if the block refers to bytes before its own output. So the result contains no
        # data of an earlier use of the buffer.
        return bytes(buffer[: cramjam.lz4.decompress_block_into(block, buffer[:size_max])])
    finally:
        _lz4_buffers.append(buffer)


def _decompress_gzip(data: "Buffer", size_max: int) -> bytes:
    """Decompress with zlib, as consumers do.

    Other libraries return zeros for back-references before the start of the data, so they would
    accept data that consumers reject.
    """
    import zlib

    output = io.BytesIO()
    unpacker = zlib.decompressobj(_GZIP_ONLY)
    while True:
        try:
            piece = unpacker.decompress(data, _PIECE_BYTES_MAX)
        except zlib.error as error:
            raise _corrupt(GZIP, str(error)) from None
        if output.tell() + len(piece) > size_max:
            raise _too_large(size_max)
        output.write(piece)
        if not unpacker.eof:
            data = unpacker.unconsumed_tail
            if not data and not piece:
                raise _corrupt(GZIP, "the data ends early")
        elif unpacker.unused_data:
            data = unpacker.unused_data
            unpacker = zlib.decompressobj(_GZIP_ONLY)
        else:
            return output.getvalue()


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    """Decompress one raw block, or several blocks in xerial's framing, which Java writes."""
    import cramjam

    is_framed = bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    blocks = _xerial_blocks(data) if is_framed else [data]
    total = 0
    for block in blocks:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > len(block) * _SNAPPY_RATIO_MAX:
            raise _corrupt(SNAPPY, "the size of a block is not valid")
        total += size
        if total > size_max:
            raise _too_large(size_max)
    output = io.BytesIO(bytes(total))
    with output.getbuffer() as buffer:
        at = 0
        for block in blocks:
            at += cramjam.snappy.decompress_raw_into(block, buffer[at:])
    if at != total:
        raise _corrupt(SNAPPY, "a block is shorter than its size")
    return output.getvalue()


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    at = 0
    while at < len(data):
        if bytes(data[at : at + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            # Several streams can follow each other; each begins with its own header.
            version = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
            if version < _XERIAL_VERSION_MIN:
                raise _corrupt(SNAPPY, f"unknown version {version} of the xerial framing")
            at += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if at + size > len(data) or size == 0:
            raise _corrupt(SNAPPY, "a block exceeds the frame")
        blocks.append(data[at : at + size])
        at += size
    if at != len(data):
        raise _corrupt(SNAPPY, "the frame ends in its header")
    return blocks


def compress(codec: int, data: bytes, level: int | None = None) -> bytes:
    """Compress in the format of Kafka's producer. The default level is Kafka's."""
    if codec == NONE:
        return data
    if codec not in (GZIP, SNAPPY, LZ4, ZSTD):
        raise _unknown_codec(codec)
    import cramjam

    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=6 if level in (None, -1) else level))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    if codec == LZ4:
        compressor = cramjam.lz4.Compressor(
            level=1 if level in (None, _LZ4_JAVA_FAST_LEVEL) else level,
            content_checksum=False,
            block_linked=False,
        )
        compressor.compress(data)
        return bytes(compressor.finish())
    pieces = [_XERIAL_HEADER]
    view = memoryview(data)
    for at in range(0, len(data), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK_SIZE]))
        pieces.append(len(block).to_bytes(4, "big"))
        pieces.append(block)
    return b"".join(pieces)


def _too_large(size_max: int) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE, f"The batch decompresses to more than {size_max} bytes."
    )


def _unknown_codec(codec: int) -> ApiError:
    return ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression codec {codec}.")


def _corrupt(codec: int, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.CORRUPT_MESSAGE, f"The {CODEC_NAMES[codec]} data is not valid: {reason[:200]}."
    )
