"""Timers of entities, and a clock that excludes time in which the broker did not run.

1. `now` excludes time in which this process did not run, because it was stopped or the machine was
   suspended. Otherwise sessions would expire although the broker could not read heartbeats.
2. One timer of the event loop serves all entities.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from headrace.coordinator.shard import NEVER, Moment
from headrace.env.clock import Clock

CHECK_MS = 500
STALL_MS = 2_000
STALE_MAX = 1_000


class TimerOwner(Protocol):
    @property
    def due_ms_by_key(self) -> dict[str, int]:
        """When the timer of each entity is due."""


Owner = TypeVar("Owner", bound=TimerOwner)


class Cancellable(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Cancellable]
"""Like the event loop's method: call a function after a number of seconds."""


class Timers(Generic[Owner]):
    def __init__(
        self,
        clock: Clock,
        call_later: CallLater,
        wake: Callable[[Owner, str, Moment], None],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._wake = wake
        self._heap: list[tuple[int, int, Owner, str]] = []
        self._sequence = 0
        self._stale_count = 0
        self._handle: Cancellable | None = None
        self._handle_ms = NEVER
        self._seen_ms = self._monotonic_ms()
        self._stalled_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def now(self) -> Moment:
        monotonic_ms = self._monotonic_ms()
        gap_ms = monotonic_ms - self._seen_ms
        if gap_ms > STALL_MS:
            self._stalled_ms += gap_ms - CHECK_MS
        self._seen_ms = monotonic_ms
        return Moment(monotonic_ms - self._stalled_ms, self._clock.wall_ms())

    def set(self, owner: Owner, key: str, due_ms: int, now: Moment) -> None:
        """Wake an entity at `due_ms`. An earlier time that is already set stays."""
        due_before_ms = owner.due_ms_by_key.get(key, NEVER)
        if due_ms >= due_before_ms:
            return
        if due_before_ms != NEVER:
            self._count_stale()
        owner.due_ms_by_key[key] = due_ms
        self._sequence += 1
        heappush(self._heap, (due_ms, self._sequence, owner, key))
        self._schedule(now)

    def forget(self, owner: Owner, key: str) -> None:
        """Cancel the timer of an entity that no longer exists."""
        if owner.due_ms_by_key.pop(key, None) is not None:
            self._count_stale()

    def _count_stale(self) -> None:
        """Count an unused heap entry. If more than half of the entries are unused, delete these."""
        self._stale_count += 1
        if self._stale_count > STALE_MAX and self._stale_count * 2 > len(self._heap):
            self._heap = [
                entry for entry in self._heap if entry[2].due_ms_by_key.get(entry[3]) == entry[0]
            ]
            heapify(self._heap)
            self._stale_count = 0

    def stop(self) -> None:
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _schedule(self, now: Moment) -> None:
        """Call `_run` when the first entry is due, or after CHECK_MS, to notice stalls."""
        if not self._heap:
            return
        due_ms = min(max(self._heap[0][0], now.ms), now.ms + CHECK_MS)
        if self._handle is not None:
            if self._handle_ms <= due_ms:
                return
            self._handle.cancel()
        self._handle_ms = due_ms
        self._handle = self._call_later((due_ms - now.ms) / 1000, self._run)

    def _run(self) -> None:
        self._handle = None
        now = self.now()
        while self._heap and self._heap[0][0] <= now.ms:
            due_ms, _, owner, key = heappop(self._heap)
            if owner.due_ms_by_key.get(key) == due_ms:
                del owner.due_ms_by_key[key]
                self._wake(owner, key, now)
            else:
                self._stale_count -= 1
        self._schedule(now)

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
