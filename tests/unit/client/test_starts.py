"""The ListOffsets timestamps of start positions."""

import re
from datetime import UTC, datetime

import pytest

from headrace.client.core.lookups import start_timestamp
from headrace.client.core.values import AtTime, Start


@pytest.mark.parametrize("start", [-1, 1 << 63, AtTime(1 << 63)])
def test_offset_that_exceeds_int64_is_rejected(start: Start) -> None:
    with pytest.raises(ValueError, match=re.escape(f"cannot start at {start!r}")):
        start_timestamp(start)


def test_negative_time_is_not_read_as_latest() -> None:
    last_of_1969 = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
    assert start_timestamp(last_of_1969) == start_timestamp(AtTime(-2)) == 0
