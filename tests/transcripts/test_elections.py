"""Elections as transcripts: real controllers and brokers on a simulated ZooKeeper and disk.

A is the first leader; B and C are the other replicas.
Commands: `kill`, `power-loss`, `stop`, `start`, `wipe`, `back-up` and `restore` with brokers;
`cut A B` or `cut A zookeeper` (both directions), `heal`; `wait in-sync`, `wait leader`, `wait 30s`.
The output of a step is the state that the controller stored last. At the end, the simulator checks
that every acknowledged record exists.
"""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from headrace.model.topics import NO_LEADER
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster, Options
from tests.simulation.ensemble import NAME as ZOOKEEPER
from tests.simulation.scenario import run, run_checked
from tests.simulation.world import World
from tests.transcripts import transcript

WAIT_S_MAX = 120.0


LETTERS = "ABC"


class Director:
    """Executes the commands of a transcript in one simulated cluster."""

    def __init__(self, world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        self._world = world
        self._cluster = cluster
        self._running = running
        assert self._run(WAIT_S_MAX, cluster.is_in_full_sync)
        state = cluster.stored()[0]
        others = [node_id for node_id in state.replicas if node_id != state.leader]
        self._replicas = [state.leader, *others]

    def play(self, command: str) -> list[str]:
        verb, *words = command.split()
        if verb == "wait":
            self._wait(words[0])
            return [self._state()]
        if verb == "cut":
            first, second = (
                ZOOKEEPER if word == "zookeeper" else self._broker(word).name for word in words
            )
            self._cluster.network.cut(first, second)
            self._cluster.network.cut(second, first)
        elif verb == "heal":
            self._cluster.network.heal()
        else:
            for word in words:
                self._do(verb, self._broker(word))
        return []

    def _broker(self, letter: str) -> SimulatedBroker:
        return self._cluster.brokers[self._replicas[LETTERS.index(letter)] - 1]

    def _letters(self, node_ids: Iterable[int]) -> str:
        return " ".join(sorted(LETTERS[self._replicas.index(node_id)] for node_id in node_ids))

    def _state(self) -> str:
        state = self._cluster.stored()[0]
        if state.leader == NO_LEADER:
            return "no leader"
        text = f"leader {self._letters([state.leader])}, ISR {self._letters(state.isr)}"
        eligible = self._letters(node_id for node_id, _ in state.elr)
        return text + (f", ELR {eligible}" if eligible else "")

    def _do(self, verb: str, broker: SimulatedBroker) -> None:
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
        until = self._world.now + seconds
        return run_checked(self._world, self._cluster, self._running, until, is_done)


@pytest.mark.parametrize("path", transcript.files("elections"), ids=lambda path: path.stem)
def test_elections(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    def play(world: World, cluster: Cluster, running: "list[asyncio.Task[None]]") -> None:
        transcript.check(path, Director(world, cluster, running).play)

    run(1, Options(partitions=1, noise=False, syncs=True), play)
