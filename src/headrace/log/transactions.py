"""Decodes transaction markers, and the index of aborted transactions.

Owns the format of `.txnindex` (34 bytes per entry) and of the end marker in a control batch.
`producers` has the open transactions.
"""

import struct
from typing import NamedTuple

from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import HEADER_SIZE, Batch, read_varint, read_varlong

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_VERSION = 0

ABORT = 0
COMMIT = 1


class AbortedTransaction(NamedTuple):
    """One transaction whose records a read_committed consumer must skip."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""
    last_stable_offset: int
    """The last stable offset when this marker was written.

    No earlier transaction has its marker above it.
    """


class EndMarker(NamedTuple):
    """The record of a control batch: it commits or aborts a producer's transaction."""

    is_abort: bool
    coordinator_epoch: int


def encode_aborted(transactions: list[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *transaction) for transaction in transactions)


def decode_aborted(data: bytes) -> list[AbortedTransaction]:
    complete_size = len(data) - len(data) % ENTRY_SIZE
    return [
        AbortedTransaction(*fields)
        for version, *fields in _ENTRY.iter_unpack(data[:complete_size])
        if version == _VERSION
    ]


def read_end_marker(batch: Batch, frame: bytes) -> EndMarker | None:
    """The marker in a control batch; None if its type is unknown or the batch is empty.

    `frame` starts with the first byte of the batch. Control batches are not compressed.
    """
    if batch.record_count <= 0:
        # Compaction has removed the marker: no record of its transaction is left in the log.
        return None
    try:
        _, at = read_varint(frame, HEADER_SIZE)
        _, at = read_varlong(frame, at + 1)
        _, at = read_varint(frame, at)
        key_size, at = read_varint(frame, at)
        if key_size < 4:
            return None
        kind = int.from_bytes(frame[at + 2 : at + 4], "big")
        value_size, at = read_varint(frame, at + key_size)
        if kind not in (ABORT, COMMIT):
            return None
        if value_size < 6 or at + 6 > len(frame):
            raise IndexError
        return EndMarker(kind == ABORT, int.from_bytes(frame[at + 2 : at + 6], "big", signed=True))
    except IndexError:
        raise ApiError(
            ErrorCode.INVALID_RECORD, "A control batch ends inside its record."
        ) from None
