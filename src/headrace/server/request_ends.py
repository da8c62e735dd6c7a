# HOT
"""The start and the end of every request, of hot and cold APIs alike.

`Plane.request` records the start of an exchange. It ends here, once: when its response is queued
for its connection, or when its connection closes. An observer, if one is given, gets each end.
"""

from collections.abc import Callable
from typing import final

from mypy_extensions import i64

from headrace.runtime.exchange import Exchange

Observe = Callable[[Exchange, float], None]
"""Called with an exchange and the time of its end; `pieces` is its response, or None."""


@final
class RequestEnds:
    def __init__(self, observe: Observe | None, monotonic: Callable[[], float]) -> None:
        self._observe = observe
        self._monotonic = monotonic
        self.recent: i64 = 0
        """The number of requests in this loop iteration."""

    def begin(self, exchange: Exchange, api_key: i64, now: float) -> None:
        exchange.api_key = api_key
        exchange.began = now

    def end(self, exchange: Exchange) -> None:
        observe = self._observe
        if observe is not None:
            observe(exchange, self._monotonic())
