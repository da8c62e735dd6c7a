"""OffsetCommit from request to response: errors, batches, and waiting requests."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.handlers.offset_commit import CommitHandler
from headrace.model.errors import ErrorCode
from headrace.replication.append_queue import AppendQueue
from headrace.runtime.exchange import Exchange, Peer
from headrace.wire.apis import OFFSET_COMMIT
from headrace.wire.codec import decode_response, encode_request
from headrace.wire.header import read_header
from tests.unit.group.memory_log_scenario import MemoryLog, groups_over
from tests.unit.group.test_service import others
from tests.unit.handlers.handler_scenario import Asker, asker

VERSION = 7


def body(*partitions: int, group: str = "g", topic: str = "t", **fields: Any) -> dict[str, Any]:
    rows = [{"partition_index": index, "committed_offset": 5} for index in partitions]
    return {"group_id": group, "topics": [{"name": topic, "partitions": rows}], **fields}


class Door:
    """Connections to one broker, and the turns of its loop."""

    def __init__(self, client: Asker) -> None:
        self.delivered = 0
        self.completed: list[Exchange] = []
        self.log = MemoryLog()
        self.groups = groups_over(self.log, client.broker.image)
        self.appends = AppendQueue(client.broker.clock, client.broker.worker, self.deliver)
        self.handler = CommitHandler(
            client.broker.image, self.appends, lambda: self.groups, client.broker.authorizer
        )

    def deliver(self) -> None:
        self.delivered += 1

    def send(self, wanted: dict[str, Any]) -> Exchange:
        frame = encode_request(OFFSET_COMMIT, VERSION, 3, None, wanted)
        peer = Peer(self.completed)
        body_at = read_header(frame).body_at
        self.handler.handle(peer, 3, VERSION, frame, body_at, len(frame))
        (exchange,) = peer.exchanges
        return exchange


def codes(exchange: Exchange) -> list[int]:
    assert exchange.pieces is not None
    (answer,) = exchange.pieces
    assert isinstance(answer, bytes)
    correlation_id, reply = decode_response(OFFSET_COMMIT, VERSION, answer, 4)
    assert correlation_id == 3
    return [part["error_code"] for topic in reply["topics"] for part in topic["partitions"]]


@pytest.fixture
def door() -> Door:
    client = asker()
    client.add_topic("t", partitions=2)
    return Door(client)


def test_a_partition_that_does_not_exist_has_its_own_error(door: Door) -> None:
    exchange = door.send(body(0, 2, -1, 1))
    door.appends.flush()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(exchange) == [unknown, unknown, ErrorCode.NONE, ErrorCode.NONE]
    assert len(door.log.batches) == 1


def test_commit_without_a_known_partition_does_not_reach_the_group(door: Door) -> None:
    exchange = door.send(body(0, topic="other", generation_id_or_member_epoch=3))
    assert codes(exchange) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not exchange.peer.muted
    assert door.completed == [exchange]


def test_error_of_the_group_is_returned_for_every_known_partition(door: Door) -> None:
    exchange = door.send(body(0, 1, 7, generation_id_or_member_epoch=3))
    door.appends.flush()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(exchange) == [unknown, *[ErrorCode.ILLEGAL_GENERATION] * 2]


def test_commits_of_one_turn_are_one_batch(
    door: Door,
) -> None:
    exchanges = [door.send(body(0, group=f"g{number}")) for number in range(3)]
    assert all(exchange.peer.muted for exchange in exchanges)
    assert door.log.batches == []
    door.appends.flush()
    assert not any(exchange.peer.muted for exchange in exchanges)
    assert [codes(exchange) for exchange in exchanges] == [[ErrorCode.NONE]] * 3
    assert door.completed == exchanges
    assert len(door.log.batches) == 1


def committed(door: Door) -> None:
    door.log.commit()


def lost(door: Door) -> None:
    door.log.lose()


@pytest.mark.parametrize(
    ("end", "code"), [(committed, ErrorCode.NONE), (lost, ErrorCode.NOT_COORDINATOR)]
)
def test_waiting_commit_gets_a_response_when_followers_have_it_or_leadership_ends(
    door: Door, end: Callable[[Door], None], code: ErrorCode
) -> None:
    async def scene() -> None:
        door.log.holds = True
        exchange = door.send(body(0))
        door.appends.flush()
        await others()
        assert exchange.pieces is None
        assert exchange.peer.muted
        end(door)
        await others()
        assert codes(exchange) == [code]
        assert not exchange.peer.muted
        assert door.completed == [exchange]
        assert door.delivered == 1

    asyncio.run(scene())


def test_internal_error_is_returned_and_logged(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(door.groups, "commit_all", fail)
    exchange = door.send(body(0))
    door.appends.flush()
    assert codes(exchange) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    (record,) = caplog.records
    assert record.exc_info is not None
    door.completed.clear()
    monkeypatch.undo()
    again = door.send(body(0))
    door.appends.flush()
    assert codes(again) == [ErrorCode.NONE]
