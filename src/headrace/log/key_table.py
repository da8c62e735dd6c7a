"""Where each key was last seen: the table that compaction is decided by, in bounded memory.

A key is known by a digest of 128 bits, so that an entry takes 24 bytes whatever the key's length,
and the whole table is one block of memory. It holds no keys, and forgets none.

1. Entries take no more than `bytes_max` (and for a moment, while the table grows, an eighth more),
   and at most `load_max` of the slots; `put` refuses a new key beyond that, and never an old one.
2. Digests are keyed with a random number of this table's own: nobody can choose two keys that it
   takes for one.
"""

import mmap
import os
import struct
from hashlib import blake2b
from typing import Final

LOAD_MAX: Final = 0.9
_ENTRY_SIZE: Final = 24
_FIRST_SLOTS: Final = 16_381
"""A table starts small: most cleanings are."""
_GROWTH: Final = 8
_DIGEST: Final = struct.Struct("=qQ")


class KeyTable:
    __slots__ = ("_count_max", "_load_max", "_salt", "_slots", "_slots_max", "_words", "count")

    def __init__(self, bytes_max: int, load_max: float = LOAD_MAX) -> None:
        self._slots_max = _prime_up_to(max(bytes_max // _ENTRY_SIZE, 3))
        self._slots = min(_FIRST_SLOTS, self._slots_max)
        self._load_max = load_max
        self._salt = os.urandom(16)
        self._words = _empty(self._slots)
        self._count_max = self._room()
        self.count = 0
        """How many keys there are."""

    def put(self, key: bytes, offset: int) -> bool:
        """Remember a later offset of a key. False if the key is new and there is no room for it."""
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
        """The last offset of a key; -1 if it was never seen."""
        first, second = _DIGEST.unpack(blake2b(key, digest_size=16, key=self._salt).digest())
        return self._words[self._slot_of(first, second) + 2] - 1

    def _room(self) -> int:
        """How many keys may be there; one slot stays free, or a search would not end."""
        return min(int(self._slots * self._load_max), self._slots - 1)

    def _slot_of(self, first: int, second: int) -> int:
        """The place of a digest, or the free one where it belongs: steps of a size of its own."""
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
                # The number of slots is a prime: any step comes by all of them.
                step = first % (slots - 1) + 1
            slot += step
            if slot >= slots:
                slot -= slots

    def _grow(self) -> None:
        old, slots = self._words, self._slots
        self._slots = min(_prime_up_to(slots * _GROWTH), self._slots_max)
        self._words = _empty(self._slots)
        self._count_max = self._room()
        words = self._words
        for at in range(0, slots * 3, 3):
            if old[at + 2]:
                target = self._slot_of(old[at], old[at + 1] + (1 << 63))
                words[target : target + 3] = old[at : at + 3]


def _empty(slots: int) -> "memoryview[int]":
    """Pages that are zero, and that take no memory before they are used."""
    return memoryview(mmap.mmap(-1, slots * _ENTRY_SIZE)).cast("q")


def _prime_up_to(limit: int) -> int:
    while any(limit % divisor == 0 for divisor in range(2, int(limit**0.5) + 1)):
        limit -= 1
    return limit
