"""Schedules that were written down: what random ones would find too seldom."""

import asyncio
import errno
import logging
from collections.abc import Callable

import pytest

from headrace.model.topics import NO_LEADER, TopicPartition
from headrace.testing.disk import SimulatedFiles
from tests.simulation.cluster import Cluster, Options
from tests.simulation.cutoffs import WRITES_S_MAX, cut_off_for
from tests.simulation.scenario import run, run_checked
from tests.simulation.topics import EVENTS
from tests.simulation.world import World


def _tear_the_last_in_sync(
    world: World, cluster: Cluster, running: "list[asyncio.Task[None]]"
) -> None:
    """All brokers are killed, and one loses power. It restarts first and considers the others live,
    so the ISR shrinks to a broker that is dead. Then it is killed again. The last in-sync broker
    also loses power, and restarts before the third broker, which has all records.
    """

    def until(is_so: Callable[[], bool]) -> None:
        assert run_checked(world, cluster, running, world.now + 60, is_so)

    until(lambda: len(cluster.history.acked) > 100 and cluster.is_in_full_sync())
    acked = len(cluster.history.acked)
    for broker in cluster.brokers:
        broker.kill()
    first = cluster.brokers[1]
    first.files = first.files.power_lost(1)
    first.start()
    until(lambda: cluster.stored()[0].leader == NO_LEADER and len(cluster.stored()[0].isr) == 1)
    last = cluster.brokers[cluster.stored()[0].isr[0] - 1]
    assert last is not first
    first.kill()
    last.files = last.files.power_lost(1)
    last.start()
    run_checked(world, cluster, running, world.now + 3)
    for broker in cluster.brokers:
        if not broker.is_running:
            broker.start()
    until(lambda: cluster.is_in_full_sync() and len(cluster.history.acked) > acked)


def test_torn_write_of_the_last_in_sync_replica_loses_no_acknowledged_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    options = Options(partitions=1, noise=False, faults=())
    run(2, options, _tear_the_last_in_sync)


