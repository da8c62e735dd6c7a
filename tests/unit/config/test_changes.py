"""Changes of settings through the protocol, and the results of DescribeConfigs."""

import pytest

from headrace.config.broker import BrokerConfig
from headrace.config.changes import (
    Change,
    Operation,
    apply_broker_changes,
    apply_topic_changes,
    check_broker_config,
    check_topic_config,
    collect,
)
from headrace.config.describe import (
    ConfigRow,
    Synonym,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
)
from headrace.config.setting import ConfigSource, ConfigType
from headrace.model.errors import ApiError, ErrorCode

SET, DELETE, APPEND, SUBTRACT = Operation


def change(
    current: dict[str, str], *changes: Change, broker: BrokerConfig | None = None
) -> dict[str, str]:
    return apply_topic_changes(broker or BrokerConfig.load(), current, changes)


def refused(current: dict[str, str], *changes: Change) -> ApiError:
    with pytest.raises(ApiError) as error:
        change(current, *changes)
    return error.value


def test_a_setting_is_set_and_deleted() -> None:
    current = {"retention.ms": "1"}
    assert change(current, Change("segment.ms", SET, "5")) == {
        "retention.ms": "1",
        "segment.ms": "5",
    }
    assert change(current, Change("retention.ms", DELETE)) == {}
    assert change(current, Change("segment.ms", DELETE)) == current
    assert current == {"retention.ms": "1"}


@pytest.mark.parametrize(
    ("current", "operation", "value", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),
        ("compact", APPEND, "delete", "compact,delete"),
        ("compact", APPEND, "compact", "compact"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        (None, SUBTRACT, "delete", ""),
        ("", APPEND, " compact , compact", "compact"),
    ],
)
def test_list_setting_is_appended_to_and_subtracted_from(
    current: str | None, operation: Operation, value: str, after: str
) -> None:
    before = {} if current is None else {"cleanup.policy": current}
    assert change(before, Change("cleanup.policy", operation, value)) == {"cleanup.policy": after}


def test_append_to_an_unset_list_starts_from_the_brokers_value() -> None:
    broker = BrokerConfig.load({"log.cleanup.policy": "compact"})
    after = change({}, Change("cleanup.policy", APPEND, "delete"), broker=broker)
    assert after == {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("retention.ms", "-2", "from -1 to"),
        ("segment.bytes", "1", "from 1048576 to"),
        ("retention.mss", "1", "Did you mean retention.ms?"),
        ("retention.ms", "9" * (10 << 20), "(10485760 characters)"),
        ("x" * (10 << 20), "1", "(10485760 characters)"),
        ("cleanup.policy", "delete,burn", "of compact, delete"),
        ("compression.type", "brotli", "one of uncompressed, gzip"),
        ("log.retention.ms", "5", "Did you mean retention.ms?"),
        ("remote.storage.enable", "true", "tiered storage is not supported"),
    ],
)
def test_invalid_topic_setting_is_an_invalid_config_with_a_reason(
    name: str, value: str, hint: str
) -> None:
    error = refused({}, Change(name, SET, value))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert hint in error.message
    assert len(error.message) < 500


def test_settings_are_validated_together_with_unchanged_ones() -> None:
    error = refused({"min.compaction.lag.ms": "10"}, Change("max.compaction.lag.ms", SET, "5"))
    assert error.code is ErrorCode.INVALID_CONFIG
    broker = BrokerConfig.load({"log.cleaner.max.compaction.lag.ms": "5"})
    with pytest.raises(ApiError):
        check_topic_config(broker, {"min.compaction.lag.ms": "10"})
    check_topic_config(BrokerConfig.load(), {"min.compaction.lag.ms": "10"})


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize("name", ["retention.ms", "no.such.list"])
def test_append_and_subtract_apply_only_to_lists(name: str, operation: Operation) -> None:
    assert refused({}, Change(name, operation, "1")).code is ErrorCode.INVALID_CONFIG


def test_a_request_that_contradicts_itself_is_invalid() -> None:
    twice = refused({}, Change("segment.ms", SET, "5"), Change("segment.ms", DELETE))
    assert twice.code is ErrorCode.INVALID_REQUEST
    assert refused({}, Change("segment.ms", SET, None)).code is ErrorCode.INVALID_REQUEST
    assert refused({}, Change("segment.ms", 9, "1")).code is ErrorCode.INVALID_REQUEST


