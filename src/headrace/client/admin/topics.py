"""Operations for topics, settings, data directories and producers. Pure.

Each retries temporary errors (a new controller, a broken connection) until the client's
operation_timeout_ms, and raises the first permanent error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.client.core.errors import ClientError, RequestFailed, UnknownTopic, request_failed
from headrace.client.core.lookups import ensure_topics, list_topics
from headrace.client.core.operation import (
    ANY,
    CONTROLLER,
    Operation,
    OperationEngine,
    Pause,
    RefreshMetadata,
    Send,
    SendAll,
    backoff_ms,
    retrying,
)
from headrace.client.core.values import (
    ActiveProducer,
    ClusterInfo,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    LogDir,
    LogDirPartition,
    NewTopic,
    TopicInfo,
)
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    INCREMENTAL_ALTER_CONFIGS,
)

T = TypeVar("T")
_RESOURCE_TYPES = {"topic": 2, "broker": 4, "group": 32}
_OPERATIONS = {"set": 0, "unset": 1, "append": 2, "subtract": 3}
_SOURCES = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "file",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}


def _raise_first_error(items: Iterable[Mapping[str, Any]], name: str) -> None:
    for item in items:
        if item["error_code"]:
            message = item.get("error_message")
            raise request_failed(item["error_code"], message or f"{item[name]}")


def describe_cluster(engine: OperationEngine) -> Operation[ClusterInfo]:
    """The current brokers and controller."""

    def attempt() -> Operation[ClusterInfo]:
        yield RefreshMetadata()
        return engine.cluster.info()

    return (yield from retrying(engine, "describing the cluster", attempt))


def create_topics(
    engine: OperationEngine, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> Operation[None]:
    """Create topics, and wait until they have leaders."""
    fields = {
        "topics": [_new_topic_fields(topic) for topic in topics],
        "timeout_ms": int(engine.options.request_timeout_ms),
        "validate_only": validate_only,
    }

    def attempt() -> Operation[None]:
        response = yield Send(CONTROLLER, CREATE_TOPICS, fields)
        _raise_first_error(response["topics"], "name")

    yield from retrying(engine, "creating topics", _without_retry(attempt))
    if not validate_only:
        yield from _wait_for_leaders(engine, [topic.name for topic in topics])


def _new_topic_fields(topic: NewTopic) -> dict[str, Any]:
    assignment = topic.assignment or {}
    return {
        "name": topic.name,
        "num_partitions": -1 if assignment else topic.partitions,
        "replication_factor": -1 if assignment else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": list(brokers)}
            for index, brokers in assignment.items()
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }


def _wait_for_leaders(engine: OperationEngine, names: Sequence[str]) -> Operation[None]:
    """Wait until metadata contains the topics, and all their partitions have leaders."""
    deadline_ms = engine.now_ms + engine.options.operation_timeout_ms
    attempt = 0
    while engine.now_ms < deadline_ms:
        try:
            topics = yield from list_topics(engine, names)
        except UnknownTopic:
            topics = {}
        partitions = [part for topic in topics.values() for part in topic.partitions]
        if len(topics) == len(set(names)) and all(part.leader >= 0 for part in partitions):
            return
        yield Pause(backoff_ms(engine, attempt))
        attempt += 1


def delete_topics(engine: OperationEngine, names: Sequence[str]) -> Operation[None]:
    fields = {
        "topics": [{"name": name, "topic_id": None} for name in names],
        "topic_names": list(names),
        "timeout_ms": int(engine.options.request_timeout_ms),
    }

    def attempt() -> Operation[None]:
        response = yield Send(CONTROLLER, DELETE_TOPICS, fields)
        _raise_first_error(map(_with_message, response["responses"]), "name")

    yield from retrying(engine, "deleting topics", _without_retry(attempt))
    for name in names:
        engine.forget_topic(name)
        engine.cluster.topics.pop(name, None)


def _with_message(result: Mapping[str, Any]) -> Mapping[str, Any]:
    if result["error_code"] == 3 and not result.get("error_message"):
        return {**result, "error_message": f"unknown topic {result['name']!r}"}
    return result


def _without_retry(attempt: Callable[[], Operation[T]]) -> Callable[[], Operation[T]]:
    """Convert an attempt so that an unknown topic or a full disk is a permanent error."""

    def attempt_once() -> Operation[T]:
        try:
            return (yield from attempt())
        except RequestFailed as error:
            if isinstance(error, UnknownTopic) or error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                error.retriable = False
            raise

    return attempt_once


def create_partitions(
    engine: OperationEngine, topic: str, count: int, *, validate_only: bool = False
) -> Operation[None]:
    """Increase the number of partitions of a topic to `count`."""
    fields = {
        "topics": [{"name": topic, "count": count, "assignments": None}],
        "timeout_ms": int(engine.options.request_timeout_ms),
        "validate_only": validate_only,
    }

    def attempt() -> Operation[None]:
        response = yield Send(CONTROLLER, CREATE_PARTITIONS, fields)
        _raise_first_error(map(_with_message, response["results"]), "name")

    yield from retrying(engine, "adding partitions", _without_retry(attempt))
    if not validate_only:
        yield from _wait_for_leaders(engine, [topic])
        if topic in engine.cluster.topics:
            yield RefreshMetadata()


def describe_topic(engine: OperationEngine, topic: str) -> Operation[TopicInfo]:
    topics = yield from list_topics(engine, [topic])
    return topics[topic]


def describe_configs(
    engine: OperationEngine, resource: ConfigResource, names: Sequence[str] | None = None
) -> Operation[dict[str, ConfigEntry]]:
    """The settings of a topic, broker or group, by name: all, or those in `names`."""
    fields = {
        "resources": [
            {
                "resource_type": _RESOURCE_TYPES[resource.kind],
                "resource_name": resource.name,
                "configuration_keys": None if names is None else list(names),
            }
        ],
        "include_synonyms": True,
        "include_documentation": True,
    }

    def attempt() -> Operation[dict[str, ConfigEntry]]:
        response = yield Send(_config_node(resource), DESCRIBE_CONFIGS, fields)
        _raise_first_error(response["results"], "resource_name")
        entries = [_config_entry(config) for config in response["results"][0]["configs"]]
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}

    return (yield from retrying(engine, "describing settings", _without_retry(attempt)))


def _config_node(resource: ConfigResource) -> int:
    """The settings of a broker are requested from that broker, others from any broker."""
    if resource.kind == "broker" and resource.name:
        return int(resource.name)
    return ANY


def _config_entry(config: Mapping[str, Any]) -> ConfigEntry:
    return ConfigEntry(
        config["name"],
        config["value"],
        _SOURCES.get(config["config_source"], "unknown"),
        config["read_only"],
        config["is_sensitive"],
        config.get("documentation"),
        tuple(
            (synonym["name"], synonym["value"], _SOURCES.get(synonym["source"], "unknown"))
            for synonym in config["synonyms"]
        ),
    )


def alter_configs(
    engine: OperationEngine,
    resource: ConfigResource,
    changes: Sequence[ConfigChange],
    *,
    validate_only: bool = False,
) -> Operation[None]:
    """Change individual settings; the others stay unchanged."""
    fields = {
        "resources": [
            {
                "resource_type": _RESOURCE_TYPES[resource.kind],
                "resource_name": resource.name,
                "configs": [
                    {
                        "name": change.name,
                        "config_operation": _OPERATIONS[change.operation],
                        "value": change.value,
                    }
                    for change in changes
                ],
            }
        ],
        "validate_only": validate_only,
    }
    node = CONTROLLER if resource.kind == "topic" else _config_node(resource)

    def attempt() -> Operation[None]:
        response = yield Send(node, INCREMENTAL_ALTER_CONFIGS, fields)
        _raise_first_error(response["responses"], "resource_name")

    yield from retrying(engine, "changing settings", _without_retry(attempt))


def delete_records(
    engine: OperationEngine, before: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, int]]:
    """Delete records before an offset (-1: all committed ones); returns the new log starts."""
    yield from ensure_topics(engine, (partition.topic for partition in before), create=False)
    starts: dict[TopicPartition, int] = {}

    def attempt() -> Operation[None]:
        groups: dict[int, dict[str, list[dict[str, int]]]] = {}
        for (topic, index), offset in before.items():
            if (topic, index) in starts:
                continue
            part = {"partition_index": index, "offset": offset}
            leader = _leader(engine, TopicPartition(topic, index))
            groups.setdefault(leader, {}).setdefault(topic, []).append(part)
        requests = [
            Send(
                leader,
                DELETE_RECORDS,
                {
                    "topics": [
                        {"name": name, "partitions": parts} for name, parts in group.items()
                    ],
                    "timeout_ms": int(engine.options.request_timeout_ms),
                },
            )
            for leader, group in groups.items()
        ]
        failure: ClientError | None = None
        for response in (yield SendAll(requests)):
            if isinstance(response, ClientError):
                failure = response
                continue
            for topic in response["topics"]:
                for part in topic["partitions"]:
                    partition = TopicPartition(topic["name"], part["partition_index"])
                    if part["error_code"]:
                        failure = request_failed(part["error_code"], f"of {partition}")
                    else:
                        starts[partition] = part["low_watermark"]
        if failure is not None:
            raise failure

    yield from retrying(engine, "deleting records", attempt)
    return starts


def _leader(engine: OperationEngine, partition: TopicPartition) -> int:
    leader = engine.cluster.leader(*partition)
    if leader is None:
        raise request_failed(5, f"{partition} has no leader at the moment")
    return leader


def describe_log_dirs(engine: OperationEngine, node_id: int) -> Operation[list[LogDir]]:
    """The data directories of one broker, with their partitions."""

    def attempt() -> Operation[list[LogDir]]:
        response = yield Send(node_id, DESCRIBE_LOG_DIRS, {"topics": None})
        if response.get("error_code"):
            raise request_failed(response["error_code"])
        _raise_first_error(response["results"], "log_dir")
        return [_log_dir(node_id, result) for result in response["results"]]

    return (yield from retrying(engine, "describing data directories", attempt))


def _log_dir(node_id: int, result: Mapping[str, Any]) -> LogDir:
    partitions = tuple(
        LogDirPartition(
            topic["name"], part["partition_index"], part["partition_size"], part["offset_lag"]
        )
        for topic in result["topics"]
        for part in topic["partitions"]
    )
    return LogDir(node_id, result["log_dir"], partitions)


def describe_producers(
    engine: OperationEngine, partition: TopicPartition
) -> Operation[list[ActiveProducer]]:
    """The producers whose sequence numbers a partition's leader stores."""
    yield from ensure_topics(engine, [partition.topic], create=False)
    fields = {
        "topics": [{"name": partition.topic, "partition_indexes": [partition.partition]}],
    }

    def attempt() -> Operation[list[ActiveProducer]]:
        response = yield Send(_leader(engine, partition), DESCRIBE_PRODUCERS, fields)
        found = response["topics"][0]["partitions"][0]
        if found["error_code"]:
            raise request_failed(found["error_code"], found["error_message"])
        return [
            ActiveProducer(
                producer["producer_id"],
                producer["producer_epoch"],
                producer["last_sequence"],
                producer["last_timestamp"],
                producer["current_txn_start_offset"],
            )
            for producer in found["active_producers"]
        ]

    return (yield from retrying(engine, "describing producers", attempt))
