"""Thousands of invalid frames and batches. `fuzz.py` sends any number.

A seed that fails is printed; `python -m tests.wire.fuzz --seed S` plays it again.
"""

import random
import struct

import pytest
from kafka.record.default_records import DefaultRecordBatch

from headrace.model.errors import ApiError
from headrace.record.batch import (
    HEADER_SIZE,
    Batch,
    crc32c,
    read_batch,
    read_varint,
    validate_records,
)
from headrace.record.compression import decompress
from headrace.record.decode import plain_payload, read_records
from headrace.wire.apis import FETCH, PRODUCE
from headrace.wire.cursor import MalformedRequest
from headrace.wire.fetch import NEWEST as FETCH_NEWEST
from headrace.wire.fetch import OLDEST as FETCH_OLDEST
from headrace.wire.fetch import read_fetch
from headrace.wire.produce import NEWEST as PRODUCE_NEWEST
from headrace.wire.produce import OLDEST as PRODUCE_OLDEST
from headrace.wire.produce import read_produce
from tests.wire.fuzz import fuzz
from tests.wire.mutation import Mutator, captured_requests, random_batch

LIVE_FRAMES = 2500
BODIES = 60_000
BATCHES = 15_000
UNFOLDED_BYTES_MAX = 1 << 20


@pytest.fixture
def seed() -> int:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # pytest shows it where the test fails.
    return seed


def test_live_broker_survives_random_input_unchanged(seed: int) -> None:
    outcomes = fuzz(seed, LIVE_FRAMES)
    # Or else the frames are not what they were meant to be.
    assert outcomes["answered"] > LIVE_FRAMES // 5
    assert outcomes["closed"] > LIVE_FRAMES // 5


def bodies_of(api_key: int) -> list[bytes]:
    """The bodies of real requests, some of them from one byte too late on."""
    found = []
    for request in captured_requests():
        if struct.unpack_from(">h", request) == (api_key,):
            (client_id_size,) = struct.unpack_from(">h", request, 8)
            found += [request[10 + client_id_size :], request[11 + client_id_size :]]
    return found


def test_fast_readers_return_a_request_or_reject_it(seed: int) -> None:
    mutator = Mutator(seed)
    rng = mutator.rng
    readers = [
        (bodies_of(PRODUCE), range(PRODUCE_OLDEST, PRODUCE_NEWEST + 1), read_produce),
        (bodies_of(FETCH), range(FETCH_OLDEST, FETCH_NEWEST + 1), read_fetch),
    ]
    whole = 0
    for number in range(BODIES):
        bodies, versions, read = readers[number % 2]
        body = rng.choice(bodies)
        for _ in range(rng.randrange(4)):
            body = mutator.mutated(body)
        # In the middle of a buffer, whose other bytes must not be read.
        data = b"\x7f" * 9 + body + b"\x7f" * 9
        try:
            read(data, 9, 9 + len(body), rng.choice(versions))
        except MalformedRequest:
            continue
        whole += 1
    assert whole > BODIES // 50


def with_checksum(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def admitted(frame: bytes) -> Batch:
    """What produce does with a batch before it is stored."""
    batch = read_batch(frame, 0, len(frame))
    if batch.codec() == 0:
        validate_records(batch, frame, HEADER_SIZE, len(frame), False)
    else:
        payload = decompress(batch.codec(), batch.payload(), UNFOLDED_BYTES_MAX)
        validate_records(batch, payload, 0, len(payload), False)
    return batch


def test_accepted_batch_is_readable_by_consumers(seed: int) -> None:
    """Headrace reads all batches. kafka-python reads as many records as the header has."""
    mutator = Mutator(seed)
    rng = mutator.rng
    taken = 0
    for _ in range(BATCHES):
        frame = random_batch(rng)
        for _ in range(rng.randrange(1, 4)):
            frame = mutator.mutated(frame)
        if len(frame) > 21 and rng.random() < 0.9:
            # Only what has a checksum that fits gets any further.
            frame = frame[:8] + struct.pack(">i", len(frame) - 12) + frame[12:]
            frame = with_checksum(frame)
        try:
            batch = admitted(frame)
        except ApiError:
            continue
        taken += 1
        stored = batch.prefix(1000, 5) + batch.frame[batch.start + 16 : batch.end]
        kept = read_batch(stored, 0, len(stored), False)
        records = read_records(kept)
        offsets = [record.offset for record in records]
        assert offsets == list(range(1000, 1000 + batch.record_count))
        if is_plain(kept):
            theirs = list(DefaultRecordBatch(stored))
            assert [each.value for each in theirs] == [record.value for record in records]
    assert taken > BATCHES // 50


def is_plain(batch: Batch) -> bool:
    """Whether kafka-python can read the batch.

    It reads a record's unused attributes as a number of any length, requires UTF-8 in names of
    headers, and supports one snappy stream per batch. Kafka and Headrace have none of these limits.
    """
    payload, at, end = plain_payload(batch)
    while at < end:
        length, at = read_varint(payload, at)
        if payload[at] >= 0x80:
            return False
        at += length
    if batch.codec() == 2 and bytes(batch.payload()).count(b"\x82SNAPPY\0") > 1:
        return False
    return "\ufffd" not in "".join(
        name for record in read_records(batch) for name, _ in record.headers
    )
