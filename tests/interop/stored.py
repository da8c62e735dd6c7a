"""What a broker really stored: the headers of its batches, read with a Fetch of one's own.

Written out by hand, so that neither a client nor the broker's own codecs can be wrong with it.
"""

import struct
from dataclasses import dataclass

from tests.interop.security import raw_connection

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_BATCH = struct.Struct(">qiibIhiqqqhii")


@dataclass(frozen=True)
class BatchHeader:
    base_offset: int
    magic: int
    codec: str
    is_transactional: bool
    is_control: bool
    producer_id: int
    base_sequence: int
    count: int


def stored_batches(address: str, topic: str, partition: int = 0) -> list[BatchHeader]:
    """The first batches of a partition, from one response of up to 32 MiB."""
    headers: list[BatchHeader] = []
    records = _fetch(address, topic, partition)
    at = 0
    while at + _BATCH.size <= len(records):
        base, length, _epoch, magic, _crc, attributes, *_deltas = _BATCH.unpack_from(records, at)
        producer_id, _producer_epoch, sequence, count = _deltas[-4:]
        headers.append(
            BatchHeader(
                base_offset=base,
                magic=magic,
                codec=CODECS[attributes & 7],
                is_transactional=bool(attributes & 16),
                is_control=bool(attributes & 32),
                producer_id=producer_id,
                base_sequence=sequence,
                count=count,
            )
        )
        at += 12 + length
    return headers


def _fetch(address: str, topic: str, partition: int) -> bytes:
    name = topic.encode()
    size_max = 32 * 1024 * 1024
    request = struct.pack(">hhih", 1, 4, 7, -1)  # Fetch 4, correlation id 7, no client id.
    request += struct.pack(">iiiib", -1, 0, 0, size_max, 0)
    request += struct.pack(f">ih{len(name)}s", 1, len(name), name)
    request += struct.pack(">iiqi", 1, partition, 0, size_max)
    with raw_connection(address) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        stream = connection.makefile("rb")
        (length,) = struct.unpack(">i", stream.read(4))
        answer = stream.read(length)
    correlation_id, _throttle, topics, name_length = struct.unpack_from(">iiih", answer)
    assert (correlation_id, topics) == (7, 1)
    at = 14 + name_length
    partitions, index, error, _high_watermark, _last_stable, aborted = struct.unpack_from(
        ">iihqqi", answer, at
    )
    assert (partitions, index, error) == (1, partition, 0)
    at += 30 + 16 * max(aborted, 0)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]
