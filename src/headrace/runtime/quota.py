"""Quotas of clients: counters of rates, and the limits that apply to a connection. Pure.  # HOT

Kafka counts in windows of time. The buckets of model/bucket.py have no windows, so the rate of a
client is smoother.
If a request exceeds a quota, the response contains a throttle time, and the connection is not read
for this time (KIP-219). A connection can also wait before a request: see QuotaWait. Without this
rule, a client could exceed its quota with a new connection for each request.

1. In the long run, all connections that share a bucket get its rate, and no more.
2. Unused rate is saved for `saved_s` seconds only.
3. A Fetch response is limited to the rest of the bucket and STEP_S of its rate, but has at least
   one batch. So a consumer gets many small responses, and none is empty.
4. While a bucket is beyond its rate, only connections that have waited execute requests of the
   bucket.
5. At most BUCKETS_MAX names have their own bucket. Beyond that, names share one per default.
"""

from collections.abc import Callable, Mapping
from typing import Final, final

from mypy_extensions import i64

from headrace.model.bucket import Bucket
from headrace.model.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONSUMER_RECORD_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    PRODUCER_RECORD_RATE,
    REQUEST_PERCENTAGE,
    Entity,
    Quotas,
    has_limit,
    limit_of,
    precedence,
)

SAVED_SECONDS_MAX: Final = 1.0
STEP_S: Final = 0.1
WAIT_SECONDS_MAX: Final = 2_000_000.0
THROTTLE_MS_MAX: Final = 2_000_000_000
BUCKETS_MAX: Final = 10_000
FORGET_INTERVAL_S: Final = 1.0
BUCKETS_PER_CLIENT_MAX: Final = 6
UNLIMITED: Final = 0x7FFFFFFF
PRINCIPAL_PREFIX: Final = "User:"
NOT_LIMITED: Final = -1
"""The kind of a login, which no quota limits."""
PRODUCE_REQUEST: Final = 0
FETCH_REQUEST: Final = 1
OTHER_REQUEST: Final = 2
COMPLETED_WAIT_SECONDS_MAX: Final = 1.0
"""How long a completed wait is valid. Otherwise, many connections could wait, and then send their
requests simultaneously."""
EXTENSION_SECONDS_MIN: Final = 0.01
"""A wait is not extended by less than this."""


@final
class Limits:
    """The buckets of one client. Clients with the same quota share buckets."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.producer_bytes: Bucket | None = None
        self.consumer_bytes: Bucket | None = None
        self.producer_records: Bucket | None = None
        self.consumer_records: Bucket | None = None
        self.request_time: Bucket | None = None
        """In seconds of the loop's time."""
        self.mutations: Bucket | None = None
        self.record_bytes: float = 0.0
        """The average size of a fetched record; 0 while it is unknown."""
        self.rates: list[float] = []
        """The rates of its buckets at its creation."""

    def is_same(self, other: "Limits") -> bool:
        """Whether both have the same buckets with the same rates."""
        return (
            self.rates == other.rates
            and self.producer_bytes is other.producer_bytes
            and self.consumer_bytes is other.consumer_bytes
            and self.producer_records is other.producer_records
            and self.consumer_records is other.consumer_records
            and self.request_time is other.request_time
            and self.mutations is other.mutations
        )

    def limits_produce(self) -> bool:
        return self.producer_bytes is not None or self.producer_records is not None

    def limits_fetch(self) -> bool:
        return self.consumer_bytes is not None or self.consumer_records is not None

    def counts_fetch(self) -> bool:
        return self.limits_fetch() or self.request_time is not None

    def buckets(self, kind: i64) -> list[Bucket]:
        """The buckets that limit requests of this kind."""
        found: list[Bucket] = []
        by_bytes: Bucket | None = None
        by_records: Bucket | None = None
        if kind == PRODUCE_REQUEST:
            by_bytes, by_records = self.producer_bytes, self.producer_records
        elif kind == FETCH_REQUEST:
            by_bytes, by_records = self.consumer_bytes, self.consumer_records
        by_time = self.request_time
        if by_bytes is not None:
            found.append(by_bytes)
        if by_records is not None:
            found.append(by_records)
        if by_time is not None and kind != NOT_LIMITED:
            found.append(by_time)
        return found

    def charge_produce(self, size: i64, records: i64, now: float, reserved_s: float = 0.0) -> i64:
        """Count a Produce request; returns the throttle time in milliseconds."""
        over: float = 0.0
        by_bytes = self.producer_bytes
        if by_bytes is not None:
            over = max(over, by_bytes.charge(float(size), now, reserved_s))
        by_records = self.producer_records
        if by_records is not None:
            over = max(over, by_records.charge(float(records), now, reserved_s))
        return in_ms(over)

    def fetch_bytes_max(self, now: float) -> i64:
        """The maximum size of a Fetch response, except that it has at least one batch."""
        size: float = float(UNLIMITED)
        by_bytes = self.consumer_bytes
        if by_bytes is not None:
            size = by_bytes.left(now) + by_bytes.rate * STEP_S
        by_records = self.consumer_records
        if by_records is not None:
            records: float = by_records.left(now) + by_records.rate * STEP_S
            size = min(size, records * self.record_bytes)
        if size >= float(UNLIMITED):
            return UNLIMITED
        return i64(int(size)) if size > 1.0 else 1

    def charge_fetch(
        self, size: i64, record_bytes: i64, records: i64, now: float, reserved_s: float = 0.0
    ) -> i64:
        """Count a Fetch response; returns the throttle time in milliseconds."""
        over: float = 0.0
        by_bytes = self.consumer_bytes
        if by_bytes is not None:
            over = max(over, by_bytes.charge(float(size), now, reserved_s))
        by_records = self.consumer_records
        if by_records is not None and (records > 0 or reserved_s > 0.0):
            over = max(over, by_records.charge(float(records), now, reserved_s))
        if by_records is not None and records > 0:
            average: float = float(record_bytes) / float(records)
            known: float = self.record_bytes
            self.record_bytes = average if known == 0.0 else (known + average) / 2
        return in_ms(over)

    def charge_time(self, seconds: float, now: float, reserved_s: float = 0.0) -> i64:
        """Count time of the loop; returns the throttle time in milliseconds."""
        bucket = self.request_time
        return 0 if bucket is None else in_ms(bucket.charge(seconds, now, reserved_s))


