"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeProducers and the log directories."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from headrace.log.producers import ProducerEntry
from headrace.model.errors import ErrorCode
from headrace.model.topics import PartitionState
from headrace.replication.partition import Partition
from headrace.wire.apis import (
    ALTER_REPLICA_LOG_DIRS,
    DELETE_RECORDS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
)
from headrace.wire.codec import Message
from tests.unit.handlers.handler_scenario import Asker, FakePartition, asker


@pytest.fixture
def client() -> Asker:
    """orders-0: records 10 to 29 of epochs 2, 3 and 5, committed to 25, stable to 20."""
    client = asker()
    client.add_topic("orders", partitions=2)
    partition = client.partition("orders")
    partition.leader_epoch = 5
    partition.high_watermark = 25
    partition.last_stable_offset = 20
    log = partition.log
    log.log_start_offset, log.log_end_offset = 10, 30
    for epoch, offset in ((2, 10), (3, 15), (5, 22)):
        log.epochs.assign(epoch, offset)
    log.records = [(1000, 10, 2), (2001, 15, 3), (9000, 21, 3), (3000, 24, 5), (9500, 27, 5)]
    return client


def _listed(client: Asker, version: int, timestamp: int, **said: int) -> Message:
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    partition.update({key: value for key, value in said.items() if key in partition})
    body = {
        "replica_id": -1,
        "isolation_level": said.get("isolation_level", 0),
        "topics": [{"name": "orders", "partitions": [partition]}],
    }
    reply = client.ask(LIST_OFFSETS, version, body)
    slot: Message = reply["topics"][0]["partitions"][0]
    return slot


def _place(slot: Message) -> tuple[int, int, int, int]:
    return slot["error_code"], slot["timestamp"], slot["offset"], slot["leader_epoch"]


@pytest.mark.parametrize("version", range(1, 12))
def test_the_ends_of_a_partition_are_found_at_every_version(client: Asker, version: int) -> None:
    latest, earliest = _listed(client, version, -1), _listed(client, version, -2)
    assert (latest["error_code"], latest["timestamp"], latest["offset"]) == (0, -1, 25)
    assert (earliest["error_code"], earliest["timestamp"], earliest["offset"]) == (0, -1, 10)
    if version >= 4:
        assert (latest["leader_epoch"], earliest["leader_epoch"]) == (5, 2)


def test_read_committed_ends_at_the_last_stable_offset(client: Asker) -> None:
    assert _listed(client, 2, -1, isolation_level=1)["offset"] == 20
    assert _listed(client, 2, -1, isolation_level=0)["offset"] == 25


def test_a_time_is_found_exactly_with_the_epoch_of_its_record(client: Asker) -> None:
    assert _place(_listed(client, 7, 0)) == (0, 1000, 10, 2)
    assert _place(_listed(client, 7, 1001)) == (0, 2001, 15, 3)
    assert _place(_listed(client, 7, 2001)) == (0, 2001, 15, 3)


def test_timestamp_after_the_readable_end_has_no_offset(client: Asker) -> None:
    assert _place(_listed(client, 7, 9001)) == (0, -1, -1, -1)  # Offset 27 is not committed.
    assert _place(_listed(client, 7, 2002, isolation_level=1)) == (0, -1, -1, -1)
    assert _place(_listed(client, 7, 99999)) == (0, -1, -1, -1)
    assert _place(_listed(client, 7, 2**63 - 1)) == (0, -1, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "version_min", "place"),
    [
        (-3, 7, (0, 9000, 21, 3)),
        (-4, 8, (0, -1, 10, 2)),
        (-5, 9, (0, -1, -1, -1)),
        (-6, 11, (0, -1, -1, -1)),
    ],
)
def test_special_timestamp_has_its_minimum_version(
    client: Asker, timestamp: int, version_min: int, place: tuple[int, int, int, int]
) -> None:
    client.partition("orders").log.records.pop()
    assert _place(_listed(client, version_min, timestamp)) == place
    older = _listed(client, version_min - 1, timestamp)
    assert older["error_code"] == ErrorCode.UNSUPPORTED_VERSION


