"""Builds record batches and requests, and reads responses, each with its length prefix.

Owns the requests of the workloads and the responses that they expect. Does no I/O. Uses no code of
the broker, because an error in shared code would stay unnoticed.

1. Requests do not depend on the broker: both brokers get the same bytes.
2. All requests identify topics by name: Produce 11, Fetch 12, CreateTopics 7, DeleteTopics 5,
   Metadata 7. Both brokers support these versions.
3. A Produce response must equal the expected one, except for its base offset.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import cramjam
import crc32c

CODEC_NONE, CODEC_LZ4, CODEC_ZSTD = 0, 3, 4
CLIENT_ID = b"bench"
CORRELATION_ID = 7
TOPIC_ALREADY_EXISTS = 36

_PRODUCE, _FETCH, _METADATA, _CREATE_TOPICS, _DELETE_TOPICS = 0, 1, 3, 19, 20
_BATCH_CRC_AT = 17
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_SIZE = 64 * 1024
_BATCH_HEAD = struct.Struct(">qiibI")
_BATCH_TAIL = struct.Struct(">hiqqqhii")


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def compact(text: bytes) -> bytes:
    return uvarint(len(text) + 1) + text


# Records.


@cache
def text_values(count: int, size: int) -> tuple[bytes, ...]:
    """Values like small JSON events: similar, but different, so that codecs have work."""
    generator = random.Random(20260101)
    words = ("water", "wheel", "mill", "channel", "gate", "stone", "grain", "flour", "sluice")
    values = []
    for number in range(count):
        event = json.dumps(
            {"id": generator.randrange(10**9), "at": number, "kind": generator.choice(words)}
        ).encode()
        while len(event) < size:
            event += b" " + generator.choice(words).encode()
        values.append(event[:size])
    return tuple(values)


def build_batch(values: Sequence[bytes], codec: int, timestamp_ms: int) -> bytes:
    """A batch (format 2) of records without keys, as a producer without idempotence sends it."""
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\0\0" + varint(delta) + b"\x01" + varint(len(value)) + value + b"\0"
        records += varint(len(body)) + body
    payload = bytes(records)
    if codec == CODEC_LZ4:
        payload = _lz4_frame(payload)
    elif codec == CODEC_ZSTD:
        payload = bytes(cramjam.zstd.compress(payload, 3))
    last = len(values) - 1
    tail = _BATCH_TAIL.pack(codec, last, timestamp_ms, timestamp_ms, -1, -1, -1, last + 1) + payload
    return _BATCH_HEAD.pack(0, len(tail) + 9, -1, 2, crc32c.crc32c(tail)) + tail


def _lz4_frame(data: bytes) -> bytes:
    """A frame as Java and librdkafka write it: independent blocks of 64 KiB, no checksums."""
    frame = _LZ4_HEADER
    for at in range(0, len(data), _LZ4_BLOCK_SIZE):
        piece = data[at : at + _LZ4_BLOCK_SIZE]
        block = bytes(cramjam.lz4.compress_block(piece, store_size=False))
        assert len(block) < len(piece)
        frame += len(block).to_bytes(4, "little") + block
    return frame + bytes(4)


def stored_part(batch: bytes) -> bytes:
    """The bytes of a batch that a broker must store unchanged: the CRC and all after it."""
    return batch[_BATCH_CRC_AT:]


# Requests.


def _request(api_key: int, api_version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, api_version, CORRELATION_ID, len(CLIENT_ID))
    size = len(header) + len(CLIENT_ID) + 1 + len(body)
    return struct.pack(">i", size) + header + CLIENT_ID + b"\0" + body


def produce(topic: str, batch: bytes, acks: int = 1) -> bytes:
    partition = struct.pack(">i", 0) + uvarint(len(batch) + 1) + batch + b"\0"
    topics = b"\x02" + compact(topic.encode()) + b"\x02" + partition + b"\0"
    return _request(_PRODUCE, 11, b"\0" + struct.pack(">hi", acks, 30_000) + topics + b"\0")


def fetch(
    topic: str, offset: int, *, size_max: int, wait_ms_max: int = 0, size_min: int = 1
) -> bytes:
    head = struct.pack(">iiiibii", -1, wait_ms_max, size_min, size_max, 0, 0, -1)
    partition = struct.pack(">iiqiqi", 0, -1, offset, -1, -1, size_max) + b"\0"
    topics = b"\x02" + compact(topic.encode()) + b"\x02" + partition + b"\0"
    return _request(_FETCH, 12, head + topics + b"\x01\x01\0")


def create_topic(topic: str, configs: Mapping[str, str], replicas: int = 1) -> bytes:
    rows = uvarint(len(configs) + 1) + b"".join(
        compact(name.encode()) + compact(value.encode()) + b"\0" for name, value in configs.items()
    )
    row = compact(topic.encode()) + struct.pack(">ih", 1, replicas) + b"\x01" + rows + b"\0"
    return _request(_CREATE_TOPICS, 7, b"\x02" + row + struct.pack(">i", 30_000) + b"\0\0")


def delete_topic(topic: str) -> bytes:
    return _request(
        _DELETE_TOPICS, 5, b"\x02" + compact(topic.encode()) + struct.pack(">i", 30_000) + b"\0"
    )


def metadata() -> bytes:
    """A request for all topics."""
    header = struct.pack(">hhih", _METADATA, 7, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID
    body = header + struct.pack(">ib", -1, 0)
    return struct.pack(">i", len(body)) + body


# Responses. Most begin with five bytes: the correlation id and an empty tag section.


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """The bytes of a response without errors, before and after its base offset."""

    before: bytes
    after: bytes

    @property
    def size(self) -> int:
        return len(self.before) + 8 + len(self.after)


def produce_response(topic: str) -> ProduceResponse:
    row = b"\x02" + compact(topic.encode()) + b"\x02" + struct.pack(">ih", 0, 0)
    before = struct.pack(">i", CORRELATION_ID) + b"\0" + row
    after = struct.pack(">qq", -1, 0) + b"\x01\0\0" + b"\0" + struct.pack(">i", 0) + b"\0"
    return ProduceResponse(struct.pack(">i", len(before) + 8 + len(after)) + before, after)


class ResponseError(Exception):
    """A broker did not respond as expected."""


def topic_error(response: bytes, topic: str, *, id_size: int) -> int:
    """The error code of the only topic in a CreateTopics or DeleteTopics response."""
    at = 5 + 4 + 1 + len(compact(topic.encode())) + id_size
    return int.from_bytes(response[at : at + 2], "big", signed=True)


@dataclass(frozen=True, slots=True)
class FetchHead:
    """The fields of a Fetch response before its records. They have a fixed size."""

    size: int
    error: int
    high_watermark: int


def fetch_head_size(topic: str) -> int:
    """The size of the bytes from the length prefix up to the field with the size of the records."""
    return 4 + 5 + 10 + 1 + len(compact(topic.encode())) + 1 + 6 + 24 + 1 + 4


def fetch_head(head: bytes, topic: str) -> FetchHead:
    """Read the first `fetch_head_size` bytes. Raises ResponseError if they are malformed."""
    size, correlation_id, _, _, error = struct.unpack_from(">iibih", head)
    if correlation_id != CORRELATION_ID:
        raise ResponseError(f"unexpected correlation id {correlation_id}")
    if error:
        return FetchHead(size, error, -1)
    at = 20 + len(compact(topic.encode())) + 1
    _, error, high_watermark, _, _, aborted = struct.unpack_from(">ihqqqb", head, at)
    # Null, because the request does not use read_committed. An empty list means the same.
    if not error and aborted not in (0, 1):
        raise ResponseError("unexpected aborted transactions in a Fetch response")
    return FetchHead(size, error, high_watermark)


def fetch_records(response: bytes, topic: str) -> bytes:
    """The records of a complete response with its length prefix."""
    at = fetch_head_size(topic)
    size = shift = 0
    while True:
        byte = response[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return response[at : at + max(size - 1, 0)]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a partition, according to one broker."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def replicas_in(response: bytes) -> dict[tuple[str, int], Replicas]:
    """All partitions without an error in a Metadata response with its length prefix."""
    fields = _Fields(response, 12)
    for _ in range(fields.number(4)):
        fields.number(4)
        fields.text()
        fields.number(4)
        fields.text()
    fields.text()
    fields.number(4)
    found = {}
    for _ in range(fields.number(4)):
        topic_error, topic, _ = fields.number(2), fields.text(), fields.number(1)
        for _ in range(fields.number(4)):
            error, index, leader, _ = (fields.number(size) for size in (2, 4, 4, 4))
            replicas, isr, _ = fields.numbers(), fields.numbers(), fields.numbers()
            if not topic_error and not error:
                found[(topic, index)] = Replicas(leader, replicas, isr)
    return found


class _Fields:
    """Reads the fields of a response that is not flexible, in order."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def number(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "big", signed=True)

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number(4) for _ in range(self.number(4)))

    def text(self) -> str:
        size = max(self.number(2), 0)
        self.at += size
        return self.data[self.at - size : self.at].decode()