@final
class QuotaWait:
    """The wait of one connection for the quotas of its client.

    A connection waits after a request that exceeded a quota, for the throttle time. It also waits
    before a request if other connections of the client have exceeded a quota. The server holds this
    request, and reserves its expected cost in the buckets, so that later requests wait longer. When
    the request is executed, its real cost replaces the reserved cost.

    After a wait, the connection executes the next request of the same kind even if other
    connections have exceeded the quota again. If no request arrives for
    COMPLETED_WAIT_SECONDS_MAX, the connection must wait again.
    """

    def __init__(self) -> None:
        self.until: float = 0.0
        """The end of the current or last wait."""
        self.request = b""
        """The held request, which is executed after the wait; empty if none is held."""
        self.kind: i64 = NOT_LIMITED
        """The kind of the last request that quotas limit: the wait is for requests of this kind."""
        self.buckets: list[Bucket] = []
        """The buckets that limit this kind."""
        self.rates: list[float] = []
        """The rates of these buckets when `reserved_s` was counted."""
        self.reserved_s: float = 0.0
        """The reserved cost of the held request, in seconds at the rate of each bucket."""
        self.excess_s: float = 0.0
        """The sum of `excess_s` of the buckets at the last check; an increase extends the wait."""

    def wait_s(self, limits: Limits, kind: i64, size: i64, now: float) -> float:
        """For how many seconds a request of `size` bytes must wait; 0 if it need not.

        If it must wait, its expected cost is reserved.
        """
        buckets = limits.buckets(kind)
        if not buckets:
            return 0.0
        if kind == self.kind and now <= self.until + COMPLETED_WAIT_SECONDS_MAX:
            return self._extension_s(now)
        wait: float = 0.0
        for bucket in buckets:
            wait = max(wait, bucket.wait_s(now))
        self.cancel(now)
        self.kind = kind
        self.buckets = buckets
        if wait > 0.0:
            self._reserve(limits, size, now)
        return wait

    def reserved_for(self, kind: i64) -> float:
        """The cost that is already counted for a request of this kind, in seconds."""
        return self.reserved_s if kind == self.kind else 0.0

    def _extension_s(self, now: float) -> float:
        """For how much longer to wait, because earlier requests cost more than was reserved."""
        if self.reserved_s == 0.0:
            return 0.0
        excess: float = 0.0
        wait: float = 0.0
        for bucket in self.buckets:
            excess += bucket.excess_s
            wait = max(wait, bucket.wait_s(now))
        extension: float = min(excess - self.excess_s, wait)
        self.excess_s = excess
        return extension if extension > EXTENSION_SECONDS_MIN else 0.0

    def _reserve(self, limits: Limits, size: i64, now: float) -> None:
        seconds: float = 0.0
        excess: float = 0.0
        by_bytes = limits.producer_bytes if self.kind == PRODUCE_REQUEST else None
        for bucket in self.buckets:
            expected: float = float(size) / bucket.rate if bucket is by_bytes else bucket.average_s
            seconds = max(seconds, expected)
            excess += bucket.excess_s
        self.rates = []
        for bucket in self.buckets:
            bucket.used_until = max(bucket.used_until, now) + seconds
            self.rates.append(bucket.rate)
        self.reserved_s = seconds
        self.excess_s = excess

    def cancel(self, now: float) -> None:
        """Cancel the wait. If it has not ended, cancel its reservation as well."""
        if self.reserved_s > 0.0 and now < self.until:
            for rate, bucket in zip(self.rates, self.buckets, strict=True):
                bucket.used_until -= self.reserved_s * rate / bucket.rate
        self.reserved_s = 0.0
        self.kind = NOT_LIMITED
        self.buckets = []
        self.until = 0.0


