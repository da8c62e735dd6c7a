"""The coordinator runtime with a shard that has nothing to do with groups: counters."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from headrace.coordinator import loader
from headrace.coordinator.runtime import CoordinatorKind, CoordinatorRuntime
from headrace.coordinator.shard import NEVER, NO_PRODUCER, Decision, Moment
from headrace.coordinator.shard_registry import CoordinatorTopic
from headrace.env.clock import SystemClock
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.build import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    NewRecord,
    build_batch,
    build_transaction_marker,
)
from tests.unit.group.memory_log_scenario import MemoryLog, NoTimers

Record = tuple[str, int]
Added = Decision[Record, str]


class Codec:
    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        return record[0].encode(), b"%d" % record[1]

    def decode(self, key: bytes, value: bytes | None) -> Record:
        if not key or value is None:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE)
        return key.decode(), int(value)


@dataclass
class Counters:
    """Adds numbers to counters. A request waits until its counter reaches 10."""

    index: int
    values: dict[str, int] = field(default_factory=dict)
    pending: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    markers: list[tuple[int, bool]] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    tick_ms: int = NEVER

    def __len__(self) -> int:
        return len(self.values)

    def add(self, key: str, number: int, ticket: int) -> Added:
        total = self.values.get(key, 0) + number
        if total < 10:
            self.waiting[key] = ticket
            return Decision([(key, total)])
        return Decision([(key, total)], [(ticket, f"{key}={total}")])

    def apply(self, record: Record, offset: int, producer_id: int = NO_PRODUCER) -> None:
        key, value = record
        if producer_id != NO_PRODUCER:
            self.pending.setdefault(producer_id, []).append((key, value, offset))
        else:
            self.values[key] = value
            self.offsets[key] = offset

    def apply_encoded(
        self, key: bytes, value: bytes | None, offset: int, producer_id: int = NO_PRODUCER
    ) -> bool:
        return False

    def apply_marker(self, producer_id: int, is_commit: bool) -> None:
        self.markers.append((producer_id, is_commit))
        for key, value, offset in self.pending.pop(producer_id, []):
            if is_commit and offset > self.offsets.get(key, -1):
                self.apply((key, value), offset)

    def loaded(self, now: Moment) -> Iterable[tuple[str, Added]]:
        for key in self.values:
            self.events.append(f"loaded {key}")
            yield key, Decision()

    def unloaded(self, error: ErrorCode) -> list[tuple[int, str]]:
        return [(ticket, f"{key}: {error.name}") for key, ticket in self.waiting.items()]

    def tick(self, key: str, now: Moment) -> Added:
        self.tick_ms = NEVER
        return Decision([], [(self.waiting.pop(key), "too late")])

    def due_ms(self, key: str) -> int | None:
        return self.tick_ms if key in self.values else None

    def applied(self, key: str, decision: Added, now: Moment) -> Added:
        self.events.append(f"applied {key}")
        return Decision()

    def append_failed(self, key: str, decision: Added, error: ErrorCode, now: Moment) -> Added:
        return Decision([], [(ticket, error.name) for ticket, _ in decision.replies])

    def cancelled(self, key: str, ticket: int, now: Moment) -> Added:
        self.events.append(f"cancelled {key}")
        del self.waiting[key]
        return Decision()

    def drop_if_vacant(self, key: str) -> None:
        if self.values.get(key) == 0:
            del self.values[key]


def check_key(key: str) -> None:
    if not key:
        raise ApiError(ErrorCode.INVALID_REQUEST)


class Coordinator:
    def __init__(self, log: MemoryLog) -> None:
        self.runtime: CoordinatorRuntime[Counters, Record, str] = CoordinatorRuntime(
            CoordinatorKind(
                CoordinatorTopic("__counters", 1),
                Codec(),
                Counters,
                check_key,
                lambda reply, error: f"{reply}: {error.name}",
            ),
            ClusterImage("c"),
            SystemClock(),
            self.create_topic,
            lambda _partitions, _names: None,
            NoTimers(),
            lambda _led: None,
        )
        self.runtime.become_leader(0, log)
        (self.led,) = self.runtime.shards

    @staticmethod
    async def create_topic(
        name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        raise AssertionError("the topic exists")

    async def add(self, key: str, number: int) -> str:
        runtime = self.runtime
        led = runtime.shards.find(key)
        ticket, now = runtime.replies.new_ticket(), runtime.timers.now()
        runtime.execute(led, key, led.shard.add(key, number, ticket), now)
        reply = runtime.reply_to(led, key, ticket)
        return reply if isinstance(reply, str) else await reply


async def started(*tasks: "asyncio.Task[str]") -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def test_records_are_applied_when_they_are_appended_and_again_after_a_load() -> None:
    async def scene() -> None:
        log = MemoryLog()
        coordinator = Coordinator(log)
        assert await coordinator.add("a", 11) == "a=11"
        assert await coordinator.add("a", 1) == "a=12"
        assert coordinator.led.shard.values == {"a": 12}
        after = Coordinator(log)
        with pytest.raises(ApiError) as error:
            after.runtime.shards.find("a")
        assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await after.led.load_ended.wait()
        assert after.led.shard.values == {"a": 12}
        assert after.led.shard.events == ["loaded a", "applied a"]

    asyncio.run(scene())


def test_reply_waits_until_its_records_are_committed() -> None:
    async def scene() -> None:
        log = MemoryLog()
        coordinator = Coordinator(log)
        log.holds = True
        adding = [asyncio.ensure_future(coordinator.add(key, 10)) for key in "ab"]
        await started(*adding)
        log.commit()
        assert await asyncio.gather(*adding) == ["a=10", "b=10"]
        lost = asyncio.ensure_future(coordinator.add("c", 10))
        await started(lost)
        log.lose()
        assert await lost == "c=10: NOT_COORDINATOR"

    asyncio.run(scene())


def test_decision_whose_records_are_not_appended_changes_nothing() -> None:
    async def scene() -> None:
        log = MemoryLog()
        coordinator = Coordinator(log)
        log.fails_with = ErrorCode.NOT_ENOUGH_REPLICAS
        assert await coordinator.add("a", 10) == "COORDINATOR_NOT_AVAILABLE"
        assert coordinator.led.shard.values == {}

    asyncio.run(scene())


def test_waiting_requests_get_a_reply_when_the_leadership_ends() -> None:
    async def scene() -> None:
        coordinator = Coordinator(MemoryLog())
        waiting = asyncio.ensure_future(coordinator.add("a", 1))
        await started(waiting)
        coordinator.runtime.resign(0)
        assert await waiting == "a: NOT_COORDINATOR"
        assert len(coordinator.runtime.replies) == 0
        with pytest.raises(ApiError) as error:
            coordinator.runtime.shards.find("a")
        assert error.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scene())


def test_cancelled_request_reaches_the_shard() -> None:
    async def scene() -> None:
        coordinator = Coordinator(MemoryLog())
        waiting = asyncio.ensure_future(coordinator.add("a", 1))
        await started(waiting)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert "cancelled a" in coordinator.led.shard.events
        assert len(coordinator.runtime.replies) == 0

    asyncio.run(scene())


def test_entity_ticks_when_its_time_comes() -> None:
    async def scene() -> None:
        coordinator = Coordinator(MemoryLog())
        waiting = asyncio.ensure_future(coordinator.add("a", 1))
        await started(waiting)
        now = coordinator.runtime.timers.now()
        coordinator.led.shard.tick_ms = now.ms
        coordinator.runtime.set_timer(coordinator.led, "a", now)
        coordinator.runtime.timers._run()
        assert await waiting == "too late"

    asyncio.run(scene())


def marker(producer_id: int, kind: int) -> bytes:
    return build_transaction_marker(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=0
    )


def values(producer_id: int = -1, **counters: int) -> bytes:
    return build_batch(
        [NewRecord(key.encode(), b"%d" % value, 0) for key, value in counters.items()],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )


@pytest.mark.parametrize("keys_max", [0, 50_000])
def test_loader_applies_markers_of_transactions(
    keys_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "KEYS_MAX", keys_max)
    monkeypatch.setattr(loader, "CHUNK_BYTES", 1)
    log, shard = MemoryLog(), Counters(0)
    log.append(values(a=1, b=1, c=1))
    log.append(values(7, a=2, b=2))
    log.append(values(8, c=2))
    log.append(values(b=3))
    log.append(marker(7, CONTROL_COMMIT))
    log.append(marker(8, CONTROL_ABORT))
    log.append(values(9, a=4))
    assert asyncio.run(loader.load(shard, Codec(), log)) == log.log_end_offset
    assert shard.values == {"a": 2, "b": 3, "c": 1}
    assert shard.markers == [(7, True), (8, False)]
    assert list(shard.pending) == [9]
