"""Shifts the wall clock of a process. Python imports this module at its start if it is on the path.

A file contains the shift in seconds, and can change at any time. Intervals stay correct.
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
