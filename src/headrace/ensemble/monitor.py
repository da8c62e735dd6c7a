"""Restarts ZooKeeper nodes that fail, with back-off, and reports it.

Owns the restart times of the nodes. Runs in the thread that calls `look`, a few times per second.
It blocks only to request the mode of a starting node.

1. A node that fails is restarted after 1 s. The delay doubles with each failure, up to 60 s.
2. After a node has run for 60 s, its next restart waits 1 s again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.ensemble.child import Child
from headrace.model.backoff import backoff

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 60.0
STABLE_S = 60.0


class Node(Protocol):
    """The part of a ZooKeeper node that the monitor uses."""

    process: Child

    def describe(self) -> str: ...

    def mode(self) -> str | None: ...


@dataclass(slots=True)
class _Watched:
    node: Node
    deaths: int = 0
    """Since it was last stable."""
    started: float = 0.0
    due: float | None = None
    """The time of the next start, if the node has failed."""
    is_starting: bool = False


class Monitor:
    def __init__(
        self, nodes: Sequence[Node], report: Callable[[str], None], restarted: Callable[[], None]
    ) -> None:
        """`report` takes a line for the user; `restarted` is called when a node is ready again."""
        self._watched = [_Watched(node) for node in nodes]
        self._report = report
        self._restarted = restarted

    def look(self, now: float) -> None:
        """`now` is in seconds of a monotonic clock."""
        for watched in self._watched:
            if watched.node.process.running:
                self._see_running(watched, now)
            elif watched.due is None:
                self._see_dead(watched, now)
            elif now >= watched.due:
                self._start(watched, now)

    def _see_running(self, watched: _Watched, now: float) -> None:
        node = watched.node
        if watched.is_starting and node.mode() is not None:
            watched.is_starting = False
            self._report(f"{node.process.name} is ready again: {node.describe()}")
            self._restarted()
        if now - watched.started >= STABLE_S:
            watched.deaths = 0

    def _see_dead(self, watched: _Watched, now: float) -> None:
        process = watched.node.process
        watched.deaths += 1
        wait_s = backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, watched.deaths)
        watched.due = now + wait_s
        watched.is_starting = False
        self._report(
            f"{process.name} stopped unexpectedly ({process.ending()}). It restarts in {wait_s:g} "
            "s. "
            f"Its log: {process.output}"
        )

    def _start(self, watched: _Watched, now: float) -> None:
        watched.due = None
        watched.started = now
        watched.is_starting = True
        watched.node.process.start()
