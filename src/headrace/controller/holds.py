"""Delays responses that would name a broker whose connection was just lost; see `loss_machine`.

Owns the waits of those requests, and wakes them when the image changes, when a connection is back,
or when HOLD_S has passed.

1. A request that names no lost broker costs one lookup, and no task.
2. Waiting requests resume WAKES_PER_STEP at a time: the loop serves others in between.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator
from itertools import chain

from headrace.controller.loss_machine import HOLD_S, Losses
from headrace.env.clock import Clock
from headrace.model.cluster import ClusterImage
from headrace.model.topics import TopicPartition

WAKES_PER_STEP = 32


class Holds:
    def __init__(self, image: ClusterImage, clock: Clock) -> None:
        self._image = image
        self._clock = clock
        self._losses = Losses()
        self._waits: deque[asyncio.Future[None]] = deque()
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def lost(self, node_id: int) -> None:
        if self._losses.lost(node_id, self._clock.monotonic()):
            loop = asyncio.get_running_loop()
            self._timers[node_id] = loop.call_later(HOLD_S, self._expire, node_id)

    def back(self, node_id: int) -> None:
        if self._losses.back(node_id):
            self._timers.pop(node_id).cancel()
            self.wake()

    def _expire(self, node_id: int) -> None:
        self._losses.expire(node_id)
        self.wake()

    def wake(self) -> None:
        """Each waiting request checks its condition again, for example after an image change."""
        self._wake_some(len(self._waits))

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._losses = Losses()
        self.wake()

    def hold(self, partitions: Iterable[TopicPartition], names: int) -> Awaitable[None] | None:
        """What a response about the leaders of these partitions waits for; None: nothing.

        `names` is how many names the request has, which are kept in memory until then.
        """
        if not self._losses.is_any_lost(self._clock.monotonic()):
            return None
        rest = iter(partitions)
        first = next((each for each in rest if self._has_lost_leader(each)), None)
        if first is None or not self._losses.hold(names):
            return None
        return self._wait(chain([first], rest), names)

    async def _wait(self, partitions: Iterator[TopicPartition], names: int) -> None:
        losses = self._losses
        limit = self._clock.monotonic() + HOLD_S
        try:
            for partition in partitions:
                while self._has_lost_leader(partition) and self._clock.monotonic() < limit:
                    wait = asyncio.get_running_loop().create_future()
                    self._waits.append(wait)
                    await wait
        finally:
            losses.release(names)

    def _has_lost_leader(self, partition: TopicPartition) -> bool:
        state = self._image.partition(*partition)
        return state is not None and self._losses.is_lost(state.leader, self._clock.monotonic())

    def _wake_some(self, count: int) -> None:
        for _ in range(min(count, WAKES_PER_STEP, len(self._waits))):
            wait = self._waits.popleft()
            if not wait.done():
                wait.set_result(None)
        if count > WAKES_PER_STEP:
            left = count - WAKES_PER_STEP
            asyncio.get_running_loop().call_soon(self._wake_some, left)
