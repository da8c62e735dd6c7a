"""The load generator: sends requests over raw sockets, without a client library.

Owns the connections of one measurement. Uses one thread, so at most one core. Compares each Produce
response with the expected one, and checks the first fields of each Fetch response. Does not depend
on the broker.

1. A connection always has as many requests in flight as the workload specifies, until the last
   requests are sent.
2. A measurement of throughput ends when all responses have arrived.
3. Requests for throughput are built before the measurement: they are slices of one block.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench import frames

_BUFFER_SIZE = 1 << 20
_STALL_S = 60.0


@dataclass(slots=True)
class Throughput:
    """The number of requests, their bytes, and the time that they took."""

    requests: int
    size: int
    seconds: float
    client_cpu_s: float


@dataclass(slots=True)
class Latencies:
    """The times of single requests in seconds."""

    samples: list[float] = field(default_factory=list)

    def quantile(self, fraction: float) -> float:
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=_STALL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), _BUFFER_SIZE))
        if not part:
            raise frames.ResponseError("the broker closed the connection")
        parts += part
    return bytes(parts)


def ask(connection: socket.socket, request: bytes) -> bytes:
    """Send a request, and return its response with the length prefix. Not for measurements."""
    connection.sendall(request)
    prefix = receive_exactly(connection, 4)
    return prefix + receive_exactly(connection, int.from_bytes(prefix, "big"))


# Producing.


class _Producer:
    """One connection with up to `depth` equal requests in flight."""

    __slots__ = (
        "block",
        "buffer",
        "fill",
        "request_size",
        "sock",
        "unsent_bytes",
        "view",
        "watched",
    )

    def __init__(self, host: str, port: int, request: bytes, depth: int) -> None:
        self.sock = connect(host, port)
        self.sock.setblocking(False)
        self.request_size = len(request)
        # One request more than can be unsent, so that the unsent bytes are one slice of the block.
        self.block = memoryview(request * (depth + 1))
        self.unsent_bytes = 0
        self.buffer = bytearray(1 << 16)
        self.view = memoryview(self.buffer)
        self.fill = 0
        self.watched = select.EPOLLIN

    def send(self) -> None:
        at = -self.unsent_bytes % self.request_size
        try:
            self.unsent_bytes -= self.sock.send(self.block[at : at + self.unsent_bytes])
        except BlockingIOError:
            return

    def receive(self, response: frames.ProduceResponse) -> int:
        """Read, and compare the complete responses. Return their number."""
        size = self.sock.recv_into(self.view[self.fill :])
        if not size:
            raise frames.ResponseError("the broker closed the connection")
        end = self.fill + size
        before, after, response_size = response.before, response.after, response.size
        after_at = len(before) + 8
        at = count = 0
        while end - at >= response_size:
            if not (
                self.buffer.startswith(before, at) and self.buffer.startswith(after, at + after_at)
            ):
                raise frames.ResponseError(
                    f"unexpected response {bytes(self.view[at : at + 80])!r}"
                )
            at += response_size
            count += 1
        if at < end and at:
            self.buffer[: end - at] = self.buffer[at:end]
        self.fill = end - at
        return count


def produce(
    host: str,
    port: int,
    topic: str,
    request: bytes,
    *,
    connections: int,
    depth: int,
    requests: int,
    seconds_max: float = 1e9,
) -> Throughput:
    """Send `requests` equal requests. Stop after `seconds_max`, and wait for the responses."""
    response = frames.produce_response(topic)
    producers = [_Producer(host, port, request, depth) for _ in range(connections)]
    with select.epoll() as poll, no_garbage_collection():
        try:
            for producer in producers:
                poll.register(producer.sock.fileno(), select.EPOLLIN)
            return _pump(poll, producers, response, depth, requests, seconds_max)
        finally:
            for producer in producers:
                producer.sock.close()


def _pump(
    poll: select.epoll,
    producers: Sequence[_Producer],
    response: frames.ProduceResponse,
    depth: int,
    requests: int,
    seconds_max: float,
) -> Throughput:
    by_descriptor = {producer.sock.fileno(): producer for producer in producers}
    request_size = producers[0].request_size
    unsent = requests
    awaited = done = 0
    cpu = time.process_time()
    start = time.perf_counter()
    for producer in producers:
        count = min(depth, unsent)
        unsent -= count
        awaited += count
        _offer(poll, producer, count * request_size)
    while awaited:
        events = poll.poll(_STALL_S)
        if not events:
            raise frames.ResponseError(f"{awaited} responses did not arrive within {_STALL_S:g} s")
        for descriptor, event in events:
            producer = by_descriptor[descriptor]
            # Read also after an error or a disconnect, because the read raises the error.
            arrived = producer.receive(response) if event & ~select.EPOLLOUT else 0
            done += arrived
            count = arrived if arrived < unsent else unsent
            unsent -= count
            awaited += count - arrived
            if count or producer.unsent_bytes:
                _offer(poll, producer, count * request_size)
        if unsent and time.perf_counter() - start > seconds_max:
            unsent = 0
    seconds = time.perf_counter() - start
    return Throughput(done, done * request_size, seconds, time.process_time() - cpu)


def _offer(poll: select.epoll, producer: _Producer, size: int) -> None:
    producer.unsent_bytes += size
    producer.send()
    wanted = select.EPOLLIN | select.EPOLLOUT if producer.unsent_bytes else select.EPOLLIN
    if wanted != producer.watched:
        producer.watched = wanted
        poll.modify(producer.sock.fileno(), wanted)


# Fetching.


class Reader:
    """A connection that fetches the parts of a topic sequentially, and discards the records."""

    __slots__ = ("fill", "head", "head_size", "left", "requests", "sock", "taken", "topic", "view")

    def __init__(self, host: str, port: int, topic: str, requests: Iterator[bytes]) -> None:
        self.sock = connect(host, port)
        self.sock.setblocking(False)
        self.topic = topic
        self.requests = requests
        self.head_size = frames.fetch_head_size(topic)
        self.head = bytearray(self.head_size)
        self.fill = 0
        self.left = 0
        self.taken = 0
        """Bytes since the last pause."""
        self.view = memoryview(bytearray(_BUFFER_SIZE))

    def ask(self) -> None:
        """Send the next request. The socket buffer always has space for such small requests."""
        request = next(self.requests)
        if self.sock.send(request) != len(request):
            raise frames.ResponseError("the socket did not accept a complete request")

    def receive(self) -> tuple[int, bool]:
        """Read once. Return the number of bytes, and whether a response is complete."""
        if self.left:
            size = self.sock.recv_into(self.view[: min(self.left, _BUFFER_SIZE)])
            self.left -= size
        else:
            size = self.sock.recv_into(memoryview(self.head)[self.fill :])
            self.fill += size
            if self.fill == self.head_size:
                self._begin_response()
        if not size:
            raise frames.ResponseError("the broker closed the connection")
        self.taken += size
        return size, not self.left and not self.fill

    def _begin_response(self) -> None:
        head = frames.fetch_head(bytes(self.head), self.topic)
        if head.error:
            raise frames.ResponseError(f"Fetch returned error code {head.error}")
        self.left = head.size + 4 - self.head_size
        self.fill = 0


def fetch_requests(
    topic: str, *, records: int, stride: int, size_max: int, start: int = 0
) -> Iterator[bytes]:
    """Requests that read a topic from its start to its end, repeatedly."""
    requests = [
        frames.fetch(topic, offset, size_max=size_max)
        for offset in range(0, max(records - stride, 1), stride)
    ]
    turn = start % len(requests)
    while True:
        yield requests[turn]
        turn = (turn + 1) % len(requests)


def fetch(
    readers: Sequence[Reader], *, depth: int, requests: int, pause_s: float = 0.0
) -> Throughput:
    """Fetch with `depth` requests in flight per reader, until `requests` responses have arrived.

    With `pause_s`, a reader pauses for this time after each MiB.
    """
    by_descriptor = {reader.sock.fileno(): reader for reader in readers}
    paused: deque[tuple[float, int]] = deque()
    with select.epoll() as poll, no_garbage_collection():
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        received = done = 0
        unsent = requests
        cpu = time.process_time()
        start = time.perf_counter()
        for _ in range(depth):
            for reader in readers:
                reader.ask()
                unsent -= 1
        while done < requests:
            while paused and paused[0][0] <= time.perf_counter():
                poll.modify(paused.popleft()[1], select.EPOLLIN)
            wait_s = max(0.0, paused[0][0] - time.perf_counter()) if paused else _STALL_S
            events = poll.poll(wait_s)
            if not events and not paused:
                missing = requests - done
                raise frames.ResponseError(f"{missing} responses did not arrive in {_STALL_S:g} s")
            for descriptor, _ in events:
                reader = by_descriptor[descriptor]
                size, ended = reader.receive()
                received += size
                if pause_s and reader.taken >= _BUFFER_SIZE:
                    reader.taken = 0
                    poll.modify(descriptor, 0)
                    paused.append((time.perf_counter() + pause_s, descriptor))
                if ended:
                    done += 1
                    if unsent > 0:
                        unsent -= 1
                        reader.ask()
        seconds = time.perf_counter() - start
        return Throughput(done, received, seconds, time.process_time() - cpu)


# One record at a time.


def acknowledgements(
    host: str, port: int, topic: str, request: bytes, *, count: int, seconds_max: float
) -> Latencies:
    """Send requests sequentially, each after the response to the former one."""
    response = frames.produce_response(topic)
    times = Latencies()
    with connect(host, port) as connection, no_garbage_collection():
        deadline = time.perf_counter() + seconds_max
        for _ in range(count):
            start = time.perf_counter()
            connection.send(request)
            got = connection.recv(1024)
            end = time.perf_counter()
            if len(got) != response.size:
                got += receive_exactly(connection, response.size - len(got))
            if not (got.startswith(response.before) and got.endswith(response.after)):
                raise frames.ResponseError(f"unexpected response {got!r}")
            times.samples.append(end - start)
            if end > deadline:
                break
    return times


def round_trips(
    host: str, port: int, topic: str, request: bytes, *, count: int, seconds_max: float
) -> tuple[Latencies, Latencies]:
    """Write records that a waiting Fetch request returns. Measure acknowledgements and responses.

    During a short sleep before each record, the broker starts to wait with the Fetch request.
    Otherwise the record could be written first.
    """
    response = frames.produce_response(topic)
    acknowledged, fetched = Latencies(), Latencies()
    with (
        connect(host, port) as producer,
        connect(host, port) as consumer,
        select.epoll() as poll,
        no_garbage_collection(),
    ):
        poll.register(producer.fileno(), select.EPOLLIN)
        poll.register(consumer.fileno(), select.EPOLLIN)
        offset = end_offset(consumer, topic)
        deadline = time.perf_counter() + seconds_max
        for _ in range(count):
            consumer.send(frames.fetch(topic, offset, size_max=1 << 20, wait_ms_max=20_000))
            time.sleep(0.0004)
            start = time.perf_counter()
            producer.send(request)
            _await_both(poll, producer, consumer, start, acknowledged, fetched, response)
            offset += 1
            if time.perf_counter() > deadline:
                break
    return acknowledged, fetched


def _await_both(
    poll: select.epoll,
    producer: socket.socket,
    consumer: socket.socket,
    start: float,
    acknowledged: Latencies,
    fetched: Latencies,
    response: frames.ProduceResponse,
) -> None:
    waiting = {producer.fileno(), consumer.fileno()}
    record = b""
    while waiting:
        events = poll.poll(_STALL_S)
        if not events:
            raise frames.ResponseError(f"no response within {_STALL_S:g} s after a record")
        for descriptor, _ in events:
            if descriptor == producer.fileno():
                got = producer.recv(1024)
                acknowledged.samples.append(time.perf_counter() - start)
                if len(got) != response.size or not got.startswith(response.before):
                    raise frames.ResponseError(f"unexpected response {got!r}")
                waiting.discard(descriptor)
                continue
            record += consumer.recv(1 << 16)
            if len(record) >= 4 and len(record) == int.from_bytes(record[:4], "big") + 4:
                fetched.samples.append(time.perf_counter() - start)
                waiting.discard(descriptor)
    if len(record) < 200:
        raise frames.ResponseError(f"a Fetch response without the record: {record!r}")


# Topics.


def end_offset(connection: socket.socket, topic: str) -> int:
    """The high watermark, from a Fetch request that does not wait."""
    response = ask(connection, frames.fetch(topic, 0, size_max=1))
    head = frames.fetch_head(response[: frames.fetch_head_size(topic)], topic)
    if head.error:
        raise frames.ResponseError(f"Fetch returned error code {head.error}")
    return head.high_watermark


def create_topic(host: str, port: int, topic: str, configs: dict[str, str]) -> None:
    """Create a topic with one partition. Wait until its leader responds."""
    with connect(host, port) as connection:
        response = ask(connection, frames.create_topic(topic, configs))
        error = frames.topic_error(response[4:], topic, id_size=16)
        if error:
            raise frames.ResponseError(f"CreateTopics returned error code {error}")
        deadline = time.monotonic() + 30
        request = frames.fetch(topic, 0, size_max=1)
        while True:
            response = ask(connection, request)
            head = frames.fetch_head(response[: frames.fetch_head_size(topic)], topic)
            if not head.error:
                return
            if time.monotonic() > deadline:
                raise frames.ResponseError(
                    f"Fetch from {topic} still returns error code {head.error}"
                )
            time.sleep(0.02)


def delete_topic(host: str, port: int, topic: str) -> None:
    with connect(host, port) as connection:
        response = ask(connection, frames.delete_topic(topic))
        error = frames.topic_error(response[4:], topic, id_size=0)
        if error:
            raise frames.ResponseError(f"DeleteTopics returned error code {error}")
