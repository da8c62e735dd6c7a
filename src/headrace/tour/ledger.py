"""Counts the records of the tour: offered, acknowledged and read, with rates and a checksum.

Pure: the time is an argument. All numbers of the tour come from here or from the brokers.

1. Each record has a number. A record that is acknowledged but never read is missing. A record at
   two offsets of the log is counted as `in_log_twice`.
2. A tally counts each offset once, in order, so that reading an offset again changes nothing.
"""

from collections import deque
from collections.abc import Mapping
from hashlib import sha256

WINDOW_S = 2.0
_ACKNOWLEDGED = 1
_READ = 2
_BARS = "▁▂▃▄▅▆▇█"


class Rate:
    """The amount per second, over the last 2 s."""

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
    """The state of a consumer: per key, the count of records and the sum of their numbers."""

    def __init__(self) -> None:
        self.totals: dict[bytes, tuple[int, int]] = {}
        self.next_offsets: dict[int, int] = {}

    @property
    def count(self) -> int:
        return sum(count for count, _ in self.totals.values())

    def apply(self, partition: int, offset: int, key: bytes, number: int) -> bool:
        """Apply a record. Returns False if its offset was applied before."""
        if offset < self.next_offsets.get(partition, 0):
            return False
        self.next_offsets[partition] = offset + 1
        count, total = self.totals.get(key, (0, 0))
        self.totals[key] = (count + 1, total + number)
        return True

    def digest(self) -> str:
        """Equal states have equal digests, in any order of records."""
        rows = sorted((key.hex(), *total) for key, total in self.totals.items())
        return sha256(repr(rows).encode()).hexdigest()[:16]


class Ledger:
    def __init__(self) -> None:
        self.offered = 0
        self.acknowledged = 0
        self.failed = 0
        """Records that the producer failed to deliver."""
        self.in_log_twice = 0
        self.longest_wait_s = 0.0
        """The longest wait for an acknowledgement; a step resets it to 0."""
        self.last_wait_s = 0.0
        self.acknowledged_of: dict[int, int] = {}
        """By partition."""
        self.offered_rate = Rate()
        self.acknowledged_rate = Rate()
        self.read_rate = Rate()
        self.bytes_rates: dict[int, Rate] = {}
        """Acknowledged bytes, by the leader at that time."""
        self.tally = Tally()
        self._offered_at: list[float] = []
        self._flags = bytearray()
        self._acknowledged_and_read = 0

    @property
    def queue(self) -> int:
        """Records that are offered, but neither acknowledged nor failed."""
        return self.offered - self.acknowledged - self.failed

    @property
    def missing(self) -> int:
        """Acknowledged records that are not read yet. At the end, these are the lost records."""
        return self.acknowledged - self._acknowledged_and_read

    @property
    def read(self) -> int:
        return self.tally.count

    def offer(self, now: float) -> int:
        """Add a new record, and return its number."""
        self.offered += 1
        self.offered_rate.add(1, now)
        self._offered_at.append(now)
        self._flags.append(0)
        return self.offered - 1

    def acknowledge(
        self, number: int, size_bytes: int, partition: int, leader: int, now: float
    ) -> None:
        self.acknowledged += 1
        self.acknowledged_rate.add(1, now)
        self.acknowledged_of[partition] = self.acknowledged_of.get(partition, 0) + 1
        # The leader of a new partition might be unknown.
        if leader >= 0:
            self.bytes_rates.setdefault(leader, Rate()).add(size_bytes, now)
        self.last_wait_s = now - self._offered_at[number]
        self.longest_wait_s = max(self.longest_wait_s, self.last_wait_s)
        self._acknowledged_and_read += bool(self._flags[number] & _READ)
        self._flags[number] |= _ACKNOWLEDGED

    def fail(self) -> None:
        self.failed += 1

    def count_read(self, partition: int, offset: int, key: bytes, number: int, now: float) -> None:
        """Count a record that a member of the group has read."""
        if not self.tally.apply(partition, offset, key, number):
            return
        self.read_rate.add(1, now)
        if self._flags[number] & _READ:
            self.in_log_twice += 1
            return
        self._acknowledged_and_read += bool(self._flags[number] & _ACKNOWLEDGED)
        self._flags[number] |= _READ


def grouped(number: float) -> str:
    """A number with thousands separators: "12,345"."""
    return f"{number:,.0f}"


def kilobytes(size_bytes: float) -> str:
    return f"{grouped(size_bytes / 1000)} kB"


def bar(part: float, width: int) -> str:
    """A bar of which a part, from 0 to 1, is filled."""
    filled = round(min(max(part, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def curve(values: list[float], width: int) -> str:
    """The last values as columns; the highest value has full height."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] for value in shown)


def shares(counts: Mapping[int, int]) -> str:
    """The share of each in percent: "1: 34 %, 2: 66 %"."""
    total = sum(counts.values())
    if not total:
        return "none"
    return ", ".join(f"{each}: {count / total:.0%}" for each, count in sorted(counts.items()))
