"""The memory for requests: its limits, its release, and the order of requests."""

import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cramjam
import pytest

from headrace.record.batch import crc32c
from headrace.testing import RunningBroker
from headrace.wire.codec import Message, decode_response
from tests.broker.raw import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    Crowd,
    RawConnection,
    WatchedBroker,
    eventually,
    framed,
    header,
    many,
    one_batch,
    values_of,
)

MIB = 1 << 20
KIB = 1 << 10
REQUEST_BYTES_MAX = 4 * MIB
QUEUED_BYTES_MAX = 8 * MIB
SMALL_REQUEST_BYTES = 64 * KIB
UNFOLDED_BYTES_MAX = 8 * MIB
SLACK_BYTES = 32 * MIB
"""For copies of a request or two, buffers that are kept, and what the allocator does not return."""
INT32_MAX = 0x7FFFFFFF
HELD = "used memory that other requests need"


@pytest.fixture(scope="module")
def target_settings() -> dict[str, str]:
    return {
        "socket.request.max.bytes": str(REQUEST_BYTES_MAX),
        "queued.max.request.bytes": str(QUEUED_BYTES_MAX),
        "headrace.decompress.bytes.max": str(UNFOLDED_BYTES_MAX),
    }


def padded(size: int) -> bytes:
    """A request of exactly this size, length not counted: the rest of its frame is ignored."""
    start = header(METADATA, 1) + struct.pack(">i", 0)
    return framed(start + bytes(size - len(start)))


def unfinished(sent: int) -> bytes:
    """The beginning of a large request."""
    start = struct.pack(">i", REQUEST_BYTES_MAX) + header(PRODUCE, 9, flexible=True)
    return start + bytes(sent)


