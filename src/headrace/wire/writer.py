"""Encodes a dict as a message of any schema.

A value that does not fit its field is a bug of Headrace, and raises an exception.

1. Keys that the schema does not have are dropped, so that one response serves all versions.
2. A missing field has its default.
3. A tagged field with its default value is not written.
"""

from collections.abc import Callable, Mapping
from functools import cache
from struct import Struct
from typing import Any, TypeAlias

from headrace.wire.schema import FIXED_CODES, Field, Shape, packer_of

Write: TypeAlias = Callable[[bytearray, Any], None]

_pack_i16 = Struct(">h").pack
_pack_i32 = Struct(">i").pack


@cache
def writer_of(shape: Shape) -> Callable[[bytearray, Mapping[str, Any]], None]:
    steps = [
        _fixed_step(run) if run[0].is_fixed else _field_step(run[0], shape.is_flexible)
        for run in shape.runs()
    ]
    if shape.is_flexible:
        steps.append(_tags_step(shape))

    def write(out: bytearray, message: Mapping[str, Any]) -> None:
        for step in steps:
            step(out, message)

    return write


def put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def uvarint(value: int) -> bytes:
    out = bytearray()
    put_uvarint(out, value)
    return bytes(out)


def _fixed_step(run: list[Field]) -> Write:
    pack = packer_of(run).pack
    wanted = [(field.name, field.default) for field in run]

    def step(out: bytearray, message: Mapping[str, Any]) -> None:
        get = message.get
        out.extend(pack(*[get(name, default) for name, default in wanted]))

    return step


def _field_step(field: Field, flexible: bool) -> Write:
    name, default = field.name, field.default
    write = _field_writer(field, flexible)
    may_be_null = field.is_nullable or field.kind in ("records", "uuid")

    def step(out: bytearray, message: Mapping[str, Any]) -> None:
        value = message.get(name, default)
        if value is None and not may_be_null:
            raise ValueError(f"the field {name} must not be null")
        write(out, value)

    return step


def _tags_step(shape: Shape) -> Write:
    tagged = [(field, _field_writer(field, flexible=True)) for field in shape.tagged()]
    if not tagged:
        return lambda out, message: out.append(0)

    def step(out: bytearray, message: Mapping[str, Any]) -> None:
        present = [
            (field.tag or 0, write, message[field.name])
            for field, write in tagged
            if field.name in message and not _is_default(field, message[field.name])
        ]
        put_uvarint(out, len(present))
        for tag, write, value in present:
            encoded = bytearray()
            write(encoded, value)
            put_uvarint(out, tag)
            put_uvarint(out, len(encoded))
            out += encoded

    return step


def _is_default(field: Field, value: Any) -> bool:
    if field.is_array:
        return value is None if field.default is None else not value
    if field.struct is not None and value is not None and field.default is not None:
        return all(value.get(name, default) == default for name, default in field.default.items())
    return bool(value == field.default)


def _field_writer(field: Field, flexible: bool) -> Write:
    if field.is_array:
        return _array_writer(field, flexible)
    if field.struct is not None:
        write_struct = writer_of(field.struct)
        return _nullable_struct_writer(write_struct) if field.is_nullable else write_struct
    return _value_writer(field, flexible)


def _value_writer(field: Field, flexible: bool) -> Write:
    match field.kind:
        case "string":
            return _write_compact_string if flexible else _write_classic_string
        case "bytes" | "records":
            return _write_compact_bytes if flexible else _write_classic_bytes
        case "uuid":
            return _write_uuid
        case _:
            return _fixed_writer(Struct(">" + FIXED_CODES[field.kind]))


def _fixed_writer(packer: Struct) -> Write:
    def write(out: bytearray, value: Any) -> None:
        out += packer.pack(value)

    return write


def _write_compact_string(out: bytearray, text: str | None) -> None:
    _write_compact_bytes(out, None if text is None else text.encode())


def _write_classic_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
        return
    raw = text.encode()
    out += _pack_i16(len(raw))
    out += raw


def _write_compact_bytes(out: bytearray, raw: bytes | None) -> None:
    if raw is None:
        out.append(0)
        return
    put_uvarint(out, len(raw) + 1)
    out += raw


def _write_classic_bytes(out: bytearray, raw: bytes | None) -> None:
    if raw is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _pack_i32(len(raw))
    out += raw


def _write_uuid(out: bytearray, value: Any) -> None:
    out += bytes(16) if value is None else value.bytes


def _array_writer(field: Field, flexible: bool) -> Write:
    if field.struct is None and field.kind in FIXED_CODES:
        return _numbers_writer(FIXED_CODES[field.kind], flexible)
    if field.struct is not None:
        write_item: Write = writer_of(field.struct)
    else:
        write_item = _value_writer(field, flexible)

    def write(out: bytearray, items: Any) -> None:
        if items is None:
            _write_count(out, -1, flexible)
            return
        _write_count(out, len(items), flexible)
        for item in items:
            write_item(out, item)

    return write


def _numbers_writer(code: str, flexible: bool) -> Write:
    def write(out: bytearray, numbers: Any) -> None:
        if numbers is None:
            _write_count(out, -1, flexible)
            return
        _write_count(out, len(numbers), flexible)
        out += Struct(f">{len(numbers)}{code}").pack(*numbers)

    return write


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        put_uvarint(out, count + 1)
    else:
        out += _pack_i32(count)


def _nullable_struct_writer(write_struct: Write) -> Write:
    def write(out: bytearray, message: Any) -> None:
        if message is None:
            out.append(0xFF)
            return
        out.append(1)
        write_struct(out, message)

    return write
