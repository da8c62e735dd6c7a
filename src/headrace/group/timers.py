"""When groups want to be woken, and a clock that stands still while the broker does.

1. `now` never jumps: time in which this process did not run (it was stopped, or its machine
   slept) is not counted, for the members' heartbeats could not be read in it either.
2. One timer of the event loop serves all groups.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

from headrace.env.clock import Clock
from headrace.group.led_shard import LedShard
from headrace.group.membership import NEVER
from headrace.group.messages import Moment

BEAT_MS = 500
STALL_MS = 2_000
STALE_MAX = 1_000


class Cancellable(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Cancellable]
"""As an event loop has it: call something after so many seconds."""


class Timers:
    def __init__(
        self,
        clock: Clock,
        call_later: CallLater,
        wake: Callable[[LedShard, str, Moment], None],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._wake = wake
        self._heap: list[tuple[int, int, LedShard, str]] = []
        self._count = 0
        self._stale = 0
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
            self._stalled_ms += gap_ms - BEAT_MS
        self._seen_ms = monotonic_ms
        return Moment(monotonic_ms - self._stalled_ms, self._clock.wall_ms())

    def note(self, led: LedShard, group_id: str, alarm_ms: int, now: Moment) -> None:
        """See that a group is woken by then; earlier is no harm."""
        armed_ms = led.armed.get(group_id, NEVER)
        if alarm_ms >= armed_ms:
            return
        if armed_ms != NEVER:
            self._note_stale()
        led.armed[group_id] = alarm_ms
        self._count += 1
        heappush(self._heap, (alarm_ms, self._count, led, group_id))
        self._arm(now)

    def forget(self, led: LedShard, group_id: str) -> None:
        """The group is gone."""
        if led.armed.pop(group_id, None) is not None:
            self._note_stale()

    def _note_stale(self) -> None:
        """Clear the heap once half of it is of no use: groups that come and go must not fill it."""
        self._stale += 1
        if self._stale > STALE_MAX and self._stale * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].armed.get(entry[3]) == entry[0]]
            heapify(self._heap)
            self._stale = 0

    def stop(self) -> None:
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self, now: Moment) -> None:
        """Look again when the first is due, and at least once a beat: stalls must be noticed."""
        if not self._heap:
            return
        due_ms = min(max(self._heap[0][0], now.ms), now.ms + BEAT_MS)
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
            alarm_ms, _, led, group_id = heappop(self._heap)
            if led.armed.get(group_id) == alarm_ms:
                del led.armed[group_id]
                self._wake(led, group_id, now)
            else:
                self._stale -= 1
        self._arm(now)

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
