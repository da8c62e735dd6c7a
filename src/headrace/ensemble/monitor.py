"""Restarts ZooKeeper nodes that fail, with back-off, and reports this to the user.

Owns the restart times of the nodes. The caller calls `check` a few times per second. It blocks only
to request the mode of a starting node.

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
    failures: int = 0
    """The number of failures since the node was last stable."""
    started: float = 0.0
    restart_at: float | None = None
    """The time of the next start, if the node has failed."""
    is_starting: bool = False


class Monitor:
    def __init__(
        self, nodes: Sequence[Node], report: Callable[[str], None], restarted: Callable[[], None]
    ) -> None:
        """`report` gets lines for the user. `restarted` is called when a node is ready again."""
        self._watched = [_Watched(node) for node in nodes]
        self._report = report
        self._restarted = restarted

    def check(self, now: float) -> None:
        """Check all nodes. `now` is in seconds of a monotonic clock."""
        for watched in self._watched:
            if watched.node.process.running:
                self._check_running(watched, now)
            elif watched.restart_at is None:
                self._schedule_restart(watched, now)
            elif now >= watched.restart_at:
                self._start(watched, now)

    def _check_running(self, watched: _Watched, now: float) -> None:
        node = watched.node
        if watched.is_starting and node.mode() is not None:
            watched.is_starting = False
            self._report(f"{node.process.name} is ready again: {node.describe()}")
            self._restarted()
        if now - watched.started >= STABLE_S:
            watched.failures = 0

    def _schedule_restart(self, watched: _Watched, now: float) -> None:
        process = watched.node.process
        watched.failures += 1
        wait_s = backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, watched.failures)
        watched.restart_at = now + wait_s
        watched.is_starting = False
        self._report(
            f"{process.name} stopped unexpectedly ({process.exit_text()}). It restarts in "
            f"{wait_s:g} s. Its log: {process.output}"
        )

    def _start(self, watched: _Watched, now: float) -> None:
        watched.restart_at = None
        watched.started = now
        watched.is_starting = True
        watched.node.process.start()
