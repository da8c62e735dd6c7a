"""Maps a key, such as a group id, to a partition of a coordinator's topic. Pure.

The partition is that of Kafka, which uses Java's String.hashCode.
"""

from functools import lru_cache

_KEY_SIZE_CACHED_MAX = 255


def partition_for(key: str, partition_count: int) -> int:
    # Clients choose the keys, so the cache is limited in number and in size.
    is_cached = len(key) <= _KEY_SIZE_CACHED_MAX
    number = _cached_hash(key) if is_cached else java_hash(key)
    return _abs(number) % partition_count


def java_hash(text: str) -> int:
    """The hash of a string in Java: a signed 32-bit number, over UTF-16 code units."""
    raw = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for index in range(0, len(raw), 2):
        number = (number * 31 + (raw[index] << 8 | raw[index + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number & 0x80000000 else number


_cached_hash = lru_cache(4_096)(java_hash)


def _abs(number: int) -> int:
    # Java's smallest int has no positive counterpart; Kafka uses 0.
    return 0 if number == -(1 << 31) else abs(number)
