"""The table of keys that compaction is decided by."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.compaction.key_table import KeyTable


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 1 << 60)), max_size=200))
def test_a_key_has_the_last_offset_it_was_given(pairs: list[tuple[bytes, int]]) -> None:
    table = KeyTable(1 << 20)
    expected: dict[bytes, int] = {}
    for key, offset in pairs:
        assert table.put(key, offset)
        expected[key] = offset
    assert {key: table.get(key) for key in expected} == expected
    assert table.count == len(expected)
    assert table.get(b"another key, longer than any of them before it") == -1


def test_a_full_table_takes_no_new_key_and_still_takes_old_ones() -> None:
    table = KeyTable(24 * 100)
    count = 0
    while table.put(b"key %d" % count, count):
        count += 1
    assert 80 <= count <= 90
    assert not table.put(b"new", 1000)
    assert table.get(b"new") == -1
    assert table.put(b"key 5", 1000)
    assert table.get(b"key 5") == 1000
    assert table.count == count


def test_load_factor_1_leaves_a_free_slot() -> None:
    table = KeyTable(24 * 11, load_max=1.0)
    for number in range(10):
        assert table.put(b"%d" % number, number)
    assert not table.put(b"10", 10)
    assert table.get(b"10") == -1


def test_growing_table_keeps_all_keys() -> None:
    table = KeyTable(24 * 40_000)
    for number in range(30_000):
        assert table.put(b"%d" % number, number)
    assert all(table.get(b"%d" % number) == number for number in range(0, 30_000, 7))
