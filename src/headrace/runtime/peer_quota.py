"""The quotas of one connection's client, and the connection's wait for them. Pure.  # HOT"""

from typing import final

from mypy_extensions import i64

from headrace.runtime.quota import Limits, QuotaTable, QuotaWait


@final
class PeerQuota:
    def __init__(self) -> None:
        self.limits: Limits | None = None
        """The limits of the client; None if no client has a quota."""
        self.client_id = b""
        """The client id of the last request that was limited."""
        self.wait = QuotaWait()
        self.is_throttled = False
        """Whether the connection is not read until `wait.until`."""
        self.counted_bytes: i64 = 0
        """The bytes of `wait.request` in the memory budget."""
        self.began: float = 0.0
        """When the current request began, until its time is counted; else 0."""
        self._version: i64 = -1
        """The version of the quotas that `limits` belong to."""

    def limits_of(self, table: QuotaTable, principal: str, client_id: bytes, now: float) -> Limits:
        """The limits of a request, looked up once per client id and version of the quotas."""
        limits = self.limits
        if limits is None or self._version != table.version or self.client_id != client_id:
            if self.client_id != client_id:
                self.wait.cancel(now)
            limits = table.limits_of(principal, client_id)
            self.limits = limits
            self._version = table.version
            self.client_id = client_id
        return limits

    def quotas_changed(self, table: QuotaTable, principal: str) -> bool:
        """Forget the limits. Returns whether the connection waits for limits that have changed."""
        former = self.limits
        self.limits = None
        if not self.is_throttled:
            return False
        limits = table.limits_of(principal, self.client_id)
        self.limits = limits
        self._version = table.version
        return former is None or not limits.is_same(former)

    def take_request(self) -> bytes:
        """Remove and return the held request; empty if none is held."""
        request = self.wait.request
        self.wait.request = b""
        return request
