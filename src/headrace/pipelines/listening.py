"""Listeners for streaming queries: they count rows and report when a query has ended."""

import threading
import time
from typing import Any, Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.pipelines.run_machine import FlowRun, Run
from headrace.spark.pyspark_api import drop_listeners, receives_events

_CHECK_S = 1.0


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


def keep_listening(spark: Any) -> None:
    """Receive the events of queries, also if the stream of events has broken.

    It breaks, for example, while this process is suspended. When the last listener is removed,
    PySpark 4.3 waits for events in flight and holds the lock that they need, which is a deadlock.
    So one listener stays.
    """
    if not receives_events(spark):
        drop_listeners(spark, SilentListener())
        spark.streams.addListener(SilentListener())


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

    def wait_for(self, queries: int, seconds: float, spark: Any) -> bool:
        """Whether that many queries have ended within that time.

        Returns False early if the stream of events has broken.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(self._run.ended_queries) < queries:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not receives_events(spark):
                    return False
                self._changed.wait(min(left_s, _CHECK_S))
        return True
