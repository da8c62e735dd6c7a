"""Batches for the tests of the package `record`: valid ones, and ways to damage them."""

import struct
from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

from headrace.record.batch import HEADER_SIZE, Batch, crc32c, read_batch, validate_records
from headrace.record.build import NewRecord, build_batch
from headrace.record.compression import decompress

NOW_MS: Final = 1_700_000_000_000
THREE: Final = [
    NewRecord(b"a", b"1", NOW_MS),
    NewRecord(b"b", b"2", NOW_MS + 5, (("trace", b"x"), ("empty", None))),
    NewRecord(b"c", None, NOW_MS + 3),
]

LENGTH_AT: Final = 8
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
MAX_TIMESTAMP_AT: Final = 35
RECORD_COUNT_AT: Final = 57

timestamps = st.integers(min_value=-1, max_value=10**15)
new_records = st.builds(
    NewRecord,
    st.none() | st.binary(max_size=80),
    st.none() | st.binary(max_size=300),
    timestamps,
    st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=4).map(
        tuple
    ),
)
record_lists = st.lists(new_records, min_size=1, max_size=90)
codecs = st.integers(min_value=0, max_value=4)


def put(batch: bytes, at: int, layout: str, number: int) -> bytes:
    """Overwrite one header field, and make the checksum right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, at, number)
    return sealed(bytes(changed))


def sealed(batch: bytes) -> bytes:
    return batch[:CRC_AT] + crc32c(batch[ATTRIBUTES_AT:]).to_bytes(4, "big") + batch[ATTRIBUTES_AT:]


def with_records(payload: bytes, count: int, **fields: int) -> bytes:
    """A batch around record bytes that are written by hand."""
    length = HEADER_SIZE - 12 + len(payload)
    body = struct.pack(
        ">hiqqqhii",
        fields.get("attributes", 0),
        count - 1,
        fields.get("base_timestamp", NOW_MS),
        fields.get("max_timestamp", NOW_MS),
        -1,
        -1,
        -1,
        count,
    )
    return sealed(struct.pack(">qiibI", 0, length, -1, 2, 0) + body + payload)


def admitted(data: bytes, keys_required: bool = False, size_max: int = 1 << 24) -> Batch:
    """What a broker does with the batch of a client before it stores it."""
    batch = read_batch(data, 0, len(data))
    if batch.codec() == 0:
        validate_records(batch, batch.frame, batch.start + HEADER_SIZE, batch.end, keys_required)
    else:
        payload = decompress(batch.codec(), batch.payload(), size_max)
        validate_records(batch, payload, 0, len(payload), keys_required)
    return batch


def stored_bytes(batch: Batch, base_offset: int = 0, leader_epoch: int = 0) -> bytes:
    return batch.prefix(base_offset, leader_epoch) + batch.frame[batch.start + 16 : batch.end]


def sample(records: Sequence[NewRecord] = THREE, codec: int = 0) -> bytes:
    return build_batch(records, codec=codec)
