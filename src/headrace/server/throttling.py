"""Applies quotas to the requests of clients: counts them, holds some, pauses connections.  # HOT

`runtime/quota.py` describes the rules. Connections of brokers have no quotas.
"""

import asyncio
from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i16_be
from mypy_extensions import i64

from headrace.replication.produce_exchange import ProduceExchange
from headrace.runtime.exchange import Exchange
from headrace.runtime.quota import (
    FETCH_REQUEST,
    NOT_LIMITED,
    OTHER_REQUEST,
    PRODUCE_REQUEST,
    Limits,
    QuotaTable,
    in_ms,
)
from headrace.server.connection import Connection
from headrace.wire import fetch as fetch_codec
from headrace.wire import produce as produce_codec
from headrace.wire.apis import FETCH, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE

if TYPE_CHECKING:
    from headrace.server.plane import Plane

THROTTLE_SLACK_S: Final = 0.001
HELD_SECONDS_MAX: Final = 5.0
"""The longest wait of a held Produce or Fetch request: no known client times out earlier."""
HELD_BYTES_MAX: Final = 64 * 1024 * 1024


@final
class Throttling:
    def __init__(self, plane: "Plane", quotas: QuotaTable) -> None:
        self.quotas = quotas
        self.held_bytes: i64 = 0
        """The bytes of complete requests that wait for the quotas of their clients."""
        self._plane = plane

    def handle(self, connection: Connection, data: bytes, at: i64, end: i64) -> None:
        """Handle a request of a client that can have quotas, and count it."""
        plane = self._plane
        limits = self._limits_of(connection, data, at)
        quota = connection.quota
        kind = _kind_of(data, at)
        wait_s: float = quota.wait.wait_s(limits, kind, end - at, plane.now)
        if wait_s > 0.0:
            self._hold(connection, data, at, end, kind, wait_s)
            return
        if limits.request_time is not None:
            quota.began = plane.monotonic()
        plane.dispatch(connection, data, at, end)
        if connection.closed:
            return
        reserved_s: float = quota.wait.reserved_for(kind)
        if reserved_s > 0.0:
            quota.wait.reserved_s = 0.0
        throttle_ms: i64 = 0
        last: Exchange | None = connection.exchanges[-1] if connection.exchanges else None
        produced = last if isinstance(last, ProduceExchange) else None
        if produced is not None and limits.limits_produce():
            records: i64 = 0
            if limits.producer_records is not None:
                records = produced.record_count()
            throttle_ms = limits.charge_produce(end - at, records, plane.now, reserved_s)
        if quota.began > 0.0:
            now: float = plane.monotonic()
            time_ms: i64 = limits.charge_time(now - quota.began, now, reserved_s)
            throttle_ms = time_ms if time_ms > throttle_ms else throttle_ms
            quota.began = 0.0
        if throttle_ms > 0:
            if produced is not None:
                produced.throttle_ms = throttle_ms
            self.throttle(connection, throttle_ms)

    def _limits_of(self, connection: Connection, data: bytes, at: i64) -> Limits:
        size: i64 = i64(read_i16_be(data, at + 8)) if len(data) >= at + 10 else 0
        client_id = data[at + 10 : at + 10 + size] if size > 0 else b""
        return connection.quota.limits_of(
            self.quotas, connection.principal, client_id, self._plane.now
        )

    def _hold(
        self, connection: Connection, data: bytes, at: i64, end: i64, kind: i64, wait_s: float
    ) -> None:
        """Keep a request until the wait ends. If the wait is too long, do not execute it."""
        wait_ms = in_ms(wait_s)
        self.throttle(connection, wait_ms)
        is_full = self.held_bytes + end - at > HELD_BYTES_MAX
        if kind == OTHER_REQUEST and is_full:
            self._plane.close(connection, "too many requests wait for the quotas of their clients")
        elif kind == OTHER_REQUEST or (wait_s <= HELD_SECONDS_MAX and not is_full):
            connection.quota.wait.request = data[at:end]
            self.held_bytes += end - at
        else:
            self._plane.respond_unexecuted(connection, data, at, end, wait_ms)

    def throttle(self, connection: Connection, throttle_ms: i64) -> None:
        """Do not read from a connection for a time."""
        if throttle_ms <= 0 or connection.closed:
            return
        quota = connection.quota
        quota.is_throttled = True
        until: float = self._plane.monotonic() + float(throttle_ms) / 1000
        if until > quota.wait.until:
            quota.wait.until = until
        asyncio.get_running_loop().call_later(throttle_ms / 1000, self._end, connection)

    def _end(self, connection: Connection) -> None:
        """The throttle time of a connection is over, unless a longer time was added."""
        quota = connection.quota
        if connection.closed or not quota.is_throttled:
            return
        plane = self._plane
        plane.now = plane.monotonic()
        left: float = quota.wait.until - plane.now
        if left > THROTTLE_SLACK_S:
            # A longer time was added, or the clock of the loop was behind.
            asyncio.get_running_loop().call_later(left, self._end, connection)
            return
        quota.is_throttled = False
        plane.appends.update_time()
        if quota.wait.request and not plane.is_draining:
            self.held_bytes -= len(quota.wait.request)
            try:
                connection.handle_held()
            except Exception:  # noqa: BLE001 (other connections continue)
                plane.fault(connection)
        plane.resume(connection)

    def quotas_changed(self) -> None:
        """Look limits up again, and end the waits that are due to former limits."""
        plane = self._plane
        plane.now = plane.monotonic()
        changed = [
            connection
            for connection in plane.connections.values()
            if connection.quota.quotas_changed(self.quotas, connection.principal)
        ]
        for connection in changed:
            connection.quota.wait.cancel(plane.now)
            self._end(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is closed: cancel its wait, and drop its held request."""
        connection.quota.wait.cancel(self._plane.now)
        self.held_bytes -= len(connection.quota.take_request())


def _kind_of(data: bytes, at: i64) -> i64:
    """The kind of a request, which determines the quotas that limit it."""
    api_key: i64 = i64(read_i16_be(data, at))
    version: i64 = i64(read_i16_be(data, at + 2))
    if api_key == PRODUCE and produce_codec.OLDEST <= version <= produce_codec.NEWEST:
        return PRODUCE_REQUEST
    if api_key == FETCH and fetch_codec.OLDEST <= version <= fetch_codec.NEWEST:
        return FETCH_REQUEST
    # Logins do not wait: a late login would end the session.
    return NOT_LIMITED if api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE) else OTHER_REQUEST
