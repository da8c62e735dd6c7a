"""Measures the latency of one consumer while other clients load the broker.

Owns the disturbing processes. Measures the latency of single records that a waiting long poll
returns, as the workload `latency` does. The kinds of load are:

- `cold`: a consumer reads old data from disk.
- `control`: the same data goes from one process to another, without the broker. The difference to
  `alone` is the cost of the shared cores and disk, not of the broker.
- `slow`: consumers read their responses slowly.
- `broken`: clients stop reading, stop inside a request, or reset the connection.

1. A disturber is a child process. It ends when its standard input closes.
2. A disturber uses idle cores only (SCHED_IDLE), so that it takes no CPU time from the measured
   client.
3. A disturber reads at most 64 KiB and drops at most 8 MiB of page cache per system call: a kernel
   without preemption does not release the core during a long call.
4. Before each cold pass, the segment files are synced and dropped from the page cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import frames, kafka, load, workloads
from bench.brokers import Broker
from bench.workloads import Sample

KINDS = ("alone", "cold", "control", "slow", "broken")
COLD_REQUESTS = 1_500
SAMPLES = 4_000
_TOPIC, _TAIL = "behind", "tail"
_READ_SIZE, _DROP_SIZE = 64 << 10, 8 << 20
_SLOW_CONNECTIONS, _SLOW_READ_SIZE, _SLOW_PAUSE_S = 8, 16 << 10, 0.01
_BROKEN_CONNECTIONS = 10
_ROOT = Path(__file__).resolve().parent.parent


# The measurement.


def prepare(broker: Broker, scale: float) -> None:
    """Create the topic that disturbers read, with records, and the topic of the measured client."""
    turn = workloads.Round(broker, 0, flush=False, scale=scale)
    for topic in (_TOPIC, _TAIL):
        load.create_topic(broker.host, broker.port, topic, {})
    load.produce(
        broker.host,
        broker.port,
        _TOPIC,
        frames.produce(_TOPIC, workloads.batch_of(workloads.BULK)),
        connections=2,
        depth=2,
        requests=turn.count(COLD_REQUESTS),
    )


def measure(broker: Broker, kind: str, scale: float) -> Sample:
    """Take one sample of `latency` while a disturber runs."""
    workloads.settle()
    request = frames.produce(_TAIL, workloads.batch_of(workloads.SMALL))
    disk_read_mb = broker.disk_read_mb()
    cpu_s, start = broker.cpu_s(), time.perf_counter()
    with _disturber(broker, kind):
        _, fetched = load.round_trips(
            broker.host,
            broker.port,
            _TAIL,
            request,
            count=max(16, int(SAMPLES * scale)),
            seconds_max=30.0,
        )
        seconds = time.perf_counter() - start
        disk_read_mb = broker.disk_read_mb() - disk_read_mb
        cpu_s = broker.cpu_s() - cpu_s
    return {
        "trip_p50_us": fetched.quantile(0.5) * 1e6,
        "trip_p99_us": fetched.quantile(0.99) * 1e6,
        "disk_read_mb_per_s": disk_read_mb / seconds,
        "broker_cores": cpu_s / seconds,
    }


def clean(broker: Broker) -> None:
    for topic in (_TOPIC, _TAIL):
        load.delete_topic(broker.host, broker.port, topic)


@contextlib.contextmanager
def _disturber(broker: Broker, kind: str) -> Iterator[None]:
    if kind == "alone":
        yield
        return
    with load.connect(broker.host, broker.port) as connection:
        records = load.end_offset(connection, _TOPIC)
    segments = [str(path) for path in broker.segments(_TOPIC)]
    arguments = [kind, str(broker.port), str(records), *segments]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.interference", *arguments],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=kafka.end_with_parent,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # The disturber prints a line when it has begun.
        if not process.stdout.readline():
            raise frames.ResponseError(f"the disturber '{kind}' did not start")
        yield
        if process.poll() is not None:
            raise frames.ResponseError(f"the disturber '{kind}' ended before the measurement")
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


# The disturbers.


def drop_from_page_cache(paths: list[str]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            for at in range(0, os.fstat(descriptor).st_size, _DROP_SIZE):
                os.posix_fadvise(descriptor, at, _DROP_SIZE, os.POSIX_FADV_DONTNEED)
            # Also the pages across two ranges.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _yield_cores() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _is_stopped(timeout_s: float = 0.0) -> bool:
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


def _begin() -> None:
    print(json.dumps({"begun": True}), flush=True)


def _requests(records: int) -> list[bytes]:
    stride = workloads.FETCH_SIZE // len(workloads.batch_of(workloads.BULK)) * 1000
    return [
        frames.fetch(_TOPIC, offset, size_max=workloads.FETCH_SIZE)
        for offset in range(0, max(records - stride, 1), stride)
    ]


def replay_cold(port: int, records: int, segments: list[str]) -> None:
    """Read the topic repeatedly. Drop it from the page cache before each pass."""
    requests = _requests(records)
    view = memoryview(bytearray(_READ_SIZE))
    with load.connect("127.0.0.1", port) as connection:
        drop_from_page_cache(segments)
        _begin()
        while True:
            for request in requests:
                if _is_stopped():
                    return
                connection.sendall(request)
                left = int.from_bytes(load.receive_exactly(connection, 4), "big")
                while left:
                    left -= connection.recv_into(view[: min(left, len(view))])
            drop_from_page_cache(segments)


def replay_without_broker(segments: list[str]) -> None:
    """Read the same segment files through a socket, from a process that is not the broker."""
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            _send_cold(listener.accept()[0], segments)
        os._exit(0)
    _yield_cores()
    view = memoryview(bytearray(_READ_SIZE))
    with socket.create_connection(listener.getsockname()) as connection:
        _begin()
        while not _is_stopped():
            connection.recv_into(view)


def _send_cold(connection: socket.socket, segments: list[str]) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 256 << 10)
    while True:
        drop_from_page_cache(segments)
        for segment in segments:
            with open(segment, "rb") as file:
                connection.sendfile(file)


def read_slowly(port: int, records: int) -> None:
    """Send two large Fetch requests per connection, and read the responses slowly."""
    requests = _requests(records)
    view = memoryview(bytearray(_SLOW_READ_SIZE))
    connections = [load.connect("127.0.0.1", port) for _ in range(_SLOW_CONNECTIONS)]
    for number, connection in enumerate(connections):
        connection.setblocking(False)
        connection.send(requests[number % len(requests)] * 2)
    _begin()
    while not _is_stopped(_SLOW_PAUSE_S):
        for connection in connections:
            with contextlib.suppress(BlockingIOError):
                connection.recv_into(view)


def break_connections(port: int, records: int) -> None:
    """Open 10 connections that never read, and 10 that send an incomplete request.

    Then open connections one at a time, and reset each after the first read of its response.
    """
    requests = _requests(records)
    silent = [load.connect("127.0.0.1", port) for _ in range(_BROKEN_CONNECTIONS)]
    for number, connection in enumerate(silent):
        connection.send(requests[number % len(requests)] * 2)
    half = [load.connect("127.0.0.1", port) for _ in range(_BROKEN_CONNECTIONS)]
    for connection in half:
        connection.send(struct.pack(">i", 1 << 20) + b"\0" * 100)
    _begin()
    turn = 0
    while not _is_stopped(_SLOW_PAUSE_S):
        with load.connect("127.0.0.1", port) as connection:
            connection.send(requests[turn % len(requests)])
            connection.recv(1 << 16)
            # With a linger time of 0, close sends a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        turn += 1


def main() -> None:
    kind, port, records, *segments = sys.argv[1:]
    if kind == "control":
        replay_without_broker(segments)
        return
    _yield_cores()
    if kind == "cold":
        replay_cold(int(port), int(records), segments)
    elif kind == "slow":
        read_slowly(int(port), int(records))
    else:
        break_connections(int(port), int(records))


if __name__ == "__main__":
    main()
