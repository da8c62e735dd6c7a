"""Bad input 4, 12, 16, 22, 25 and 38: clients that try to use up the memory of the broker.

An announced size allocates no memory, and unread responses are not kept. Peaks are those of the
kernel (VmHWM), which are reset at the start of each test.
"""

import struct
import zlib
from collections.abc import Callable

import cramjam
import pytest

from headrace.record.build import assemble
from headrace.wire.codec import Message
from tests.broker.raw import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    RawConnection,
    WatchedBroker,
    framed,
    header,
    many,
    one_batch,
    values_of,
)

MIB = 1 << 20
INT32_MAX = 0x7FFFFFFF
FETCH_BYTES_MAX = 4 * MIB
UNFOLDED_BYTES_MAX = 16 * MIB
SLOTS = 100


@pytest.fixture(scope="module")
def target_settings() -> dict[str, str]:
    return {
        "fetch.max.bytes": str(FETCH_BYTES_MAX),
        "headrace.decompress.bytes.max": str(UNFOLDED_BYTES_MAX),
        "max.incremental.fetch.session.cache.slots": str(SLOTS),
    }


def fetch_body(
    parts: list[tuple[str, int]], *, wait_ms: int = 0, min_bytes: int = 1, **fields: int
) -> Message:
    """A fetch of version 12 from the start of many partitions."""
    topics: dict[str, list[Message]] = {}
    for topic, index in parts:
        topics.setdefault(topic, []).append(
            {
                "partition": index,
                "current_leader_epoch": -1,
                "fetch_offset": 0,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": INT32_MAX,
            }
        )
    return {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": INT32_MAX,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": asked} for topic, asked in topics.items()],
        "forgotten_topics_data": (),
        "rack_id": "",
        **fields,
    }


# 4: frames that are announced and never completed.


@pytest.mark.parametrize("sent", [0, 60_000], ids=["nothing", "60 kB"])
def test_hundred_length_prefixes_of_99_mib_allocate_only_the_sent_bytes(
    target: WatchedBroker, sent: int
) -> None:
    before = target.watch_peak()
    start = struct.pack(">i", 99 * MIB) + header(PRODUCE, 9)
    with many(target.port, 100) as connections:
        for connection in connections:
            connection.send(start + bytes(sent))
        with target.connect() as other:
            other.create_topic(f"beside-{sent}", max_message_bytes=str(3 * MIB))
            value = bytes(2 * MIB)
            assert other.produce(f"beside-{sent}", one_batch(value))["error_code"] == 0
            assert values_of(other.fetch(f"beside-{sent}", 0)["records"]) == [value]
        # 256 KiB is the first buffer of a large frame. The valid request also used some memory.
        assert target.peak_bytes() - before < (100 * 256 * 1024 if sent else 0) + 16 * MIB


# 12: an endless stream of requests whose responses are not read.


def test_requests_whose_responses_are_not_read_are_not_kept(
    target: WatchedBroker,
) -> None:
    count = 100_000
    one = header(API_VERSIONS, 0)
    requests = b"".join(
        framed(one[:4] + struct.pack(">i", number) + one[8:]) for number in range(count)
    )
    before = target.watch_peak()
    with target.connect(receive_buffer_bytes=65536) as connection:
        sent = connection.send_as_taken(requests)
        target.check_bystander()
        assert target.peak_bytes() - before < 8 * MIB
        # When the client reads again, it gets every response in order.
        numbers = 0
        while numbers < count:
            if sent < len(requests):
                sent += connection.send_as_taken(requests[sent : sent + 65536])
            frame = connection.read_frame()
            assert struct.unpack_from(">i", frame) == (numbers,)
            numbers += 1
    assert target.peak_bytes() - before < 8 * MIB


def test_unread_large_responses_are_not_encoded(target: WatchedBroker) -> None:
    with target.connect() as connection:
        connection.create_topic("many", partitions=1000)
    before = target.watch_peak()
    with many(target.port, 4, receive_buffer_bytes=65536) as connections:
        # A response has about 30 KiB. All responses would have 120 MiB.
        for connection in connections:
            for _ in range(1000):
                connection.send(connection.frame(METADATA, 1, {"topics": [{"name": "many"}]}))
        target.check_bystander()
        assert target.peak_bytes() - before < 24 * MIB


# 16: bombs.


def bomb(codec: int, payload: bytes) -> bytes:
    """A batch of one record that is a long row of zeros, as the codec writes them."""
    return assemble(
        payload,
        attributes=codec,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
        base_offset=0,
        leader_epoch=-1,
    )


