"""Limits the new connections per second of IP addresses, and closes the excess connections.

As in Kafka, a connection beyond the rate is not read, and is closed after a wait. This slows down
a client that connects again after each close. At most PARKED_MAX sockets wait; beyond that,
connections are closed immediately.
"""

import socket
from collections.abc import Callable

from headrace.model.bucket import Bucket
from headrace.model.quotas import IP, Quotas, address_limit, address_text

PARKED_MAX = 1000
PARKED_SECONDS_MAX = 1.0
BUCKETS_MAX = 10_000
SAVED_SECONDS = 1.0
"""How long unused connections are saved. So a second's connections can arrive together."""


class AddressRates:
    def __init__(
        self,
        monotonic: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._monotonic = monotonic
        self._call_later = call_later
        self._quotas: Quotas = {}
        self.is_active = False
        self._buckets: dict[str, Bucket] = {}
        self.parked: dict[socket.socket, None] = {}

    def update(self, quotas: Quotas) -> None:
        self._quotas = {entity: limits for entity, limits in quotas.items() if entity[0][0] == IP}
        self.is_active = bool(self._quotas)

    def wait_s(self, host: str) -> float:
        """Count a connection within the rate, and return 0. Otherwise, return its wait."""
        address = address_text(host)
        rate = address_limit(self._quotas, address)
        if rate is None:
            return 0.0
        now = self._monotonic()
        bucket = self._buckets.get(address)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget(now)
            bucket = self._buckets[address] = Bucket(rate, SAVED_SECONDS)
        bucket.set_rate(rate, now)
        # A full bucket admits a connection, even if the rate is below one per second.
        missing = bucket.missing(now)
        if missing > 0 and bucket.used_until > now:
            return missing / rate
        bucket.charge(1, now)
        return 0.0

    def _forget(self, now: float) -> None:
        """Keep only addresses whose buckets are not full: at most BUCKETS_MAX / 2, the newest."""
        kept = [each for each in self._buckets.items() if each[1].used_until > now]
        self._buckets = dict(kept[-BUCKETS_MAX // 2 :])

    def park(self, sock: socket.socket, wait_s: float, closed: Callable[[], None]) -> None:
        """Close a socket after `wait_s`, but at most PARKED_SECONDS_MAX. Then call `closed`."""

        def end() -> None:
            if sock in self.parked:
                del self.parked[sock]
                sock.close()
                closed()

        self.parked[sock] = None
        if len(self.parked) > PARKED_MAX:
            end()
        else:
            self._call_later(min(wait_s, PARKED_SECONDS_MAX), end)

    def close(self) -> None:
        for sock in self.parked:
            sock.close()
        self.parked.clear()