def test_a_wiped_broker_that_restarts_first_waits_for_a_complete_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)

    def play(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        def until(is_so: Callable[[], bool]) -> None:
            assert run_checked(world, cluster, running, world.now + 60, is_so)

        until(lambda: len(cluster.history.acked) > 100 and cluster.is_in_full_sync())
        acked = len(cluster.history.acked)
        for broker in cluster.brokers:
            broker.kill()
        wiped, *others = cluster.brokers
        wiped.files = SimulatedFiles(1)
        wiped.start()
        run_checked(world, cluster, running, world.now + 120)
        assert cluster.stored()[0].leader == NO_LEADER
        for broker in others:
            broker.start()
        until(lambda: cluster.is_in_full_sync() and len(cluster.history.acked) > acked)

    run(1, Options(partitions=1, noise=False, faults=()), play)


def test_another_replica_becomes_leader_as_soon_as_a_disk_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Within a third of a second of virtual time: the client's retries need the rest."""
    caplog.set_level(logging.CRITICAL)

    def play(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
            assert run_checked(world, cluster, running, world.now + seconds, is_so)

        until(lambda: len(cluster.history.acked) > 100 and cluster.is_in_full_sync())
        failed = cluster.stored()[0].leader
        broker = cluster.brokers[failed - 1]
        files = broker.files
        first = files.operations + 1
        files.fail_at = dict.fromkeys(range(first, first + 10_000), errno.EIO)
        until(lambda: any(each.log.is_offline for each in cluster.partitions_of(broker)))
        until(lambda: cluster.stored()[0].leader not in (failed, NO_LEADER), 0.3)
        acked = len(cluster.history.acked)
        until(lambda: len(cluster.history.acked) > acked)
        broker.kill()
        files.fail_at.clear()
        broker.start()
        until(cluster.is_in_full_sync)

    run(1, Options(partitions=1, noise=False, faults=()), play)


def test_a_broker_with_an_unreadable_file_starts_and_serves_other_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)

    def play(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        def until(is_so: Callable[[], bool]) -> None:
            assert run_checked(world, cluster, running, world.now + 60, is_so)

        until(lambda: len(cluster.history.acked) > 100 and cluster.is_in_full_sync())
        broker = cluster.brokers[0]
        broker.kill()
        path = broker.make_unreadable(".log")
        offline = path.split("/")[-2]
        broker.start()

        def is_serving() -> bool:
            states = {
                f"{partition.topic}-{partition.index}": partition.log.is_offline
                for partition in cluster.partitions_of(broker)
            }
            others = [is_offline for name, is_offline in states.items() if name != offline]
            return states.get(offline, False) and len(others) > 0 and not any(others)

        until(is_serving)
        acked = len(cluster.history.acked)
        until(lambda: len(cluster.history.acked) > acked + 100)

    run(1, Options(partitions=2, noise=False, faults=()), play)


@pytest.mark.parametrize("ending", ["", ".log"])
def test_a_broker_that_lost_a_partition_and_restarts_first_waits_for_a_complete_one(
    caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    """Its directory, or only its segments, are removed before any checkpoint has them."""
    caplog.set_level(logging.CRITICAL)

    def play(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        def until(is_so: Callable[[], bool]) -> None:
            assert run_checked(world, cluster, running, world.now + 60, is_so)

        until(lambda: len(cluster.history.acked) > 5 and cluster.is_in_full_sync())
        acked = len(cluster.history.acked)
        for broker in cluster.brokers:
            broker.kill()
        first, *others = cluster.brokers
        names = first.partition_directories()
        assert names
        first.remove_partitions(names, ending)
        first.start()
        run_checked(world, cluster, running, world.now + 120)
        assert cluster.stored()[0].leader == NO_LEADER
        for broker in others:
            broker.start()
        until(lambda: cluster.is_in_full_sync() and len(cluster.history.acked) > acked)

    settings = {
        "replica.high.watermark.checkpoint.interval.ms": "600000",
        "log.flush.offset.checkpoint.interval.ms": "600000",
    }
    run(1, Options(partitions=1, noise=False, faults=(), settings=settings), play)


@pytest.mark.parametrize("direction", ["to", "from", "both"])
@pytest.mark.parametrize("loss", ["followers", "store", "followers, store", "all"])
def test_writes_continue_when_a_leader_is_cut_off(
    caplog: pytest.LogCaptureFixture, loss: str, direction: str
) -> None:
    """The cut lasts longer than the time within which a write must be acknowledged."""
    caplog.set_level(logging.CRITICAL)

    def play(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        assert run_checked(world, cluster, running, world.now + 60, cluster.is_in_full_sync)
        run_checked(world, cluster, running, world.now + 2)
        leader, begun = cluster.stored()[0].leader, world.wall_ms()
        partition, seconds = TopicPartition(EVENTS, 0), WRITES_S_MAX + 5
        assert cut_off_for(cluster, partition, loss, direction, seconds)
        cut = set(cluster.network.cuts)
        run_checked(world, cluster, running, world.now + WRITES_S_MAX + 1)
        assert cluster.network.cuts == cut, "the cut was healed"
        assert cluster.history.acked[-1].timestamp > begun
        if loss != "store":
            assert cluster.stored()[0].leader != leader

    run(3, Options(partitions=1, lag_ms_max=30_000), play)


@pytest.mark.parametrize("is_on", [True, False])
def test_preferred_replicas_become_leaders_automatically_unless_disabled(
    caplog: pytest.LogCaptureFixture, is_on: bool
) -> None:
    caplog.set_level(logging.CRITICAL)

    def play(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        def until(is_so: Callable[[], bool]) -> None:
            assert run_checked(world, cluster, running, world.now + 60, is_so)

        until(cluster.is_in_full_sync)
        preferred = cluster.stored()[0].replicas[0]
        assert cluster.stored()[0].leader == preferred
        broker = cluster.brokers[preferred - 1]
        broker.kill()
        until(lambda: cluster.stored()[0].leader not in (preferred, NO_LEADER))
        broker.start()
        until(cluster.is_in_full_sync)
        # Two intervals of the check for leaders that are not the preferred ones.
        run_checked(world, cluster, running, world.now + 10)
        assert (cluster.stored()[0].leader == preferred) is is_on

    settings = {
        "auto.leader.rebalance.enable": str(is_on).lower(),
        "leader.imbalance.check.interval.seconds": "5",
    }
    run(1, Options(partitions=1, noise=False, settings=settings), play)
