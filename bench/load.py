"""The load generator: pre-built requests over raw sockets, one epoll, no client library.

Owns the connections of one measurement. Uses one thread, so at most one core; every answer is
compared with the one expected. Knows nothing of which broker it talks to.

1. A connection never has more requests in flight than the workload says, and as many as it says
   until the last ones are sent.
2. A measurement ends when every answer has arrived, never before.
3. Nothing is built while the clock runs: requests are slices of one block made before.
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
    """What one run of requests took."""

    requests: int
    size: int
    seconds: float
    client_cpu_s: float


@dataclass(slots=True)
class Latencies:
    """Times of single requests in seconds."""

    samples: list[float] = field(default_factory=list)

    def quantile(self, fraction: float) -> float:
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keeps the collector of cycles from running while the clock does."""
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
            raise frames.AnswerError("the broker closed the connection")
        parts += part
    return bytes(parts)


def ask(connection: socket.socket, request: bytes) -> bytes:
    """One request and its answer, length prefix included. Not for measuring."""
    connection.sendall(request)
    prefix = receive_exactly(connection, 4)
    return prefix + receive_exactly(connection, int.from_bytes(prefix, "big"))


# Producing.


class _Producer:
    """One connection with up to `depth` equal requests in flight."""

    __slots__ = ("block", "buffer", "fill", "owed", "request_size", "sock", "view", "watched")

    def __init__(self, host: str, port: int, request: bytes, depth: int) -> None:
        self.sock = connect(host, port)
        self.sock.setblocking(False)
        self.request_size = len(request)
        # One request more than can be owed, so that what is owed is one slice from any position.
        self.block = memoryview(request * (depth + 1))
        self.owed = 0
        self.buffer = bytearray(1 << 16)
        self.view = memoryview(self.buffer)
        self.fill = 0
        self.watched = select.EPOLLIN

    def send(self) -> None:
        at = -self.owed % self.request_size
        try:
            self.owed -= self.sock.send(self.block[at : at + self.owed])
        except BlockingIOError:
            return

    def receive(self, answer: frames.ProduceAnswer) -> int:
        """How many whole answers arrived; each one has been compared."""
        size = self.sock.recv_into(self.view[self.fill :])
        if not size:
            raise frames.AnswerError("the broker closed the connection")
        end = self.fill + size
        before, after, answer_size = answer.before, answer.after, answer.size
        after_at = len(before) + 8
        at = count = 0
        while end - at >= answer_size:
            if not (
                self.buffer.startswith(before, at) and self.buffer.startswith(after, at + after_at)
            ):
                raise frames.AnswerError(f"unexpected answer {bytes(self.view[at : at + 80])!r}")
            at += answer_size
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
    """Sends `requests` equal requests, or fewer if `seconds_max` pass before."""
    answer = frames.produce_answer(topic)
    producers = [_Producer(host, port, request, depth) for _ in range(connections)]
    with select.epoll() as poll, quiet_collector():
        try:
            for producer in producers:
                poll.register(producer.sock.fileno(), select.EPOLLIN)
            return _pump(poll, producers, answer, depth, requests, seconds_max)
        finally:
            for producer in producers:
                producer.sock.close()