def test_settings_that_replace_all_are_collected_once_each() -> None:
    assert collect([("a", "1"), ("b", "2")]) == {"a": "1", "b": "2"}
    with pytest.raises(ApiError) as twice:
        collect([("a", "1"), ("a", "2")])
    assert twice.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(ApiError) as null:
        collect([("a", None)])
    assert null.value.code is ErrorCode.INVALID_CONFIG


def test_settings_of_kafka_without_an_effect_are_accepted() -> None:
    settings = {"preallocate": "true", "message.downconversion.enable": "false"}
    check_topic_config(BrokerConfig.load(), settings)
    check_broker_config({"num.io.threads": "16"}, for_all_brokers=True)


@pytest.mark.parametrize(
    ("name", "value", "for_all_brokers", "code"),
    [
        ("log.retention.ms", "5", False, None),
        ("log.retention.ms", "5", True, None),
        ("max.connections", "5", True, None),
        ("log.retention.ms", "x", True, ErrorCode.INVALID_CONFIG),
        ("log.retention.hours", "5", False, ErrorCode.INVALID_REQUEST),
        ("listeners", "PLAINTEXT://:1", False, ErrorCode.INVALID_REQUEST),
        ("node.id", "5", False, ErrorCode.INVALID_REQUEST),
        ("my.plugin", "5", False, None),
        ("my.plugin" * 20, "5", False, ErrorCode.INVALID_CONFIG),
        ("ssl.keystore.location", "/k", False, None),
        ("ssl.keystore.location", "/k", True, ErrorCode.INVALID_REQUEST),
    ],
)
def test_broker_accepts_dynamic_settings_at_run_time(
    name: str, value: str, for_all_brokers: bool, code: ErrorCode | None
) -> None:
    config = BrokerConfig.load()
    changes = [Change(name, SET, value)]
    if code is None:
        after = apply_broker_changes(config, {}, changes, for_all_brokers=for_all_brokers)
        assert after == {name: value}
        return
    with pytest.raises(ApiError) as error:
        apply_broker_changes(config, {}, changes, for_all_brokers=for_all_brokers)
    assert error.value.code is code
    assert name[:9] in error.value.message


def test_contradictory_compaction_lags_of_a_broker_are_rejected() -> None:
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    with pytest.raises(ApiError, match=f"{low} cannot be 6: it must be at most {high}") as error:
        check_broker_config({low: "6", high: "5"}, for_all_brokers=True)
    assert error.value.code is ErrorCode.INVALID_CONFIG
    check_broker_config({low: "5", high: "5"}, for_all_brokers=True)


def test_topic_is_not_rejected_for_contradictions_of_broker_settings() -> None:
    config = BrokerConfig.load()
    config.update_dynamic(
        {"log.cleaner.min.compaction.lag.ms": "6"}, {"log.cleaner.max.compaction.lag.ms": "5"}
    )
    check_topic_config(config, {"retention.ms": "1"})
    with pytest.raises(ApiError, match=r"at most max\.compaction"):
        check_topic_config(config, {"max.compaction.lag.ms": "4"})


def only(rows: list[ConfigRow], name: str) -> ConfigRow:
    (row,) = (row for row in rows if row.name == name)
    return row


def test_ineffective_throttle_is_rejected_and_can_be_removed() -> None:
    name, config = "replica.alter.log.dirs.io.max.bytes.per.second", BrokerConfig.load()
    with pytest.raises(ApiError, match="one directory") as error:
        apply_broker_changes(config, {}, [Change(name, SET, "1000")], for_all_brokers=False)
    assert error.value.code is ErrorCode.INVALID_CONFIG
    removed = [Change(name, DELETE)]
    assert apply_broker_changes(config, {name: "1"}, removed, for_all_brokers=False) == {}


def test_every_setting_of_a_topic_is_described_with_its_source() -> None:
    rows = describe_topic(BrokerConfig.load(), {})
    assert len(rows) == 33
    assert {row.source for row in rows} == {ConfigSource.DEFAULT_CONFIG}
    assert all(row.documentation and not row.read_only for row in rows)
    row = only(rows, "max.message.bytes")
    assert row.value == "1048588"
    assert row.config_type == ConfigType.INT
    assert row.synonyms == (Synonym("message.max.bytes", "1048588", ConfigSource.DEFAULT_CONFIG),)


