"""Failed ZooKeeper nodes are restarted, with increasing pauses."""

from pathlib import Path
from typing import cast

import pytest

from headrace.ensemble.child import Child
from headrace.ensemble.monitor import STABLE_S, Monitor
from headrace.ensemble.zookeeper import heap_size


class FakeChild:
    name = "ZooKeeper node 1"
    output = Path("zookeeper.log")

    def __init__(self) -> None:
        self.pid = 100
        self.running = True

    def exit_text(self) -> str:
        return "SIGKILL"

    def start(self) -> None:
        self.pid += 1
        self.running = True


class FakeNode:
    def __init__(self) -> None:
        self.child = FakeChild()
        self.process = cast(Child, self.child)
        self.is_ready = True

    def describe(self) -> str:
        return f"127.0.0.1:2181, pid {self.child.pid}"

    def mode(self) -> str | None:
        return "standalone" if self.is_ready else None


class Scene:
    def __init__(self) -> None:
        self.node = FakeNode()
        self.lines: list[str] = []
        self.restarts = 0
        self.monitor = Monitor([self.node], self.lines.append, self.restarted)

    def restarted(self) -> None:
        self.restarts += 1

    def death(self, now: float) -> float:
        """Kill the node; returns after how long it was started again."""
        self.node.child.running = False
        later = now
        while not self.node.child.running:
            self.monitor.check(later)
            later += 0.25
        return later - 0.25 - now


def test_node_that_dies_is_reported_and_restarted() -> None:
    scene = Scene()
    scene.monitor.check(0.0)
    assert scene.lines == []
    scene.node.is_ready = False
    assert scene.death(10.0) == 1.0
    scene.monitor.check(12.0)
    assert scene.lines == [
        "ZooKeeper node 1 stopped unexpectedly (SIGKILL). It restarts in 1 s. Its log: "
        "zookeeper.log"
    ]
    scene.node.is_ready = True
    scene.monitor.check(13.0)
    scene.monitor.check(14.0)
    assert scene.lines[1:] == ["ZooKeeper node 1 is ready again: 127.0.0.1:2181, pid 101"]
    assert scene.restarts == 1


def test_wait_doubles_up_to_a_minute_and_is_short_again_after_a_minute_of_running() -> None:
    scene = Scene()
    now = 0.0
    waits = []
    for _ in range(8):
        waits.append(scene.death(now))
        now += waits[-1] + 1
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    scene.monitor.check(now + STABLE_S)
    assert scene.death(now + STABLE_S + 1) == 1


@pytest.mark.parametrize(("text", "size"), [("32m", "32m"), (" 1G ", "1g"), ("65536k", "65536k")])
def test_heap_size_is_what_java_takes(text: str, size: str) -> None:
    assert heap_size(text) == size


@pytest.mark.parametrize("text", ["", "256", "256mb", "31m", "-1g", "1.5g", "1t", "9" * 8 + "g"])
def test_wrong_heap_size_is_rejected(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not a heap size such as 256m or 1g, from 32m to [0-9]+m"
    ):
        heap_size(text)
