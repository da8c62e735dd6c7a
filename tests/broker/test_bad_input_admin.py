"""Bad input 27, 28 and 39: invalid topics and settings.

Each gets an error with the reason in its own result. Nothing is created, in particular no file
outside of the data directory.
"""

import os
from pathlib import Path

import pytest

from headrace.wire.codec import Message
from tests.broker.raw import CREATE_TOPICS, METADATA, RawConnection, WatchedBroker

INVALID_TOPIC = 17
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
ALTER_CONFIGS = 33
INCREMENTAL_ALTER_CONFIGS = 44
DESCRIBE_CONFIGS = 32
TOPIC = 2

BAD_NAMES = [
    "",
    ".",
    "..",
    "../../etc/x",
    "/etc/x",
    "a/b",
    "a\\b",
    "a b",
    "a\0b",
    "a\nb",
    "Ünïcödé",
    "x" * 250,
    "x" * 30_000,
]


def creation(name: str, **fields: object) -> Message:
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
        **fields,
    }
    return {"topics": [topic], "timeout_ms": 30_000}


def created(connection: RawConnection, name: str, **fields: object) -> int:
    reply = connection.ask(CREATE_TOPICS, 4, creation(name, **fields))
    code: int = reply["topics"][0]["error_code"]
    return code


def places_under(directory: Path) -> set[str]:
    """Every directory, and the files that are in none of a partition's."""
    found = set(os.listdir(directory)) | set(os.listdir(directory / "data"))
    for where, directories, _ in os.walk(directory):
        found.update(os.path.join(where, name) for name in directories)
    return found


def topics_of(connection: RawConnection) -> set[str]:
    return {topic["name"] for topic in connection.ask(METADATA, 1, {"topics": None})["topics"]}


# 27


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name[:20]))
def test_invalid_topic_name_creates_nothing(target: WatchedBroker, name: str) -> None:
    around = target.process.data_dir.parent
    with target.connect() as connection:
        before = topics_of(connection), places_under(around)
        assert created(connection, name) == INVALID_TOPIC
        reply = connection.ask(METADATA, 1, {"topics": [{"name": name}]})
        assert reply["topics"][0]["error_code"] == INVALID_TOPIC
        assert (topics_of(connection), places_under(around)) == before
        assert connection.produce(name, None)["error_code"] in (3, INVALID_TOPIC)
        assert connection.fetch(name, 0)["error_code"] in (3, INVALID_TOPIC)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_client_cannot_create_an_internal_topic(target: WatchedBroker, name: str) -> None:
    with target.connect() as connection:
        before = topics_of(connection)
        assert created(connection, name) in (INVALID_TOPIC, INVALID_REQUEST)
        assert topics_of(connection) == before


def test_topic_name_can_have_249_characters(target: WatchedBroker) -> None:
    with target.connect() as connection:
        connection.create_topic("y" * 249)
        assert "y" * 249 in topics_of(connection)


# 28


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"num_partitions": 1_000_000}, INVALID_PARTITIONS),
        ({"num_partitions": 2**31 - 1}, INVALID_PARTITIONS),
        ({"num_partitions": 0}, INVALID_PARTITIONS),
        ({"num_partitions": -2}, INVALID_PARTITIONS),
        ({"replication_factor": 100}, INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, INVALID_REPLICATION_FACTOR),
        ({"replication_factor": -2}, INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 32767}, INVALID_REPLICATION_FACTOR),
    ],
    ids=str,
)
def test_topic_of_an_invalid_size_is_not_created(
    target: WatchedBroker, new_topic: str, fields: dict[str, int], error: int
) -> None:
    before = target.watch_peak()
    with target.connect() as connection:
        assert created(connection, new_topic, **fields) == error
        assert new_topic not in topics_of(connection)
    assert target.peak_bytes() - before < 16 << 20