def is_open(connection: RawConnection) -> bool:
    """Whether the broker has not closed a connection without responses."""
    connection.sock.setblocking(False)
    try:
        return bool(connection.sock.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


@contextmanager
def sending(connections: Crowd, data: bytes, *, then_close: bool = False) -> Iterator[None]:
    """Send the same bytes on all connections simultaneously. Ignores closed connections."""

    def send(connection: RawConnection) -> None:
        try:
            connection.send(data)
            if then_close:
                connection.sock.close()
        except OSError:
            return

    senders = [threading.Thread(target=send, args=(each,)) for each in connections]
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        for connection in connections:
            connection.sock.close()
        for sender in senders:
            sender.join()


def test_a_request_of_exactly_the_limit_is_served_and_one_byte_more_is_not(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.send(padded(REQUEST_BYTES_MAX))
        assert decode_response(METADATA, 1, connection.read_frame())[0] == 7
        connection.send(struct.pack(">i", REQUEST_BYTES_MAX + 1))
        target.check_closed(connection, f"invalid request size: {REQUEST_BYTES_MAX + 1} bytes")


def test_memory_of_large_requests_is_limited(target: WatchedBroker) -> None:
    before = target.watch_peak()
    with (
        many(target.port, 30) as connections,
        sending(connections, unfinished(3 * MIB)),
    ):
        eventually("one is closed so that others have room", lambda: bool(target.log_lines(HELD)))
        target.check_bystander()
        allowed = QUEUED_BYTES_MAX + len(connections) * SMALL_REQUEST_BYTES
        assert target.peak_bytes() - before < allowed + SLACK_BYTES


@contextmanager
def full(port: int) -> Iterator[Crowd]:
    """Unfinished requests that take all of the memory: 4, 2 and 2 MiB, as buffers double."""
    with many(port, 3) as connections, RawConnection(port) as other:
        for connection, sent in zip(connections, (2 * MIB, MIB, MIB), strict=True):
            connection.send(unfinished(sent + 64 * KIB))
            # Each turn reads from all connections with data. After some turns, all data is read.
            for _ in range(40):
                other.ask(API_VERSIONS, 0, {})
        yield connections


@pytest.fixture
def fresh(target_settings: dict[str, str]) -> Iterator[RunningBroker]:
    """A new broker, because a used one might still have memory of earlier connections."""
    with RunningBroker.start(settings=target_settings) as broker:
        yield broker


def test_stalled_requests_are_closed_largest_first(fresh: RunningBroker) -> None:
    with full(fresh.port) as silent:
        with RawConnection(fresh.port) as honest:
            honest.send(padded(2 * MIB))
            assert decode_response(METADATA, 1, honest.read_frame())[0] == 7
        assert [is_open(connection) for connection in silent] == [False, True, True]
        assert f"peer={silent[0].name} reason=its incomplete request {HELD}" in fresh.log()


def test_request_that_grows_byte_by_byte_counts_as_stalled(fresh: RunningBroker) -> None:
    is_answered = threading.Event()

    def drip(connections: Crowd) -> None:
        while not is_answered.wait(0.05):
            for connection in connections:
                try:
                    connection.send(b"\0")
                except OSError:
                    return

    with full(fresh.port) as silent:
        dripping = threading.Thread(target=drip, args=(silent,))
        dripping.start()
        try:
            with RawConnection(fresh.port) as honest:
                honest.send(padded(2 * MIB))
                assert decode_response(METADATA, 1, honest.read_frame())[0] == 7
        finally:
            is_answered.set()
            dripping.join()


def test_requests_of_up_to_64_kib_never_wait(fresh: RunningBroker) -> None:
    with full(fresh.port) as silent:
        with RawConnection(fresh.port) as honest:
            for _ in range(20):
                honest.send(padded(SMALL_REQUEST_BYTES))
                assert decode_response(METADATA, 1, honest.read_frame())[0] == 7
        assert HELD not in fresh.log()
        assert all(map(is_open, silent))


def test_requests_pipelined_after_a_long_poll_count_as_memory(target: WatchedBroker) -> None:
    """It cannot be parsed before the poll ends; 200 reads of 256 KiB would be 50 MiB."""
    with target.connect() as connection:
        connection.create_topic("poll")
    before = target.watch_peak()
    with many(target.port, 200) as connections:
        for connection in connections:
            poll = connection.fetch_frame("poll", 0, max_wait_ms=INT32_MAX)
            connection.send_as_taken(poll + padded(60_000) * 5)
        target.check_bystander()
        allowed = QUEUED_BYTES_MAX + len(connections) * SMALL_REQUEST_BYTES
        assert target.peak_bytes() - before < allowed + SLACK_BYTES


@pytest.mark.parametrize("then_close", [False, True], ids=["and waits", "and goes"])
def test_large_requests_count_as_memory_while_they_are_executed(
    target: WatchedBroker, then_close: bool
) -> None:
    """Each waits for the thread that decompresses, whether or not its sender does."""
    slow = bytes(cramjam.zstd.compress(os.urandom(200 * KIB) + bytes(100 * MIB)))
    batch = bytearray(one_batch(b"", timestamp=0)[:61] + slow)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, 4)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    topic = f"slow-{then_close}"
    with target.connect() as connection:
        connection.create_topic(topic)
        parts = [{"index": 0, "records": bytes(batch)} for _ in range(4)]
        body: Message = {
            "transactional_id": None,
            "acks": 1,
            "timeout_ms": 1000,
            "topic_data": [{"name": topic, "partition_data": parts}],
        }
        frame = connection.frame(PRODUCE, 9, body)[4:].ljust(REQUEST_BYTES_MAX, b"\0")
    before = target.watch_peak()
    with (
        many(target.port, 30) as connections,
        sending(connections, framed(frame), then_close=then_close),
    ):
        target.check_bystander()
    with target.connect() as connection:
        # The thread processes requests sequentially. When this one is done, the others are too.
        answer = connection.produce(topic, one_batch(os.urandom(90 * KIB), codec=4))
        assert answer["error_code"] == 0
    # The frames have 4 MiB each. One decompressed batch is added.
    assert target.peak_bytes() - before < QUEUED_BYTES_MAX + UNFOLDED_BYTES_MAX + SLACK_BYTES


def test_responses_have_the_order_of_the_requests(
    target: WatchedBroker,
) -> None:
    noise = os.urandom(90 * KIB)
    with target.connect() as connection:
        connection.create_topic("order")
        frames: list[bytes] = []
        expected: list[tuple[int, int, int]] = []
        values: list[bytes] = []

        def add(frame: bytes, api_key: int, version: int) -> None:
            frames.append(frame)
            (number,) = struct.unpack_from(">i", frame, 8)
            expected.append((api_key, version, number))

        def produce(value: bytes, codec: int = 0, acks: int = 1) -> None:
            values.append(value)
            frame = connection.produce_frame("order", one_batch(value, codec=codec), acks=acks)
            if acks == 0:
                frames.append(frame)
            else:
                add(frame, PRODUCE, 9)

        for turn in range(6):
            produce(b"plain %d" % turn)
            produce(b"unanswered %d" % turn, acks=0)
            add(connection.frame(METADATA, 1, {"topics": [{"name": "order"}]}), METADATA, 1)
            # Compressed and larger than 64 KiB: it leaves the loop, and the rest has to wait.
            produce(noise + b"%d" % turn, codec=4, acks=-1)
            add(connection.fetch_frame("order", len(values) - 1), FETCH, 12)
            add(connection.frame(API_VERSIONS, 0, {}), API_VERSIONS, 0)
            add(connection.fetch_frame("order", len(values), max_wait_ms=20), FETCH, 12)
        connection.send(b"".join(frames))
        offset = 0
        for api_key, version, number in expected:
            correlation_id, reply = decode_response(api_key, version, connection.read_frame())
            assert correlation_id == number
            if api_key == PRODUCE:
                answer = reply["responses"][0]["partition_responses"][0]
                assert answer["error_code"] == 0
                assert answer["base_offset"] >= offset
                offset = answer["base_offset"]
            elif api_key == FETCH:
                records = reply["responses"][0]["partitions"][0]["records"]
                # A connection sees what it wrote before.
                assert not records or values_of(records) == [values[offset]]
        assert values_of(connection.fetch("order", 0)["records"]) == values


def test_large_requests_are_read_completely_among_small_ones(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.create_topic("pieces")
        values = [
            b"%d" % number * size for number, size in enumerate([200 * KIB, 1, 450 * KIB, 9] * 4)
        ]
        frames = [connection.produce_frame("pieces", one_batch(value)) for value in values]
        # Chunks end before, inside and after a length prefix, and anywhere in the request.
        stream = memoryview(b"".join(frames))
        at = 0
        for number in range(1, 200):
            size = (number * 7919) % (3 if number % 3 else 150 * KIB) + 1
            connection.send(bytes(stream[at : at + size]))
            at += size
        connection.send(bytes(stream[at:]))
        for number in range(len(values)):
            answer = connection.read_answer(PRODUCE, 9)
            (part,) = answer["responses"][0]["partition_responses"]
            assert (part["error_code"], part["base_offset"]) == (0, number)
        # One at a time: the broker reads each with a single call.
        for number in range(len(values), len(values) + 4):
            assert (
                connection.produce("pieces", one_batch(bytes(900 * KIB)))["base_offset"] == number
            )
        assert values_of(connection.fetch("pieces", 2)["records"])[0] == values[2]


def ends_at(connection: RawConnection, topic: str, offset: int) -> Callable[[], bool]:
    return lambda: connection.end_offset(topic) == offset


@pytest.mark.parametrize("is_polling", [False, True], ids=["checked", "polling"])
def test_records_with_acks_0_are_written_after_their_producer_disconnected(
    broker: RunningBroker, is_polling: bool
) -> None:
    """At the disconnect, the request waits for a batch on a thread, or for a long poll."""
    target = WatchedBroker(broker)
    topic = f"left-{is_polling}"
    # Behind a long poll nothing is read. All of it must fit into the socket's buffers, or the end
    # of the connection does not reach the broker before the poll is over.
    noise = os.urandom((8 if is_polling else 90) * KIB)
    batches = [
        one_batch(noise + bytes(6 * MIB), codec=4),
        one_batch(b"small"),
        one_batch(noise, codec=4),
        one_batch(b"last"),
    ]
    with target.connect() as connection:
        connection.create_topic(topic)
        connection.create_topic(topic + "-quiet")
        for turn in range(1, 4):
            with target.connect() as leaving:
                frames = [leaving.produce_frame(topic, each, acks=0) for each in batches]
                if is_polling:
                    poll = leaving.fetch_frame(topic + "-quiet", 0, max_wait_ms=INT32_MAX)
                    frames.insert(0, poll)
                leaving.send(b"".join(frames))
            eventually("all is written", ends_at(connection, topic, turn * len(batches)))


def test_request_after_a_long_poll_is_executed_after_its_response(
    target: WatchedBroker,
) -> None:
    """One request of a connection after the other, acknowledged or not, as in Apache Kafka."""
    with target.connect() as sender, target.connect() as other:
        other.create_topic("behind")
        other.create_topic("behind-quiet")
        poll = sender.fetch_frame("behind-quiet", 0, max_wait_ms=INT32_MAX)
        frames = [
            sender.produce_frame("behind", one_batch(value), acks=acks)
            for value, acks in ((b"a", 0), (b"b", 1), (b"c", 0))
        ]
        sender.send(poll + b"".join(frames))
        assert other.end_offset("behind") == 0
        other.produce("behind-quiet", one_batch(b"news"))
        (polled,) = sender.read_answer(FETCH, 12)["responses"][0]["partitions"]
        assert values_of(polled["records"]) == [b"news"]
        (produced,) = sender.read_answer(PRODUCE, 9)["responses"][0]["partition_responses"]
        assert produced["base_offset"] == 1
        assert sender.end_offset("behind") == 3
        assert values_of(sender.fetch("behind", 0)["records"]) == [b"a", b"b", b"c"]
