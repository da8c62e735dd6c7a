"""The output of the tour: a live screen, or plain lines for logs. Both can be recorded.

It restores the terminal, however the tour ends.
"""

import asyncio
import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.tour.ledger import grouped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headrace.tour.observer import ClusterState
    from headrace.tour.recording import Recording
    from headrace.tour.steps import Step
    from headrace.tour.tour import Tour

FULL_LINES = 34
FULL_COLUMNS = 120
"""From this width on, tables are side by side; below, they need more lines."""
FULL_LINES_STACKED = 46
_HISTORY_S = 1.0
_STATUS_S = 5.0
_FIRST_TITLE = "the cluster starts"


class Screen:
    """Prints plain lines. `LiveScreen` shows tables instead."""

    def __init__(
        self, recording: "Recording | None" = None, *, waits_for_keys: bool = False
    ) -> None:
        self.title = _FIRST_TITLE
        self.text = ""
        self.messages: list[str] = []
        self._first_message = 0
        """The position in `messages` of the current step's first message."""
        self.history: list[float] = []
        """Acknowledged records per second, one value per second."""
        self._began = time.monotonic()
        self._status_due = self._history_due = self._began
        self._waits_for_keys = waits_for_keys
        self._recording = recording
        self._tour: Tour | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._recording is not None:
            self._recording.write()

    def begin(self, number: int, count: int, step: "Step") -> None:
        self.title = f"step {number} of {count}: {step.title}"
        self.text = step.text
        self._first_message = len(self.messages)
        self._show_step()

    def say(self, text: str) -> None:
        self.messages.append(text)
        self._show_message(text)

    def show(self, tour: "Tour") -> None:
        """Show the current state; called often."""
        self._tour = tour
        now = time.monotonic()
        if now >= self._history_due:
            self._history_due = now + _HISTORY_S
            self.history.append(tour.ledger.acknowledged_rate.per_second(now))
        self._show_state(tour, now)

    def record_frame(self) -> None:
        """Add the current frame to the recording."""
        if self._recording is not None:
            self._recording.add(self.render(), self.history[-1] if self.history else 0.0)

    def render(
        self, *, is_compact: bool = False, console: "Console | None" = None
    ) -> "RenderableType":
        # Imported here, because rich takes long to load.
        from headrace.tour.frame import frame

        return frame(
            self._tour,
            self.title,
            self.text,
            self.messages[self._first_message if console is None or is_compact else 0 :],
            self.history,
            is_compact=is_compact,
            console=console,
        )

    async def pause(self) -> None:
        if self._waits_for_keys:
            self.say("press a key to continue")
            await _key()

    def end(self, tour: "Tour") -> None:
        print("\nTotals")
        for what, value in summary(tour, time.monotonic() - self._began):
            print(f"  {what}: {value}", flush=True)

    def _show_step(self) -> None:
        print(f"\n{self.title[0].upper()}{self.title[1:]}\n  {self.text}", flush=True)

    def _show_message(self, text: str) -> None:
        print(f"  {time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def _show_state(self, tour: "Tour", now: float) -> None:
        if now < self._status_due:
            return
        self._status_due = now + _STATUS_S
        ledger = tour.ledger
        brokers = ", ".join(
            f"{each} {rate.per_second(now) / 1000:.0f} kB/s"
            for each, rate in sorted(ledger.bytes_rates.items())
        )
        self._show_message(
            f"[offered {grouped(ledger.offered_rate.per_second(now))}/s, acknowledged "
            f"{grouped(ledger.acknowledged_rate.per_second(now))}/s, read "
            f"{grouped(ledger.read_rate.per_second(now))}/s, queue {grouped(ledger.queue)}; "
            f"by broker: {brokers or 'nothing yet'}]"
        )


class LiveScreen(Screen):
    """Live tables and bars."""

    def __init__(
        self, recording: "Recording | None" = None, *, waits_for_keys: bool = False
    ) -> None:
        from rich.live import Live

        super().__init__(recording, waits_for_keys=waits_for_keys)
        self._live = Live(auto_refresh=False, screen=True, vertical_overflow="crop")
        self._summary: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        super().__exit__(kind, error, trace)
        if self._summary:
            from rich.table import Table

            table = Table("totals", "", title="headrace tour")
            for row in self._summary:
                table.add_row(*row)
            self._live.console.print(table)

    def end(self, tour: "Tour") -> None:
        self._summary = summary(tour, time.monotonic() - self._began)

    def _show_step(self) -> None:
        self._draw()

    def _show_message(self, text: str) -> None:
        self._draw()

    def _show_state(self, tour: "Tour", now: float) -> None:
        self._draw()

    def _draw(self) -> None:
        console = self._live.console
        width, height = console.size
        is_compact = height < (FULL_LINES if width >= FULL_COLUMNS else FULL_LINES_STACKED)
        self._live.update(self.render(is_compact=is_compact, console=console), refresh=True)


def summary(tour: "Tour", seconds: float) -> list[tuple[str, str]]:
    ledger, state = tour.ledger, tour.observer.state
    return [
        ("records acknowledged", grouped(ledger.acknowledged)),
        ("records read by the group", grouped(ledger.read)),
        ("acknowledged records lost", str(ledger.missing)),
        ("records in the log twice", str(ledger.in_log_twice)),
        ("records not delivered, errors seen by clients", f"{ledger.failed}, {tour.load.errors}"),
        ("brokers, controller, its epoch", _cluster(state)),
        ("replayed state", "the same" if tour.replay_is_same else "NOT the same"),
        ("duration", f"{seconds:.0f} s"),
    ]


def _cluster(state: "ClusterState") -> str:
    return f"{len(state.live)}, broker {state.controller}, {state.controller_epoch}"


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _key() -> None:
    """Wait for any key, without Enter."""
    import termios
    import tty

    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    pressed: asyncio.Future[None] = loop.create_future()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    loop.add_reader(fd, _resolve, pressed)
    try:
        await pressed
        os.read(fd, 1024)
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
