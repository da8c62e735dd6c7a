"""Delays responses that would name a broker whose connection was just lost; see `loss_machine`.

Owns the waiting requests. Wakes them when the image changes, when a broker responds on a new
connection, or when HOLD_S has passed.

1. If a response names no lost broker, the check costs a lookup per partition, a system call per
   leader, and no task.
2. At most WAKES_PER_STEP requests are woken in one step, so that the loop also serves others.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain

from headrace.cluster.failure_detection.loss_machine import HELD_NAMES_MAX, HOLD_S, Losses
from headrace.env.clock import Clock
from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.model.topics import TopicPartition

WAKES_PER_STEP = 32


def _never(_node_id: int) -> bool:
    return False


class HeldResponses:
    def __init__(
        self, image: ClusterImage, clock: Clock, is_ended: Callable[[int], bool] = _never
    ) -> None:
        """`is_ended` checks a connection to a broker, which can end before an event reports it."""
        self._image = image
        self._is_ended = is_ended
        self._removed: dict[int, BrokerInfo] = {}
        """Brokers that were lost lately, and are no longer registered."""
        self._clients_with_response: set[str] = set()
        """Client connections that got a Metadata response since a broker was lost."""
        self._clock = clock
        self._losses = Losses()
        self._waits: deque[asyncio.Future[None]] = deque()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        """By lost broker: wakes the requests that wait because of it."""

    def lost(self, node_id: int) -> None:
        """The connection to a broker was closed or reset."""
        if self._losses.lost(node_id, self._clock.monotonic()):
            self._clients_with_response.clear()
            loop = asyncio.get_running_loop()
            self._timers[node_id] = loop.call_later(HOLD_S, self._expire, node_id)

    def reconnected(self, node_id: int) -> None:
        """A broker has responded on a new connection."""
        if self._losses.reconnected(node_id):
            self._timers.pop(node_id).cancel()
            self.wake()

    def removed(self, info: BrokerInfo) -> None:
        """A broker is no longer registered."""
        if self._losses.was_lost_lately(info.node_id, self._clock.monotonic()):
            self._removed[info.node_id] = info

    def was_lost_lately(self, node_id: int) -> bool:
        """Whether the connection to a broker was lost lately, and it has not responded since."""
        if self._is_ended(node_id):
            self.lost(node_id)
        return self._losses.was_lost_lately(node_id, self._clock.monotonic())

    def brokers_to_list(
        self, client: str, leaders: Callable[[], set[int]]
    ) -> dict[int, BrokerInfo]:
        """The brokers that a Metadata response lists: see rule 2 of `loss_machine`.

        `client` identifies the connection; `leaders` returns the leaders that the response names.
        """
        brokers = self._image.brokers
        now = self._clock.monotonic()
        lost = [node for node in self._timers if self._losses.was_lost_lately(node, now)]
        if not lost:
            self._removed.clear()
            self._clients_with_response.clear()
            return brokers
        if client not in self._clients_with_response:
            if len(self._clients_with_response) < HELD_NAMES_MAX:
                self._clients_with_response.add(client)
            return self._removed | brokers
        named = leaders()
        return {node: info for node, info in brokers.items() if node not in lost or node in named}

    def _expire(self, node_id: int) -> None:
        self._losses.expire(node_id)
        self.wake()

    def wake(self) -> None:
        """Make each waiting request check again whether it must wait."""
        self._wake_some(len(self._waits))

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._losses = Losses()
        self.wake()

    def wait_for_election(
        self, partitions: Iterable[TopicPartition], name_count: int
    ) -> Awaitable[None] | None:
        """An awaitable if a response must wait, because it would name a lost leader; else None.

        `name_count` is the number of names in the request, which stay in memory while it waits.
        """
        rest = iter(partitions)
        first = self._first_lost(rest)
        if first is None or not self._losses.hold(name_count):
            return None
        return self._wait(chain([first], rest), name_count)

    def _first_lost(self, partitions: Iterator[TopicPartition]) -> TopicPartition | None:
        """The first partition whose leader is lost; the iterator then continues after it.

        Checks the connection to each leader, because the loop can run this request before the event
        that reports the end of the connection.
        """
        if len(self._image.brokers) == 1:
            return None
        now = self._clock.monotonic()
        reachable: set[int] = set()
        for partition in partitions:
            state = self._image.partition(*partition)
            if state is None or state.leader in reachable:
                continue
            if self._is_ended(state.leader):
                self.lost(state.leader)
            if self._losses.is_lost(state.leader, now):
                return partition
            reachable.add(state.leader)
        return None

    async def _wait(self, partitions: Iterator[TopicPartition], name_count: int) -> None:
        losses = self._losses
        limit = self._clock.monotonic() + HOLD_S
        try:
            for partition in partitions:
                while self._has_lost_leader(partition) and self._clock.monotonic() < limit:
                    wait = asyncio.get_running_loop().create_future()
                    self._waits.append(wait)
                    await wait
        finally:
            losses.release(name_count)

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
