"""Computes the delay of a retry, which doubles with each failure, up to a limit. Pure."""

_DOUBLINGS_MAX = 30


def backoff(first: float, delay_max: float, failures: int) -> float:
    """The delay after this number of consecutive failures. `first` is the delay after one."""
    return min(first * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX), delay_max)
