"""What the tour counts, without a cluster."""

import random

from headrace.tour.ledger import Ledger, Rate, Tally, bar, curve, grouped, shares
from headrace.tour.load import VALUE_BYTES, key_of, number_in, value_of


def test_a_rate_is_of_the_last_two_seconds() -> None:
    rate = Rate()
    for tick in range(100):
        rate.add(5, tick / 10)
    assert rate.per_second(9.9) == 50
    assert rate.per_second(10.9) == 25
    assert rate.per_second(20) == 0


def test_a_record_that_was_acknowledged_is_missing_until_it_is_read() -> None:
    ledger = Ledger()
    first, second = ledger.offer(0.0), ledger.offer(0.0)
    assert (ledger.queue, ledger.missing) == (2, 0)
    ledger.acknowledge(first, 240, 0, 1, 0.5)
    assert (ledger.queue, ledger.missing, ledger.longest_wait_s) == (1, 1, 0.5)
    # A consumer can read a record before its producer gets the acknowledgement.
    ledger.count_read(0, 1, b"wheel", second, 0.6)
    assert ledger.missing == 1
    ledger.acknowledge(second, 240, 0, 1, 0.7)
    ledger.count_read(0, 2, b"wheel", first, 0.8)
    assert (ledger.queue, ledger.missing, ledger.read) == (0, 0, 2)
    assert ledger.acknowledged_of == {0: 2}


def test_bytes_are_credited_to_brokers_alone() -> None:
    ledger = Ledger()
    ledger.acknowledge(ledger.offer(0.0), 240, 1, -1, 0.5)
    ledger.acknowledge(ledger.offer(0.0), 240, 1, 2, 0.5)
    assert (ledger.acknowledged, list(ledger.bytes_rates)) == (2, [2])


def test_record_read_again_counts_once_and_one_at_two_offsets_is_a_duplicate() -> None:
    ledger = Ledger()
    number = ledger.offer(0.0)
    ledger.acknowledge(number, 240, 0, 1, 0.1)
    for _ in range(2):
        ledger.count_read(0, 0, b"wheel", number, 0.2)
    assert (ledger.read, ledger.in_log_twice, ledger.missing) == (1, 0, 0)
    ledger.count_read(0, 1, b"wheel", number, 0.3)
    assert (ledger.in_log_twice, ledger.missing) == (1, 0)


def test_states_of_the_same_records_are_equal_in_any_order_of_partitions() -> None:
    logs = {partition: range(partition, 300, 3) for partition in range(3)}
    there, here = Tally(), Tally()
    for partition, numbers in logs.items():
        for offset, number in enumerate(numbers):
            there.apply(partition, offset, key_of(number % 7), number)
    left = {partition: list(enumerate(numbers)) for partition, numbers in logs.items()}
    chance = random.Random(7)
    while left:
        partition = chance.choice(sorted(left))
        offset, number = left[partition].pop(0)
        here.apply(partition, offset, key_of(number % 7), number)
        if not left[partition]:
            del left[partition]
    assert here.totals == there.totals
    assert here.digest() == there.digest()
    assert here.count == 300
    here.apply(0, 100, key_of(1), 1)
    assert here.digest() != there.digest()


def test_value_contains_its_number() -> None:
    for number in (0, 7, 123_456_789):
        assert number_in(value_of(number)) == number
        assert len(value_of(number)) == VALUE_BYTES


def test_numbers_bars_and_curves_are_formatted() -> None:
    assert grouped(1_234_567.4) == "1,234,567"
    assert bar(0.5, 4) == "██░░"
    assert bar(7, 4) == "████"
    assert curve([0, 1, 2, 4], 3) == "▃▅█"
    assert curve([0.0, 0.0], 5) == "▁▁"
    assert shares({2: 30, 1: 10}) == "1: 25%, 2: 75%"
    assert shares({}) == "none"
