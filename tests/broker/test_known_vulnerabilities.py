"""Attacks that worked against similar systems, tried by a user who logged in."""

import struct
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclOperation

from headrace.model.errors import ErrorCode
from headrace.wire.codec import Message
from tests.broker.raw import PRODUCE, RawConnection, one_batch
from tests.broker.test_acls import DENIED, Controlled
from tests.broker.test_bad_input_records import patched, with_payload

TRANSACTIONAL = 1 << 4
SNAPPY = 2
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
BOMBS = {
    "raw": b"\xff\xff\xff\xff\x0f" + b"\x00a",
    "xerial, size of a chunk": XERIAL + struct.pack(">i", 2**31 - 1) + b"\x01\x00a",
    "xerial, negative size": XERIAL + struct.pack(">i", -1) + b"\x01\x00a",
}
"""Compressed data that announces 2 GiB or more (CVE-2023-34455)."""


@pytest.fixture(scope="module")
def controlled() -> Iterator[Controlled]:
    controlled = Controlled()
    for user in ("alice", "bob"):
        controlled.create(user)
    yield controlled
    controlled.broker.stop()
    log = controlled.broker.log()
    controlled.broker.close()
    assert "internal error" not in log
    assert "Traceback" not in log


@pytest.fixture
def topic(controlled: Controlled, new_topic: str) -> str:
    """Only alice can write to it."""
    controlled.create_topic(new_topic)
    controlled.allow("alice", AclOperation.WRITE, new_topic)
    return new_topic


def produce_as(connection: RawConnection, transactional_id: str, topic: str, batch: bytes) -> int:
    body: Message = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
    }
    (reply,) = connection.ask(PRODUCE, 9, body)["responses"]
    code: int = reply["partition_responses"][0]["error_code"]
    return code


def test_transactional_batch_without_permission_is_not_appended(
    controlled: Controlled, topic: str
) -> None:
    """CVE-2018-17196: the flag in the batch decides, not only the field of the request."""
    producer = one_batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0)
    batch = patched(21, "h", TRANSACTIONAL, producer)
    with controlled.connect("alice") as connection:
        code = produce_as(connection, "an id of bob", topic, batch)
        assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert connection.produce(topic, batch, acks=-1)["error_code"] != 0
        assert connection.end_offset(topic) == 0
        assert connection.produce(topic, one_batch(b"x"), acks=-1)["error_code"] == 0
        assert connection.end_offset(topic) == 1


@pytest.mark.parametrize("kind", BOMBS)
def test_compressed_bomb_is_not_decompressed_without_permission(
    controlled: Controlled, topic: str, kind: str
) -> None:
    batch = with_payload(BOMBS[kind], attributes=SNAPPY)
    with controlled.connect("bob") as connection:
        assert connection.produce(topic, batch, acks=-1)["error_code"] == DENIED
    with controlled.connect("alice") as connection:
        code = connection.produce(topic, batch, acks=-1)["error_code"]
        assert code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
        assert connection.end_offset(topic) == 0
