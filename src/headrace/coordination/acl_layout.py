"""ACLs in the store. Does no I/O.

    /acl/NN   {"acls": [[type, pattern, name, principal, host, operation, permission], ...]}

1. NN is 00 to 3f, from the CRC-32 of type, pattern and name. So a few nodes contain many ACLs, and
   all ACLs of one resource pattern are in the same node.
2. A node that contains an unknown value cannot be decoded. The reader must then allow nothing,
   because the ACL with this value can be one that denies.
"""

from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar
from zlib import crc32

from headrace.coordination.layout import (
    ACLS,
    LayoutError,
    decode_document,
    encode_document,
)
from headrace.model.acls import Acl, Operation, PatternType, Permission, ResourceType, title

NODES = 64

E = TypeVar("E", bound=IntEnum)


def acl_node(acl: Acl) -> int:
    """The number of the node that stores an ACL."""
    return crc32(f"{title(acl.type)},{title(acl.pattern)},{acl.name}".encode()) % NODES


def acl_path(node: int) -> str:
    return f"{ACLS}/{node_name(node)}"


def node_name(node: int) -> str:
    return f"{node:02x}"


def encode_acls(acls: Iterable[Acl]) -> bytes:
    return encode_document({"acls": [to_row(acl) for acl in sorted(acls)]})


def decode_acls(path: str, data: bytes) -> tuple[Acl, ...]:
    try:
        rows = decode_document(path, data)["acls"]
        return tuple(from_row(row) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        raise LayoutError(f"{path} contains an ACL that cannot be decoded: {error!r}.") from None


def to_row(acl: Acl) -> list[str]:
    return [
        title(acl.type),
        title(acl.pattern),
        acl.name,
        acl.principal,
        acl.host,
        title(acl.operation),
        title(acl.permission),
    ]


def from_row(row: Any) -> Acl:
    """Raises KeyError, TypeError or ValueError if the row is not valid."""
    type_, pattern, name, principal, host, operation, permission = row
    if not all(isinstance(each, str) for each in (name, principal, host)):
        raise TypeError(f"{row!r} contains a value that is not text")
    return Acl(
        _titles(ResourceType)[type_],
        _titles(PatternType)[pattern],
        name,
        principal,
        host,
        _titles(Operation)[operation],
        _titles(Permission)[permission],
    )


@cache
def _titles(values: type[E]) -> dict[str, E]:
    return {title(each): each for each in values}
