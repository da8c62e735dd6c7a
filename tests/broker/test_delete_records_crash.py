"""DeleteRecords, a segment roll and kill -9: no record acknowledged after the deletion is lost."""

import time

from headrace.testing import RunningBroker
from tests.broker.raw import INIT_PRODUCER_ID, RawConnection, one_batch, values_of

DELETE_RECORDS = 21
OUT_OF_ORDER = 45
TOPICS = [f"deleted-{number}" for number in range(6)]
SEGMENT_MS = 1000


def delete_all(connection: RawConnection, topic: str) -> int:
    partitions = [{"partition_index": 0, "offset": -1}]
    body = {"topics": [{"name": topic, "partitions": partitions}], "timeout_ms": 30_000}
    reply = connection.ask(DELETE_RECORDS, 1, body)
    answer = reply["topics"][0]["partitions"][0]
    assert answer["error_code"] == 0, answer
    low_watermark: int = answer["low_watermark"]
    return low_watermark


def test_records_acknowledged_after_delete_records_and_a_roll_survive_kill_9() -> None:
    now_ms = int(time.time() * 1000)
    with RunningBroker.start() as broker:
        with RawConnection(broker.port) as connection:
            body = {"transactional_id": None, "transaction_timeout_ms": 0}
            identity = connection.ask(INIT_PRODUCER_ID, 1, body)["producer_id"]

            def batch(sequence: int, value: bytes, timestamp: int) -> bytes:
                return one_batch(
                    value,
                    timestamp=timestamp,
                    producer_id=identity,
                    producer_epoch=0,
                    base_sequence=sequence,
                )

            for topic in TOPICS:
                connection.create_topic(topic, segment_ms=str(SEGMENT_MS))
                for sequence in range(10):
                    sent = connection.produce(topic, batch(sequence, b"deleted", now_ms), acks=-1)
                    assert sent["error_code"] == 0, sent
                assert delete_all(connection, topic) == 10
            for topic in TOPICS:
                # The timestamp makes this batch begin a new segment.
                later = batch(10, b"acknowledged", now_ms + 2 * SEGMENT_MS)
                sent = connection.produce(topic, later, acks=-1)
                assert (sent["error_code"], sent["base_offset"]) == (0, 10), sent
        broker.kill()
        broker.restart()
        with RawConnection(broker.port) as connection:
            for topic in TOPICS:
                found = connection.fetch(topic, 10)
                assert found["error_code"] == 0, found
                assert found["log_start_offset"] == 10
                assert values_of(found["records"]) == [b"acknowledged"]
                gap = connection.produce(topic, batch(12, b"gap", now_ms))
                assert gap["error_code"] == OUT_OF_ORDER
                following = connection.produce(topic, batch(11, b"next", now_ms))
                assert (following["error_code"], following["base_offset"]) == (0, 11)
