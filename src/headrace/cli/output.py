"""Output of commands: tables, JSON and progress."""

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

_INTERVAL_S = 0.2


def print_json(value: Any) -> None:
    # Escapes of the terminal's encoding would not be JSON.
    is_utf8 = sys.stdout.encoding.lower() == "utf-8"
    print(json.dumps(value, ensure_ascii=not is_utf8, default=str))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns; numbers are right-aligned."""
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    numeric = [
        bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(titles))
    ]
    for line in (list(titles), *cells):
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(parts).rstrip())


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, tuple | list):
        cell = ",".join(map(str, cell))
    text = str(cell)
    if text.isprintable():
        return text
    # Any client can create names, and a name must not send control codes to the terminal.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plural(count: int, noun: str) -> str:
    """ "1 record", "2 records"."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def size_text(size_bytes: int) -> str:
    """ "512 B", "1.5 MB"."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


class Progress:
    """A progress line on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self.visible = sys.stderr.isatty()
        self._shown = False
        self._due = time.monotonic() + _INTERVAL_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Show a text, at most every 0.2 s."""
        if self.visible and time.monotonic() >= self._due:
            self._due = time.monotonic() + _INTERVAL_S
            self._shown = True
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line instead of the progress."""
        self.clear()
        if self.visible:
            print(text, file=sys.stderr, flush=True)
