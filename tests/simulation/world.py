"""Virtual time, and simulated processes, each with its own event loop.

One thread runs all processes. The world selects the process with the earliest next event, and runs
its loop once. A paused process is skipped. A killed process never runs again, and neither do the
`finally` blocks of its coroutines.

1. Time advances only between events, and never moves back.
2. If several processes have events at the same time, they run in the order of their creation.
"""

import asyncio
import heapq
import random
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVarTuple

START_WALL_MS = 1_700_000_000_000
_NEVER = float("inf")
_Arguments = TypeVarTuple("_Arguments")


class _NoSelector:
    def select(self, _timeout: float | None = None) -> list[Any]:
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without sockets, whose time is the world's."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._clock_resolution = 1e-9
        self.world = world
        self.process: Process | None = None
        """The process that this loop runs."""
        self.set_exception_handler(world.on_exception)

    def time(self) -> float:
        return self.world.now

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Time advances for each timer. Otherwise a loop of very short waits would never end."""
        if delay > 0:
            delay = max(delay, 2 * self._clock_resolution)
        return super().call_later(delay, callback, *args, context=context)

    def _process_events(self, _event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def next_time(self) -> float:
        """When the earliest timer is due."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            self._pop_timer()
        return float(scheduled[0]._when) if scheduled else _NEVER

    def _pop_timer(self) -> asyncio.TimerHandle:
        handle: asyncio.TimerHandle = heapq.heappop(self._scheduled)  # type: ignore[attr-defined]
        handle._scheduled = False  # type: ignore[attr-defined]
        if handle._cancelled:
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        return handle

    def run_once(self) -> None:
        """Run the calls that are ready or due; as BaseEventLoop does, without I/O."""
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        end = self.world.now + self._clock_resolution
        while scheduled and scheduled[0]._when < end:
            ready.append(self._pop_timer())
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            events._set_running_loop(None)


class Process:
    """A simulated process: a broker, a client, the ensemble."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.loop = VirtualLoop(world)
        self.loop.process = self
        self.is_alive = True
        self.paused_until = 0.0
        world.processes.append(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        events._set_running_loop(self.loop)
        try:
            return self.loop.create_task(work)
        finally:
            events._set_running_loop(None)

    def at(self, when: float, call: Callable[..., object], *args: object) -> None:
        self.loop.call_at(max(when, self.world.now), call, *args)

    def kill(self) -> None:
        self.is_alive = False
        self.world.processes.remove(self)
        # Kept until the end: a coroutine that is collected would run its `finally`.
        self.world.dead.append(self)
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.processes: list[Process] = []
        self.dead: list[Process] = []
        self.errors: list[str] = []
        self.steps = 0
        self._watches: list[Callable[[], bool]] = []

    def watch(self, check: Callable[[], bool]) -> None:
        """Call this after every step, until it returns True."""
        self._watches.append(check)

    def run(self, until: float, is_done: Callable[[], bool] | None = None) -> None:
        """Run all events up to this time, or until a condition is true."""
        while is_done is None or not is_done():
            chosen: Process | None = None
            when = until
            now = self.now
            for process in self.processes:
                loop: Any = process.loop
                if loop._ready:
                    at = now
                else:
                    scheduled = loop._scheduled
                    if not scheduled or scheduled[0]._when >= when:
                        continue
                    at = loop.next_time()
                if at < when:
                    at = max(at, process.paused_until)
                    if at < when:
                        chosen, when = process, at
            if chosen is None:
                self.now = max(self.now, until)
                return
            self.now = max(self.now, when)
            self.steps += 1
            chosen.loop.run_once()
            for check in list(self._watches):
                if check():
                    self._watches.remove(check)
            if self.errors:
                raise AssertionError(self.errors[0])

    def wall_ms(self) -> int:
        """The true time, in milliseconds since 1970."""
        return START_WALL_MS + int(self.now * 1000)

    def on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        trace = ""
        if error is not None:
            import traceback

            trace = "".join(traceback.format_exception(error))
        self.errors.append(f"{context.get('message')}\n{trace}")

    def close(self) -> None:
        for process in [*self.processes, *self.dead]:
            process.loop.process = None  # Or the loop is collected too late, with a warning.
            for task in asyncio.all_tasks(process.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]


class WorldClock:
    """The clocks of one machine. Its wall clock can be stepped."""

    def __init__(self, world: World) -> None:
        self.step_ms = 0
        self._world = world

    def wall_ms(self) -> int:
        return self._world.wall_ms() + self.step_ms

    def monotonic(self) -> float:
        return self._world.now

    def elapsed(self) -> float:
        return self._world.now