def in_ms(seconds: float) -> i64:
    """Milliseconds, rounded up, and at most THROTTLE_MS_MAX; 0 for no wait."""
    if seconds <= 0.0:
        return 0
    return i64(int(seconds * 1000)) + 1 if seconds < WAIT_SECONDS_MAX else THROTTLE_MS_MAX


@final
class QuotaTable:
    """All buckets of a broker, and the limits of recent clients."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        producer_default: float = 0.0,
        mutations_saved_s: float = SAVED_SECONDS_MAX,
    ) -> None:
        """`producer_default` is the byte rate of client ids without a quota; 0 for none."""
        self.monotonic = monotonic
        self.version: i64 = 0
        """The version of the quotas. Limits of another version must be looked up again."""
        self.is_active = False
        """Whether any client can have a limit."""
        self.quotas: Quotas = {}
        self.buckets: dict[tuple[str, Entity], Bucket] = {}
        self.limits: dict[tuple[str, bytes], Limits] = {}
        self.producer_default: float = producer_default
        self.mutations_saved_s: float = mutations_saved_s
        self.forgot_at: float = -FORGET_INTERVAL_S
        self.update({})

    def update(self, quotas: Quotas) -> None:
        """Use these quotas from now on. Buckets that are still limited keep what was counted."""
        known: dict[Entity, Mapping[str, float]] = dict(quotas)
        default: Entity = ((CLIENT_ID, None),)
        if self.producer_default > 0.0:
            known[default] = {PRODUCER_BYTE_RATE: self.producer_default, **known.get(default, {})}
        self.quotas = known
        self.is_active = any(entity[0][0] != IP for entity in known)
        self.buckets = {
            name: bucket for name, bucket in self.buckets.items() if has_limit(known, *name)
        }
        self.limits = {}
        self.version += 1

    def limits_of(self, principal: str, client_id: bytes) -> Limits:
        """The limits of a client; they are valid for this `version`."""
        known = self.limits.get((principal, client_id))
        if known is not None:
            return known
        if len(self.limits) >= BUCKETS_MAX:
            self.limits = {}
        if len(self.buckets) + BUCKETS_PER_CLIENT_MAX > BUCKETS_MAX:
            self._forget_unused()
        limits = self._look_up(principal, client_id)
        self.limits[(principal, client_id)] = limits
        return limits

    def _look_up(self, principal: str, client_id: bytes) -> Limits:
        order = precedence(
            principal.removeprefix(PRINCIPAL_PREFIX), client_id.decode("utf-8", "replace")
        )
        saved: float = SAVED_SECONDS_MAX
        limits = Limits(self.monotonic)
        limits.producer_bytes = self._bucket(order, PRODUCER_BYTE_RATE, 1.0, saved)
        limits.consumer_bytes = self._bucket(order, CONSUMER_BYTE_RATE, 1.0, saved)
        limits.producer_records = self._bucket(order, PRODUCER_RECORD_RATE, 1.0, saved)
        limits.consumer_records = self._bucket(order, CONSUMER_RECORD_RATE, 1.0, saved)
        limits.request_time = self._bucket(order, REQUEST_PERCENTAGE, 0.01, saved)
        limits.mutations = self._bucket(
            order, CONTROLLER_MUTATION_RATE, 1.0, self.mutations_saved_s
        )
        for each in (*limits.buckets(PRODUCE_REQUEST), *limits.buckets(FETCH_REQUEST)):
            limits.rates.append(each.rate)
        if limits.mutations is not None:
            limits.rates.append(limits.mutations.rate)
        return limits

    def _bucket(
        self,
        order: tuple[tuple[Entity, Entity], ...],
        kind: str,
        scale: float,
        saved_s: float,
    ) -> Bucket | None:
        found = limit_of(self.quotas, order, kind)
        if found is None:
            return None
        limit, entity, counted = found
        rate: float = limit * scale
        now: float = self.monotonic()
        bucket = self.buckets.get((kind, counted))
        if bucket is None and len(self.buckets) >= BUCKETS_MAX:
            # All buckets are in use: share one per quota. The number of quotas is limited.
            counted = entity
            bucket = self.buckets.get((kind, counted))
        if bucket is None:
            bucket = Bucket(rate, saved_s)
            self.buckets[(kind, counted)] = bucket
        bucket.set_rate(rate, now)
        return bucket

    def _forget_unused(self) -> None:
        """Delete buckets whose units are complete. Connections look up their limits again."""
        now: float = self.monotonic()
        if now - self.forgot_at < FORGET_INTERVAL_S:
            return
        self.forgot_at = now
        self.buckets = {
            name: bucket for name, bucket in self.buckets.items() if bucket.used_until > now
        }
        self.limits = {}
        self.version += 1
