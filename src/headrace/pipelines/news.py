"""Decide when `--watch` starts the next round: when a source has new data.

The rule is pure; `Watcher` reads the clock, the brokers and the project's files.

1. A round starts only if an end offset differs from the one at the start of the last round.
2. Sources other than topics are not observed: a pipeline that has one runs every ten seconds.
3. New records wait until the interval since the start of the last round has passed. Each round
   appends at least one file to each table that gets rows: longer intervals write fewer files.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from headrace.model.topics import TopicPartition
from headrace.pipelines.graph import SOURCE, TOPIC, Graph
from headrace.pipelines.outcome import Outcome
from headrace.pipelines.run_machine import COMPLETED
from headrace.pipelines.running import Runner

_POLL_S = 1.0
_RETRY_S = 10.0
Offsets = Mapping[TopicPartition, int]


def has_new_records(positions: Offsets, before: Offsets, now: Offsets) -> bool:
    """Whether topics have records that no round has tried to read.

    `before` has the end offsets at the start of the last round, `now` the current ones. A position
    can stay below the end, because transaction markers and aborted records are not read. So an end
    offset that has not changed since the last round is ignored.
    """
    return any(
        end != positions.get(partition, before.get(partition, 0)) and end != before.get(partition)
        for partition, end in now.items()
    )


def is_observable(graph: Graph) -> bool:
    """Whether all sources of a pipeline are topics."""
    kinds = {node.kind for node in graph.nodes.values()}
    return TOPIC in kinds and SOURCE not in kinds


class Watcher:
    def __init__(self, interval_s: float = 0.0) -> None:
        """`interval_s` is the minimum time between the starts of two rounds."""
        self._interval_s = interval_s
        self._began_s = 0.0
        self._ends: Mapping[str, Offsets] = {}
        self._files: dict[Path, float] = {}

    def begin(self, runner: Runner, graph: Graph | None) -> None:
        """Record the ends of the topics and the times of the files before a round."""
        self._runner = runner
        self._began_s = time.monotonic()
        self._ends = {} if graph is None else self._runner.ends(graph)
        self._files = self._runner.file_times()

    def wait(self, outcome: Outcome) -> None:
        """Return when the next round has something to do."""
        repeats = outcome.state != COMPLETED or not is_observable(outcome.graph)
        start_s = self._began_s + self._interval_s
        deadline = max(time.monotonic() + _RETRY_S, start_s)
        if outcome.state != COMPLETED:
            time.sleep(_POLL_S)
        while self._runner.file_times() == self._files:
            now_s = time.monotonic()
            if now_s < start_s:
                time.sleep(min(_POLL_S, start_s - now_s))
                continue
            if (repeats and now_s >= deadline) or self._has_new_records(outcome.graph):
                return
            time.sleep(_POLL_S)

    def _has_new_records(self, graph: Graph) -> bool:
        ends = self._runner.ends(graph)
        # Checkpoints do not contain the cluster of a topic, so use them only for one cluster.
        positions = self._runner.positions(graph) if len(ends) == 1 else {}
        return any(
            has_new_records(positions, self._ends.get(server, {}), now)
            for server, now in ends.items()
        )
