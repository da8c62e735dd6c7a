"""How fast a client may write, under a clock that is an argument."""

from headrace.server.quota import CLIENTS_KEPT, ProduceQuota


def test_a_second_is_free_and_what_goes_beyond_has_to_be_waited_for() -> None:
    quota = ProduceQuota(1_000)
    assert quota.charge(b"mill", 1_000, 10.0) == 0
    assert quota.charge(b"mill", 500, 10.0) == 501
    assert quota.charge(b"weir", 500, 10.0) == 0


def test_in_the_long_run_a_client_gets_the_rate() -> None:
    quota = ProduceQuota(1_000)
    now = 10.0
    for _ in range(100):
        now += quota.charge(b"mill", 300, now) / 1000
    assert 28 < now - 10 < 30


def test_time_that_was_not_used_is_saved_for_a_second_only() -> None:
    quota = ProduceQuota(1_000)
    assert quota.charge(b"mill", 1_000, 10.0) == 0
    assert quota.charge(b"mill", 1_000, 100.0) == 0
    assert quota.charge(b"mill", 1, 100.0) > 0


def test_clients_that_owe_nothing_are_forgotten() -> None:
    quota = ProduceQuota(1_000)
    for number in range(10 * CLIENTS_KEPT):
        quota.charge(b"client-%d" % number, 1, 10.0 + number)
    assert len(quota.used_until) <= CLIENTS_KEPT + 1
