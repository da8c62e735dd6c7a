"""Decodes a message of any schema into dicts.

Values are ints, strings, bytes, UUIDs (None for the zero UUID), lists and dicts. The bytes can come
from a hostile peer.

1. The memory that is allocated does not depend on a count in the message: items are read one by
   one. The items of all arrays of a message together are limited by its budget.
2. Decoding any bytes returns a message or raises MalformedRequest.
3. Bytes after the last field are not read.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

from headrace.wire.cursor import Cursor, MalformedRequest
from headrace.wire.schema import FIXED_CODES, Field, Shape, packer_of

Message: TypeAlias = dict[str, Any]

_ZERO_UUID = bytes(16)


class Budget:
    """The number of array items that the rest of a message may have."""

    __slots__ = ("items_left",)

    def __init__(self, items_max: int) -> None:
        self.items_left = items_max

    def take(self, count: int) -> None:
        self.items_left -= count
        if self.items_left < 0:
            raise MalformedRequest("a message contains too many items")


Read: TypeAlias = Callable[[Cursor, Budget], Any]
_Step: TypeAlias = Callable[[Cursor, Budget, Message], None]


@cache
def reader_of(shape: Shape) -> Callable[[Cursor, Budget], Message]:
    steps = [
        _fixed_step(run) if run[0].is_fixed else _field_step(run[0], shape.is_flexible)
        for run in shape.runs()
    ]
    if shape.is_flexible:
        steps.append(_tags_step(shape))

    def read(cursor: Cursor, budget: Budget) -> Message:
        message: Message = {}
        for step in steps:
            step(cursor, budget, message)
        return message

    return read


def _fixed_step(run: list[Field]) -> _Step:
    packer = packer_of(run)
    size = packer.size
    names = [field.name for field in run]

    def step(cursor: Cursor, budget: Budget, message: Message) -> None:
        values = packer.unpack_from(cursor.data, cursor.take(size))
        message.update(zip(names, values, strict=True))

    return step


def _field_step(field: Field, flexible: bool) -> _Step:
    name = field.name
    read = _field_reader(field, flexible)

    def step(cursor: Cursor, budget: Budget, message: Message) -> None:
        message[name] = read(cursor, budget)

    return step


def _tags_step(shape: Shape) -> _Step:
    tagged = shape.tagged()
    if not tagged:
        return lambda cursor, budget, message: cursor.skip_tags()
    readers = {field.tag: (field.name, _field_reader(field, flexible=True)) for field in tagged}

    def step(cursor: Cursor, budget: Budget, message: Message) -> None:
        message.update((field.name, field.default) for field in tagged)
        for _ in range(cursor.tag_count()):
            known = readers.get(cursor.uvarint())
            size = cursor.uvarint()
            end = cursor.take(size) + size
            if known is None:
                continue
            name, read = known
            tag_cursor = Cursor(cursor.data, end - size, end)
            tag_cursor.tags_left = cursor.tags_left
            message[name] = read(tag_cursor, budget)
            cursor.tags_left = tag_cursor.tags_left

    return step


def _field_reader(field: Field, flexible: bool) -> Read:
    if field.is_array:
        return _array_reader(field, flexible)
    if field.struct is not None:
        read_struct = reader_of(field.struct)
        # A byte before a nullable struct states whether it is present (KIP-893).
        return _nullable_struct_reader(read_struct) if field.is_nullable else read_struct
    return _value_reader(field, flexible)


def _value_reader(field: Field, flexible: bool, is_item: bool = False) -> Read:
    # A nullable array has no null items.
    nullable = field.is_nullable and not is_item
    match field.kind:
        case "string":
            return _string_reader(field.name, flexible, nullable)
        case "bytes" | "records":
            return _bytes_reader(field.name, flexible, nullable or field.kind == "records")
        case "uuid":
            return _read_uuid
        case _:
            return _fixed_reader(Struct(">" + FIXED_CODES[field.kind]))


def _fixed_reader(packer: Struct) -> Read:
    def read(cursor: Cursor, budget: Budget) -> Any:
        return packer.unpack_from(cursor.data, cursor.take(packer.size))[0]

    return read


def _string_reader(name: str, flexible: bool, nullable: bool) -> Read:
    def read(cursor: Cursor, budget: Budget) -> str | None:
        raw = cursor.string(flexible)
        if raw is None:
            _check_null(name, nullable)
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise MalformedRequest(f"the field {name} is not UTF-8") from None

    return read


def _bytes_reader(name: str, flexible: bool, nullable: bool) -> Read:
    def read(cursor: Cursor, budget: Budget) -> bytes | None:
        size = cursor.bytes_size(flexible)
        if size == -1:
            _check_null(name, nullable)
            return None
        at = cursor.take(size)
        return cursor.data[at : at + size]

    return read


def _read_uuid(cursor: Cursor, budget: Budget) -> UUID | None:
    at = cursor.take(16)
    raw = cursor.data[at : at + 16]
    return None if raw == _ZERO_UUID else UUID(bytes=raw)


def _array_reader(field: Field, flexible: bool) -> Read:
    name, nullable = field.name, field.is_nullable
    if field.struct is None and field.kind in FIXED_CODES:
        return _numbers_reader(field, flexible)
    if field.struct is not None:
        read_item: Read = reader_of(field.struct)
    else:
        read_item = _value_reader(field, flexible, is_item=True)

    def read(cursor: Cursor, budget: Budget) -> list[Any] | None:
        count = cursor.count(flexible, 1)
        if count == -1:
            _check_null(name, nullable)
            return None
        budget.take(count)
        return [read_item(cursor, budget) for _ in range(count)]

    return read


def _numbers_reader(field: Field, flexible: bool) -> Read:
    name, nullable, code = field.name, field.is_nullable, FIXED_CODES[field.kind]
    item_size = Struct(">" + code).size

    def read(cursor: Cursor, budget: Budget) -> list[int] | None:
        count = cursor.count(flexible, item_size)
        if count == -1:
            _check_null(name, nullable)
            return None
        budget.take(count)
        at = cursor.take(count * item_size)
        return list(Struct(f">{count}{code}").unpack_from(cursor.data, at))

    return read


def _nullable_struct_reader(read_struct: Read) -> Read:
    def read(cursor: Cursor, budget: Budget) -> Message | None:
        if cursor.read_i8() < 0:
            return None
        message: Message = read_struct(cursor, budget)
        return message

    return read


def _check_null(name: str, nullable: bool) -> None:
    if not nullable:
        raise MalformedRequest(f"the field {name} must not be null")
