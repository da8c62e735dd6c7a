# HOT
"""Writes the zigzag varints of records, and computes their sizes.

For numbers of at most 63 bits, without creating an object. `batch` reads varints.
"""

from librt.strings import BytesWriter
from mypy_extensions import i64


def varint_size(value: i64) -> i64:
    """The number of bytes that `put_varint` writes."""
    value ^= value >> 63
    size: i64 = 1
    while value > 0x3F:
        value >>= 7
        size += 1
    return size


def put_varint(out: BytesWriter, value: i64) -> None:
    """Append the zigzag varint of a number."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
