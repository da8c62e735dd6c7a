"""Elections as transcripts: real controllers and brokers on a simulated ZooKeeper and disk.

Commands: `kill`, `power-loss`, `stop`, `start`, `wipe`, `back-up` and `restore` with broker ids;
`cut 1 2` or `cut 1 zookeeper` (both directions), `heal`; `wait in-sync`, `wait leader`, `wait 30s`.
Their output is each state of the partition that the controller stored. At the end, the simulator
checks that every acknowledged record exists.
"""

import asyncio
import logging
from pathlib import Path

import pytest

from headrace.model.topics import NO_LEADER, PartitionState
from tests.simulation.cluster import Cluster, Options
from tests.simulation.ensemble import NAME as ZOOKEEPER
from tests.simulation.scenario import run, run_checked
from tests.simulation.world import World
from tests.transcripts import transcript

WAIT_S_MAX = 120.0


def _text(state: PartitionState) -> str:
    leader = "none" if state.leader == NO_LEADER else str(state.leader)
    isr = " ".join(map(str, sorted(state.isr)))
    eligible = " ".join(str(node_id) for node_id, _ in sorted(state.elr))
    return f"leader {leader}, ISR {isr}" + (f", ELR {eligible}" if eligible else "")


class Director:
    """Executes the commands of a transcript in one simulated cluster."""

    def __init__(self, world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        self._world = world
        self._cluster = cluster
        self._running = running
        self._last = ""
        self._output: list[str] = []

    def play(self, command: str) -> list[str]:
        self._output = []
        verb, *words = command.split()
        if verb == "wait":
            self._wait(words[0])
        elif verb == "cut":
            first, second = (
                ZOOKEEPER if word == "zookeeper" else f"broker-{word}" for word in words
            )
            self._cluster.network.cut(first, second)
            self._cluster.network.cut(second, first)
        elif verb == "heal":
            self._cluster.network.heal()
        else:
            for word in words:
                self._do(verb, int(word))
        return self._output

    def _do(self, verb: str, node_id: int) -> None:
        broker = self._cluster.brokers[node_id - 1]
        actions = {
            "kill": broker.kill,
            "power-loss": broker.lose_power,
            "stop": broker.stop,
            "start": broker.start,
            "wipe": broker.wipe,
            "back-up": broker.back_up,
            "restore": broker.restore,
        }
        actions[verb]()
        if verb == "stop":
            assert self._run(WAIT_S_MAX, lambda: not broker.is_running)

    def _wait(self, what: str) -> None:
        if what == "in-sync":
            assert self._run(WAIT_S_MAX, self._cluster.is_in_full_sync)
        elif what == "leader":
            assert self._run(WAIT_S_MAX, lambda: self._cluster.leaders() != {})
        else:
            self._run(float(what.removesuffix("s")), lambda: False)

    def _run(self, seconds: float, is_done: transcript.Condition) -> bool:
        def looked() -> bool:
            state = _text(self._cluster.stored()[0])
            if state != self._last:
                self._last = state
                self._output.append(state)
            return is_done()

        return run_checked(
            self._world, self._cluster, self._running, self._world.now + seconds, looked
        )


@pytest.mark.parametrize("path", transcript.files("elections"), ids=lambda path: path.stem)
def test_elections(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    def play(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        transcript.check(path, Director(world, cluster, running).play)

    run(1, Options(partitions=1, noise=False, syncs=True), play)