@pytest.mark.parametrize(
    "replicas",
    [
        {0: [99]},
        {0: [-1]},
        {0: []},
        {0: [1, 1]},
        {1: [1]},
        {-1: [1]},
        {0: [1], 2: [1]},
        {0: [1], 2**31 - 1: [1]},
    ],
    ids=str,
)
def test_topic_with_an_invalid_assignment_is_not_created(
    target: WatchedBroker, new_topic: str, replicas: dict[int, list[int]]
) -> None:
    assignments = [
        {"partition_index": index, "broker_ids": nodes} for index, nodes in replicas.items()
    ]
    with target.connect() as connection:
        code = created(
            connection,
            new_topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
        )
        assert code in (INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR)
        assert new_topic not in topics_of(connection)


# 39

BAD_SETTINGS = {
    "retention.ms": "-2",
    "segment.bytes": "1",
    "no.such.setting": "1",
    "cleanup.policy": "forget",
    "compression.type": "rar",
    "max.message.bytes": "-1",
    "retention.bytes": "a lot",
    "min.insync.replicas": "0",
    "flush.messages": "0",
    "message.timestamp.type": "x" * 30_000,
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_invalid_setting_is_rejected_and_changes_nothing(
    target: WatchedBroker, new_topic: str, name: str
) -> None:
    value = BAD_SETTINGS[name]
    with target.connect() as connection:
        connection.create_topic(new_topic)
        before = settings_of(connection, new_topic)
        whole: Message = {"name": name, "value": value}
        assert altered(connection, ALTER_CONFIGS, 1, new_topic, whole) == INVALID_CONFIG
        one: Message = {"name": name, "config_operation": 0, "value": value}
        assert altered(connection, INCREMENTAL_ALTER_CONFIGS, 0, new_topic, one) == INVALID_CONFIG
        assert settings_of(connection, new_topic) == before
        configs = [{"name": name, "value": value}]
        assert created(connection, new_topic + "-2", configs=configs) == INVALID_CONFIG


def test_a_value_of_ten_megabytes_is_rejected(target: WatchedBroker, new_topic: str) -> None:
    value = "x" * (10 << 20)
    with target.connect() as connection:
        connection.create_topic(new_topic)
        before = target.watch_peak()
        one: Message = {"name": "cleanup.policy", "config_operation": 0, "value": value}
        assert altered(connection, INCREMENTAL_ALTER_CONFIGS, 1, new_topic, one) == INVALID_CONFIG
        whole: Message = {"name": "retention.ms", "value": value}
        assert altered(connection, ALTER_CONFIGS, 2, new_topic, whole) == INVALID_CONFIG
        long_name: Message = {"name": value, "config_operation": 0, "value": "1"}
        assert (
            altered(connection, INCREMENTAL_ALTER_CONFIGS, 1, new_topic, long_name)
            == INVALID_CONFIG
        )
    assert target.peak_bytes() - before < 80 << 20


def altered(
    connection: RawConnection, api_key: int, version: int, topic: str, setting: Message
) -> int:
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": [setting]}
    body: Message = {"resources": [resource], "validate_only": False}
    code: int = connection.ask(api_key, version, body)["responses"][0]["error_code"]
    return code


def settings_of(connection: RawConnection, topic: str) -> dict[str, str]:
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    body: Message = {"resources": [resource], "include_synonyms": False}
    result = connection.ask(DESCRIBE_CONFIGS, 1, body)["results"][0]
    assert result["error_code"] == 0
    return {config["name"]: config["value"] for config in result["configs"]}


# Valid requests of an unusual size.


@pytest.mark.parametrize("count", [49_000, 51_000])
def test_request_for_tens_of_thousands_of_topics_gets_a_response_or_an_error(
    target: WatchedBroker, count: int
) -> None:
    names = [{"name": f"not-there-{number}"} for number in range(count)]
    with target.connect() as connection:
        connection.send(
            connection.frame(METADATA, 4, {"topics": names, "allow_auto_topic_creation": False})
        )
        if count > 50_000:
            target.check_closed(connection, "too many")
        else:
            assert len(connection.read_answer(METADATA, 4)["topics"]) == count
