"""Rates of clients with several connections, and with a new connection per request."""

import asyncio
import heapq
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any, cast

import pytest

from headrace.model.errors import ErrorCode
from headrace.model.quotas import PRODUCER_BYTE_RATE, user_entity
from headrace.server.throttling import HELD_BYTES_MAX
from tests.unit.replication.replica_scenario import elect
from tests.unit.server import plane_scenario
from tests.unit.server.plane_scenario import Scene

RATE = 500_000.0
SECONDS = 20
ANONYMOUS = user_entity("ANONYMOUS")


class Timers:
    """The part of an event loop that a plane needs, with the time of a scene."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._numbers = count()
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        due = self._scene.clock.seconds + max(delay, 0.0)
        heapq.heappush(self._due, (due, next(self._numbers), call, args))

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        self.call_later(0.0, call, *args)

    def run_until(self, end: float) -> None:
        while self._due and self._due[0][0] <= end:
            due, _, call, args = heapq.heappop(self._due)
            self._scene.clock.seconds = max(due, self._scene.clock.seconds)
            call(*args)
            self._scene.plane.run()
        self._scene.clock.seconds = end


class Client(plane_scenario.Client):
    """Each with its own producer id."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene, 100 + len(scene.sockets))


class TimedScene(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.memory.bytes_max = 1 << 30
        self.timers = Timers(self)


@pytest.fixture
def scene() -> Iterator[TimedScene]:
    scene = TimedScene()
    elect(scene.node, 2, isr=(1,))
    former = asyncio._get_running_loop()
    asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", scene.timers))
    yield scene
    scene.close()
    asyncio._set_running_loop(former)


class Sender:
    """Sends a request as soon as it has the response to the last one."""

    def __init__(self, scene: Scene, size: int, is_new: bool, rng: Random) -> None:
        self._scene = scene
        self._size = size
        self._is_new = is_new
        """Whether it uses a new connection for each request."""
        self._rng = rng
        self._client = Client(scene)
        self.written: list[tuple[float, int]] = []
        """The time of each response, and the size of its request."""
        self.rejected = 0
        self._sent = 0
        self._send()

    def _send(self) -> None:
        self._sent = self._rng.randrange(self._size // 2, self._size * 3 // 2)
        self._client.produce("v" * self._sent, acks=1)

    def step(self) -> None:
        for _, code in self._client.results():
            if code == 0:
                self.written.append((self._scene.clock.seconds, self._sent))
            else:
                self.rejected += 1
            if self._is_new:
                self._client.sock.close()
                self._scene.plane.run()
                self._client = Client(self._scene)
            self._send()


def rates(scene: TimedScene, senders: list[Sender]) -> list[float]:
    """The bytes in each second."""
    start = scene.clock.seconds
    while scene.clock.seconds < start + SECONDS:
        scene.timers.run_until(scene.clock.seconds + 0.005)
        for sender in senders:
            sender.step()
    sums = [0.0] * SECONDS
    for sender in senders:
        for at, size in sender.written:
            if at < start + SECONDS:
                sums[int(at - start)] += size
    return sums


def limit(scene: Scene, kind: str, rate: float) -> None:
    scene.plane.throttling.quotas.update({ANONYMOUS: {kind: rate}})
    scene.plane.throttling.quotas_changed()


@pytest.mark.parametrize(
    ("kept", "new"), [(1, 0), (6, 0), (0, 1), (0, 6), (3, 3), (40, 0), (0, 40), (20, 20)]
)
def test_rate_is_smooth_with_any_number_of_new_connections(
    scene: TimedScene, kept: int, new: int
) -> None:
    """Every second after the first is within 25 % of the rate, and their mean within 3 %."""
    limit(scene, PRODUCER_BYTE_RATE, RATE)
    rng = Random(kept * 100 + new)
    senders = [Sender(scene, 10_000, number >= kept, rng) for number in range(kept + new)]
    sums = rates(scene, senders)
    later = sums[1:]
    # A kept connection executes its second request when its first is complete at the rate.
    assert sums[0] < 2.25 * RATE + 10_000 * kept, sums
    assert min(later) > 0.75 * RATE, sums
    assert max(later) < 1.25 * RATE, sums
    assert sum(later) / len(later) == pytest.approx(RATE, rel=0.03), sums
    assert sum(sender.rejected for sender in senders) == 0
    # No connection is kept waiting for good.
    assert min(len(sender.written) for sender in senders) > 5


def test_large_requests_on_new_connections_do_not_exceed_the_rate(scene: TimedScene) -> None:
    """A second of the quota per request: six clients wait for each other, or send again."""
    limit(scene, PRODUCER_BYTE_RATE, 20_000.0)
    senders = [Sender(scene, 20_000, number < 3, Random(number)) for number in range(6)]
    assert (SECONDS - 2) * 20_000 < sum(rates(scene, senders)) < (SECONDS + 4) * 20_000
    assert sum(sender.rejected for sender in senders) > 0


def test_request_on_a_new_connection_waits_and_is_executed(scene: TimedScene) -> None:
    limit(scene, PRODUCER_BYTE_RATE, 100_000.0)
    first, second, third = Client(scene), Client(scene), Client(scene)
    first.produce("v" * 300_000, acks=1)
    assert first.results() == [(1, 0)]
    second.produce("w" * 100_000, acks=1)
    third.produce("x", acks=1)
    scene.timers.run_until(scene.clock.seconds + 1.9)
    assert scene.partition.log.written_end_offset == 1
    scene.timers.run_until(scene.clock.seconds + 0.2)
    assert (second.results(), third.results()) == ([(1, 0)], [])
    scene.timers.run_until(scene.clock.seconds + 1.0)
    assert third.results() == [(1, 0)]
    assert (scene.plane.throttling.held_bytes, scene.memory.used) == (0, 0)


def test_closing_a_connection_cancels_the_reservation_of_its_held_request(
    scene: TimedScene,
) -> None:
    limit(scene, PRODUCER_BYTE_RATE, 100_000.0)
    first, second, third = Client(scene), Client(scene), Client(scene)
    first.produce("v" * 200_000, acks=1)
    second.produce("w" * 300_000, acks=1)
    assert scene.plane.throttling.held_bytes > 300_000
    scene.plane.close(second.connection, "")
    assert (scene.plane.throttling.held_bytes, scene.memory.used) == (0, 0)
    third.produce("x", acks=1)
    scene.timers.run_until(scene.clock.seconds + 1.1)
    assert third.results() == [(1, 0)]
    assert scene.partition.log.written_end_offset == 2


def test_change_of_another_quota_ends_no_wait(scene: TimedScene) -> None:
    limit(scene, PRODUCER_BYTE_RATE, 100_000.0)
    first, second = Client(scene), Client(scene)
    first.produce("v" * 300_000, acks=1)
    second.produce("w", acks=1)
    first.produce("x", acks=1)
    scene.plane.throttling.quotas.update(
        {ANONYMOUS: {PRODUCER_BYTE_RATE: 100_000.0}, user_entity("bob"): {PRODUCER_BYTE_RATE: 1.0}}
    )
    scene.plane.throttling.quotas_changed()
    assert scene.partition.log.written_end_offset == 1
    scene.plane.throttling.quotas.update({})
    scene.plane.throttling.quotas_changed()
    scene.plane.run()
    assert scene.partition.log.written_end_offset == 3


def test_requests_that_wait_have_a_bounded_size(scene: TimedScene) -> None:
    scene.plane.throttling.held_bytes = HELD_BYTES_MAX - 100_000
    limit(scene, PRODUCER_BYTE_RATE, 1_000_000.0)
    first, second, third = Client(scene), Client(scene), Client(scene)
    first.produce("v" * 500_000, acks=1)
    first.produce("v" * 500_000, acks=1)
    second.produce("w" * 90_000, acks=1)
    third.produce("x" * 90_000, acks=1)
    assert third.results() == [(1, ErrorCode.REQUEST_TIMED_OUT)]
    assert scene.plane.throttling.held_bytes < HELD_BYTES_MAX
