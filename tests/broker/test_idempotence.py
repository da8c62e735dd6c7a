"""Bad input 20 and 21: the producer states of a partition of a live broker.

A retry gets the offset of the first attempt. A gap, an old epoch and a retry before the last five
batches are rejected. The states survive a kill and a restart.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import RunningBroker
from headrace.wire.codec import Message
from tests.broker.raw import (
    INIT_PRODUCER_ID,
    PRODUCE,
    RawConnection,
    WatchedBroker,
    eventually,
    one_batch,
    values_of,
)

OUT_OF_ORDER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_RECORD = 87
SEQUENCE_MAX = 2**31 - 1
PRODUCERS_MAX = 500


@pytest.fixture(scope="module")
def target_settings() -> dict[str, str]:
    return {"headrace.producers.max": str(PRODUCERS_MAX)}


class Producer:
    """An idempotent producer whose sequences a test sets."""

    def __init__(self, connection: RawConnection, topic: str, producer_id: int | None = None):
        self.connection = connection
        self.topic = topic
        self.producer_id = new_id(connection) if producer_id is None else producer_id
        self.epoch = 0

    def send(self, sequence: int, *values: bytes) -> Message:
        batch = one_batch(
            *(values or (b"%d" % sequence,)),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        return self.connection.produce(self.topic, batch)

    def offset(self, sequence: int, *values: bytes) -> int:
        answer = self.send(sequence, *values)
        assert answer["error_code"] == 0, answer
        offset: int = answer["base_offset"]
        return offset

    def error(self, sequence: int, *values: bytes) -> int:
        answer = self.send(sequence, *values)
        code: int = answer["error_code"]
        return code


def new_id(connection: RawConnection) -> int:
    reply = connection.ask(
        INIT_PRODUCER_ID, 1, {"transactional_id": None, "transaction_timeout_ms": 0}
    )
    assert reply["error_code"] == 0
    assert reply["producer_epoch"] == 0
    producer_id: int = reply["producer_id"]
    return producer_id


@pytest.fixture
def producer(target: WatchedBroker, new_topic: str) -> Iterator[Producer]:
    with target.connect() as connection:
        connection.create_topic(new_topic)
        yield Producer(connection, new_topic)


def test_consecutive_sequences_are_appended(producer: Producer) -> None:
    assert [producer.offset(0, b"a", b"b"), producer.offset(2), producer.offset(3)] == [0, 2, 3]


def test_gap_in_sequences_is_out_of_order_and_appends_nothing(producer: Producer) -> None:
    producer.offset(0)
    assert producer.error(2) == OUT_OF_ORDER
    assert producer.connection.end_offset(producer.topic) == 1
    assert producer.offset(1) == 1


def test_retry_gets_the_offset_of_the_stored_batch(producer: Producer) -> None:
    offsets = [producer.offset(sequence) for sequence in range(7)]
    assert [producer.offset(sequence) for sequence in range(2, 7)] == offsets[2:]
    assert producer.connection.end_offset(producer.topic) == 7


def test_retry_of_a_batch_before_the_last_five_is_out_of_order(producer: Producer) -> None:
    for sequence in range(7):
        producer.offset(sequence)
    assert producer.error(1) == OUT_OF_ORDER
    assert producer.offset(2) == 2


def test_batch_with_other_bounds_is_not_a_retry(producer: Producer) -> None:
    producer.offset(0, b"a", b"b")
    assert producer.error(0, b"a") == OUT_OF_ORDER
    assert producer.error(1, b"b") == OUT_OF_ORDER
    assert producer.offset(0, b"a", b"b") == 0


def test_pipelined_retries_are_deduplicated(producer: Producer) -> None:
    """The first five and their retries arrive in one read, before anything is written."""
    connection = producer.connection
    sequences = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    frames = [
        connection.produce_frame(
            producer.topic,
            one_batch(
                b"%d" % sequence,
                producer_id=producer.producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            ),
        )
        for sequence in sequences
    ]
    connection.send(b"".join(frames))
    answers = [
        connection.read_answer(PRODUCE, 9)["responses"][0]["partition_responses"][0] for _ in frames
    ]
    assert [answer["error_code"] for answer in answers] == [0] * len(frames)
    assert [answer["base_offset"] for answer in answers] == sequences
    found = values_of(connection.fetch(producer.topic, 0)["records"])
    assert found == [b"%d" % sequence for sequence in range(6)]


def test_sequences_wrap_around(producer: Producer) -> None:
    producer.offset(SEQUENCE_MAX - 1, b"last but one")
    producer.offset(SEQUENCE_MAX, b"last")
    assert producer.offset(0, b"first again") == 2
    assert producer.offset(SEQUENCE_MAX, b"last") == 1
    assert producer.error(2) == OUT_OF_ORDER


def test_batch_can_contain_the_sequence_wrap_around(producer: Producer) -> None:
    assert producer.offset(SEQUENCE_MAX, b"last", b"first again") == 0
    assert producer.offset(SEQUENCE_MAX, b"last", b"first again") == 0
    assert producer.offset(1) == 2


def test_a_lower_epoch_is_fenced_and_a_higher_one_begins_at_zero(producer: Producer) -> None:
    producer.epoch = 3
    producer.offset(0)
    producer.epoch = 2
    assert producer.error(1) == INVALID_PRODUCER_EPOCH
    producer.epoch = 4
    assert producer.error(1) == OUT_OF_ORDER
    assert producer.offset(0) == 1
    producer.epoch = 3
    assert producer.error(1) == INVALID_PRODUCER_EPOCH


def test_unknown_producer_can_start_with_any_sequence(producer: Producer) -> None:
    assert producer.offset(12345) == 0
    assert producer.error(12347) == OUT_OF_ORDER
    assert producer.offset(12346) == 1


@pytest.mark.parametrize(
    ("producer_id", "epoch", "sequence"),
    [(-2, 0, 0), (5, -1, 0), (5, 0, -1), (5, 0, -2), (-(2**63), 0, 0)],
)
def test_inconsistent_producer_id_and_epoch_are_rejected(
    target: WatchedBroker, new_topic: str, producer_id: int, epoch: int, sequence: int
) -> None:
    batch = one_batch(b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    with target.connect() as connection:
        connection.create_topic(new_topic)
        assert connection.produce(new_topic, batch)["error_code"] == INVALID_RECORD
        assert connection.end_offset(new_topic) == 0


# 21


def test_memory_of_producer_states_is_limited(target: WatchedBroker, new_topic: str) -> None:
    count = 10_000
    with target.connect() as connection:
        connection.create_topic(new_topic)
        before = target.watch_peak()
        for first in range(0, count, 500):
            frames = [
                connection.produce_frame(
                    new_topic,
                    one_batch(b"", producer_id=10**9 + number, producer_epoch=0, base_sequence=0),
                    acks=-1,
                )
                for number in range(first, first + 500)
            ]
            connection.send(b"".join(frames))
            for _ in frames:
                connection.read_frame()
        topics = [{"name": new_topic, "partition_indexes": [0]}]
        reply = connection.ask(61, 0, {"topics": topics})
        active = reply["topics"][0]["partitions"][0]["active_producers"]
        assert len(active) <= PRODUCERS_MAX
        assert 10**9 + count - 1 in {each["producer_id"] for each in active}
        assert connection.end_offset(new_topic) == count
    assert target.peak_bytes() - before < 24 << 20


def test_requests_for_producer_ids_use_no_memory(target: WatchedBroker) -> None:
    with target.connect() as connection:
        request = connection.frame(
            INIT_PRODUCER_ID, 1, {"transactional_id": None, "transaction_timeout_ms": 0}
        )
        given: set[int] = set()
        before = target.watch_peak()
        for _ in range(20):
            connection.send(request * 200)
            for _ in range(200):
                given.add(connection.read_answer(INIT_PRODUCER_ID, 1)["producer_id"])
        assert len(given) == 4000, "an id was given twice"
    assert target.peak_bytes() - before < 8 << 20


# Restarts.


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_producer_states_survive_a_restart(tmp_path: Path, is_killed: bool) -> None:
    with RunningBroker.start(tmp_path / "data") as broker:
        with RawConnection(broker.port) as connection:
            connection.create_topic("kept")
            producer = Producer(connection, "kept")
            producer.epoch = 1
            for sequence in range(7):
                producer.offset(sequence)
            wrapping = Producer(connection, "kept")
            wrapping.offset(SEQUENCE_MAX)
        if is_killed:
            broker.kill()
        broker.restart()
        with RawConnection(broker.port) as connection:
            assert connection.end_offset("kept") == 8
            again = Producer(connection, "kept", producer.producer_id)
            assert again.error(7) == INVALID_PRODUCER_EPOCH
            again.epoch = 1
            assert [again.offset(sequence) for sequence in range(2, 7)] == [2, 3, 4, 5, 6]
            assert again.error(1) == OUT_OF_ORDER
            assert again.error(8) == OUT_OF_ORDER
            assert again.offset(7) == 8
            wrapped = Producer(connection, "kept", wrapping.producer_id)
            assert wrapped.offset(SEQUENCE_MAX) == 7
            assert wrapped.offset(0) == 9
            assert new_id(connection) not in (producer.producer_id, wrapping.producer_id)


def test_kill_between_pipelined_batches_neither_loses_nor_duplicates_records(
    tmp_path: Path,
) -> None:
    with RunningBroker.start(tmp_path / "data") as broker:
        with RawConnection(broker.port) as connection:
            connection.create_topic("pipe")
            producer = Producer(connection, "pipe")

        def frames(connection: RawConnection, start: int) -> bytes:
            return b"".join(
                connection.produce_frame(
                    "pipe",
                    one_batch(
                        b"%d" % sequence,
                        producer_id=producer.producer_id,
                        producer_epoch=0,
                        base_sequence=sequence,
                    ),
                )
                for sequence in range(start, start + 5)
            )

        acknowledged = 0
        for _ in range(4):
            with RawConnection(broker.port) as connection:
                # Two rounds with responses. Then a kill while the third round is in flight.
                for _ in range(2):
                    connection.send(frames(connection, acknowledged))
                    for sequence in range(acknowledged, acknowledged + 5):
                        reply = connection.read_answer(PRODUCE, 9)
                        answer = reply["responses"][0]["partition_responses"][0]
                        assert answer["error_code"] == 0
                        assert answer["base_offset"] == sequence
                    acknowledged += 5
                connection.send(frames(connection, acknowledged))
                broker.kill()
            broker.restart()
        with RawConnection(broker.port) as connection:
            connection.send(frames(connection, acknowledged))
            for _ in range(5):
                connection.read_frame()
            eventually("all is there", lambda: connection.end_offset("pipe") == acknowledged + 5)
            found = values_of(connection.fetch("pipe", 0)["records"])
            assert found == [b"%d" % sequence for sequence in range(acknowledged + 5)]
