"""Copying that keeps below a rate: the count of bytes, and both sides of a fetch."""

import random

import pytest

from headrace.config.topic import TopicConfig
from headrace.replication.throttle import RATE_MAX, UNLIMITED, Throttle
from tests.storage.log_scenario import topic_config
from tests.unit.replication.fetcher_scenario import Scene
from tests.unit.replication.replica_scenario import Node, Wire, new_machine

RATE = 10_000
BATCH_BYTES = 1_000


def test_throttle_without_a_rate_has_no_effect() -> None:
    throttle = Throttle()
    throttle.spend(10**12)
    assert throttle.left(0) == UNLIMITED
    throttle.set_rate(RATE_MAX + 1, 0)
    assert throttle.left(0) == UNLIMITED


def test_rate_0_blocks_everything_until_it_is_raised() -> None:
    throttle = Throttle()
    throttle.set_rate(0, 0)
    assert throttle.left(10**9) == 0
    assert throttle.wait_ms() > 0
    throttle.set_rate(RATE, 10**9)
    assert throttle.left(10**9 + 200) > 0


@pytest.mark.parametrize("rate", [1, 999, 123_456, 10**9])
def test_over_any_time_no_more_is_copied_than_the_rate_gives(rate: int) -> None:
    choose = random.Random(rate)
    throttle = Throttle()
    throttle.set_rate(rate, 5)
    sent: list[tuple[int, int]] = []
    now_ms = 5
    largest = max(rate // 3, 50)
    for _ in range(3000):
        now_ms += choose.choice([0, 1, 1, 7, 120, 900])
        left = throttle.left(now_ms)
        if left > 0:
            size = min(choose.randrange(1, largest), left)
            throttle.spend(size)
            sent.append((now_ms, size))
        else:
            assert 0 < throttle.wait_ms() <= 1000
    for began in range(0, len(sent), 97):
        total = 0
        for at_ms, size in sent[began:]:
            total += size
            assert total <= rate * (at_ms - sent[began][0] + 1000) / 1000 + largest
    seconds = now_ms / 1000
    assert sum(size for _, size in sent) > min(rate * seconds * 0.5, len(sent) * largest * 0.2)


def test_batch_above_the_rate_is_sent_completely_and_then_delays_others() -> None:
    throttle = Throttle()
    throttle.set_rate(100, 0)
    assert throttle.left(200) > 0
    throttle.spend(1000)
    assert throttle.left(9_000) == 0
    assert throttle.wait_ms() == 1000
    assert throttle.left(10_000) == 0
    assert throttle.left(10_200) > 0


# Both sides of a fetch.


def slow(side: str, *replicas: str) -> TopicConfig:
    return topic_config().replace(**{f"{side}_replication_throttled_replicas": frozenset(replicas)})


class Copying(Scene):
    """Broker 2 is not in sync, and far behind in both partitions; so is broker 3 in the first."""

    def __init__(self, side: str, *replicas: str, isr: tuple[int, ...] = (1,)) -> None:
        super().__init__(partitions=2, isr=isr)
        throttle = Throttle()
        self.wire = Wire(self.follower, self.leader, new_machine(2, throttle=throttle))
        for index in (0, 1):
            self.wire.machine.follow(self.follower.partition(index))
        slowed = {"leader": self.leader, "follower": self.follower}[side]
        for partition in slowed.table:
            partition.configure(slow(side, *replicas))
        self.throttle = self.leader.handler.throttle if side == "leader" else throttle
        self.set_rate(RATE)

    def set_rate(self, rate: int) -> None:
        self.throttle.set_rate(rate, self.wire.now_ms())

    def fill(self, index: int, count: int = 60) -> None:
        for _ in range(count):
            self.leader.append("x" * (BATCH_BYTES - 100), index=index)

    def copied(self, index: int) -> int:
        return copied(self.follower, index)

    def pass_and_fetch(self, ms: int) -> None:
        for _ in range(ms // 20):
            self.pass_ms(20)
            self.leader.expire(self.clock.monotonic())
            self.wire.run()


def copied(node: Node, index: int) -> int:
    return sum(segment.size for segment in node.partition(index).log.segments.all)


both_sides = pytest.mark.parametrize(("side", "node"), [("leader", 1), ("follower", 2)])


@both_sides
def test_lagging_replica_is_limited_to_its_rate(side: str, node: int) -> None:
    scene = Copying(side, f"0:{node}")
    scene.fill(0)
    scene.fill(1)
    scene.wire.run()
    for seconds in range(1, 4):
        scene.pass_and_fetch(1000)
        slack = RATE + BATCH_BYTES
        assert RATE * seconds - slack <= scene.copied(0) <= RATE * seconds + slack
    assert scene.copied(1) == copied(scene.leader, 1), "it is not throttled"
    scene.pass_and_fetch(6000)
    assert scene.copied(0) == copied(scene.leader, 0)


@both_sides
def test_in_sync_replicas_are_not_throttled(side: str, node: int) -> None:
    scene = Copying(side, "*", isr=(1, 2))
    scene.wire.catch_up()
    scene.fill(0)
    scene.wire.run()
    assert scene.copied(0) == copied(scene.leader, 0)
    assert scene.leader.partition(0).high_watermark == 60


@both_sides
def test_throttle_of_other_replicas_has_no_effect(side: str, node: int) -> None:
    scene = Copying(side, f"0:{node + 1}", f"7:{node}")
    scene.fill(0)
    scene.wire.run()
    assert scene.copied(0) == copied(scene.leader, 0)


@both_sides
def test_removed_throttle_has_no_effect(side: str, node: int) -> None:
    scene = Copying(side, "*")
    scene.fill(0)
    scene.wire.run()
    assert scene.copied(0) < copied(scene.leader, 0) // 2
    scene.set_rate(UNLIMITED)
    scene.pass_and_fetch(1000)
    assert scene.copied(0) == copied(scene.leader, 0)