def test_a_negative_timestamp_that_means_nothing_is_unsupported(client: Asker) -> None:
    for timestamp in (-7, -100, -(2**63)):
        assert _listed(client, 11, timestamp)["error_code"] == ErrorCode.UNSUPPORTED_VERSION


def test_disk_error_of_one_partition_is_an_error_in_its_result(
    client: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(timestamp: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(client.partition("orders").log, "find_timestamp", fail)
    partitions = [{"partition_index": index, "timestamp": 1} for index in (0, 1)]
    body = {"replica_id": -1, "topics": [{"name": "orders", "partitions": partitions}]}
    (topic,) = client.ask(LIST_OFFSETS, 7, body)["topics"]
    codes = [slot["error_code"] for slot in topic["partitions"]]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
    assert "partition cannot be read: partition=orders-0" in caplog.text


def test_request_with_another_epoch_is_fenced(client: Asker) -> None:
    assert _listed(client, 4, -1, current_leader_epoch=5)["error_code"] == 0
    older = _listed(client, 4, -1, current_leader_epoch=4)
    newer = _listed(client, 4, -1, current_leader_epoch=6)
    assert older["error_code"] == ErrorCode.FENCED_LEADER_EPOCH
    assert newer["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_partition_of_another_leader_has_an_error_and_the_others_have_results(
    client: Asker,
) -> None:
    image = client.broker.image
    orders = image.topics["orders"]
    away = PartitionState(2, 0, (2,), (2,))
    image.put_topic(replace(orders, partitions=(*orders.partitions, away)))
    client.partition("orders", 1).is_leader = False
    asked = [
        {"name": "orders", "partitions": [{"partition_index": i} for i in (0, 1, 2, 3, -1)]},
        {"name": "none", "partitions": [{"partition_index": 0}]},
    ]
    orders_slots, none_slots = (
        [slot["error_code"] for slot in topic["partitions"]]
        for topic in client.ask(LIST_OFFSETS, 7, {"replica_id": -1, "topics": asked})["topics"]
    )
    assert orders_slots == [
        0,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert none_slots == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_repeated_partition_is_an_invalid_request(client: Asker) -> None:
    partitions = [{"partition_index": index, "timestamp": -1} for index in (0, 1, 0)]
    body = {"replica_id": -1, "topics": [{"name": "orders", "partitions": partitions}]}
    (topic,) = client.ask(LIST_OFFSETS, 7, body)["topics"]
    assert [slot["error_code"] for slot in topic["partitions"]] == [42, 0]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("epoch", "end"),
    [(2, (2, 15)), (3, (3, 22)), (4, (3, 22)), (5, (5, 30)), (6, (-1, -1)), (1, (1, 10))],
)
def test_epoch_is_returned_with_its_end_offset(
    client: Asker, version: int, epoch: int, end: tuple[int, int]
) -> None:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    body = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [partition]}]}
    reply = client.ask(OFFSET_FOR_LEADER_EPOCH, version, body)
    slot = reply["topics"][0]["partitions"][0]
    assert (slot["error_code"], slot["leader_epoch"], slot["end_offset"]) == (0, *end)


@pytest.mark.parametrize("replica_id", [-1, -2])
@pytest.mark.parametrize("epoch", [-1, -2, -(2**31)])
def test_unknown_epoch_is_undefined_also_in_an_empty_log(
    client: Asker, epoch: int, replica_id: int
) -> None:
    client.partition("orders").log.epochs.cut_end(0)
    partition = {"partition": 0, "leader_epoch": epoch}
    body = {"replica_id": replica_id, "topics": [{"topic": "orders", "partitions": [partition]}]}
    slot = client.ask(OFFSET_FOR_LEADER_EPOCH, 4, body)["topics"][0]["partitions"][0]
    assert (slot["error_code"], slot["leader_epoch"], slot["end_offset"]) == (0, -1, -1)