def gzip_zeros(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(bytes(size)) + packer.flush()


def lz4_zeros(size: int) -> bytes:
    packer = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    packer.compress(bytes(size))
    return bytes(packer.finish())


ZSTD_WINDOW_OF_2_GIB = bytes.fromhex("28b52ffd00a8") + struct.pack("<I", (100 << 3) | 1)[:3]

BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip": (1, lambda: gzip_zeros(64 * MIB)),
    "snappy": (2, lambda: bytes(cramjam.snappy.compress_raw(bytes(20 * MIB)))),
    "lz4": (3, lambda: lz4_zeros(64 * MIB)),
    "zstd": (4, lambda: bytes(cramjam.zstd.compress(bytes(256 * MIB)))),
    "zstd, small": (4, lambda: bytes(cramjam.zstd.compress(bytes(17 * MIB)))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bomb_is_rejected_at_the_size_limit(target: WatchedBroker, name: str) -> None:
    codec, make = BOMBS[name]
    batch = bomb(codec, make())
    topic = "bombs-" + name.replace(", ", "-")
    before = target.watch_peak()
    with target.connect() as connection:
        connection.create_topic(topic)
        # Again and again: what one of them took must not stay with the next.
        answers = [connection.produce(topic, batch) for _ in range(8)]
        assert {answer["error_code"] for answer in answers} == {10}
        assert connection.end_offset(topic) == 0
    assert target.peak_bytes() - before < UNFOLDED_BYTES_MAX + 12 * MIB


def test_decompression_bombs_are_decompressed_one_at_a_time(target: WatchedBroker) -> None:
    batch = bomb(4, bytes(cramjam.zstd.compress(bytes(256 * MIB))))
    with many(target.port, 20) as connections:
        connections[0].create_topic("many-bombs")
        before = target.watch_peak()
        for connection in connections:
            connection.send(connection.produce_frame("many-bombs", batch))
        target.check_bystander()
        for connection in connections:
            answer = connection.read_answer(PRODUCE, 9)["responses"][0]["partition_responses"][0]
            assert answer["error_code"] == 10
        assert target.peak_bytes() - before < 2 * UNFOLDED_BYTES_MAX


def test_zstd_window_of_2_gib_is_not_allocated(target: WatchedBroker) -> None:
    batch = bomb(4, ZSTD_WINDOW_OF_2_GIB + bytes(100))
    before = target.watch_peak()
    with target.connect() as connection:
        connection.create_topic("window")
        assert connection.produce("window", batch)["error_code"] in (2, 10)
        assert connection.end_offset("window") == 0
    assert target.peak_bytes() - before < 8 * MIB


# 22: fetches beyond measure.


def test_fetch_response_is_limited_by_the_broker(
    target: WatchedBroker,
) -> None:
    value = bytes(900_000)
    with target.connect() as connection:
        connection.create_topic("plenty")
        for _ in range(10):
            connection.produce("plenty", one_batch(value))
        found = connection.fetch(
            "plenty", 0, max_bytes=INT32_MAX, partition_max_bytes=INT32_MAX, min_bytes=INT32_MAX
        )
        assert FETCH_BYTES_MAX - 1_000_000 < len(found["records"]) <= FETCH_BYTES_MAX


def test_fetch_with_a_minimum_above_the_limit_does_not_wait(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.create_topic("enough")
        for _ in range(6):
            connection.produce("enough", one_batch(bytes(900_000)))
        found = connection.fetch("enough", 0, min_bytes=INT32_MAX, max_wait_ms=INT32_MAX)
        assert len(found["records"]) > FETCH_BYTES_MAX - 1_000_000


def test_a_fetch_of_ten_thousand_partitions_waits_without_harm(target: WatchedBroker) -> None:
    with target.connect() as connection:
        connection.create_topic("waiting", partitions=4)
        parts = [("waiting", number % 4) for number in range(10_000)]
        body = fetch_body(parts, wait_ms=INT32_MAX, min_bytes=INT32_MAX)
        before = target.watch_peak()
        connection.send(connection.frame(FETCH, 12, body))
        with target.connect() as other:
            for _ in range(20):
                assert other.produce("waiting", one_batch(b"more"))["error_code"] == 0
        target.check_bystander()
        assert target.peak_bytes() - before < 32 * MIB


def test_fetch_of_ten_thousand_unknown_partitions_gets_their_errors(
    target: WatchedBroker,
) -> None:
    parts = [("nowhere", number) for number in range(10_000)]
    with target.connect() as connection:
        reply = connection.ask(FETCH, 12, fetch_body(parts, wait_ms=INT32_MAX))
        errors = [part["error_code"] for part in reply["responses"][0]["partitions"]]
        assert errors == [3] * 10_000


@pytest.mark.parametrize(
    ("api_key", "body"),
    [
        (FETCH, struct.pack(">iiiib", -1, 0, 1, 1000, 0)),
        (PRODUCE, struct.pack(">hhi", -1, 1, 1000)),
    ],
    ids=["fetch", "produce"],
)
@pytest.mark.parametrize("what", ["topics", "partitions"])
def test_request_for_millions_of_partitions_is_rejected(
    target: WatchedBroker, api_key: int, body: bytes, what: str
) -> None:
    count = 2_000_000
    topic = struct.pack(">h1s", 1, b"t")
    if what == "topics":
        body += struct.pack(">i", count) + (topic + bytes(4)) * count
    else:
        part = struct.pack(">iqi", 0, 0, 0) if api_key == FETCH else struct.pack(">ii", 0, -1)
        body += struct.pack(">i", 1) + topic + struct.pack(">i", count) + part * count
    before = target.watch_peak()
    with target.connect() as connection:
        connection.send(framed(header(api_key, 4) + body))
        target.check_closed(connection, "too many")
    assert target.peak_bytes() - before < 3 * len(body)


def test_small_results_of_many_partitions_are_not_collected_in_memory(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.create_topic("small-pieces")
        connection.produce("small-pieces", one_batch(bytes(3900)))
    before = target.watch_peak()
    with many(target.port, 20, receive_buffer_bytes=65536) as connections:
        body = fetch_body([("small-pieces", 0)] * 1000)
        for connection in connections:
            connection.send(connection.frame(FETCH, 12, body))
        target.check_bystander()
        assert target.peak_bytes() - before < 32 * MIB


# 25: fetch sessions.


def session_request(connection: RawConnection, parts: list[tuple[str, int]]) -> bytes:
    return connection.frame(FETCH, 12, fetch_body(parts, session_epoch=0))


def test_number_of_fetch_sessions_is_limited(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.create_topic("sessions")
        before = target.watch_peak()
        given = []
        for _ in range(30):
            connection.send(session_request(connection, [("sessions", 0)]) * 100)
            given += [connection.read_answer(FETCH, 12)["session_id"] for _ in range(100)]
        assert len(set(given) - {0}) <= SLOTS
        assert given[-1] == 0, "a session beyond the limit"
        assert target.peak_bytes() - before < 8 * MIB


@pytest.mark.parametrize(("session_id", "epoch"), [(12345, 1), (INT32_MAX, 5), (-1, 7)])
def test_unknown_fetch_session_gets_session_id_not_found(
    target: WatchedBroker, session_id: int, epoch: int
) -> None:
    with target.connect() as connection:
        body = fetch_body([], session_id=session_id, session_epoch=epoch)
        assert connection.ask(FETCH, 12, body)["error_code"] == 70


def test_the_partitions_of_all_fetch_sessions_together_are_bounded(
    target: WatchedBroker,
) -> None:
    parts = [("nowhere", number) for number in range(10_000)]
    with target.connect() as connection:
        before = target.watch_peak()
        request = session_request(connection, parts)
        given = []
        for _ in range(11):
            connection.send(request)
            given.append(connection.read_answer(FETCH, 12)["session_id"])
        assert given[-1] == 0, "a session beyond the limit"
        connection.ask(FETCH, 12, fetch_body([], session_id=given[0], session_epoch=-1))
    assert target.peak_bytes() - before < 128 * MIB


# 38: a consumer that does not read.


def test_unread_records_of_a_consumer_stay_on_disk(target: WatchedBroker) -> None:
    with target.connect() as connection:
        connection.create_topic("unread")
        for _ in range(5):
            connection.produce("unread", one_batch(bytes(900_000)))
    before = target.watch_peak()
    with many(target.port, 30, receive_buffer_bytes=65536) as connections:
        for connection in connections:
            connection.send(connection.fetch_frame("unread", 0) * 12)
        target.check_bystander()
        assert target.peak_bytes() - before < 8 * MIB
        # One of them reads after all.
        for _ in range(12):
            reply = connections[7].read_answer(FETCH, 12)
            found = reply["responses"][0]["partitions"][0]["records"]
            assert values_of(found)[0] == bytes(900_000)
