"""The test whether part of a file is in the page cache."""

import os
from collections.abc import Sequence

import pytest

from headrace.server import cache

MIB = 1 << 20


@pytest.mark.parametrize("missing", [0, 300 * 1024, 600 * 1024, MIB - 1])
def test_long_range_is_cached_only_if_every_stretch_is(
    monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """Disk reads and page cache reclaim work on stretches of 256 KiB or more in this model."""
    absent = missing // cache.PROBE_STEP_BYTES

    def preadv(fd: int, buffers: Sequence[bytearray], position: int, flags: int = 0) -> int:
        if position // cache.PROBE_STEP_BYTES == absent:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(cache, "_NOWAIT", 1)
    assert not cache.is_cached(3, 0, MIB)
    absent = -1
    assert cache.is_cached(3, 0, MIB)
