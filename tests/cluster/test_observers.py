"""The consistency checks of the live fault test: each one must be able to fail."""

import pytest

from tests.cluster.observers import Observations


def test_different_values_at_one_offset_are_a_contradiction() -> None:
    seen = Observations()
    seen.add_record("a", 0, 7, b"x", 1.0)
    seen.add_record("b", 0, 7, b"x", 2.0)
    seen.add_record("b", 1, 7, b"y", 2.0)
    seen.check()
    seen.add_record("b", 0, 7, b"y", 3.0)
    with pytest.raises(AssertionError, match=r"offset 7: a read b'x' at 1\.000, b read b'y'"):
        seen.check()


def test_final_read_is_compared_with_earlier_reads() -> None:
    seen = Observations()
    seen.add_record("a", 0, 7, b"x", 1.0)
    seen.check_against({0: [(8, b"later")]})
    with pytest.raises(AssertionError, match="the final read"):
        seen.check_against({0: [(7, b"other")]})


def test_end_must_not_move_backwards_within_an_epoch() -> None:
    seen = Observations()
    seen.add_end(0, 3, 10, 1.0)
    seen.add_end(0, 3, 10, 2.0)
    seen.add_end(0, 4, 8, 3.0)
    seen.check()
    seen.add_end(0, 3, 9, 4.0)
    with pytest.raises(AssertionError, match="epoch 3: the end moved from 10 back to 9"):
        seen.check()