def test_a_topics_own_setting_leads_its_synonyms() -> None:
    broker = BrokerConfig.load({"log.retention.hours": "2"})
    broker.update_dynamic({"log.retention.ms": "3"}, {"log.retention.ms": "4"})
    row = only(describe_topic(broker, {"retention.ms": " 1 "}), "retention.ms")
    assert row.value == "1"
    assert row.source == ConfigSource.TOPIC_CONFIG
    assert row.synonyms == (
        Synonym("retention.ms", "1", ConfigSource.TOPIC_CONFIG),
        Synonym("log.retention.ms", "3", ConfigSource.DYNAMIC_BROKER_CONFIG),
        Synonym("log.retention.ms", "4", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        Synonym("log.retention.hours", "2", ConfigSource.STATIC_BROKER_CONFIG),
        Synonym("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    )


def test_a_topic_inherits_the_brokers_value_in_its_own_unit() -> None:
    broker = BrokerConfig.load({"log.retention.hours": "2"})
    row = only(describe_topic(broker, {}), "retention.ms")
    assert row.value == "7200000"
    # As in Kafka: log.retention.hours is a synonym only after log.retention.ms.
    assert (row.source, row.synonyms) == (ConfigSource.DEFAULT_CONFIG, ())


def test_settings_are_described_by_name_and_unknown_ones_are_omitted() -> None:
    rows = describe_topic(BrokerConfig.load(), {}, ["retention.ms", "nothing"])
    assert [row.name for row in rows] == ["retention.ms"]
    assert describe_topic(BrokerConfig.load(), {}, []) == []


def test_an_internal_setting_is_described_only_where_it_is_set() -> None:
    broker = BrokerConfig.load()
    settings = {"internal.segment.bytes": "1000"}
    assert only(describe_topic(broker, settings), "internal.segment.bytes").value == "1000"
    names = [row.name for row in describe_topic(broker, {})]
    assert "internal.segment.bytes" not in names


def test_every_setting_of_a_broker_is_described() -> None:
    config = BrokerConfig.load({"num.partitions": "4", "port": "1", "my.plugin": "secret"})
    rows = describe_broker(config)
    partitions = only(rows, "num.partitions")
    assert (partitions.value, partitions.source) == ("4", ConfigSource.STATIC_BROKER_CONFIG)
    assert partitions.read_only
    assert not only(rows, "log.retention.ms").read_only
    assert only(rows, "node.id").value == only(rows, "broker.id").value == "1"
    assert only(rows, "port").value == "1"
    unknown = only(rows, "my.plugin")
    assert (unknown.value, unknown.is_sensitive) == (None, True)
    assert len(rows) > 350


def test_unknown_names_that_were_set_at_run_time_are_described_without_their_values() -> None:
    config = BrokerConfig.load()
    assert config.update_dynamic({"my.plugin": "secret"}, {"our.plugin": "secret"}) == frozenset()
    rows = describe_broker(config)
    mine, ours = only(rows, "my.plugin"), only(rows, "our.plugin")
    assert mine.value is ours.value is None
    assert mine.source is ConfigSource.DYNAMIC_BROKER_CONFIG
    assert ours.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert [row.name for row in describe_broker_defaults(config)] == ["our.plugin"]
    config.update_dynamic({})
    assert "my.plugin" not in [row.name for row in describe_broker(config)]


def test_broker_setting_lists_only_its_own_name() -> None:
    rows = describe_broker(BrokerConfig.load({"log.retention.hours": "2"}))
    row = only(rows, "log.retention.ms")
    assert (row.value, row.synonyms, row.source) == (None, (), ConfigSource.DEFAULT_CONFIG)
    assert only(rows, "log.retention.hours").value == "2"


def test_a_password_is_described_without_its_value() -> None:
    config = BrokerConfig.load(
        {"ssl.key.password": "hush", "listener.name.plaintext.ssl.key.password": "hush"}
    )
    for row in describe_broker(config):
        assert row.value != "hush"
        assert all(synonym.value != "hush" for synonym in row.synonyms)
    assert only(describe_broker(config), "listener.name.plaintext.ssl.key.password").is_sensitive


def test_the_settings_of_all_brokers_are_described_only_where_they_are_set() -> None:
    config = BrokerConfig.load()
    assert describe_broker_defaults(config) == []
    config.update_dynamic({}, {"max.connections": "7"})
    (row,) = describe_broker_defaults(config)
    assert (row.name, row.value) == ("max.connections", "7")
    assert row.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert describe_broker_defaults(config, ["other"]) == []
