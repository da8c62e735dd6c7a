"""A broker's settings: files, command line, levels, listeners."""

import pytest

from headrace.client.core.options import Address, parse_addresses
from headrace.config.broker import BrokerConfig
from headrace.config.changes import check_topic_config
from headrace.config.properties import read_properties
from headrace.config.setting import LONG_MAX, ConfigError, ConfigSource
from headrace.config.topic import PRODUCER_CODEC, TopicConfig
from headrace.group.settings import group_settings
from headrace.model.cluster import Endpoint

# The settings of the example files that Apache Kafka ships, without and with ZooKeeper.
KAFKA_FILE = """
process.roles=broker,controller
node.id=3
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/data/logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
OLD_KAFKA_FILE = """
broker.id=0
num.network.threads=3
log.dirs=/tmp/kafka-logs
num.recovery.threads.per.data.dir=1
transaction.state.log.replication.factor=1
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
log.message.format.version=3.0
inter.broker.protocol.version=3.5
"""


def refusal(properties: dict[str, str], overrides: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        BrokerConfig.load(properties, overrides or {}, origin="my.properties")
    return error.value.message


def test_defaults_apply_without_settings() -> None:
    config = BrokerConfig.load()
    assert config.node_id == 1
    assert config.data_directory == "headrace-data"
    assert config.rack is None
    assert config.get_int("socket.request.max.bytes") == 104_857_600
    assert config.get_int("queued.max.request.bytes") == 268_435_456
    assert config.get_bool("auto.create.topics.enable") is True
    assert config["log.retention.ms"] is None
    assert config.listeners == (Endpoint("PLAINTEXT", "", 9092),)
    assert config.notes() == []
    assert config.source("num.partitions") is ConfigSource.DEFAULT_CONFIG


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
@pytest.mark.parametrize("text", ["", " "])
def test_empty_data_directory_is_rejected(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is empty"):
        BrokerConfig.load({name: text})


def test_the_example_file_of_kafka_starts() -> None:
    config = BrokerConfig.load(read_properties(KAFKA_FILE))
    assert config.node_id == 3
    assert config["broker.id"] == 3
    assert config.data_directory == "/data/logs"
    assert config.listeners == (Endpoint("PLAINTEXT", "", 9092),)
    assert config.advertise({"PLAINTEXT": 9092}, "me") == (
        Endpoint("PLAINTEXT", "localhost", 9092),
    )
    accepted, controller = config.notes()
    assert accepted.startswith("Accepted without effect: controller.listener.names, ")
    assert "num.io.threads" in accepted
    assert "num.partitions" not in accepted
    assert "CONTROLLER" in controller


def test_the_example_file_of_an_old_kafka_starts() -> None:
    config = BrokerConfig.load(read_properties(OLD_KAFKA_FILE))
    assert config.node_id == 0
    (accepted,) = config.notes()
    assert "log.message.format.version" in accepted


def test_command_line_overrides_the_file() -> None:
    config = BrokerConfig.load({"num.partitions": "2"}, {"num.partitions": "3"})
    assert config["num.partitions"] == 3
    assert config.source("num.partitions") is ConfigSource.STATIC_BROKER_CONFIG


def test_an_ipv6_address_is_shown_as_clients_read_it() -> None:
    config = BrokerConfig.load({"listeners": "PLAINTEXT://[::1]:9092"})
    (endpoint,) = config.advertise({"PLAINTEXT": 9092}, "me")
    assert endpoint.host == "::1"
    assert parse_addresses(endpoint.address) == (Address("::1", 9092),)


def test_node_id_and_broker_id_are_one_setting() -> None:
    assert BrokerConfig.load({"broker.id": "7"})["node.id"] == 7
    assert BrokerConfig.load({"node.id": "7"})["broker.id"] == 7
    assert BrokerConfig.load({"node.id": "7"}, {"broker.id": "8"}).node_id == 8
    assert "node.id and broker.id must be the same" in refusal({"node.id": "1", "broker.id": "2"})


def test_an_unknown_name_in_a_file_is_a_note_with_the_nearest_name() -> None:
    config = BrokerConfig.load({"log.retenton.ms": "5"})
    assert config.notes() == [
        "'log.retenton.ms' is not a broker setting. Did you mean log.retention.ms? It is ignored."
    ]


def test_an_unknown_name_on_the_command_line_is_an_error() -> None:
    assert refusal({}, {"num.partition": "5"}) == (
        "--set: 'num.partition' is not a broker setting. Did you mean num.partitions?"
    )


def test_a_bad_value_is_one_sentence_with_file_setting_and_range() -> None:
    assert refusal({"num.partitions": "many"}) == (
        "my.properties: num.partitions cannot be 'many': "
        "it must be a whole number from 1 to 2147483647."
    )
    assert refusal({}, {"num.partitions": "0"}).startswith("--set: num.partitions cannot be '0'")


def test_a_setting_without_effect_keeps_the_limits_of_kafka() -> None:
    assert "from 1 to 1000" in refusal({"group.share.max.size": "0"})
    assert "one of required, requested, none" in refusal({"ssl.client.auth": "maybe"})
    assert "from 0 to 0.5" in refusal({"remote.log.manager.task.retry.jitter": "0.6"})
    assert "of broker, controller" in refusal({"process.roles": "broker,judge"})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"log.dirs": "/a,/b"}, "log.dirs contains several directories"),
        ({"process.roles": "controller"}, "process.roles must contain broker"),
        (
            {"queued.max.request.bytes": "1000"},
            "queued.max.request.bytes cannot be 1000: it must be at least socket.request.max.bytes",
        ),
        (
            {
                "log.cleaner.min.compaction.lag.ms": "10",
                "log.cleaner.max.compaction.lag.ms": "5",
            },
            "log.cleaner.min.compaction.lag.ms cannot be 10",
        ),
        (
            {"offsets.topic.segment.bytes": "16384"},
            "my.properties: offsets.topic.segment.bytes cannot be '16384': it must be a whole "
            "number from 1048576 to",
        ),
        (
            {"headrace.partitions.max": "40"},
            "offsets.topic.num.partitions cannot be 50: it must be at most "
            "headrace.partitions.max, which is 40.",
        ),
        (
            {"num.partitions": "10001"},
            "num.partitions cannot be 10001: it must be at most headrace.partitions.max",
        ),
        (
            {"group.min.session.timeout.ms": "2000000"},
            "group.min.session.timeout.ms cannot be 2000000: it must be at most "
            "group.max.session.timeout.ms, which is 1800000.",
        ),
        ({"inter.broker.listener.name": "INTERNAL"}, "inter.broker.listener.name is INTERNAL"),
    ],
)
def test_settings_that_contradict_each_other_are_rejected(
    properties: dict[str, str], message: str
) -> None:
    assert refusal(properties).startswith(message)


def test_larger_request_limit_raises_the_default_queue_limit() -> None:
    config = BrokerConfig.load({"socket.request.max.bytes": "536870912"})
    assert config["queued.max.request.bytes"] == 536_870_912


AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def test_unknown_authorizer_stops_the_start() -> None:
    message = refusal({"authorizer.class.name": "a.b.Authorizer"})
    assert message.startswith("my.properties: authorizer.class.name cannot be 'a.b.Authorizer'")
    assert AUTHORIZER in message


@pytest.mark.parametrize("name", [AUTHORIZER, "kafka.security.authorizer.AclAuthorizer"])
def test_names_of_kafkas_authorizers_enable_acls(name: str) -> None:
    config = BrokerConfig.load({"authorizer.class.name": name, "super.users": "User:a"})
    assert config.has_authorizer
    assert config.notes() == []
    assert not BrokerConfig.load().has_authorizer


def test_super_users_must_be_principals() -> None:
    assert refusal({"super.users": "admin"}).startswith(
        "my.properties: super.users cannot be 'admin'"
    )


def test_settings_of_acls_that_cannot_have_the_intended_effect_are_noted() -> None:
    (alone,) = BrokerConfig.load({"super.users": "User:admin"}).notes()
    assert "every client can do everything" in alone
    (empty,) = BrokerConfig.load({"authorizer.class.name": AUTHORIZER}).notes()
    assert empty == "super.users is empty: only users with ACLs have access."
    cluster = {"authorizer.class.name": AUTHORIZER, "super.users": "User:a"}
    cluster["zookeeper.connect"] = "localhost:2181"
    (internal,) = BrokerConfig.load(cluster).notes()
    assert internal.startswith("ACLs do not protect the listener INTERNAL")
    cluster["listeners"] = "SASL_PLAINTEXT://localhost:9092"
    assert BrokerConfig.load(cluster).notes() == []


@pytest.mark.parametrize(
    ("listeners", "endpoints"),
    [
        ("PLAINTEXT://127.0.0.1:9092", (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)),
        ("plaintext://:0", (Endpoint("PLAINTEXT", "", 0),)),
        ("PLAINTEXT://[::1]:9092", (Endpoint("PLAINTEXT", "::1", 9092),)),
        (
            "A://127.0.0.1:9092, B://[::1]:9092",
            (Endpoint("A", "127.0.0.1", 9092), Endpoint("B", "::1", 9092)),
        ),
        (
            "A://0.0.0.0:9092,B://[::]:9092",
            (Endpoint("A", "0.0.0.0", 9092), Endpoint("B", "::", 9092)),
        ),
        ("A://x:0,B://x:0", (Endpoint("A", "x", 0), Endpoint("B", "x", 0))),
    ],
)
def test_listeners_are_read(listeners: str, endpoints: tuple[Endpoint, ...]) -> None:
    config = BrokerConfig.load(
        {
            "listeners": listeners,
            "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        }
    )
    assert config.listeners == endpoints


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"listeners": "127.0.0.1:9092"},
            "listeners contains '127.0.0.1:9092': an entry must be NAME://",
        ),
        ({"listeners": "PLAINTEXT://::1:9092"}, "listeners contains 'PLAINTEXT://::1:9092'"),
        ({"listeners": "PLAINTEXT://x:65536"}, "listeners contains 'PLAINTEXT://x:65536'"),
        (
            {"listeners": "PLAINTEXT://x:0000099999"},
            "listeners contains 'PLAINTEXT://x:0000099999'",
        ),
        ({"listeners": "PLAINTEXT://x:-1"}, "listeners contains 'PLAINTEXT://x:-1'"),
        ({"listeners": "PLAINTEXT://x"}, "listeners contains 'PLAINTEXT://x'"),
        ({"listeners": "://x:1"}, "listeners contains '://x:1'"),
        ({"listeners": ""}, "listeners is empty"),
        ({"listeners": "INSIDE://x:1"}, "listeners contains 'INSIDE', which is not a security"),
        ({"listeners": "PLAINTEXT://x:1,PLAINTEXT://y:2"}, "listeners has PLAINTEXT twice"),
        (
            {
                "listeners": "PLAINTEXT://:1,B://127.0.0.1:1",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
            },
            "listeners contains PLAINTEXT and B on port 1",
        ),
        ({"listener.security.protocol.map": "A:TLS"}, "listener.security.protocol.map has 'A:TLS'"),
        ({"advertised.listeners": "SSL://x:1"}, "advertised.listeners has SSL, which is not in"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "advertised.listeners has the host"),
    ],
)
def test_invalid_listeners_are_rejected(properties: dict[str, str], message: str) -> None:
    assert refusal(properties).startswith(message)


def test_clients_get_the_advertised_or_else_the_bound_address() -> None:
    config = BrokerConfig.load(
        {
            "listeners": "IN://:0,OUT://0.0.0.0:9093,LOCAL://127.0.0.1:0",
            "advertised.listeners": "OUT://broker.example:19093",
            "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT,LOCAL:PLAINTEXT",
        }
    )
    assert config.advertise({"IN": 4000, "OUT": 9093, "LOCAL": 5000}, "host7") == (
        Endpoint("IN", "host7", 4000),
        Endpoint("OUT", "broker.example", 19093),
        Endpoint("LOCAL", "127.0.0.1", 5000),
    )
    assert config.internal_listener == ""


def test_brokers_of_a_cluster_have_a_separate_listener() -> None:
    properties = {"listeners": "PLAINTEXT://127.0.0.2:9092", "zookeeper.connect": "zk:2181/a"}
    config = BrokerConfig.load(properties)
    assert config.internal_listener == "INTERNAL"
    assert config.listeners[1] == Endpoint("INTERNAL", "127.0.0.2", 0)

    named = BrokerConfig.load(
        properties
        | {
            "listeners": "PLAINTEXT://:9092,IN://:9093",
            "listener.security.protocol.map": "IN:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": "in",
        }
    )
    assert (named.internal_listener, len(named.listeners)) == ("IN", 2)

    with pytest.raises(ConfigError, match="the only listener"):
        BrokerConfig.load(properties | {"inter.broker.listener.name": "PLAINTEXT"})


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        (
            {"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"},
            4,
        ),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_synonym_with_higher_precedence_applies(
    properties: dict[str, str], retention_ms: int
) -> None:
    assert BrokerConfig.load(properties).topic_config().retention_ms == retention_ms


def test_topic_settings_override_broker_settings_and_defaults() -> None:
    config = BrokerConfig.load({"log.retention.ms": "4"})
    assert config.topic_config().retention_ms == 4
    config.update_dynamic({}, {"log.retention.ms": "3"})
    assert config.topic_config().retention_ms == 3
    config.update_dynamic({"log.retention.ms": "2"}, {"log.retention.ms": "3"})
    assert config.topic_config().retention_ms == 2
    assert config.topic_config({"retention.ms": "1"}).retention_ms == 1
    assert config.source("log.retention.ms") is ConfigSource.DYNAMIC_BROKER_CONFIG
    config.update_dynamic({}, {})
    assert config.topic_config().retention_ms == 4


def test_change_at_run_time_returns_the_changed_names() -> None:
    config = BrokerConfig.load({"max.connections": "10"})
    assert config["max.connections"] == 10
    changed = config.update_dynamic({"max.connections": "20"}, {"max.connections.per.ip": "5"})
    assert changed == {"max.connections", "max.connections.per.ip"}
    assert config["max.connections"] == 20
    assert config.update_dynamic({"max.connections": "20"}) == {"max.connections.per.ip"}
    assert config.version == 2


def test_invalid_broker_settings_of_the_store_are_omitted() -> None:
    config = BrokerConfig.load()
    stored = {"max.connections": "none", "node.id": "9", "no.such": "1", "log.roll.ms": "5"}
    assert config.update_dynamic(stored) == {"log.roll.ms"}
    assert config.node_id == 1
    assert config.topic_config().segment_ms == 5


def test_a_name_that_is_not_in_the_table_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        BrokerConfig.load()["no.such.setting"]


def test_a_topic_config_is_typed() -> None:
    config = BrokerConfig.load().topic_config(
        {
            "cleanup.policy": "compact,delete",
            "compression.type": "zstd",
            "compression.zstd.level": "7",
            "message.timestamp.type": "LogAppendTime",
            "retention.bytes": "-7",
            "flush.messages": "1",
            "min.cleanable.dirty.ratio": "0.25",
        }
    )
    assert config.compacts
    assert config.deletes
    assert (config.compression_codec, config.compression_level) == (4, 7)
    assert config.uses_log_append_time
    assert config.retention_bytes == -1
    assert config.flush_messages == 1
    assert config.min_cleanable_dirty_ratio == 0.25


@pytest.mark.parametrize(
    ("settings", "codec", "level"),
    [
        ({"compression.type": "gzip"}, 1, None),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, 1, 9),
        ({"compression.type": "lz4"}, 3, 9),
        ({"compression.type": "zstd", "compression.zstd.level": "-1"}, 4, -1),
        ({"compression.type": "snappy"}, 2, None),
        ({"compression.type": "uncompressed"}, 0, None),
    ],
)
def test_a_codec_has_its_own_level(settings: dict[str, str], codec: int, level: int | None) -> None:
    config = TopicConfig.resolve(BrokerConfig.load(), settings)
    assert (config.compression_codec, config.compression_level) == (codec, level)


def test_the_default_topic_config_keeps_batches_and_leaves_syncing_to_the_page_cache() -> None:
    config = TopicConfig.resolve()
    assert config == BrokerConfig.load().topic_config()
    assert (config.compression_codec, config.compression_level) == (PRODUCER_CODEC, None)
    assert config.segment_bytes == 1 << 30
    assert (config.flush_messages, config.flush_ms) == (LONG_MAX, LONG_MAX)
    assert (config.deletes, config.compacts) == (True, False)


def test_topics_with_the_same_settings_share_one_object() -> None:
    broker = BrokerConfig.load()
    one = TopicConfig.resolve(broker, {"retention.ms": "5", "segment.ms": "6"})
    assert TopicConfig.resolve(broker, {"segment.ms": "6", "retention.ms": "5"}) is one
    assert TopicConfig.resolve(broker) is TopicConfig.resolve(broker, {})
    broker.update_dynamic({"log.segment.bytes": "2097152"})
    assert TopicConfig.resolve(broker, {"segment.ms": "6", "retention.ms": "5"}) is not one


def test_invalid_stored_topic_settings_are_omitted() -> None:
    config = BrokerConfig.load().topic_config({"segment.bytes": "14", "gone": "1"})
    assert config.segment_bytes == 1 << 30


def test_small_segments_are_possible_for_tests() -> None:
    broker = BrokerConfig.load()
    assert broker.topic_config({"internal.segment.bytes": "1000"}).segment_bytes == 1000
    assert TopicConfig.resolve().replace(segment_bytes=200).segment_bytes == 200
    with pytest.raises(TypeError):
        TopicConfig.resolve().replace(segment_byte=200)


@pytest.mark.parametrize(
    "settings",
    [
        {"group.consumer.session.timeout.ms": "44999"},
        {"group.consumer.max.session.timeout.ms": "44999"},
        {"group.consumer.heartbeat.interval.ms": "15001"},
        {
            "group.consumer.max.heartbeat.interval.ms": "45000",
            "group.consumer.heartbeat.interval.ms": "45000",
        },
        {"group.consumer.assignors": ""},
        {"group.consumer.assignors": "uniform,sticky"},
        {"group.consumer.migration.policy": "sideways"},
    ],
)
def test_default_timeouts_of_consumer_groups_must_be_within_their_limits(
    settings: dict[str, str],
) -> None:
    with pytest.raises(ConfigError, match="consumer"):
        BrokerConfig.load(settings)


def test_smallest_offsets_segment_is_valid_for_a_topic() -> None:
    config = BrokerConfig.load({"offsets.topic.segment.bytes": "1048576"})
    check_topic_config(config, group_settings(config, {}).topic_configs)


def test_migration_policy_ignores_case() -> None:
    config = BrokerConfig.load({"group.consumer.migration.policy": "UPGRADE"})
    limits = group_settings(config, {}).consumer
    assert (limits.can_upgrade, limits.can_downgrade) == (True, False)
    limits = group_settings(BrokerConfig.load({}), {}).consumer
    assert (limits.can_upgrade, limits.can_downgrade) == (True, True)
    assert limits.assignors == ("uniform", "range")
