"""Rates of clients, under a clock that is an argument: no test here measures time."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from headrace.model.bucket import Bucket
from headrace.model.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONSUMER_RECORD_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    PRODUCER_RECORD_RATE,
    REQUEST_PERCENTAGE,
    USER,
    entity_of,
    user_entity,
)
from headrace.runtime.quota import (
    BUCKETS_MAX,
    BUCKETS_PER_CLIENT_MAX,
    FETCH_REQUEST,
    OTHER_REQUEST,
    PRODUCE_REQUEST,
    UNLIMITED,
    Limits,
    QuotaTable,
    QuotaWait,
    in_ms,
)

ALICE = "User:alice"
SECONDS = 30
RATE = 5_000_000


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_one_second_is_free_and_the_excess_has_to_be_waited_for() -> None:
    bucket = Bucket(1_000, 1.0)
    assert bucket.charge(1_000, 10.0) <= 0
    assert bucket.charge(500, 10.0) == pytest.approx(0.5)
    assert bucket.left(10.0) == pytest.approx(-500)
    assert bucket.wait_s(10.2) == pytest.approx(0.3)


@pytest.mark.parametrize("rate", [5e-324, 1e-9, 1.0, 2.0**63])
def test_throttle_time_fits_into_a_response_with_every_rate(rate: float) -> None:
    bucket = Bucket(rate, 1.0)
    bucket.charge(2.0**31, 10.0)
    bucket.set_rate(rate / 2, 10.0)
    assert 0 <= in_ms(bucket.charge(2.0**31, 10.0)) < 2**31
    bucket.set_rate(1e300, 10.0)
    assert in_ms(bucket.charge(1, 10.0)) == 0


def test_unused_rate_is_saved_for_one_second_only() -> None:
    bucket = Bucket(1_000, 1.0)
    assert bucket.charge(1_000, 10.0) <= 0
    assert bucket.charge(1_000, 100.0) <= 0
    assert bucket.charge(1, 100.0) > 0


def test_new_rate_keeps_the_counted_units() -> None:
    bucket = Bucket(1_000, 1.0)
    bucket.charge(10_000, 10.0)
    bucket.set_rate(10_000, 10.0)
    assert bucket.left(10.0) == pytest.approx(0)


def per_second(events: Iterator[tuple[float, float]], start: float) -> list[float]:
    """The sums of the amounts in each second after `start`."""
    sums = [0.0] * SECONDS
    for at, amount in events:
        if at - start >= SECONDS:
            break
        sums[int(at - start)] += amount
    return sums


def assert_smooth(sums: list[float], rate: float) -> None:
    """Every second after the first is within 25 % of the rate, and their mean within 3 %."""
    later = sums[1:]
    assert min(later) > 0.75 * rate, sums
    assert max(later) < 1.25 * rate, sums
    assert sum(later) / len(later) == pytest.approx(rate, rel=0.03)


def producers(
    count: int, send: Callable[[], tuple[float, float]], time: Time, rng: Random
) -> Iterator[tuple[float, float]]:
    """Connections that send the next request after the response and its throttle time."""
    due = [time.now] * count
    while True:
        at = min(range(count), key=due.__getitem__)
        time.now = due[at]
        amount, wait_s = send()
        yield time.now, amount
        # A round trip, and a loop that is late by some milliseconds.
        due[at] = time.now + wait_s + rng.uniform(0.0002, 0.005)


@pytest.mark.parametrize("connections", [1, 4, 20])
@pytest.mark.parametrize("kind", [PRODUCER_BYTE_RATE, PRODUCER_RECORD_RATE])
def test_production_is_smooth(connections: int, kind: str, time: Time) -> None:
    table = QuotaTable(time)
    table.update({user_entity("alice"): {kind: float(RATE)}})
    limits = table.limits_of(ALICE, b"app")
    rng = Random(connections)

    def send() -> tuple[float, float]:
        # All connections together send at most a tenth of a second's quota before they wait.
        size = rng.randrange(1_000, RATE // 10 // connections)
        units = (size, 0) if kind == PRODUCER_BYTE_RATE else (0, size)
        return size, limits.charge_produce(*units, time.now) / 1000

    sums = per_second(producers(connections, send, time, rng), time.now)
    assert_smooth(sums, RATE)
    assert sums[0] < 2.25 * RATE


@pytest.mark.parametrize("connections", [1, 4, 20])
@pytest.mark.parametrize("batch", [100, 16_000, 100_000])
def test_consumption_is_smooth_and_no_response_is_empty(
    connections: int, batch: int, time: Time
) -> None:
    table = QuotaTable(time)
    table.update({user_entity("alice"): {CONSUMER_BYTE_RATE: float(RATE)}})
    limits = table.limits_of(ALICE, b"app")
    rng = Random(connections)

    def fetch() -> tuple[float, float]:
        size = int(max(limits.fetch_bytes_max(time.now) // batch, 1)) * batch
        return size, limits.charge_fetch(size, size, 10, time.now) / 1000

    assert_smooth(per_second(producers(connections, fetch, time, rng), time.now), RATE)


@pytest.mark.parametrize("records_per_batch", [1, 100])
def test_record_rate_of_a_consumer_is_smooth(records_per_batch: int, time: Time) -> None:
    table = QuotaTable(time)
    rate = 2_000.0
    table.update({user_entity("alice"): {CONSUMER_RECORD_RATE: rate}})
    limits = table.limits_of(ALICE, b"app")
    rng = Random(7)

    def fetch() -> tuple[float, float]:
        # The size of records differs, so that the expected size of a response is wrong.
        allowed, size, records = limits.fetch_bytes_max(time.now), 0, 0
        while records == 0 or size < allowed - 300 * records_per_batch:
            records += records_per_batch
            size += records_per_batch * rng.choice((50, 100, 300))
        return records, limits.charge_fetch(0, size, records, time.now) / 1000

    assert_smooth(per_second(producers(2, fetch, time, rng), time.now), rate)


@pytest.mark.parametrize("connections", [1, 6, 50])
@pytest.mark.parametrize("kind", [CONSUMER_BYTE_RATE, CONSUMER_RECORD_RATE, PRODUCER_RECORD_RATE])
def test_rate_is_smooth_with_a_connection_per_request(
    connections: int, kind: str, time: Time
) -> None:
    """Their sizes are not known before they are executed."""
    table = QuotaTable(time)
    table.update({user_entity("alice"): {kind: float(RATE)}})
    limits = table.limits_of(ALICE, b"app")
    rng = Random(connections)
    waits = [QuotaWait() for _ in range(connections)]
    due = [time.now] * connections

    def execute(quota_wait: QuotaWait) -> float:
        units = rng.randrange(1_000, RATE // 100)
        if kind == PRODUCER_RECORD_RATE:
            limits.charge_produce(0, units, time.now, quota_wait.reserved_s)
            return units
        units = min(units, int(limits.fetch_bytes_max(time.now)) + RATE // 1000)
        size = units if kind == CONSUMER_BYTE_RATE else units * 100
        limits.charge_fetch(size, units * 100, units, time.now, quota_wait.reserved_s)
        return units

    def run() -> Iterator[tuple[float, float]]:
        request = PRODUCE_REQUEST if kind == PRODUCER_RECORD_RATE else FETCH_REQUEST
        while True:
            at = min(range(connections), key=due.__getitem__)
            time.now = due[at]
            wait_s = waits[at].wait_s(limits, request, 100, time.now)
            if wait_s > 0:
                waits[at].until = due[at] = time.now + wait_s
                continue
            yield time.now, execute(waits[at])
            waits[at] = QuotaWait()
            due[at] = time.now + rng.uniform(0.0002, 0.005)

    sums = per_second(run(), time.now)
    # The share of requests that are smaller than expected is not used.
    assert min(sums[1:]) > 0.75 * RATE, sums
    assert max(sums[1:]) < 1.25 * RATE, sums
    assert sum(sums[1:]) / len(sums[1:]) == pytest.approx(RATE, rel=0.03), sums


def test_underestimated_requests_make_those_behind_them_wait_longer(time: Time) -> None:
    table = QuotaTable(time)
    table.update({user_entity("alice"): {CONSUMER_BYTE_RATE: 1_000.0}})
    limits = table.limits_of(ALICE, b"app")
    for _ in range(50):
        limits.charge_fetch(100, 100, 1, time.now)
    waits = [QuotaWait() for _ in range(20)]
    for quota_wait in waits:
        quota_wait.until = time.now + quota_wait.wait_s(limits, FETCH_REQUEST, 100, time.now)
    assert waits[-1].until - waits[0].until == pytest.approx(19 * 0.1)
    time.now = waits[-1].until
    limits.charge_fetch(10_000, 10_000, 1, time.now, waits[0].reserved_s)
    for quota_wait in waits[1:]:
        assert quota_wait.wait_s(limits, FETCH_REQUEST, 100, time.now) > 9


def test_completed_wait_expires_if_it_is_not_used(time: Time) -> None:
    table = QuotaTable(time)
    table.update({user_entity("alice"): {PRODUCER_BYTE_RATE: 1_000.0}})
    limits = table.limits_of(ALICE, b"app")
    quota_wait = QuotaWait()
    assert quota_wait.wait_s(limits, PRODUCE_REQUEST, 100, time.now) == 0
    quota_wait.until = time.now + limits.charge_produce(2_000, 0, time.now) / 1000
    limits.charge_produce(10_000, 0, time.now)
    assert quota_wait.wait_s(limits, OTHER_REQUEST, 100, quota_wait.until) == 0
    assert quota_wait.wait_s(limits, PRODUCE_REQUEST, 100, quota_wait.until + 0.9) == 0
    assert quota_wait.wait_s(limits, PRODUCE_REQUEST, 100, quota_wait.until + 1.1) > 5


def test_cancelled_reservation_is_not_counted(time: Time) -> None:
    table = QuotaTable(time)
    table.update({user_entity("alice"): {PRODUCER_BYTE_RATE: 1_000.0}})
    limits = table.limits_of(ALICE, b"app")
    limits.charge_produce(5_000, 0, time.now)
    quota_wait = QuotaWait()
    quota_wait.until = time.now + quota_wait.wait_s(limits, PRODUCE_REQUEST, 3_000, time.now)
    bucket = limits.producer_bytes
    assert bucket is not None
    assert bucket.wait_s(time.now) == pytest.approx(7)
    bucket.set_rate(2_000.0, time.now)
    quota_wait.cancel(time.now)
    assert bucket.wait_s(time.now) == pytest.approx(1.5)


def test_response_is_not_limited_without_a_consumer_quota(time: Time) -> None:
    assert Limits(time).fetch_bytes_max(time.now) == UNLIMITED


def test_request_percentage_is_a_share_of_time(time: Time) -> None:
    table = QuotaTable(time)
    table.update({user_entity("alice"): {REQUEST_PERCENTAGE: 50.0}})
    limits = table.limits_of(ALICE, b"app")
    assert limits.charge_time(0.5, time.now) == 0
    assert limits.charge_time(0.5, time.now) == pytest.approx(1000, abs=2)


def test_clients_of_one_user_share_a_bucket_and_other_users_do_not(time: Time) -> None:
    table = QuotaTable(time)
    table.update(
        {
            user_entity("alice"): {PRODUCER_BYTE_RATE: 5.0},
            user_entity(None): {CONSUMER_BYTE_RATE: 5.0},
        }
    )
    one, two = table.limits_of(ALICE, b"one"), table.limits_of(ALICE, b"two")
    assert one.producer_bytes is two.producer_bytes is not None
    assert one.consumer_bytes is two.consumer_bytes is not None
    assert table.limits_of("User:bob", b"one").producer_bytes is None
    assert table.limits_of("User:bob", b"one").consumer_bytes is not one.consumer_bytes


def test_change_of_quotas_has_a_new_version_and_keeps_what_was_counted(time: Time) -> None:
    table = QuotaTable(time)
    quotas = {user_entity("alice"): {PRODUCER_BYTE_RATE: 1000.0}}
    table.update(quotas)
    version = table.version
    assert table.limits_of(ALICE, b"app").charge_produce(10_000, 0, time.now) > 0
    table.update({**quotas, user_entity("bob"): {PRODUCER_BYTE_RATE: 1.0}})
    assert table.version > version
    bucket = table.limits_of(ALICE, b"app").producer_bytes
    assert bucket is not None
    assert bucket.wait_s(time.now) == pytest.approx(9)
    table.update({})
    assert not table.is_active
    assert table.limits_of(ALICE, b"app").producer_bytes is None
    # A deleted quota that is set again starts with nothing counted.
    table.update(quotas)
    bucket = table.limits_of(ALICE, b"app").producer_bytes
    assert bucket is not None
    assert bucket.wait_s(time.now) == 0


def test_default_of_the_settings_applies_to_client_ids_without_a_quota(time: Time) -> None:
    table = QuotaTable(time, 100.0)
    assert table.is_active
    default = table.limits_of(ALICE, b"app").producer_bytes
    assert default is not None
    assert default.rate == 100
    table.update({entity_of({CLIENT_ID: None}): {CONSUMER_BYTE_RATE: 3.0}})
    both = table.limits_of(ALICE, b"app")
    assert both.producer_bytes is default
    assert both.consumer_bytes is not None
    table.update({entity_of({CLIENT_ID: None}): {PRODUCER_BYTE_RATE: 3.0}})
    assert table.limits_of(ALICE, b"app").producer_bytes is default
    assert default.rate == 3


def test_number_of_buckets_is_bounded(time: Time) -> None:
    """Names that owe nothing are forgotten; if all are in use, further names share a bucket."""
    table = QuotaTable(time)
    table.update({entity_of({CLIENT_ID: None}): {PRODUCER_BYTE_RATE: 1.0}})
    for number in range(2 * BUCKETS_MAX):
        time.now += 0.001
        table.limits_of(ALICE, b"client-%d" % number).charge_produce(1, 0, time.now)
        assert len(table.buckets) <= BUCKETS_MAX + BUCKETS_PER_CLIENT_MAX
    time.now += 100
    for number in range(2 * BUCKETS_MAX):
        table.limits_of(ALICE, b"busy-%d" % number).charge_produce(1_000_000, 0, time.now)
    assert len(table.buckets) <= BUCKETS_MAX + 1
    first = table.limits_of(ALICE, b"another").producer_bytes
    assert first is table.limits_of(ALICE, b"further").producer_bytes


def test_forgotten_buckets_have_a_new_version(time: Time) -> None:
    """A connection that kept its limits would have a second bucket under its name."""
    table = QuotaTable(time)
    table.update({entity_of({CLIENT_ID: None}): {PRODUCER_BYTE_RATE: 1000.0}})
    version = table.version
    for number in range(BUCKETS_MAX + 1):
        time.now += 0.01
        table.limits_of(ALICE, b"client-%d" % number)
    assert table.version > version


def test_mutations_are_saved_up_longer(time: Time) -> None:
    table = QuotaTable(time, mutations_saved_s=11.0)
    table.update({entity_of({USER: "alice"}): {CONTROLLER_MUTATION_RATE: 2.0}})
    bucket = table.limits_of(ALICE, b"app").mutations
    assert bucket is not None
    assert bucket.charge(22, time.now) <= 0
    assert bucket.charge(1, time.now) == pytest.approx(0.5)
