"""What the tour counts: records offered, acknowledged and read, rates, and a state made of them.

Pure: the time is an argument. Every number that the tour shows comes from here or from the brokers.

1. A record has a number. One that is acknowledged and never read is missing; one that stands in
   the log at two offsets is counted as there twice.
2. A tally takes each offset once, in order, so that reading something again changes nothing.
"""

from collections import deque
from collections.abc import Mapping
from hashlib import sha256

WINDOW_S = 2.0
_ACKNOWLEDGED = 1
_READ = 2
_BARS = "▁▂▃▄▅▆▇█"


class Rate:
    """How much a second, over the last two."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, amount: float, now: float) -> None:
        self._events.append((now, amount))
        self._sum += amount
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        return self._sum / WINDOW_S if self._events else 0.0

    def _forget(self, now: float) -> None:
        while self._events and self._events[0][0] <= now - WINDOW_S:
            self._sum -= self._events.popleft()[1]


class Tally:
    """A consumer's state: of each key how many records there were, and the sum of their numbers."""

    def __init__(self) -> None:
        self.totals: dict[bytes, tuple[int, int]] = {}
        self.next_offsets: dict[int, int] = {}

    @property
    def count(self) -> int:
        return sum(count for count, _ in self.totals.values())

    def apply(self, partition: int, offset: int, key: bytes, number: int) -> bool:
        """Whether the record was new: offsets are kept with the state."""
        if offset < self.next_offsets.get(partition, 0):
            return False
        self.next_offsets[partition] = offset + 1
        count, total = self.totals.get(key, (0, 0))
        self.totals[key] = (count + 1, total + number)
        return True

    def digest(self) -> str:
        """Equal states have equal digests, whatever the order in which they came about."""
        rows = sorted((key.hex(), *total) for key, total in self.totals.items())
        return sha256(repr(rows).encode()).hexdigest()[:16]


class Ledger:
    def __init__(self) -> None:
        self.offered = 0
        self.acknowledged = 0
        self.failed = 0
        """Given up by the producer."""
        self.in_log_twice = 0
        self.longest_wait_s = 0.0
        """Of a record for its acknowledgement; a step that wants its own sets it to zero."""
        self.last_wait_s = 0.0
        self.acknowledged_of: dict[int, int] = {}
        """By partition."""
        self.offered_rate = Rate()
        self.acknowledged_rate = Rate()
        self.read_rate = Rate()
        self.bytes_rates: dict[int, Rate] = {}
        """Acknowledged bytes, by the broker that led when they were."""
        self.tally = Tally()
        self._offered_at: list[float] = []
        self._marks = bytearray()
        self._both = 0

    @property
    def queue(self) -> int:
        """Offered, and neither acknowledged nor given up."""
        return self.offered - self.acknowledged - self.failed

    @property
    def missing(self) -> int:
        """Acknowledged, and not read; what stays missing is lost."""
        return self.acknowledged - self._both

    @property
    def read(self) -> int:
        return self.tally.count

    def offer(self, now: float) -> int:
        """The number of a new record."""
        self.offered += 1
        self.offered_rate.add(1, now)
        self._offered_at.append(now)
        self._marks.append(0)
        return self.offered - 1

    def acknowledge(
        self, number: int, size_bytes: int, partition: int, leader: int, now: float
    ) -> None:
        self.acknowledged += 1
        self.acknowledged_rate.add(1, now)
        self.acknowledged_of[partition] = self.acknowledged_of.get(partition, 0) + 1
        # Of a partition that was made just now, it may not be known yet who leads.
        if leader >= 0:
            self.bytes_rates.setdefault(leader, Rate()).add(size_bytes, now)
        self.last_wait_s = now - self._offered_at[number]
        self.longest_wait_s = max(self.longest_wait_s, self.last_wait_s)
        self._both += bool(self._marks[number] & _READ)
        self._marks[number] |= _ACKNOWLEDGED

    def give_up(self) -> None:
        self.failed += 1

    def take(self, partition: int, offset: int, key: bytes, number: int, now: float) -> None:
        """A record as a member of the group read it."""
        if not self.tally.apply(partition, offset, key, number):
            return
        self.read_rate.add(1, now)
        if self._marks[number] & _READ:
            self.in_log_twice += 1
            return
        self._both += bool(self._marks[number] & _ACKNOWLEDGED)
        self._marks[number] |= _READ


def whole(number: float) -> str:
    """ "12 345"."""
    return f"{number:,.0f}".replace(",", " ")


def kilobytes(size_bytes: float) -> str:
    return f"{whole(size_bytes / 1000)} kB"


def bar(part: float, width: int) -> str:
    """A bar that is so full, from 0 to 1."""
    filled = round(min(max(part, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def curve(values: list[float], width: int) -> str:
    """The last values as columns of different heights; the highest is the tallest."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] for value in shown)


def shares(counts: Mapping[int, int]) -> str:
    """ "1: 34 %, 2: 66 %": who has how much of the whole."""
    total = sum(counts.values())
    if not total:
        return "none"
    return ", ".join(f"{each}: {count / total:.0%}" for each, count in sorted(counts.items()))
