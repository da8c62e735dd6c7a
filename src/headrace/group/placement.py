"""Which partition of __consumer_offsets a group lives in. Pure.

Every broker and every tool must agree on it, and Kafka's answer is that of Java's String.hashCode.
"""

from functools import lru_cache

OFFSETS_TOPIC = "__consumer_offsets"
_NAME_SIZE_CACHED_MAX = 255


def partition_for(group_id: str, partition_count: int) -> int:
    # A cache of names that peers make up is bounded in both directions.
    is_usual = len(group_id) <= _NAME_SIZE_CACHED_MAX
    number = _cached_hash(group_id) if is_usual else java_hash(group_id)
    return _abs(number) % partition_count


def java_hash(text: str) -> int:
    """As a signed 32-bit number, over UTF-16 code units."""
    raw = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for at in range(0, len(raw), 2):
        number = (number * 31 + (raw[at] << 8 | raw[at + 1])) & 0xFFFFFFFF
    return number - (1 << 32) if number & 0x80000000 else number


_cached_hash = lru_cache(4_096)(java_hash)


def _abs(number: int) -> int:
    # Java has no positive twin of its smallest int; Kafka takes 0.
    return 0 if number == -(1 << 31) else abs(number)
