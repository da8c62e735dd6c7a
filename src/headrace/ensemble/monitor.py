"""Restarts ZooKeeper nodes that die, with back-off, and reports it.

Owns when a node is started again. Runs wherever `look` is called, a few times per second; it blocks
only to ask a starting node for its mode.

1. A node that dies is started again after 1 s. The wait doubles with each death, up to a minute.
2. A node that has run for a minute starts again with the shortest wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.ensemble.child import Child

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 60.0
STABLE_S = 60.0


class Node(Protocol):
    """A ZooKeeper node, as far as it is monitored."""

    process: Child

    @property
    def address(self) -> str: ...

    def mode(self) -> str | None: ...


@dataclass(slots=True)
class _Watched:
    node: Node
    deaths: int = 0
    started: float = 0.0
    due: float | None = None
    """When to start it again, once it has died."""
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
        """`now` is in seconds, from a clock that never goes back."""
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
            self._report(
                f"{node.process.name} is ready again: {node.address}, pid {node.process.pid}"
            )
            self._restarted()
        if now - watched.started >= STABLE_S:
            watched.deaths = 0

    def _see_dead(self, watched: _Watched, now: float) -> None:
        process = watched.node.process
        wait_s = min(BACKOFF_S_MIN * 2**watched.deaths, BACKOFF_S_MAX)
        watched.deaths += 1
        watched.due = now + wait_s
        watched.is_starting = False
        self._report(
            f"{process.name} died ({process.ending()}). It restarts in {wait_s:g} s. "
            f"Its log: {process.output}"
        )

    def _start(self, watched: _Watched, now: float) -> None:
        watched.due = None
        watched.started = now
        watched.is_starting = True
        watched.node.process.start()
