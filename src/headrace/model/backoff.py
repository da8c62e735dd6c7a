"""The pause before an attempt is repeated: it doubles with each failure, up to a limit. Pure."""

_DOUBLINGS_MAX = 30


def backoff(first: float, most: float, failures: int) -> float:
    """The pause after this many failures in a row, from 1."""
    return min(first * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX), most)
