"""One look at the tour, as rich draws it: what happens and why, brokers, partitions, clients, news.

Owns the layout. It reads the numbers and changes none.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.tour.ledger import bar, curve, whole
from headrace.tour.stage import LIMIT_BYTES

if TYPE_CHECKING:
    from headrace.tour.tour import Tour

NEWS_SHOWN = 7
_BAR_WIDTH = 16
_CURVE_WIDTH = 48


def frame(
    tour: "Tour | None", title: str, text: str, news: Sequence[str], history: list[float]
) -> RenderableType:
    parts: list[RenderableType] = [
        Panel(
            Text(text), title=f"[bold]headrace tour · {title}[/bold]", border_style="cyan", height=5
        )
    ]
    if tour is not None:
        tables = Table.grid(expand=True, padding=(0, 1))
        tables.add_column(ratio=1)
        tables.add_column(ratio=1)
        tables.add_row(_brokers(tour), _partitions(tour))
        parts += [tables, _clients(tour, history)]
    shown = Text("\n".join(f"· {each}" for each in news[-NEWS_SHOWN:]))
    parts.append(Panel(shown, title="measured", border_style="dim", title_align="left"))
    return Group(*parts)


def _brokers(tour: "Tour") -> RenderableType:
    picture, now = tour.watch.picture, time.monotonic()
    written = f"written, of {whole(LIMIT_BYTES / 1000)} kB/s"
    table = Table("broker", "state", "leads", "holds", "CPU", written, box=SIMPLE_HEAD)
    for node_id, broker in tour.stage.brokers.items():
        is_running = broker.process.running
        rate = tour.ledger.bytes_rates.get(node_id)
        per_second = rate.per_second(now) if rate is not None else 0.0
        state = "controller" if node_id == picture.controller else "up"
        table.add_row(
            str(node_id),
            Text(state, "bold green" if state == "controller" else "green")
            if is_running
            else Text("killed", "bold white on red"),
            str(len(picture.led_by(node_id))),
            str(len(picture.held_by(node_id))),
            f"{tour.watch.cpu.get(node_id, 0.0):4.0%}" if is_running else "-",
            Text(bar(per_second / LIMIT_BYTES, _BAR_WIDTH), _color(per_second / LIMIT_BYTES))
            + Text(f" {per_second / 1000:4.0f}", "default"),
        )
    return table


def _color(part: float) -> str:
    return "red" if part > 0.85 else "yellow" if part > 0.5 else "green"


def _partitions(tour: "Tour") -> RenderableType:
    titles = ("partition", "leader", "replicas", "in sync", "high watermark")
    table = Table(*titles, box=SIMPLE_HEAD)
    for part in tour.watch.picture.partitions:
        is_whole = len(part.isr) == len(part.replicas)
        table.add_row(
            str(part.index),
            Text(str(part.leader), "green") if part.leader >= 0 else Text("none", "bold red"),
            ",".join(map(str, part.replicas)),
            Text(",".join(map(str, part.isr)), "green" if is_whole else "bold yellow"),
            whole(tour.watch.high_watermarks.get(part.index, 0)),
        )
    return table


def _clients(tour: "Tour", history: list[float]) -> RenderableType:
    ledger, now = tour.ledger, time.monotonic()
    rows = Table.grid(padding=(0, 2))
    rows.add_row(
        "producer",
        f"offered {whole(ledger.offered_rate.per_second(now)):>6}/s   acknowledged "
        f"{whole(ledger.acknowledged_rate.per_second(now)):>6}/s",
        Text(curve(history, _CURVE_WIDTH), "cyan"),
    )
    full = ledger.queue / max(4 * ledger.offered_rate.per_second(now), 1.0)
    rows.add_row(
        "queue",
        f"{whole(ledger.queue):>6} records, a record waits {ledger.last_wait_s:.1f} s",
        Text(bar(full, _CURVE_WIDTH), "red" if full > 0.5 else "green"),
    )
    for member in tour.load.members:
        listed = ", ".join(map(str, member.partitions))
        rate = member.rate.per_second(now)
        rows.add_row(
            member.name,
            f"partitions {listed}" if listed else Text("no partition: idle", "yellow"),
            Text(bar(rate / max(ledger.read_rate.per_second(now), 1.0), _BAR_WIDTH), "blue")
            + Text(f" {whole(rate):>5}/s", "default"),
        )
    rows.add_row(
        "so far",
        f"acknowledged {whole(ledger.acknowledged)}, read {whole(ledger.read)}",
        f"in the log twice {ledger.in_log_twice}, errors seen by clients {tour.load.errors}",
    )
    return Panel(rows, title="clients", border_style="dim", title_align="left")
