"""The workloads: what each sends, and how a sample is measured.

Owns the sizes of the workloads. A sample creates a topic with one partition, builds the requests,
measures time and CPU time, and checks the number of records. Requests use acks=1, unless the round
specifies other acks. Does not start brokers and does not print.

1. A workload sends the same bytes to each broker.
2. A sample of writes is valid if the high watermark equals the number of acknowledged records.
   Otherwise the run ends with an error.
3. The data of one broker is on disk before the other broker is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

from bench import frames, load
from bench.brokers import Target

Sample = dict[str, float]
FETCH_SIZE = 8 << 20
FLUSH = {"flush.messages": "1"}


@dataclass(frozen=True, slots=True)
class ProduceLoad:
    """Equal requests with one batch each."""

    records: int
    value_size: int
    codec: int
    connections: int
    depth: int
    requests: int


@dataclass(frozen=True, slots=True)
class FetchLoad:
    """Fetch requests for up to `size` bytes. A reader pauses after each MiB."""

    readers: int
    size: int
    requests: int
    pause_s: float


SMALL = ProduceLoad(1, 100, frames.CODEC_NONE, 8, 5, 120_000)
TYPICAL = ProduceLoad(160, 100, frames.CODEC_NONE, 4, 5, 40_000)
LZ4 = ProduceLoad(160, 100, frames.CODEC_LZ4, 4, 5, 40_000)
ZSTD = ProduceLoad(160, 100, frames.CODEC_ZSTD, 4, 5, 40_000)
BULK = ProduceLoad(1000, 1000, frames.CODEC_NONE, 2, 2, 3_000)
FETCH = FetchLoad(2, FETCH_SIZE, 600, 0.0)
# With 50 readers, the pause is as long as the load generator needs for the other readers.
SLOW_FETCHES = {
    f"slow-{readers}-{size >> 20}mb": FetchLoad(readers, size, (300 << 23) // size, pause_s)
    for readers, pause_s in ((1, 0.001), (2, 0.001), (50, 0.025))
    for size in (FETCH_SIZE, 1 << 20)
}
SINGLE_RECORDS = 5_000


@dataclass(slots=True)
class Round:
    """One execution of the workloads with one broker."""

    broker: Target
    number: int
    flush: bool
    scale: float
    acks: int = 1
    written: dict[str, int] = field(default_factory=dict)

    @property
    def seconds_max(self) -> float:
        return max(1.0, (6.0 if self.flush else 25.0) * self.scale)

    def topic(self, name: str) -> str:
        """Create the topic, unless this round has created it. Return its full name."""
        topic = f"{name}-{'flush' if self.flush else 'cache'}-{self.number}"
        if topic not in self.written:
            configs = FLUSH if self.flush else {}
            load.create_topic(self.broker.host, self.broker.port, topic, configs)
            self.written[topic] = 0
        return topic

    def count(self, number: int) -> int:
        return max(16, int(number * self.scale))

    def add(self, topic: str, records: int) -> None:
        self.written[topic] += records
        with load.connect(self.broker.host, self.broker.port) as connection:
            end = load.end_offset(connection, topic)
        if end != self.written[topic]:
            raise frames.ResponseError(
                f"{self.broker.name} acknowledged {self.written[topic]} records of {topic}, "
                f"but its end offset is {end}"
            )

    def close(self) -> None:
        for topic in self.written:
            load.delete_topic(self.broker.host, self.broker.port, topic)
        self.written.clear()


@cache
def batch_of(workload: ProduceLoad) -> bytes:
    """The batch of a workload, which is the same during the complete run.

    Its timestamp is the time of the first call, so that retention does not delete it.
    """
    values = frames.text_values(workload.records, workload.value_size)
    return frames.build_batch(values, workload.codec, int(time.time() * 1000))


def settle() -> None:
    """Sync all files, so that writes of the former measurement do not disturb the next one."""
    os.sync()


def _usage(broker: Target, cpu_s: float, result: load.Throughput) -> Sample:
    return {
        "requests_per_s": result.requests / result.seconds,
        "mb_per_s": result.size / result.seconds / 1e6,
        "cpu_us_per_request": cpu_s / result.requests * 1e6,
        "cpu_s_per_gb": cpu_s / result.size * 1e9,
        "client_cores": result.client_cpu_s / result.seconds,
        "seconds": result.seconds,
        "rss_mb": broker.memory_mb()[0],
    }


def produce(name: str, workload: ProduceLoad, turn: Round) -> Sample:
    broker, topic = turn.broker, turn.topic(name)
    request = frames.produce(topic, batch_of(workload), turn.acks)
    settle()
    cpu_s = broker.cpu_s()
    result = load.produce(
        broker.host,
        broker.port,
        topic,
        request,
        connections=workload.connections,
        depth=workload.depth,
        requests=turn.count(workload.requests),
        seconds_max=turn.seconds_max,
    )
    sample = _usage(broker, broker.cpu_s() - cpu_s, result)
    turn.add(topic, result.requests * workload.records)
    return sample


def fetch(workload: FetchLoad, turn: Round) -> Sample:
    """Read the records of the workload bulk in this round. Write them first if bulk did not run."""
    broker, topic = turn.broker, turn.topic("bulk")
    if not turn.written[topic]:
        produce("bulk", BULK, turn)
    compare_stored(broker, topic, batch_of(BULK))
    settle()
    readers = fetch_readers(
        broker, topic, turn.written[topic], count=workload.readers, size=workload.size
    )
    try:
        cpu_s = broker.cpu_s()
        requests = max(2 * workload.readers, turn.count(workload.requests))
        result = load.fetch(readers, depth=2, requests=requests, pause_s=workload.pause_s)
        return _usage(broker, broker.cpu_s() - cpu_s, result)
    finally:
        for reader in readers:
            reader.sock.close()


def fetch_readers(
    broker: Target, topic: str, records: int, *, count: int, size: int
) -> list[load.Reader]:
    """Readers that begin at different offsets of a topic with batches of the workload bulk."""
    stride = size // len(batch_of(BULK)) * BULK.records
    steps = max(1, records // stride)
    return [
        load.Reader(
            broker.host,
            broker.port,
            topic,
            load.fetch_requests(
                topic,
                records=records,
                stride=stride,
                size_max=size,
                start=steps * number // count,
            ),
        )
        for number in range(count)
    ]


def compare_stored(broker: Target, topic: str, batch: bytes) -> None:
    """Fetch once. Check that the batches equal the sent batch, from the CRC to the end."""
    with load.connect(broker.host, broker.port) as connection:
        response = load.ask(connection, frames.fetch(topic, 0, size_max=FETCH_SIZE))
    records = frames.fetch_records(response, topic)
    for at in range(0, min(len(records), FETCH_SIZE) - len(batch), len(batch)):
        stored = records[at : at + len(batch)]
        got, sent = frames.stored_part(stored), frames.stored_part(batch)
        if got != sent:
            first = next(
                i for i, pair in enumerate(zip(got, sent, strict=False)) if len({*pair}) > 1
            )
            raise frames.ResponseError(
                f"{broker.name} returned a batch that differs from the sent one: the batch at byte "
                f"{at} of {len(records)} differs {first} bytes after the start of its CRC. "
                f"It begins with {stored[:61].hex()}, and differs at "
                f"{got[first : first + 32].hex()}"
            )


def acknowledgements(turn: Round) -> Sample:
    broker, topic = turn.broker, turn.topic("ack")
    request = frames.produce(topic, batch_of(SMALL), turn.acks)
    settle()
    times = load.acknowledgements(
        broker.host,
        broker.port,
        topic,
        request,
        count=turn.count(SINGLE_RECORDS),
        seconds_max=turn.seconds_max,
    )
    turn.add(topic, len(times.samples))
    return _quantiles("ack", times)


def latency(turn: Round) -> Sample:
    broker, topic = turn.broker, turn.topic("trip")
    request = frames.produce(topic, batch_of(SMALL), turn.acks)
    settle()
    acknowledged, fetched = load.round_trips(
        broker.host,
        broker.port,
        topic,
        request,
        count=turn.count(SINGLE_RECORDS),
        seconds_max=turn.seconds_max,
    )
    turn.add(topic, len(fetched.samples))
    return _quantiles("ack", acknowledged) | _quantiles("trip", fetched)


def _quantiles(name: str, times: load.Latencies) -> Sample:
    return {
        f"{name}_p50_us": times.quantile(0.5) * 1e6,
        f"{name}_p99_us": times.quantile(0.99) * 1e6,
    }


WORKLOADS: dict[str, Callable[[Round], Sample]] = {
    "small": partial(produce, "small", SMALL),
    "typical": partial(produce, "typical", TYPICAL),
    "lz4": partial(produce, "lz4", LZ4),
    "zstd": partial(produce, "zstd", ZSTD),
    "bulk": partial(produce, "bulk", BULK),
    "fetch": partial(fetch, FETCH),
    **{name: partial(fetch, workload) for name, workload in SLOW_FETCHES.items()},
    "ack": acknowledgements,
    "latency": latency,
}
