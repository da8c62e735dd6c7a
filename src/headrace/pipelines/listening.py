"""Listeners for streaming queries: they count rows and report when a query has ended."""

import threading
from typing import Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.pipelines.run_machine import FlowRun, Run


class Show(Protocol):
    """Displays a run."""

    def say(self, text: str) -> None:
        """Display the current step."""

    def begins(self, run: Run) -> None: ...

    def changed(self, flow: FlowRun) -> None: ...


class SilentListener(StreamingQueryListener):
    """Ignores all events."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


class ProgressListener(SilentListener):
    """Counts the rows that streaming queries read. Spark calls it on a separate thread."""

    def __init__(self, run: Run, show: Show) -> None:
        self._run = run
        self._show = show
        self._changed = threading.Condition()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        written = progress.sink.numOutputRows
        flow = self._run.progressed(
            progress.name or "", progress.numInputRows, written if written >= 0 else None
        )
        if flow is not None:
            self._show.changed(flow)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._changed:
            self._run.ended_queries.add(str(event.runId))
            self._changed.notify_all()

    def wait_for(self, queries: int, seconds: float) -> bool:
        """Whether that many queries have ended within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._run.ended_queries) >= queries, seconds)
