"""Python imports this at its start where it is on the path: the wall clock is off, by a file.

The file says by how many seconds, and may be written again at any time. Intervals stay true.
"""

import os
import time
from pathlib import Path

_offset_s = Path(os.environ["WALL_CLOCK_OFFSET"])
_true_ns = time.time_ns


def _time_ns() -> int:
    return _true_ns() + int(_offset_s.read_text() or 0) * 1_000_000_000


time.time_ns = _time_ns
time.time = lambda: _time_ns() / 1e9
