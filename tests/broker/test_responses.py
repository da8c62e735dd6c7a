"""Fields and error codes of responses, as Apache Kafka 4.3.1 returns them.

The tests can also run against Apache Kafka, with HEADRACE_TEST_BOOTSTRAP (see CONTRIBUTING.md).
"""

import struct
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from headrace.model.errors import ErrorCode
from headrace.record.build import NewRecord, build_batch
from headrace.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    CREATE_DELEGATION_TOKEN,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOPIC_PARTITIONS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ELECT_LEADERS,
    EXPIRE_DELEGATION_TOKEN,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    PRODUCE,
    RENEW_DELEGATION_TOKEN,
)
from headrace.wire.codec import Message
from tests.broker.raw import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RawConnection,
    framed,
    header,
    one_batch,
)
from tests.broker.responses import create_topic, wait_for_coordinator

HOUR_MS = 3_600_000
TOPIC = 2
BROKER = 4
DEFAULT_CONFIG = 5
ZSTD = 4


@pytest.fixture
def connection(bootstrap: str) -> Iterator[RawConnection]:
    host, _, port = bootstrap.rpartition(":")
    with RawConnection(int(port), host=host) as connection:
        yield connection


def topic_configs(connection: RawConnection, topic: str) -> dict[str, Message]:
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    body = {"resources": [resource], "include_synonyms": True}
    (result,) = connection.ask(DESCRIBE_CONFIGS, 4, body)["results"]
    assert (result["error_code"], result["error_message"]) == (0, "")
    return {config["name"]: config for config in result["configs"]}


