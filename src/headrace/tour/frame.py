"""Draws one frame of the tour with rich: step, brokers, partitions, clients, measurements.

It reads the numbers and changes none. In a large terminal, bars and curves use the complete width,
and the measurements use the remaining lines.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD, Box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.tour.cluster import LIMIT_BYTES
from headrace.tour.ledger import bar, curve, grouped

if TYPE_CHECKING:
    from headrace.tour.tour import Tour

MESSAGES_SHOWN = 7
MESSAGES_SHOWN_COMPACT = 3
_COLUMNS = 120
"""The width of a terminal with bars and curves of their smallest width."""
_BAR_WIDTH = 16
_BAR_WIDTH_MAX = 48
_CURVE_WIDTH = 48


def frame(
    tour: "Tour | None",
    title: str,
    text: str,
    messages: Sequence[str],
    history: list[float],
    *,
    is_compact: bool,
    console: Console | None = None,
) -> RenderableType:
    """A low terminal shows the latest messages first, short client rows, and no separators.

    With a console, a frame that is not compact fills its screen.
    """
    parts: list[RenderableType] = [
        Panel(Text(text), title=f"[bold]headrace tour · {title}[/bold]", border_style="cyan")
    ]
    extra = 0 if console is None or is_compact else max(console.width - _COLUMNS, 0)
    if is_compact:
        parts.append(_message_lines(messages, MESSAGES_SHOWN_COMPACT))
    if tour is not None:
        rule = None if is_compact else SIMPLE_HEAD
        bar_width = min(_BAR_WIDTH + extra, _BAR_WIDTH_MAX)
        tables = Columns([_brokers(tour, rule, bar_width), _partitions(tour, rule)], padding=(0, 3))
        clients = (
            _clients_compact(tour) if is_compact else _clients(tour, history, _CURVE_WIDTH + extra)
        )
        parts += [clients, tables] if is_compact else [Padding(tables, (0, 1)), clients]
    if not is_compact:
        height = None
        if console is not None:
            # The last line stays free: rich would scroll otherwise.
            height = max(console.height - 1 - len(console.render_lines(Group(*parts))), 3)
        lines = _message_lines(messages, MESSAGES_SHOWN if height is None else height - 2)
        parts.append(
            Panel(lines, title="measured", border_style="dim", title_align="left", height=height)
        )
    return Group(*parts)


def _message_lines(messages: Sequence[str], count: int) -> Text:
    return Text("\n".join(f"· {each}" for each in messages[-count:]))


def _table(rule: Box | None, *titles: str) -> Table:
    table = Table(box=rule, show_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True)
    return table


def _brokers(tour: "Tour", rule: Box | None, bar_width: int) -> RenderableType:
    state, now = tour.observer.state, time.monotonic()
    written = f"written, of {grouped(LIMIT_BYTES / 1000)} kB/s"
    table = _table(rule, "broker", "state", "leads", "holds", "CPU", written)
    for node_id, broker in tour.cluster.brokers.items():
        is_running = broker.process.running
        rate = tour.ledger.bytes_rates.get(node_id)
        per_second = rate.per_second(now) if rate is not None and is_running else 0.0
        table.add_row(
            str(node_id),
            _state(is_running, node_id == state.controller),
            str(len(state.leaders_on(node_id))),
            str(len(state.replicas_on(node_id))),
            f"{tour.observer.cpu.get(node_id, 0.0):4.0%}" if is_running else "",
            Text(bar(per_second / LIMIT_BYTES, bar_width), _color(per_second / LIMIT_BYTES))
            + Text(f" {per_second / 1000:4.0f}", "default"),
        )
    return table


def _state(is_running: bool, is_controller: bool) -> Text:
    if not is_running:
        return Text("killed", "bold white on red")
    return Text("controller", "bold green") if is_controller else Text("up        ", "green")


def _color(part: float) -> str:
    return "red" if part > 0.85 else "yellow" if part > 0.5 else "green"


def _partitions(tour: "Tour", rule: Box | None) -> RenderableType:
    table = _table(rule, "partition", "leader", "replicas", "in sync", "high watermark")
    for part in tour.observer.state.partitions:
        is_whole = len(part.isr) == len(part.replicas)
        table.add_row(
            str(part.index),
            Text(str(part.leader), "green") if part.leader >= 0 else Text("none", "bold red"),
            ",".join(map(str, part.replicas)),
            Text(",".join(map(str, part.isr)), "green" if is_whole else "bold yellow"),
            grouped(tour.observer.high_watermarks.get(part.index, 0)),
        )
    return table


def _clients_compact(tour: "Tour") -> RenderableType:
    ledger, now = tour.ledger, time.monotonic()
    readers = [
        f"{each.name} reads {', '.join(map(str, each.partitions))}: "
        f"{grouped(each.rate.per_second(now))}/s"
        if each.partitions
        else f"{each.name} is idle"
        for each in tour.load.members
    ]
    return Text(
        f"  producer: {grouped(ledger.offered_rate.per_second(now))}/s offered, "
        f"{grouped(ledger.acknowledged_rate.per_second(now))}/s acknowledged, "
        f"queue {grouped(ledger.queue)}\n  {'; '.join(readers)}",
        "cyan",
    )


def _clients(tour: "Tour", history: list[float], curve_width: int) -> RenderableType:
    ledger, now = tour.ledger, time.monotonic()
    rows = Table.grid(padding=(0, 2))
    rows.add_row(
        "producer",
        f"offered {grouped(ledger.offered_rate.per_second(now)):>6}/s   acknowledged "
        f"{grouped(ledger.acknowledged_rate.per_second(now)):>6}/s",
        Text(curve(history, curve_width), "cyan"),
    )
    full = ledger.queue / max(4 * ledger.offered_rate.per_second(now), 1.0)
    rows.add_row(
        "queue",
        f"{grouped(ledger.queue):>6} records, a record waits {ledger.last_wait_s:.1f} s",
        Text(bar(full, curve_width), "red" if full > 0.5 else "green"),
    )
    for member in tour.load.members:
        listed = ", ".join(map(str, member.partitions))
        rate = member.rate.per_second(now)
        rows.add_row(
            member.name,
            f"partitions {listed}" if listed else Text("no partition: idle", "yellow"),
            Text(bar(rate / max(ledger.read_rate.per_second(now), 1.0), _BAR_WIDTH), "blue")
            + Text(f" {grouped(rate):>5}/s", "default"),
        )
    rows.add_row(
        "so far",
        f"acknowledged {grouped(ledger.acknowledged)}, read {grouped(ledger.read)}",
        f"in the log twice {ledger.in_log_twice}, errors seen by clients {tour.load.errors}",
    )
    return Panel(rows, title="clients", border_style="dim", title_align="left")