def _pump(
    poll: select.epoll,
    producers: Sequence[_Producer],
    answer: frames.ProduceAnswer,
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
            raise frames.AnswerError(f"{awaited} answers did not come")
        for descriptor, event in events:
            producer = by_descriptor[descriptor]
            # Errors and hang-ups are read as well: the read then raises.
            answered = producer.receive(answer) if event & ~select.EPOLLOUT else 0
            done += answered
            count = answered if answered < unsent else unsent
            unsent -= count
            awaited += count - answered
            if count or producer.owed:
                _offer(poll, producer, count * request_size)
        if unsent and time.perf_counter() - start > seconds_max:
            unsent = 0
    seconds = time.perf_counter() - start
    return Throughput(done, done * request_size, seconds, time.process_time() - cpu)


def _offer(poll: select.epoll, producer: _Producer, size: int) -> None:
    producer.owed += size
    producer.send()
    wanted = select.EPOLLIN | select.EPOLLOUT if producer.owed else select.EPOLLIN
    if wanted != producer.watched:
        producer.watched = wanted
        poll.modify(producer.sock.fileno(), wanted)


# Fetching.


class Reader:
    """One connection that asks for one part of a topic after the other and drops what it gets."""

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
        """Since the last pause."""
        self.view = memoryview(bytearray(_BUFFER_SIZE))

    def ask(self) -> None:
        """Sends the next request. Requests are so small that the socket always takes them."""
        request = next(self.requests)
        if self.sock.send(request) != len(request):
            raise frames.AnswerError("the broker takes no requests")

    def receive(self) -> tuple[int, bool]:
        """Bytes taken by one read, and whether they were the end of an answer."""
        if self.left:
            size = self.sock.recv_into(self.view[: min(self.left, _BUFFER_SIZE)])
            self.left -= size
        else:
            size = self.sock.recv_into(memoryview(self.head)[self.fill :])
            self.fill += size
            if self.fill == self.head_size:
                self._begin_answer()
        if not size:
            raise frames.AnswerError("the broker closed the connection")
        self.taken += size
        return size, not self.left and not self.fill

    def _begin_answer(self) -> None:
        head = frames.fetch_head(bytes(self.head), self.topic)
        if head.error:
            raise frames.AnswerError(f"error {head.error} in an answer to Fetch")
        self.left = head.size + 4 - self.head_size
        self.fill = 0


def fetch_requests(
    topic: str, *, records: int, stride: int, size_max: int, start: int = 0
) -> Iterator[bytes]:
    """Requests that walk a topic from its start to its end, again and again."""
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
    """Lets each reader keep `depth` requests in flight until `requests` were answered.

    With `pause_s`, a reader that has taken 1 MB takes nothing for that time.
    """
    by_descriptor = {reader.sock.fileno(): reader for reader in readers}
    paused: deque[tuple[float, int]] = deque()
    with select.epoll() as poll, quiet_collector():
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
                raise frames.AnswerError(f"{requests - done} answers did not come")
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
    """One request, one answer, and the next."""
    answer = frames.produce_answer(topic)
    times = Latencies()
    with connect(host, port) as connection, quiet_collector():
        give_up = time.perf_counter() + seconds_max
        for _ in range(count):
            start = time.perf_counter()
            connection.send(request)
            got = connection.recv(1024)
            end = time.perf_counter()
            if len(got) != answer.size:
                got += receive_exactly(connection, answer.size - len(got))
            if not (got.startswith(answer.before) and got.endswith(answer.after)):
                raise frames.AnswerError(f"unexpected answer {got!r}")
            times.samples.append(end - start)
            if end > give_up:
                break
    return times


def round_trips(
    host: str, port: int, topic: str, request: bytes, *, count: int, seconds_max: float
) -> tuple[Latencies, Latencies]:
    """A record produced and fetched by a waiting long poll: both times, acknowledgement first.

    A short sleep before each record lets the broker put the poll to waiting; without it the
    record might be there first, and a plain read would be measured.
    """
    answer = frames.produce_answer(topic)
    acknowledged, fetched = Latencies(), Latencies()
    with (
        connect(host, port) as producer,
        connect(host, port) as consumer,
        select.epoll() as poll,
        quiet_collector(),
    ):
        poll.register(producer.fileno(), select.EPOLLIN)
        poll.register(consumer.fileno(), select.EPOLLIN)
        offset = end_offset(consumer, topic)
        give_up = time.perf_counter() + seconds_max
        for _ in range(count):
            consumer.send(frames.fetch(topic, offset, size_max=1 << 20, wait_ms_max=20_000))
            time.sleep(0.0004)
            start = time.perf_counter()
            producer.send(request)
            _await_both(poll, producer, consumer, start, acknowledged, fetched, answer)
            offset += 1
            if time.perf_counter() > give_up:
                break
    return acknowledged, fetched


def _await_both(
    poll: select.epoll,
    producer: socket.socket,
    consumer: socket.socket,
    start: float,
    acknowledged: Latencies,
    fetched: Latencies,
    answer: frames.ProduceAnswer,
) -> None:
    waiting = {producer.fileno(), consumer.fileno()}
    record = b""
    while waiting:
        events = poll.poll(_STALL_S)
        if not events:
            raise frames.AnswerError("the record did not come back")
        for descriptor, _ in events:
            if descriptor == producer.fileno():
                got = producer.recv(1024)
                acknowledged.samples.append(time.perf_counter() - start)
                if len(got) != answer.size or not got.startswith(answer.before):
                    raise frames.AnswerError(f"unexpected answer {got!r}")
                waiting.discard(descriptor)
                continue
            record += consumer.recv(1 << 16)
            if len(record) >= 4 and len(record) == int.from_bytes(record[:4], "big") + 4:
                fetched.samples.append(time.perf_counter() - start)
                waiting.discard(descriptor)
    if len(record) < 200:
        raise frames.AnswerError(f"an answer without the record: {record!r}")


# Topics.


def end_offset(connection: socket.socket, topic: str) -> int:
    """The high watermark, from a Fetch that waits for nothing."""
    answer = ask(connection, frames.fetch(topic, 0, size_max=1))
    head = frames.fetch_head(answer[: frames.fetch_head_size(topic)], topic)
    if head.error:
        raise frames.AnswerError(f"error {head.error} in an answer to Fetch")
    return head.high_watermark


def create_topic(host: str, port: int, topic: str, configs: dict[str, str]) -> None:
    """Creates a topic of one partition and waits until it has a leader that answers."""
    with connect(host, port) as connection:
        answer = ask(connection, frames.create_topic(topic, configs))
        error = frames.topic_error(answer[4:], topic, id_size=16)
        if error:
            raise frames.AnswerError(f"error {error} in an answer to CreateTopics")
        deadline = time.monotonic() + 30
        request = frames.fetch(topic, 0, size_max=1)
        while True:
            answer = ask(connection, request)
            head = frames.fetch_head(answer[: frames.fetch_head_size(topic)], topic)
            if not head.error:
                return
            if time.monotonic() > deadline:
                raise frames.AnswerError(f"topic {topic} still answers error {head.error}")
            time.sleep(0.02)


def delete_topic(host: str, port: int, topic: str) -> None:
    with connect(host, port) as connection:
        answer = ask(connection, frames.delete_topic(topic))
        error = frames.topic_error(answer[4:], topic, id_size=0)
        if error:
            raise frames.AnswerError(f"error {error} in an answer to DeleteTopics")