@pytest.mark.parametrize("config", [("unknown.setting", "1"), ("retention.ms", "never")])
def test_an_existing_topic_is_reported_before_an_invalid_setting(
    connection: RawConnection, new_topic: str, config: tuple[str, str]
) -> None:
    create_topic(connection, new_topic)
    topic = {
        "name": new_topic,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": (),
        "configs": [{"name": config[0], "value": config[1]}],
    }
    reply = connection.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 30_000})
    assert reply["topics"][0]["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("ahead_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_produce_returns_the_records_with_invalid_timestamps(
    connection: RawConnection, new_topic: str, ahead_ms: int, codec: int
) -> None:
    create_topic(connection, new_topic, message_timestamp_before_max_ms=str(HOUR_MS))
    now_ms = round(time.time() * 1000)
    times = (now_ms, now_ms + ahead_ms, now_ms, now_ms + ahead_ms)
    batch = build_batch([NewRecord(b"key", b"value", each) for each in times], codec=codec)
    found = connection.produce(new_topic, batch)
    assert found["error_code"] == ErrorCode.INVALID_TIMESTAMP
    assert [error["batch_index"] for error in found["record_errors"]] == [1, 3]
    assert connection.end_offset(new_topic) == 0


@pytest.mark.parametrize(
    "malformed",
    [
        framed(header(999, 0)),
        framed(header(METADATA, 1) + b"\xff"),
        framed(header(PRODUCE, 9, flexible=True) + b"\x00\xff"),
        framed(header(FETCH, 999)),
        b"\xff\xff\xff\xff" + bytes(8),
    ],
)
def test_a_malformed_request_closes_the_connection_after_the_earlier_responses(
    connection: RawConnection, new_topic: str, malformed: bytes
) -> None:
    create_topic(connection, new_topic)
    long_poll = connection.fetch_frame(new_topic, 0, max_wait_ms=300)
    connection.send(long_poll + connection.produce_frame(new_topic, one_batch()) + malformed)
    (fetched,) = connection.read_answer(FETCH, FETCH_VERSION)["responses"]
    assert fetched["partitions"][0]["error_code"] == 0
    (produced,) = connection.read_answer(PRODUCE, PRODUCE_VERSION)["responses"]
    assert produced["partition_responses"][0]["base_offset"] == 0
    assert connection.wait_closed() == b""


@pytest.mark.parametrize("offset", [2, -1])
def test_fetch_out_of_range_returns_no_offsets(
    connection: RawConnection, new_topic: str, offset: int
) -> None:
    create_topic(connection, new_topic)
    assert connection.produce(new_topic, one_batch())["error_code"] == 0
    connection.send(connection.fetch_frame(new_topic, offset))
    (topic,) = connection.read_answer(FETCH, FETCH_VERSION)["responses"]
    (found,) = topic["partitions"]
    assert found["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    offsets = ("high_watermark", "last_stable_offset", "log_start_offset")
    assert [found[name] for name in offsets] == [-1, -1, -1]


def test_a_synonym_in_a_coarser_unit_is_not_listed_alone(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic, retention_ms="5000")
    configs = topic_configs(connection, new_topic)
    assert [each["name"] for each in configs["retention.ms"]["synonyms"]] == ["retention.ms"]
    for name in ("segment.ms", "segment.jitter.ms", "flush.ms"):
        assert configs[name]["synonyms"] == []
        assert configs[name]["config_source"] == DEFAULT_CONFIG
    (synonym,) = configs["segment.bytes"]["synonyms"]
    assert synonym["name"] == "log.segment.bytes"


def test_a_client_id_can_have_other_bytes_than_utf_8(connection: RawConnection) -> None:
    client_id = "caf\xe9".encode("latin-1")
    header = struct.pack(">hhih", METADATA, 1, 7, len(client_id)) + client_id
    connection.send(framed(header + struct.pack(">i", 0)))
    assert connection.read_answer(METADATA, 1)["topics"] == []


@pytest.mark.parametrize(
    ("api_key", "body"),
    [
        (DESCRIBE_CLIENT_QUOTAS, {"components": (), "strict": False}),
        (DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}),
    ],
)
def test_a_description_without_an_error_has_an_empty_message(
    connection: RawConnection, api_key: int, body: Message
) -> None:
    reply = connection.ask(api_key, 0, body)
    assert (reply["error_code"], reply["error_message"]) == (0, "")


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_reassignment_returns_whether_the_replication_factor_can_change(
    connection: RawConnection, new_topic: str, is_allowed: bool
) -> None:
    create_topic(connection, new_topic)
    partition = {"partition_index": 0, "replicas": None}
    body = {
        "timeout_ms": 30_000,
        "allow_replication_factor_change": is_allowed,
        "topics": [{"name": new_topic, "partitions": [partition]}],
    }
    reply = connection.ask(ALTER_PARTITION_REASSIGNMENTS, 1, body)
    assert reply["error_code"] == 0
    assert reply["allow_replication_factor_change"] is is_allowed


def test_a_reassignment_without_partitions_returns_its_topics(connection: RawConnection) -> None:
    topics = [{"name": "any", "partitions": []}]
    body = {"timeout_ms": 30_000, "allow_replication_factor_change": False, "topics": topics}
    reply = connection.ask(ALTER_PARTITION_REASSIGNMENTS, 1, body)
    assert reply["allow_replication_factor_change"] is False
    assert reply["responses"] == topics


def delete_first_record(connection: RawConnection, topic: str) -> None:
    assert connection.produce(topic, one_batch(b"1", b"2"))["error_code"] == 0
    partition = {"partition_index": 0, "offset": 1}
    body = {"topics": [{"name": topic, "partitions": [partition]}], "timeout_ms": 30_000}
    (found,) = connection.ask(DELETE_RECORDS, 2, body)["topics"]
    assert found["partitions"][0]["low_watermark"] == 1


def test_a_rejected_batch_returns_the_log_start_offset(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(
        connection,
        new_topic,
        message_timestamp_before_max_ms=str(HOUR_MS),
        max_message_bytes="1000",
    )
    delete_first_record(connection, new_topic)
    sequenced = {"producer_id": 4711, "producer_epoch": 0}
    first = one_batch(base_sequence=0, **sequenced)
    assert connection.produce(new_topic, first)["error_code"] == 0
    batches = {
        ErrorCode.INVALID_TIMESTAMP: one_batch(timestamp=1),
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: one_batch(base_sequence=5, **sequenced),
    }
    for code, batch in batches.items():
        found = connection.produce(new_topic, batch)
        assert (found["error_code"], found["log_start_offset"]) == (code, 1)
    found = connection.produce(new_topic, one_batch(bytes(1000)))
    assert found["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert found["log_start_offset"] == -1


@pytest.mark.parametrize(
    "records",
    [b"", b"short", one_batch()[:-1], one_batch() * 2],
    ids=["empty", "short", "incomplete", "two"],
)
def test_malformed_records_return_no_log_start_offset(
    connection: RawConnection, new_topic: str, records: bytes
) -> None:
    create_topic(connection, new_topic)
    found = connection.produce(new_topic, records)
    assert (found["error_code"], found["log_start_offset"]) == (ErrorCode.INVALID_RECORD, -1)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_invalid_records(
    connection: RawConnection, new_topic: str, magic: int
) -> None:
    create_topic(connection, new_topic)
    batch = one_batch()
    found = connection.produce(new_topic, batch[:16] + bytes((magic,)) + batch[17:])
    assert (found["error_code"], found["log_start_offset"]) == (ErrorCode.INVALID_RECORD, -1)


def test_zstd_requires_version_7_of_produce(connection: RawConnection, new_topic: str) -> None:
    create_topic(connection, new_topic)
    batch = one_batch(codec=ZSTD)
    found = connection.produce(new_topic, batch, version=6)
    assert found["error_code"] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert found["log_start_offset"] == -1
    assert connection.produce(new_topic, batch, version=7)["error_code"] == 0


def test_a_transactional_batch_requires_a_transactional_id(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic)
    batch = one_batch(transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    found = connection.produce(new_topic, batch)
    assert found["error_code"] == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert found["log_start_offset"] == -1


def test_the_earliest_offset_of_an_empty_partition_has_the_leader_epoch(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic)
    partition = {"partition_index": 0, "timestamp": -2}
    body = {"replica_id": -1, "topics": [{"name": new_topic, "partitions": [partition]}]}
    (topic,) = connection.ask(LIST_OFFSETS, 7, body)["topics"]
    (found,) = topic["partitions"]
    assert (found["offset"], found["leader_epoch"]) == (0, 0)


def fetch_request(*partitions: tuple[str, int], session_epoch: int = -1) -> Message:
    """A fetch from offset 0 of each of the partitions."""
    return {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": session_epoch,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": -2,
                        "fetch_offset": 0,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                ],
            }
            for topic, partition in partitions
        ],
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def test_fetch_returns_unknown_partitions_last(connection: RawConnection, new_topic: str) -> None:
    create_topic(connection, new_topic)
    body = fetch_request(("unknown", 0), (new_topic, 9), (new_topic, 0))
    topics = connection.ask(FETCH, FETCH_VERSION, body)["responses"]
    found = [(each["topic"], part) for each in topics for part in each["partitions"]]
    assert (found[0][0], found[0][1]["partition_index"]) == (new_topic, 0)
    assert (found[0][1]["error_code"], found[0][1]["aborted_transactions"]) == (0, None)
    assert {(topic, part["partition_index"]) for topic, part in found[1:]} == {
        ("unknown", 0),
        (new_topic, 9),
    }
    for _, part in found[1:]:
        assert part["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert part["aborted_transactions"] == []


def test_a_fetch_session_can_begin_without_partitions(connection: RawConnection) -> None:
    reply = connection.ask(FETCH, FETCH_VERSION, fetch_request(session_epoch=0))
    assert reply["error_code"] == 0
    assert reply["session_id"] > 0


def test_a_duplicate_batch_returns_the_append_time_of_the_first(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic, message_timestamp_type="LogAppendTime")
    batch = one_batch(producer_id=4711, producer_epoch=0, base_sequence=0)
    first, again = (connection.produce(new_topic, batch) for _ in range(2))
    assert first["log_append_time_ms"] > 0
    assert again == first


def test_a_topic_without_partitions_has_no_result(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic)
    wait_for_coordinator(connection, new_topic)
    empty: Message = {"name": new_topic, "partitions": (), "partition_data": ()}
    produce = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": [empty]}
    assert connection.ask(PRODUCE, 9, produce)["responses"] == []
    offsets = {"replica_id": -1, "isolation_level": 0, "topics": [empty]}
    assert connection.ask(LIST_OFFSETS, 6, offsets)["topics"] == []
    records = {"topics": [empty], "timeout_ms": 1000}
    assert connection.ask(DELETE_RECORDS, 2, records)["topics"] == []
    commit: Message = {
        "group_id": new_topic,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [empty],
    }
    assert connection.ask(OFFSET_COMMIT, 8, commit)["topics"] == []
    full = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    commit["topics"] = [{"name": new_topic, "partitions": [full]}]
    (found,) = connection.ask(OFFSET_COMMIT, 8, commit)["topics"]
    assert found["partitions"][0]["error_code"] == 0
    deletion = {"group_id": new_topic, "topics": [empty]}
    assert connection.ask(OFFSET_DELETE, 0, deletion)["topics"] == []


def test_an_election_of_all_partitions_returns_every_topic(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic)
    body = {"election_type": 0, "topic_partitions": None, "timeout_ms": 30_000}
    reply = connection.ask(ELECT_LEADERS, 2, body)
    results = {
        each["topic"]: each["partition_result"] for each in reply["replica_election_results"]
    }
    assert results[new_topic] == []


def test_operations_of_unknown_topics_are_returned_by_name_only(
    connection: RawConnection, new_topic: str
) -> None:
    body = {
        "topics": [{"name": None, "topic_id": uuid4()}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
    }
    (topic,) = connection.ask(METADATA, 12, body)["topics"]
    assert topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert topic["topic_authorized_operations"] == -(2**31)
    page = {"topics": [{"name": new_topic}], "response_partition_limit": 10, "cursor": None}
    (described,) = connection.ask(DESCRIBE_TOPIC_PARTITIONS, 0, page)["topics"]
    assert described["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert described["topic_authorized_operations"] > 0


def test_a_setting_cannot_be_null(connection: RawConnection, new_topic: str) -> None:
    create_topic(connection, new_topic)
    configs = [{"name": "retention.ms", "value": None}]
    resource = {"resource_type": TOPIC, "resource_name": new_topic, "configs": configs}
    reply = connection.ask(ALTER_CONFIGS, 2, {"resources": [resource], "validate_only": False})
    assert reply["responses"][0]["error_code"] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("api_key", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
def test_settings_of_a_topic_without_a_name_cannot_change(
    connection: RawConnection, api_key: int
) -> None:
    configs = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    resource = {"resource_type": TOPIC, "resource_name": "", "configs": configs}
    reply = connection.ask(api_key, 1, {"resources": [resource], "validate_only": False})
    assert reply["responses"][0]["error_code"] == ErrorCode.INVALID_REQUEST


def test_metadata_returns_unknown_ids_first(connection: RawConnection, new_topic: str) -> None:
    create_topic(connection, new_topic)
    known, unknown = connection.topic_id(new_topic), uuid4()
    topics = [{"name": None, "topic_id": topic_id} for topic_id in (known, unknown)]
    body = {"topics": topics, "allow_auto_topic_creation": False}
    found = connection.ask(METADATA, 12, body)["topics"]
    assert [each["topic_id"] for each in found] == [unknown, known]


def test_a_topic_to_delete_is_returned_once(connection: RawConnection, new_topic: str) -> None:
    create_topic(connection, new_topic)
    body = {"topic_names": [new_topic, new_topic], "timeout_ms": 30_000}
    (result,) = connection.ask(DELETE_TOPICS, 5, body)["responses"]
    assert result["error_code"] == ErrorCode.INVALID_REQUEST


def test_an_election_returns_topics_in_the_order_of_the_request(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic)
    requested = [(new_topic, [0]), ("unknown", [0]), (new_topic, [9, 0, 0]), (new_topic, [])]
    body = {
        "election_type": 0,
        "topic_partitions": [{"topic": name, "partitions": parts} for name, parts in requested],
        "timeout_ms": 30_000,
    }
    results = connection.ask(ELECT_LEADERS, 2, body)["replica_election_results"]
    found = [
        (each["topic"], [part["partition_id"] for part in each["partition_result"]])
        for each in results
    ]
    assert found == requested


@pytest.mark.parametrize("replicas", [[], [1, 1]])
def test_invalid_replicas_are_reported_before_the_replication_factor(
    connection: RawConnection, new_topic: str, replicas: list[int]
) -> None:
    create_topic(connection, new_topic)
    partition = {"partition_index": 0, "replicas": replicas}
    body = {
        "timeout_ms": 30_000,
        "allow_replication_factor_change": False,
        "topics": [{"name": new_topic, "partitions": [partition]}],
    }
    (topic,) = connection.ask(ALTER_PARTITION_REASSIGNMENTS, 1, body)["responses"]
    assert topic["partitions"][0]["error_code"] == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_the_last_name_of_a_type_is_the_entity_of_a_quota(connection: RawConnection) -> None:
    names = [{"entity_type": "user", "entity_name": name} for name in ("first", "last")]
    entry = {"entity": names, "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": True}]}
    body = {"entries": [entry], "validate_only": True}
    (result,) = connection.ask(ALTER_CLIENT_QUOTAS, 0, body)["entries"]
    assert result["error_code"] == 0
    assert result["entity"] == [{"entity_type": "user", "entity_name": "last"}]


def test_a_response_without_a_token_has_no_times(connection: RawConnection) -> None:
    create = {"renewers": (), "max_lifetime_ms": -1}
    reply = connection.ask(CREATE_DELEGATION_TOKEN, 1, create)
    times = [reply[f"{name}_timestamp_ms"] for name in ("issue", "expiry", "max")]
    assert times == [-1, -1, -1]
    for api_key in (RENEW_DELEGATION_TOKEN, EXPIRE_DELEGATION_TOKEN):
        reply = connection.ask(api_key, 1, {"hmac": b"unknown"})
        assert reply["error_code"] == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert reply["expiry_timestamp_ms"] == -1


@pytest.mark.parametrize("node", ["1", ""])
def test_invalid_settings_of_brokers_are_invalid_requests(
    connection: RawConnection, node: str
) -> None:
    configs = [{"name": "log.cleaner.threads", "config_operation": 0, "value": "many"}]
    resource = {"resource_type": BROKER, "resource_name": node, "configs": configs}
    body = {"resources": [resource], "validate_only": True}
    reply = connection.ask(INCREMENTAL_ALTER_CONFIGS, 1, body)
    assert reply["responses"][0]["error_code"] == ErrorCode.INVALID_REQUEST


def test_a_repeated_partition_of_list_offsets_is_returned_once(
    connection: RawConnection, new_topic: str
) -> None:
    create_topic(connection, new_topic)
    partition = {"partition_index": 0, "timestamp": -1}
    topics = [{"name": new_topic, "partitions": [partition] * 2}] * 2
    (topic,) = connection.ask(LIST_OFFSETS, 1, {"replica_id": -1, "topics": topics})["topics"]
    (found,) = topic["partitions"]
    assert found["error_code"] == ErrorCode.INVALID_REQUEST
