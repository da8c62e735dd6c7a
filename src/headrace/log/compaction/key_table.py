"""The last offset of each key, in bounded memory: the table that compaction uses.

The table stores a 128-bit digest per key, so that an entry takes 24 bytes for any key length. It is
one block of memory. It does not store keys and never drops an entry.

1. The table takes at most `bytes_max` (an eighth more while it grows), and fills at most `load_max`
   of its slots. Then `put` rejects new keys, but never a known one.
2. Digests use a random salt per table, so that no client can choose two keys with the same digest.
"""

import mmap
import os
import struct
from hashlib import blake2b
from typing import Final

LOAD_MAX: Final = 0.9
_ENTRY_SIZE: Final = 24
_FIRST_SLOTS: Final = 16_381
"""A new table is small, because most cleanings are small."""
_GROWTH: Final = 8
"""The factor by which a full table grows."""
_DIGEST: Final = struct.Struct("=qQ")


class KeyTable:
    __slots__ = ("_count_max", "_load_max", "_salt", "_slots", "_slots_max", "_words", "count")

    def __init__(self, bytes_max: int, load_max: float = LOAD_MAX) -> None:
        self._slots_max = _prime_up_to(max(bytes_max // _ENTRY_SIZE, 3))
        self._slots = min(_FIRST_SLOTS, self._slots_max)
        self._load_max = load_max
        self._salt = os.urandom(16)
        self._words = _empty(self._slots)
        self._count_max = self._keys_max()
        self.count = 0
        """The number of keys."""

    def put(self, key: bytes, offset: int) -> bool:
        """Store the offset of a key. False if the key is new and the table is full."""
        first, second = _DIGEST.unpack(blake2b(key, digest_size=16, key=self._salt).digest())
        at = self._slot_of(first, second)
        words = self._words
        if words[at + 2]:
            words[at + 2] = offset + 1
            return True
        if self.count >= self._count_max:
            if self._slots == self._slots_max:
                return False
            self._grow()
            return self.put(key, offset)
        words[at] = first
        words[at + 1] = second - (1 << 63)
        words[at + 2] = offset + 1
        self.count += 1
        return True

    def get(self, key: bytes) -> int:
        """The last offset of a key; -1 if the table does not have the key."""
        first, second = _DIGEST.unpack(blake2b(key, digest_size=16, key=self._salt).digest())
        return self._words[self._slot_of(first, second) + 2] - 1

    def _keys_max(self) -> int:
        """The maximum number of keys. One slot stays free, or a search would not end."""
        return min(int(self._slots * self._load_max), self._slots - 1)

    def _slot_of(self, first: int, second: int) -> int:
        """The slot of a digest, or the free slot for it, by double hashing."""
        words = self._words
        slots = self._slots
        slot = second % slots
        stored = second - (1 << 63)
        step = 0
        while True:
            at = slot * 3
            if words[at + 2] == 0 or (words[at] == first and words[at + 1] == stored):
                return at
            if step == 0:
                # The number of slots is prime, so each step size visits all of them.
                step = first % (slots - 1) + 1
            slot += step
            if slot >= slots:
                slot -= slots

    def _grow(self) -> None:
        old, slots = self._words, self._slots
        self._slots = min(_prime_up_to(slots * _GROWTH), self._slots_max)
        self._words = _empty(self._slots)
        self._count_max = self._keys_max()
        words = self._words
        for at in range(0, slots * 3, 3):
            if old[at + 2]:
                target = self._slot_of(old[at], old[at + 1] + (1 << 63))
                words[target : target + 3] = old[at : at + 3]


def _empty(slots: int) -> "memoryview[int]":
    """Zeroed pages, which take no memory before they are used."""
    return memoryview(mmap.mmap(-1, slots * _ENTRY_SIZE)).cast("q")


def _prime_up_to(limit: int) -> int:
    while any(limit % divisor == 0 for divisor in range(2, int(limit**0.5) + 1)):
        limit -= 1
    return limit
