"""quota.producer.default: a client over its quota gets a throttle time and is muted."""

import time
from collections.abc import Iterator

import pytest

from headrace.testing import RunningBroker
from tests.broker.raw import API_VERSIONS, PRODUCE, PRODUCE_VERSION, RawConnection, one_batch

RATE = 20_000


@pytest.fixture(scope="module")
def limited() -> Iterator[RunningBroker]:
    with RunningBroker.start(settings={"quota.producer.default": str(RATE)}) as broker:
        yield broker


def test_client_over_its_quota_gets_its_response_and_is_muted_for_the_throttle_time(
    limited: RunningBroker,
) -> None:
    with RawConnection(limited.port) as connection:
        connection.create_topic("limited")
        # More than a client may save up, however long it was silent.
        frame = connection.produce_frame("limited", one_batch(b"x" * RATE * 2))
        began = time.monotonic()
        # In one piece: what follows the request that was too much has been read already.
        connection.send(frame + connection.frame(API_VERSIONS, 0, {}))
        answer = connection.read_answer(PRODUCE, PRODUCE_VERSION)
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0
        assert answer["throttle_time_ms"] > 0
        assert connection.read_answer(API_VERSIONS, 0)["error_code"] == 0
        # Slightly less: the clock of the broker's loop counts milliseconds, and can lag.
        assert time.monotonic() - began >= answer["throttle_time_ms"] / 1000 * 0.9


def test_muted_client_can_disconnect(
    limited: RunningBroker,
) -> None:
    with RawConnection(limited.port) as connection:
        connection.create_topic("left")
        connection.send(connection.produce_frame("left", one_batch(b"x" * RATE * 2)))
        assert connection.read_answer(PRODUCE, PRODUCE_VERSION)["throttle_time_ms"] > 0
    with RawConnection(limited.port) as connection:
        assert connection.end_offset("left") == 1
        assert connection.ask(API_VERSIONS, 0, {})["error_code"] == 0
    assert "Traceback" not in limited.log()