def test_an_epoch_that_has_begun_is_known_before_its_first_record(client: Asker) -> None:
    client.partition("orders").leader_epoch = 8
    latest = _listed(client, 7, -1)
    partition = {"partition": 0, "leader_epoch": latest["leader_epoch"]}
    body = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [partition]}]}
    slot = client.ask(OFFSET_FOR_LEADER_EPOCH, 3, body)["topics"][0]["partitions"][0]
    assert (slot["leader_epoch"], slot["end_offset"]) == (8, 30)


def test_an_offline_log_reports_no_end_to_the_controller(client: Asker) -> None:
    partition = {"partition": 0, "leader_epoch": 2**31 - 1}
    body = {"replica_id": -2, "topics": [{"topic": "orders", "partitions": [partition]}]}
    slot = client.ask(OFFSET_FOR_LEADER_EPOCH, 4, body)["topics"][0]["partitions"][0]
    assert (slot["error_code"], slot["end_offset"]) == (0, 30)
    client.partition("orders").log.is_offline = True
    slot = client.ask(OFFSET_FOR_LEADER_EPOCH, 4, body)["topics"][0]["partitions"][0]
    assert (slot["error_code"], slot["end_offset"]) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@pytest.mark.parametrize("replica_id", [-1, -2])
@pytest.mark.parametrize(
    ("current", "error"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_request_with_another_leader_epoch_gets_no_end_offset(
    client: Asker, replica_id: int, current: int, error: ErrorCode
) -> None:
    partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": 3}
    body = {"replica_id": replica_id, "topics": [{"topic": "orders", "partitions": [partition]}]}
    slot = client.ask(OFFSET_FOR_LEADER_EPOCH, 3, body)["topics"][0]["partitions"][0]
    assert (slot["error_code"], slot["end_offset"]) == (error, -1)


def _deleted(
    client: Asker, topic: str, *offsets: int, version: int = 2, timeout_ms: int = 30_000
) -> list[tuple[int, int]]:
    partitions = [{"partition_index": i, "offset": offset} for i, offset in enumerate(offsets)]
    body = {"topics": [{"name": topic, "partitions": partitions}], "timeout_ms": timeout_ms}
    slots = client.ask(DELETE_RECORDS, version, body)["topics"][0]["partitions"]
    return [(slot["error_code"], slot["low_watermark"]) for slot in slots]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_delete_records_raises_the_low_watermark(client: Asker, version: int) -> None:
    assert _deleted(client, "orders", 12, version=version) == [(0, 12)]
    assert _deleted(client, "orders", 11, version=version) == [(0, 12)]
    assert _deleted(client, "orders", -1, version=version) == [(0, 25)]
    assert client.partition("orders").log.log_start_offset == 25


def test_records_that_are_not_committed_cannot_be_deleted(client: Asker) -> None:
    out_of_range = (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert _deleted(client, "orders", 26) == [out_of_range]
    assert _deleted(client, "orders", -2) == [out_of_range]


def test_delete_records_times_out_while_a_live_replica_starts_earlier(client: Asker) -> None:
    image = client.broker.image
    image.brokers[2] = replace(image.brokers[1], node_id=2)
    orders = client.partition("orders")
    orders.starts_of_followers = {2: 11, 3: 0}
    assert _deleted(client, "orders", 12, timeout_ms=1) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    assert orders.log.log_start_offset == 12
    assert not orders.listeners._on_start_moved
    orders.starts_of_followers = {2: 12, 3: 0}
    assert _deleted(client, "orders", 12) == [(0, 12)]
    del image.brokers[2]
    orders.starts_of_followers = {2: 0, 3: 0}
    assert _deleted(client, "orders", 13) == [(0, 13)]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda orders: setattr(orders, "is_leader", False), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (lambda orders: setattr(orders.log, "is_offline", True), ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_delete_records_fails_when_the_leader_cannot_finish_it(
    client: Asker, end: Callable[[FakePartition], None], code: ErrorCode
) -> None:
    image = client.broker.image
    image.brokers[2] = replace(image.brokers[1], node_id=2)
    orders = client.partition("orders")
    orders.starts_of_followers = {2: 0}
    client.broker.start_job = cast("Callable[[Partition], None]", end)
    assert _deleted(client, "orders", 12) == [(code, -1)]


def test_records_of_compacted_internal_and_unknown_topics_are_not_deleted(client: Asker) -> None:
    client.add_topic("compacted", cleanup_policy="compact")
    client.add_topic("both", cleanup_policy="compact,delete")
    client.add_topic("__consumer_offsets")
    assert _deleted(client, "compacted", 0) == [(ErrorCode.POLICY_VIOLATION, -1)]
    assert _deleted(client, "both", 0) == [(0, 0)]
    assert _deleted(client, "__consumer_offsets", 0) == [(ErrorCode.INVALID_TOPIC, -1)]
    assert _deleted(client, "none", 0) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]


def test_producers_are_returned_with_their_state(client: Asker) -> None:
    table = client.partition("orders").log.producers
    table.entries[7] = ProducerEntry(7, 2, (), 1234, -1, 18, 19)
    asked = [
        {"name": "orders", "partition_indexes": [0, 1, 9, 0]},
        {"name": "a/b", "partition_indexes": [0]},
        {"name": "orders", "partition_indexes": [0]},
    ]
    orders, invalid = client.ask(DESCRIBE_PRODUCERS, 0, {"topics": asked})["topics"]
    known, idle, missing = orders["partitions"]
    assert known["active_producers"] == [
        {
            "producer_id": 7,
            "producer_epoch": 2,
            "last_sequence": -1,
            "last_timestamp": 1234,
            "coordinator_epoch": -1,
            "current_txn_start_offset": 18,
        }
    ]
    assert (idle["error_code"], idle["active_producers"]) == (0, [])
    assert missing["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert invalid["partitions"][0]["error_code"] == ErrorCode.INVALID_TOPIC


@pytest.mark.parametrize("version", range(1, 6))
def test_data_directory_is_returned_with_every_partition(client: Asker, version: int) -> None:
    (result,) = client.ask(DESCRIBE_LOG_DIRS, version, {"topics": None})["results"]
    assert (result["error_code"], result["log_dir"]) == (0, "/")
    assert result["topics"][0]["name"] == "orders"
    sizes = [slot["partition_size"] for slot in result["topics"][0]["partitions"]]
    assert sizes == [4096, 4096]
    if version >= 4:
        assert 0 <= result["usable_bytes"] <= result["total_bytes"]


def test_missing_data_directory_is_a_storage_error(
    client: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    client.broker.logs.path = "/no/such/directory"
    (result,) = client.ask(DESCRIBE_LOG_DIRS, 4, {"topics": None})["results"]
    assert (result["error_code"], result["topics"]) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    assert "log directory not described: directory=/no/such/directory" in caplog.text


def test_data_directory_is_returned_with_the_requested_partitions(client: Asker) -> None:
    asked = [
        {"topic": "orders", "partitions": [1, 1, 9]},
        {"topic": "none", "partitions": [0]},
    ]
    (result,) = client.ask(DESCRIBE_LOG_DIRS, 4, {"topics": asked})["results"]
    (topic,) = result["topics"]
    assert [slot["partition_index"] for slot in topic["partitions"]] == [1]


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_moves_to_no_other_directory_than_its_own(client: Asker, version: int) -> None:
    asked = [
        {"path": "/", "topics": [{"name": "orders", "partitions": [0, 9]}]},
        {"path": "/other", "topics": [{"name": "orders", "partitions": [1]}]},
    ]
    (topic,) = client.ask(ALTER_REPLICA_LOG_DIRS, version, {"dirs": asked})["results"]
    assert topic["topic_name"] == "orders"
    assert {slot["partition_index"]: slot["error_code"] for slot in topic["partitions"]} == {
        0: ErrorCode.NONE,
        9: ErrorCode.REPLICA_NOT_AVAILABLE,
        1: ErrorCode.LOG_DIR_NOT_FOUND,
    }
