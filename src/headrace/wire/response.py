"""Writes the parts of responses that the codecs of hot APIs share.  # HOT"""

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64, u8


def put_i16(out: BytesWriter, value: i64) -> None:
    write_i16_be(out, i16(value))


def put_i32(out: BytesWriter, value: i64) -> None:
    write_i32_be(out, i32(value))


def put_i64(out: BytesWriter, value: i64) -> None:
    write_i64_be(out, value)


def put_uvarint(out: BytesWriter, value: i64) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def put_count(out: BytesWriter, count: i64, flexible: bool) -> None:
    if flexible:
        put_uvarint(out, count + 1)
    else:
        put_i32(out, count)


def put_string(out: BytesWriter, raw: bytes, flexible: bool) -> None:
    if flexible:
        put_uvarint(out, len(raw) + 1)
    else:
        put_i16(out, len(raw))
    out.write(raw)


def put_nullable_string(out: BytesWriter, text: str | None, flexible: bool) -> None:
    if text is not None:
        put_string(out, text.encode(), flexible)
    elif flexible:
        out.append(0)
    else:
        put_i16(out, -1)


def finish_frame(out: BytesWriter, bytes_after: i64) -> bytes:
    """Write the length of a frame at its start. `bytes_after` more bytes of it follow."""
    size: i64 = len(out) - 4 + bytes_after
    out[0] = u8((size >> 24) & 0xFF)
    out[1] = u8((size >> 16) & 0xFF)
    out[2] = u8((size >> 8) & 0xFF)
    out[3] = u8(size & 0xFF)
    return out.getvalue()


def begin_response(correlation_id: i64, flexible: bool) -> BytesWriter:
    """A frame with an empty length and a response header."""
    out = BytesWriter()
    put_i32(out, 0)
    put_i32(out, correlation_id)
    if flexible:
        out.append(0)
    return out
