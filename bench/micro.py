"""Measures functions of the hot modules one at a time, without sockets.

    python -m bench.micro [--uncompiled]

A figure is the best of several repetitions, in microseconds per call. Use the figures to compare
two builds. `python -m bench` measures the speed of a broker.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from timeit import Timer

from bench import compiled, frames, workloads
from bench.kafka import ROOT
from bench.workloads import BULK, LZ4, SMALL, TYPICAL, ZSTD

Case = tuple[str, Callable[[], object]]
_HEADER_SIZE = 61
_REQUEST_BODY_AT = 4 + 8 + 2 + len(frames.CLIENT_ID) + 1
_SHAPES = {"1 x 100 B": SMALL, "160 x 100 B": TYPICAL, "1000 x 1 KB": BULK}


def record_cases() -> Iterator[Case]:
    from headrace.record.batch import Batch, read_batch, validate_records
    from headrace.record.compression import decompress

    def read(batch: bytes) -> Callable[[], Batch]:
        return lambda: read_batch(batch, 0, len(batch))

    def walk(batch: bytes) -> Callable[[], None]:
        found = read_batch(batch, 0, len(batch))
        return lambda: validate_records(found, batch, _HEADER_SIZE, len(batch), False)

    def unpack(batch: bytes, codec: int) -> Callable[[], None]:
        found = read_batch(batch, 0, len(batch))

        def run() -> None:
            payload = decompress(codec, found.payload(), 1 << 27)
            validate_records(found, payload, 0, len(payload), False)

        return run

    for shape, load in _SHAPES.items():
        batch = workloads.batch_of(load)
        yield f"read_batch, {shape}", read(batch)
        yield f"validate_records, {shape}", walk(batch)
    for name, load in (("lz4", LZ4), ("zstd", ZSTD)):
        yield (
            f"decompress and walk, 160 x 100 B, {name}",
            unpack(workloads.batch_of(load), load.codec),
        )


def produce_cases() -> Iterator[Case]:
    from headrace.wire.produce import read_produce, write_produce_response

    request = frames.produce("topic", workloads.batch_of(SMALL))
    found = read_produce(request, _REQUEST_BODY_AT, len(request), 11)
    yield "read_produce", lambda: read_produce(request, _REQUEST_BODY_AT, len(request), 11)
    yield "write_produce_response", lambda: write_produce_response(7, 11, found.topics, 0)


def fetch_cases() -> Iterator[Case]:
    from headrace.wire.fetch import FetchResult, read_fetch, write_fetch_response

    request = frames.fetch("topic", 0, size_max=1 << 20)
    result = FetchResult(b"topic", 0)
    result.records = object()
    result.size = 1 << 20
    yield "read_fetch", lambda: read_fetch(request, _REQUEST_BODY_AT, len(request), 12)
    yield "write_fetch_response", lambda: write_fetch_response(7, 12, 0, 0, [result], 0)


def log_cases() -> Iterator[Case]:
    """Calls on a log in a temporary directory. The next iteration deletes the directory."""
    from headrace.config.broker import BrokerConfig
    from headrace.env.clock import SystemClock
    from headrace.env.files import SystemFiles
    from headrace.log.directory.log_directory import LogDirectory
    from headrace.log.log import Log
    from headrace.model.topics import TopicPartition
    from headrace.record.batch import Batch, read_batch

    now_ms = time.time_ns() // 1_000_000

    def append(log: Log, batch: Batch, count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                log.stage(batch, 0, now_ms)
            log.write(now_ms)

        return run

    config = BrokerConfig.load({}).topic_config()
    cases = [(shape, load, 1) for shape, load in _SHAPES.items()]
    cases += [("40 of 1 x 100 B", SMALL, 40), ("20 of 160 x 100 B", TYPICAL, 20)]
    for shape, load, count in cases:
        with tempfile.TemporaryDirectory(prefix="headrace-micro-") as path:
            directory = LogDirectory(path, SystemFiles(), SystemClock())
            directory.open()
            log = directory.create(TopicPartition("topic", 0), uuid.uuid4(), config)
            frame = workloads.batch_of(load)
            yield f"stage and write, {shape}", append(log, read_batch(frame, 0, len(frame)), count)
            if shape == "1 x 100 B":
                last = log.log_end_offset - 1
                yield "read at the end", lambda: log.read(last, 1 << 20, last + 1, True)  # noqa: B023
            directory.close({})


GROUPS = (record_cases, produce_cases, fetch_cases, log_cases)


def best_us(call: Callable[[], object], seconds: float = 0.3) -> float:
    """Microseconds per call: the best of repetitions that take about `seconds` together."""
    timer = Timer(call)
    number, took = 1, timer.timeit(1)
    while took < 0.005:
        number *= 2
        took = timer.timeit(number)
    repetitions = max(3, int(seconds / took))
    return min(timer.repeat(repetitions, number)) / number * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.micro",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--uncompiled", action="store_true", help="measure src/, uncompiled")
    parser.add_argument(
        "--path",
        type=Path,
        help="directory whose package headrace is measured (default: a compiled one)",
    )
    chosen = parser.parse_args()
    path = chosen.path or (ROOT / "src" if chosen.uncompiled else compiled.site())
    sys.path.insert(0, str(path.resolve()))
    importlib.import_module("headrace")
    print(f"{'compiled' if compiled.is_compiled(path) else 'uncompiled'}, us per call")
    for group in GROUPS:
        for name, call in group():
            print(f"{best_us(call):10.2f}  {name}", flush=True)


if __name__ == "__main__":
    main()
