"""Runs the tour: starts the cluster, runs the steps, cleans up.

A signal only cancels the task. So `TourCluster.close` always runs once and completely before the
program ends.
"""

import asyncio
import signal
import time

from headrace.client.aio import connect
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.tour.cluster import TourCluster
from headrace.tour.ledger import Ledger
from headrace.tour.load import TOPIC, Load, Member
from headrace.tour.observer import Observer
from headrace.tour.screen import Screen
from headrace.tour.steps import STEPS
from headrace.tour.tour import Tour

BROKER_COUNT = 3
READING_S = 5.0
"""The time for which the results of a step remain on the screen."""
_SHOW_S = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The signal that ended the tour."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(screen: Screen, *, is_fast: bool) -> bool:
    """Run the tour; returns whether all checks succeeded. Raises Interrupted and TourFailed."""
    with asyncio.Runner() as runner:
        return runner.run(_run_until_signal(screen, is_fast))


async def _run_until_signal(screen: Screen, is_fast: bool) -> bool:
    received: list[int] = []
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def interrupt(number: int) -> None:
        if not received:
            task.cancel()
        received.append(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await _run_on_cluster(screen, is_fast)
    except asyncio.CancelledError:
        raise Interrupted(received[0] if received else signal.SIGINT) from None
    except BaseExceptionGroup as group:
        # The first exception, of a step or a client, caused the others.
        raise group.exceptions[0] from None


async def _run_on_cluster(screen: Screen, is_fast: bool) -> bool:
    cluster = TourCluster()
    try:
        with screen:
            screen.say("starting ZooKeeper and three brokers")
            began = time.monotonic()
            await cluster.start(BROKER_COUNT)
            screen.say(f"ready after {time.monotonic() - began:.1f} s: {_processes_text(cluster)}")
            return await _with_clients(cluster, screen, is_fast)
    finally:
        cluster.close()


def _processes_text(cluster: TourCluster) -> str:
    return ", ".join(f"{name} (pid {pid})" for name, pid in cluster.pids().items())


async def _with_clients(cluster: TourCluster, screen: Screen, is_fast: bool) -> bool:
    # A short timeout, because the observer repeats its requests.
    async with connect(
        cluster.bootstrap, client_id="tour-watch", operation_timeout_ms=1_500
    ) as observer_client:
        store = await ZooKeeperStore.open(cluster.zookeeper_address)
        try:
            async with connect(cluster.bootstrap, client_id="tour-runner") as client:
                observer = Observer(cluster, observer_client, store, TOPIC)
                await observer.refresh()
                ledger = Ledger()
                load = Load(cluster.bootstrap, ledger, observer.leader_of)
                tour = Tour(cluster, ledger, load, observer, client, screen, is_fast)
                return await _run_steps(tour)
        finally:
            await store.close()


async def _run_steps(tour: Tour) -> bool:
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(each)
            for each in (
                tour.observer.run(),
                tour.observer.run_offsets(),
                tour.load.offer_records(),
                tour.load.produce(),
                _show(tour),
                *(_consume(tour, member) for member in tour.load.members),
            )
        ]
        for number, step in enumerate(STEPS, start=1):
            if number > 1:
                await tour.screen.pause()
            tour.screen.begin(number, len(STEPS), step)
            await step.run(tour)
            tour.screen.show(tour)
            tour.screen.record_frame()
            await asyncio.sleep(0 if tour.is_fast else READING_S)
        tour.screen.end(tour)
        for task in running:
            task.cancel()
    return tour.is_successful


async def _consume(tour: Tour, member: Member) -> None:
    await tour.are_consumers_started.wait()
    await tour.load.consume(member)


async def _show(tour: Tour) -> None:
    while True:
        tour.screen.show(tour)
        await asyncio.sleep(_SHOW_S)
