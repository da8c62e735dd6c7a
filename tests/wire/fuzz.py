"""Sends invalid frames to a live broker, and checks that it stays unchanged.

    python -m tests.wire.fuzz [--frames N] [--seed S]

After each frame, a valid request follows on the same connection. Within a few seconds, it gets a
response or the connection is closed. Requests that can wait (a fetch, a rebalance) are abandoned
after a moment. At the end, the broker is running, has logged no internal error, serves the next
client, and uses no more memory.
"""

import argparse
import random
import socket
import struct
import sys
import time
from collections import Counter

from headrace.testing import RunningBroker
from headrace.wire.apis import API_VERSIONS, FETCH
from tests.broker.raw import WatchedBroker, framed, header
from tests.wire.mutation import Mutator

SETTINGS = {
    # A topic is a directory, and a mutated number of partitions may be a large one.
    "headrace.partitions.max": "20",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
ANSWER_SECONDS = 10.0
PATIENCE_SECONDS = 0.01
GROWTH_BYTES_MAX = 96 << 20
WAITING_APIS = frozenset({FETCH, 11, 14})
_MARK = 0x5EA1
_QUESTION = framed(header(API_VERSIONS, 0, correlation_id=_MARK))


class Hang(AssertionError):
    """A frame got no response, and its connection was not closed."""


class Fuzzer:
    def __init__(self, port: int, seed: int, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = port
        self.mutator = Mutator(seed)
        self.outcomes: Counter[str] = Counter()
        self._sock: socket.socket | None = None

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def step(self) -> None:
        frame = self.mutator.frame()
        outcome = self._outcome(frame)
        self.outcomes[outcome] += 1
        if outcome != "answered":
            self.close()
        if outcome == "hangs":
            raise Hang(frame.hex())

    def _outcome(self, frame: bytes) -> str:
        may_wait = _api_key(frame) in WAITING_APIS or _is_lying(frame)
        if self._sock is None:
            self._sock = socket.create_connection((self.host, self.port), ANSWER_SECONDS)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.settimeout(PATIENCE_SECONDS if may_wait else ANSWER_SECONDS)
        try:
            self._sock.sendall(frame + _QUESTION)
            while self._read_correlation_id() != _MARK:
                continue
        except TimeoutError:
            return "waits" if may_wait else "hangs"
        except OSError:
            return "closed"
        return "answered"

    def _read_correlation_id(self) -> int:
        size, correlation_id = struct.unpack(">ii", self._read(8))
        self._read(size - 4)
        return int(correlation_id)

    def _read(self, size: int) -> bytes:
        assert self._sock is not None
        data = bytearray()
        while len(data) < size:
            piece = self._sock.recv(size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return bytes(data)


def _api_key(frame: bytes) -> int:
    return int.from_bytes(frame[4:6], "big", signed=True)


def _is_lying(frame: bytes) -> bool:
    """Whether its length is another: then the broker may wait for more, and rightly so."""
    return int.from_bytes(frame[:4], "big", signed=True) != len(frame) - 4


def fuzz(seed: int, frames: int, *, shows_progress: bool = False) -> Counter[str]:
    watched = WatchedBroker(RunningBroker.start(settings=SETTINGS))
    fuzzer = Fuzzer(watched.port, seed)
    try:
        watched.begin()
        for _ in range(200):
            fuzzer.step()  # Use the broker once, so that all modules are loaded.
        before = watched.watch_peak()
        began = time.monotonic()
        for number in range(frames):
            fuzzer.step()
            if number % 500 == 499:
                watched.check_bystander()
                if shows_progress:
                    rate = number / (time.monotonic() - began)
                    print(f"\r{number + 1} of {frames}, {rate:.0f}/s", end="", file=sys.stderr)
        grown = watched.peak_bytes() - before
        assert grown < GROWTH_BYTES_MAX, f"the broker grew by {grown >> 20} MiB"
        watched.end()
        watched.process.stop()
    except BaseException:
        print(f"\nseed {seed}, after {fuzzer.outcomes.total()} frames", file=sys.stderr)
        raise
    finally:
        fuzzer.close()
        watched.close()
    return fuzzer.outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    outcomes = fuzz(options.seed, options.frames, shows_progress=sys.stderr.isatty())
    print(dict(outcomes))


if __name__ == "__main__":
    main()
