"""Show the progress of a run: a live table on a terminal, else lines.

Everything goes to standard error: standard output is for the result of the run.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from headrace.cli.output import plural
from headrace.pipelines.run_machine import FlowRun, Run

if TYPE_CHECKING:
    from rich.table import Table

_COLORS = {
    "queued": "dim",
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "skipped": "yellow",
}


class Screen(Protocol):
    def say(self, text: str) -> None:
        """What is being done now."""

    def begins(self, run: Run) -> None: ...

    def changed(self, flow: FlowRun) -> None: ...


@contextmanager
def screen() -> Iterator[Screen]:
    """Show progress: a live table on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    picture = LiveTable()
    with Live(
        get_renderable=picture.render,
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
    ):
        yield picture


class _Silence:
    def say(self, text: str) -> None:
        pass

    def begins(self, run: Run) -> None:
        pass

    def changed(self, flow: FlowRun) -> None:
        pass


class _Lines(_Silence):
    def say(self, text: str) -> None:
        print(f"{text} ...", file=sys.stderr, flush=True)

    def changed(self, flow: FlowRun) -> None:
        rows = "" if flow.rows_read is None else f", {plural(flow.rows_read, 'row')} read"
        # In one write: several threads report flows.
        sys.stderr.write(f"{flow.name}: {flow.shown_state}{rows}\n")
        sys.stderr.flush()


class LiveTable(_Silence):
    def __init__(self) -> None:
        self._text = ""
        self._run: Run | None = None
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        self._text, self._run = text, None

    def begins(self, run: Run) -> None:
        self._run = run

    def render(self) -> "Table":
        from rich.spinner import Spinner
        from rich.table import Table

        now_s = time.monotonic()
        if self._run is None:
            grid = Table.grid()
            grid.add_row(Spinner("dots", f"{self._text}, {now_s - self._began_s:.0f} s"))
            return grid
        table = Table("flow", "state", box=None)
        for title in ("rows read", "rows/s", "time"):
            table.add_column(title, justify="right")
        for flow in list(self._run.flows.values()):
            rate, seconds = flow.rows_per_s(now_s), flow.seconds(now_s)
            table.add_row(
                flow.name,
                f"[{_COLORS.get(flow.shown_state, 'default')}]{flow.shown_state}",
                "" if flow.rows_read is None else f"{flow.rows_read:,}",
                "" if rate is None else f"{rate:,.0f}",
                "" if seconds is None else f"{seconds:.1f} s",
            )
        return table
