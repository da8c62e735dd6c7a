"""Whether processes run, for tests that end them."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def wait_until(condition: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_gone(pids: Iterable[int]) -> None:
    for pid in pids:
        deadline = time.monotonic() + 40
        while _is_running(pid):
            assert time.monotonic() < deadline, f"process {pid} goes on"
            time.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    # A zombie has ended, even if its parent has not reaped it.
    return status.rpartition(")")[2].split()[0] != "Z"
