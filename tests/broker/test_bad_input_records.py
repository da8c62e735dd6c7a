"""Bad input 13-15, 17-19, 24 and 40: corrupt batches and offsets out of range.

Each gets an error in its own partition result and is not appended. A valid batch for another
partition in the same request is appended.
"""

import struct
import time

import pytest

from headrace.record.batch import crc32c
from headrace.record.build import assemble
from headrace.wire.codec import Message
from tests.broker.raw import PRODUCE, WatchedBroker, eventually, one_batch, values_of

CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87

HOUR_MS = 3_600_000
YEAR_10_000_MS = 253_402_300_800_000


@pytest.fixture(scope="module")
def target_settings() -> dict[str, str]:
    return {"log.retention.check.interval.ms": "500", "num.partitions": "1"}


def sealed(batch: bytes) -> bytes:
    """The same batch with a checksum that fits."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def patched(at: int, code: str, value: int, batch: bytes | None = None) -> bytes:
    """An honest batch of three records with one field of its header changed, and sealed."""
    data = bytearray(batch if batch is not None else one_batch(b"a", b"b", b"c"))
    struct.pack_into(">" + code, data, at, value)
    return sealed(bytes(data))


def with_payload(payload: bytes, count: int = 1, attributes: int = 0) -> bytes:
    now_ms = round(time.time() * 1000)
    return assemble(
        payload,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
        base_offset=0,
        leader_epoch=-1,
    )


def v1_message() -> bytes:
    """One message in the format of before 2017."""
    body = struct.pack(">bbqii", 1, 0, 0, -1, 1) + b"x"
    message = struct.pack(">I", crc32c(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


GOOD = one_batch(b"a", b"b", b"c")

BAD_BATCHES: dict[str, tuple[bytes | None, set[int]]] = {
    # 13
    "a wrong checksum": (GOOD[:17] + bytes(4) + GOOD[21:], {CORRUPT_MESSAGE}),
    "a flipped bit in a value": (GOOD[:-2] + bytes((GOOD[-2] ^ 1,)) + GOOD[-1:], {CORRUPT_MESSAGE}),
    "magic 3": (
        GOOD[:16] + b"\3" + GOOD[17:],
        {CORRUPT_MESSAGE, INVALID_RECORD},
    ),
    "magic 1": (v1_message(), {INVALID_RECORD}),
    "magic 0": (GOOD[:16] + b"\0" + GOOD[17:], {INVALID_RECORD}),
    # 14
    "a negative length": (patched(8, "i", -1), {CORRUPT_MESSAGE, INVALID_RECORD}),
    "a length of 0": (patched(8, "i", 0), {CORRUPT_MESSAGE, INVALID_RECORD}),
    "a length beyond the field": (patched(8, "i", len(GOOD)), {CORRUPT_MESSAGE, INVALID_RECORD}),
    "a length short of the field": (patched(8, "i", 60), {CORRUPT_MESSAGE, INVALID_RECORD}),
    "a length of 2^31 - 1": (patched(8, "i", 2**31 - 1), {CORRUPT_MESSAGE, INVALID_RECORD}),
    "two batches": (GOOD + GOOD, {CORRUPT_MESSAGE, INVALID_RECORD}),
    "no batch": (b"", {CORRUPT_MESSAGE, INVALID_RECORD}),
    "null": (None, {CORRUPT_MESSAGE, INVALID_RECORD}),
    "half a header": (GOOD[:30], {CORRUPT_MESSAGE, INVALID_RECORD}),
    "a header alone": (with_payload(b""), {INVALID_RECORD}),
    # 15
    "a count of 2^31 - 1": (patched(57, "i", 2**31 - 1), {INVALID_RECORD}),
    "a count of 2^31 - 1 that fits its delta": (
        patched(23, "i", 2**31 - 2, patched(57, "i", 2**31 - 1)),
        {INVALID_RECORD},
    ),
    "a count of -1": (patched(57, "i", -1), {INVALID_RECORD}),
    "a count of 0": (patched(57, "i", 0), {INVALID_RECORD}),
    "a count of 2 for 3": (patched(23, "i", 1, patched(57, "i", 2)), {INVALID_RECORD}),
    "a count of 4 for 3": (patched(23, "i", 3, patched(57, "i", 4)), {INVALID_RECORD}),
    "a last offset delta that is too large": (patched(23, "i", 9), {INVALID_RECORD}),
    "a last offset delta that is negative": (patched(23, "i", -3), {INVALID_RECORD}),
    "a base offset": (patched(0, "q", 5), {INVALID_RECORD}),
    "offset deltas out of order": (
        with_payload(b"\x0c\0\0\2\1\0\0" + b"\x0c\0\0\0\1\0\0", 2),
        {INVALID_RECORD},
    ),
    "a record longer than the batch": (with_payload(b"\x7e\0\0\0\1\2x\0"), {INVALID_RECORD}),
    "a record of negative length": (with_payload(b"\x01\0\0\0\1\2x\0"), {INVALID_RECORD}),
    "a key of length -2": (with_payload(b"\x0c\0\0\0\3\0\0"), {INVALID_RECORD}),
    "headers without end": (
        with_payload(b"\x16\0\0\0\1\0" + b"\xfe\xff\xff\xff\x0f" + b"\0"),
        {INVALID_RECORD},
    ),
    "a varint of six bytes": (
        with_payload(b"\x80\x80\x80\x80\x80\x01" + bytes(9)),
        {INVALID_RECORD},
    ),
    "bytes behind the last record": (with_payload(b"\x0c\0\0\0\1\0\0" + b"more"), {INVALID_RECORD}),
    # 17
    **{
        f"codec {codec}": (patched(21, "h", codec), {UNSUPPORTED_COMPRESSION_TYPE})
        for codec in (5, 6, 7)
    },
    **{
        f"garbage under codec {codec}": (
            with_payload(b"\x01\x23garbage that nobody packed" * 9, attributes=codec),
            {CORRUPT_MESSAGE, INVALID_RECORD},
        )
        for codec in (1, 2, 3, 4)
    },
    **{
        f"nothing under codec {codec}": (
            with_payload(b"", attributes=codec),
            {CORRUPT_MESSAGE, INVALID_RECORD},
        )
        for codec in (1, 2, 3, 4)
    },
    # 18
    "a control batch": (patched(21, "h", 0x20), {INVALID_RECORD}),
    "a transactional batch": (patched(21, "h", 0x10), {TRANSACTIONAL_ID_AUTHORIZATION_FAILED}),
    "a transactional control batch": (patched(21, "h", 0x30), {INVALID_RECORD}),
    "a delete horizon": (patched(21, "h", 0x40), {INVALID_RECORD}),
    "a time of append": (patched(21, "h", 0x08), {INVALID_TIMESTAMP, INVALID_RECORD}),
    # 40
    "the year 10,000": (one_batch(b"v", timestamp=YEAR_10_000_MS), {INVALID_TIMESTAMP}),
    "the end of time": (one_batch(b"v", timestamp=2**63 - 1), {INVALID_TIMESTAMP}),
    "before the beginning of time": (one_batch(b"v", timestamp=-(2**63)), {INVALID_TIMESTAMP}),
    "two hours ahead": (
        one_batch(b"v", timestamp=round(time.time() * 1000) + 2 * HOUR_MS),
        {INVALID_TIMESTAMP},
    ),
}


@pytest.fixture
def topic(target: WatchedBroker, new_topic: str) -> str:
    with target.connect() as connection:
        connection.create_topic(new_topic, partitions=2)
    return new_topic


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_invalid_batch_gets_its_error_and_is_not_appended(
    target: WatchedBroker, topic: str, name: str
) -> None:
    batch, errors = BAD_BATCHES[name]
    with target.connect() as connection:
        answer = connection.produce(topic, batch)
        assert answer["error_code"] in errors, answer
        assert answer["base_offset"] == -1
        assert connection.end_offset(topic) == 0
        # The same connection still serves valid requests.
        assert connection.produce(topic, GOOD)["base_offset"] == 0
        assert values_of(connection.fetch(topic, 0)["records"]) == [b"a", b"b", b"c"]


def test_invalid_batch_does_not_affect_a_valid_one_in_the_same_request(
    target: WatchedBroker, topic: str
) -> None:
    partitions = [
        {"index": 0, "records": patched(57, "i", -1)},
        {"index": 1, "records": GOOD},
        {"index": 7, "records": GOOD},
    ]
    body: Message = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": topic, "partition_data": partitions}],
    }
    with target.connect() as connection:
        reply = connection.ask(PRODUCE, 9, body)
        answers = reply["responses"][0]["partition_responses"]
        assert [answer["error_code"] for answer in answers] == [INVALID_RECORD, 0, 3]
        assert connection.end_offset(topic, 0) == 0
        assert connection.end_offset(topic, 1) == 3


def test_invalid_batch_with_acks_0_closes_the_connection(target: WatchedBroker, topic: str) -> None:
    with target.connect() as connection:
        connection.send(connection.produce_frame(topic, patched(57, "i", -1), acks=0))
        target.check_closed(connection, "acks=0")
    with target.connect() as connection:
        assert connection.end_offset(topic) == 0


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_invalid_acks_are_rejected(target: WatchedBroker, topic: str, acks: int) -> None:
    with target.connect() as connection:
        assert connection.produce(topic, GOOD, acks=acks)["error_code"] == 21
        assert connection.end_offset(topic) == 0


def test_transactional_producer_gets_an_error_immediately(
    target: WatchedBroker, topic: str
) -> None:
    body: Message = {
        "transactional_id": "mover",
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": GOOD}]}],
    }
    with target.connect() as connection:
        reply = connection.ask(PRODUCE, 9, body)
        assert reply["responses"][0]["partition_responses"][0]["error_code"] == 53
        assert connection.end_offset(topic) == 0


# 19


@pytest.mark.parametrize("size", [1_048_588, 20_000_000], ids=["just over", "far over"])
def test_a_batch_over_max_message_bytes_is_too_large(
    target: WatchedBroker, topic: str, size: int
) -> None:
    with target.connect() as connection:
        answer = connection.produce(topic, one_batch(bytes(size)))
        assert answer["error_code"] == MESSAGE_TOO_LARGE
        assert "max.message.bytes" in answer["error_message"]
        assert connection.end_offset(topic) == 0


def test_batch_of_exactly_max_message_bytes_is_accepted(
    target: WatchedBroker, new_topic: str
) -> None:
    batch = one_batch(bytes(2000))
    with target.connect() as connection:
        connection.create_topic(new_topic, max_message_bytes=str(len(batch)))
        assert connection.produce(new_topic, batch)["error_code"] == 0
        assert connection.produce(new_topic, one_batch(bytes(2001)))["error_code"] == 10


@pytest.mark.parametrize("size", [2_000, 5_000_000], ids=["on the loop", "on a thread"])
def test_a_batch_that_grows_over_max_message_bytes_when_it_is_stored_is_too_large(
    target: WatchedBroker, new_topic: str, size: int
) -> None:
    with target.connect() as connection:
        connection.create_topic(
            new_topic, compression_type="uncompressed", max_message_bytes="1500"
        )
        assert connection.produce(new_topic, one_batch(bytes(1000), codec=4))["error_code"] == 0
        answer = connection.produce(new_topic, one_batch(bytes(size), codec=4))
        assert answer["error_code"] == MESSAGE_TOO_LARGE
        assert "compression.type" in answer["error_message"]
        assert connection.end_offset(new_topic) == 1


# 24


@pytest.mark.parametrize(
    ("offset", "epoch", "error"),
    [
        (3, -1, 0),
        (4, -1, 1),
        (2**62, -1, 1),
        (2**63 - 1, -1, 1),
        (-1, -1, 1),
        (-(2**63), -1, 1),
        (0, 0, 0),
        (0, 5, 75),
        (0, 2**31 - 1, 75),
    ],
)
def test_unknown_offset_or_epoch_gets_its_error(
    target: WatchedBroker, topic: str, offset: int, epoch: int, error: int
) -> None:
    with target.connect() as connection:
        connection.produce(topic, GOOD)
        # A response with an error is immediate, whatever the maximum wait of the fetch.
        wait_ms = 30_000 if error else 0
        answer = connection.fetch(topic, offset, current_leader_epoch=epoch, max_wait_ms=wait_ms)
        assert answer["error_code"] == error


def test_an_offset_below_the_start_of_the_log_is_out_of_range(
    target: WatchedBroker, topic: str
) -> None:
    with target.connect() as connection:
        for _ in range(2):
            connection.produce(topic, GOOD)
        partitions = [{"partition_index": 0, "offset": 3}]
        body: Message = {
            "topics": [{"name": topic, "partitions": partitions}],
            "timeout_ms": 30_000,
        }
        connection.ask(21, 1, body)
        eventually("the records are gone", lambda: connection.fetch(topic, 2)["error_code"] == 1)
        found = connection.fetch(topic, 3)
        assert values_of(found["records"]) == [b"a", b"b", b"c"]


def test_old_epoch_is_fenced(target: WatchedBroker, topic: str) -> None:
    with target.connect() as connection:
        connection.produce(topic, GOOD)
        assert connection.fetch(topic, 0, current_leader_epoch=-2)["error_code"] in (74, 0)


# 40: timestamps that must not affect retention.


def test_wrong_timestamp_in_a_batch_header_does_not_prevent_retention(
    target: WatchedBroker, topic: str
) -> None:
    now_ms = round(time.time() * 1000)
    with target.connect() as connection:
        lying = patched(35, "q", YEAR_10_000_MS, one_batch(b"v", timestamp=now_ms))
        assert connection.produce(topic, lying)["error_code"] == 0
        found = connection.fetch(topic, 0)["records"]
        assert struct.unpack_from(">q", found, 35) == (now_ms,)


def test_negative_and_very_old_timestamps_do_not_delete_a_log(
    target: WatchedBroker, new_topic: str
) -> None:
    """A negative timestamp does not expire. An old one expires only its own segment."""
    old_topic = f"{new_topic}-old"
    with target.connect() as connection:
        connection.create_topic(new_topic, segment_bytes=str(1 << 20), retention_ms=str(HOUR_MS))
        for timestamp in (-1, -1, -5, -HOUR_MS):
            answer = connection.produce(new_topic, one_batch(bytes(600_000), timestamp=timestamp))
            assert answer["error_code"] in (0, INVALID_TIMESTAMP)
        end_offset = connection.end_offset(new_topic)
        assert end_offset >= 2
        connection.create_topic(old_topic, retention_ms=str(HOUR_MS))
        connection.produce(old_topic, one_batch(b"old", timestamp=0))
        connection.produce(old_topic, one_batch(b"new"))
        settled = time.monotonic() + 1.5
        eventually("retention has passed", lambda: time.monotonic() > settled)
        assert connection.fetch(new_topic, 0)["error_code"] == 0
        assert connection.end_offset(new_topic) == end_offset
        assert values_of(connection.fetch(old_topic, 1)["records"])[-1] == b"new"
