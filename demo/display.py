"""Prints the steps of the demo with their times, and its tables with charts."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

LEVELS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 24
POINTS = 60
PRINT_SECONDS = 5.0
Row = Mapping[str, Any]


class Progress:
    """Prints a line per completed step. A status line shows the current step."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.began = self._step_began = self._printed = time.monotonic()
        self._status = self.console.status("")

    def __enter__(self) -> "Progress":
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def done(self, text: str) -> None:
        """Print the step that is completed, and its duration."""
        now = time.monotonic()
        seconds, self._step_began, self._printed = now - self._step_began, now, now
        line = f"[dim]{now - self.began:5.1f} s[/]  {text} [dim]({seconds:.1f} s)[/]"
        self.console.print(line, soft_wrap=True)

    def update(self, text: str) -> None:
        """Show the current step. Without a terminal, print it at most every five seconds."""
        now = time.monotonic()
        line = f"[dim]{now - self.began:5.0f} s[/]  ... {text}"
        if self.console.is_terminal:
            self._status.update(line)
        elif now - self._printed >= PRINT_SECONDS:
            self._printed = now
            self.console.print(line, soft_wrap=True)


def money(cents: int) -> str:
    return f"{cents / 100:,.2f}"


def sparkline(values: list[int]) -> str:
    top = max(values, default=0) or 1
    return "".join(LEVELS[value * (len(LEVELS) - 1) // top] for value in values)


def revenue_table(rows: Iterable[Row]) -> Table:
    """Revenue by product, with bars. The caption has a chart of the revenue over time."""
    rows = list(rows)
    products: Counter[str] = Counter()
    payments: Counter[str] = Counter()
    minutes: Counter[Any] = Counter()
    for row in rows:
        products[row["product"]] += row["revenue_cents"]
        payments[row["product"]] += row["payments"]
        minutes[row["minute"]] += row["revenue_cents"]
    table = Table("product", title="revenue_per_minute, in event time", title_justify="left")
    table.add_column("payments", justify="right")
    table.add_column("revenue", justify="right")
    table.add_column("")
    top = max(products.values(), default=1)
    for product, cents in products.most_common():
        bar = "█" * max(round(BAR_WIDTH * cents / top), 1)
        table.add_row(product, f"{payments[product]:,}", money(cents), f"[green]{bar}[/]")
    ordered = [minutes[minute] for minute in sorted(minutes)]
    width = -(-len(ordered) // POINTS) or 1
    parts = [sum(ordered[at : at + width]) for at in range(0, len(ordered), width)]
    table.caption = f"{sparkline(parts)}\n{len(rows):,} rows, {len(minutes)} minutes"
    table.caption_justify = "left"
    return table


def orders_table(rows: Iterable[Row]) -> Table:
    """The number of orders by status and channel. Only later orders have a channel."""
    states: Counter[tuple[str, str]] = Counter()
    for row in rows:
        states[row["status"], row["channel"] or "(no channel)"] += 1
    channels = sorted({channel for _, channel in states})
    table = Table(
        "status", title="orders: the current status, from their events", title_justify="left"
    )
    for channel in channels:
        table.add_column(channel, justify="right")
    for status in sorted({status for status, _ in states}):
        table.add_row(status, *(f"{states[status, channel]:,}" for channel in channels))
    return table
