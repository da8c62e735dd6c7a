"""Runs the tour: starts the cluster, runs the steps, cleans up.

A signal only cancels the task on the loop. So `Stage.close` always runs once, completely, before
the program ends.
"""

import asyncio
import signal
import time

from headrace.client.aio import connect
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.tour.ledger import Ledger
from headrace.tour.load import TOPIC, Load
from headrace.tour.screen import Screen
from headrace.tour.stage import Stage
from headrace.tour.steps import STEPS
from headrace.tour.tour import Tour
from headrace.tour.watch import Watch

BROKER_COUNT = 3
READING_S = 5.0
"""The time for which the results of a step stay on the screen."""
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
        return await _on_stage(screen, is_fast)
    except asyncio.CancelledError:
        raise Interrupted(received[0] if received else signal.SIGINT) from None
    except BaseExceptionGroup as group:
        # The first exception, of a step or a client, caused the others.
        raise group.exceptions[0] from None


async def _on_stage(screen: Screen, is_fast: bool) -> bool:
    stage = Stage()
    try:
        with screen:
            screen.say("starting ZooKeeper and three brokers")
            began = time.monotonic()
            await stage.start(BROKER_COUNT)
            screen.say(f"ready after {time.monotonic() - began:.1f} s: {_named(stage)}")
            return await _with_clients(stage, screen, is_fast)
    finally:
        stage.close()


def _named(stage: Stage) -> str:
    return ", ".join(f"{name} (pid {pid})" for name, pid in stage.pids().items())


async def _with_clients(stage: Stage, screen: Screen, is_fast: bool) -> bool:
    # The watch client must not wait long: it looks again soon.
    async with connect(stage.bootstrap, client_id="tour-watch", operation_timeout_ms=1_500) as eyes:
        store = await ZooKeeperStore.open(stage.zookeeper_address)
        try:
            async with connect(stage.bootstrap, client_id="tour-guide") as client:
                watch = Watch(stage, eyes, store, TOPIC)
                await watch.look()
                ledger = Ledger()
                load = Load(stage.bootstrap, ledger, watch.leader_of)
                tour = Tour(stage, ledger, load, watch, client, screen, is_fast)
                return await _through_steps(tour)
        finally:
            await store.close()


async def _through_steps(tour: Tour) -> bool:
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(each)
            for each in (
                tour.watch.run(),
                tour.watch.run_offsets(),
                tour.load.pace(),
                tour.load.produce(),
                _show(tour),
            )
        ]
        tour.begin_reading = lambda: running.extend(
            tasks.create_task(tour.load.consume(member)) for member in tour.load.members
        )
        for number, step in enumerate(STEPS, start=1):
            if number > 1:
                await tour.screen.pause()
            tour.screen.begin(number, len(STEPS), step)
            await step.run(tour)
            tour.screen.show(tour)
            tour.screen.keep()
            await asyncio.sleep(0 if tour.is_fast else READING_S)
        tour.screen.end(tour)
        for task in running:
            task.cancel()
    return tour.is_well


async def _show(tour: Tour) -> None:
    while True:
        tour.screen.show(tour)
        await asyncio.sleep(_SHOW_S)
