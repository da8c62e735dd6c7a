"""DescribeConfigs, ListConfigResources, AlterConfigs and IncrementalAlterConfigs."""

from typing import Any

import pytest

from headrace.model.cluster import BrokerInfo, Endpoint
from headrace.model.errors import ErrorCode
from headrace.wire.apis import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)
from headrace.wire.codec import Message
from tests.unit.handlers.handler_scenario import Asker, asker

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def client() -> Asker:
    client = asker(log_retention_hours="48", num_partitions="3")
    client.add_topic("orders", retention_ms="1000")
    return client


def _describe(
    client: Asker, kind: int, name: str, *keys: str, version: int = 4, **said: Any
) -> Message:
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configuration_keys": list(keys) or None,
    }
    reply = client.ask(DESCRIBE_CONFIGS, version, {"resources": [resource], **said})
    (result,) = reply["results"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    return {**result, "configs": {row["name"]: row for row in result["configs"]}}


@pytest.mark.parametrize("version", range(1, 5))
def test_every_setting_of_a_topic_is_returned_with_its_source(client: Asker, version: int) -> None:
    told = _describe(client, TOPIC, "orders", version=version, include_synonyms=True)
    own, inherited = told["configs"]["retention.ms"], told["configs"]["segment.bytes"]
    assert (own["value"], own["config_source"]) == ("1000", 1)
    assert (inherited["value"], inherited["config_source"]) == (str(2**30), 5)
    assert len(told["configs"]) > 20
    synonyms = [(each["name"], each["value"], each["source"]) for each in own["synonyms"]]
    assert synonyms == [("retention.ms", "1000", 1)]


def test_synonyms_and_documentation_are_returned_on_request(client: Asker) -> None:
    quiet = _describe(client, TOPIC, "orders")["configs"]["retention.ms"]
    assert (quiet["synonyms"], quiet["documentation"]) == ([], None)
    asked = {"include_synonyms": True, "include_documentation": True}
    told = _describe(client, TOPIC, "orders", **asked)["configs"]["retention.ms"]
    assert told["synonyms"]
    assert told["documentation"]
    assert told["config_type"] == 5


def test_settings_are_returned_by_name(client: Asker) -> None:
    told = _describe(client, TOPIC, "orders", "segment.bytes", "no.such.setting")
    assert list(told["configs"]) == ["segment.bytes"]


def test_broker_returns_its_own_settings_and_those_of_all(client: Asker) -> None:
    own = _describe(client, BROKER, "1")["configs"]
    assert (own["num.partitions"]["value"], own["num.partitions"]["config_source"]) == ("3", 4)
    assert _describe(client, BROKER, "")["configs"] == {}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_unknown_resource_has_an_error_in_its_result(
    client: Asker, kind: int, name: str, code: ErrorCode
) -> None:
    told = _describe(client, kind, name)
    assert (told["error_code"], told["configs"]) == (code, {})
    assert told["error_message"]
    assert _altered(client, kind, (name, ())) == [code]
    assert _replaced(client, kind, (name, {})) == [code]


def test_repeated_resource_is_returned_once(client: Asker) -> None:
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configuration_keys": None}
    reply = client.ask(DESCRIBE_CONFIGS, 4, {"resources": [resource] * 50})
    assert len(reply["results"]) == 1


Changes = tuple[tuple[str, int, str | None], ...]


def _altered(
    client: Asker, kind: int, *resources: tuple[str, Changes], version: int = 1, **said: Any
) -> list[int]:
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {"name": key, "config_operation": operation, "value": value}
                for key, operation, value in changes
            ],
        }
        for name, changes in resources
    ]
    body = {"resources": asked, "validate_only": False, **said}
    slots = client.ask(INCREMENTAL_ALTER_CONFIGS, version, body)["responses"]
    assert [slot["resource_name"] for slot in slots] == [name for name, _ in resources]
    return [slot["error_code"] for slot in slots]


def _replaced(
    client: Asker, kind: int, *resources: tuple[str, dict[str, str | None]], **said: Any
) -> list[int]:
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        for name, configs in resources
    ]
    body = {"resources": asked, "validate_only": False, **said}
    slots = client.ask(ALTER_CONFIGS, said.get("version", 2), body)["responses"]
    return [slot["error_code"] for slot in slots]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.client.auth", "required"),
        ("listener.name.plaintext.ssl.client.auth", "required"),
        ("listener.name.other.ssl.keystore.location", "/k"),
        ("listener.name.PLAINTEXT.ssl.keystore.location", "/k"),
        ("ssl.client.aut", "required"),
        ("super.user", "User:admin"),
        ("authorizer.class", "x"),
        ("principal.builder.class", "my.Builder"),
        ("listener.name.plaintext.principal.builder.class", "my.Builder"),
        ("ssl.engine.factory.class", "my.Factory"),
        ("sasl.jaas.config", "com.sun.security.auth.module.JndiLoginModule required;"),
        ("listener.name.plaintext.scram-sha-256.sasl.jaas.config", "x required;"),
        ("listener.name.plaintext.max.connections", "5"),
        ("max.connections.per.ip.overrides", "10.0.0.1:5"),
        ("sasl.kerberos.service.name", "kafka"),
        ("security.providers", "my.Provider"),
        ("create.topic.policy.class.name", "my.Policy"),
    ],
)
def test_security_setting_without_an_effect_is_rejected(
    client: Asker, name: str, value: str
) -> None:
    """Kafka accepted some of them: CVE-2023-25194, CVE-2025-27818 and CVE-2025-27819."""
    assert _altered(client, BROKER, ("1", ((name, SET, value),))) == [ErrorCode.INVALID_CONFIG]
    assert _replaced(client, BROKER, ("1", {name: value})) == [ErrorCode.INVALID_CONFIG]
    assert client.broker.image.broker_configs == {}
    assert _altered(client, BROKER, ("1", ((name, DELETE, None),))) == [ErrorCode.NONE]


def test_listeners_of_the_altered_broker_decide_which_settings_have_an_effect(
    client: Asker,
) -> None:
    endpoints = (Endpoint("MILL", "localhost", 9093, "SSL"),)
    client.broker.image.brokers[2] = BrokerInfo(2, endpoints)
    change = ("listener.name.mill.ssl.client.auth", SET, "required")
    assert _altered(client, BROKER, ("2", (change,))) == [ErrorCode.NONE]
    assert _altered(client, BROKER, ("1", (change,))) == [ErrorCode.INVALID_CONFIG]
    neutral = ("ssl.keymanager.algorithm", SET, "SunX509"), ("ssl.client.auth", SET, "none")
    assert _altered(client, BROKER, ("1", neutral)) == [ErrorCode.NONE]


def _configs(client: Asker, name: str = "orders") -> dict[str, str]:
    return dict(client.broker.image.topics[name].configs)


@pytest.mark.parametrize("version", [0, 1])
def test_settings_are_set_deleted_appended_to_and_subtracted_from(
    client: Asker, version: int
) -> None:
    steps: list[tuple[Changes, dict[str, str]]] = [
        (
            (("segment.bytes", SET, "20000000"), ("retention.ms", DELETE, None)),
            {"segment.bytes": "20000000"},
        ),
        (
            (("cleanup.policy", APPEND, "compact"), ("segment.bytes", DELETE, None)),
            {"cleanup.policy": "delete,compact"},
        ),
        ((("cleanup.policy", SUBTRACT, "delete"),), {"cleanup.policy": "compact"}),
    ]
    for changes, after in steps:
        assert _altered(client, TOPIC, ("orders", changes), version=version) == [0]
        assert _configs(client) == after


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ((("retention.ms", SET, "-2"),), ErrorCode.INVALID_CONFIG),
        ((("segment.bytes", SET, "1"),), ErrorCode.INVALID_CONFIG),
        ((("no.such.setting", SET, "1"),), ErrorCode.INVALID_CONFIG),
        ((("compression.type", SET, "z" * 10_000_000),), ErrorCode.INVALID_CONFIG),
        ((("retention.ms", APPEND, "1"),), ErrorCode.INVALID_CONFIG),
        ((("retention.ms", SET, None),), ErrorCode.INVALID_REQUEST),
        ((("retention.ms", 9, "1"),), ErrorCode.INVALID_REQUEST),
        ((("retention.ms", SET, "1"), ("retention.ms", SET, "2")), ErrorCode.INVALID_REQUEST),
        ((("segment.ms", SET, "9"), ("retention.ms", SET, "x")), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_changes_affect_neither_their_topic_nor_others(
    client: Asker, changes: Changes, code: ErrorCode
) -> None:
    client.add_topic("other")
    good: Changes = (("retention.ms", SET, "5"),)
    assert _altered(client, TOPIC, ("orders", changes), ("other", good)) == [code, 0]
    assert _configs(client) == {"retention.ms": "1000"}
    assert _configs(client, "other") == {"retention.ms": "5"}


def test_changes_that_are_only_validated_are_not_made(client: Asker) -> None:
    changes: Changes = (("retention.ms", SET, "5"),)
    assert _altered(client, TOPIC, ("orders", changes), validate_only=True) == [0]
    assert _replaced(client, TOPIC, ("orders", {}), validate_only=True) == [0]
    assert _configs(client) == {"retention.ms": "1000"}


def test_a_resource_that_is_named_twice_is_left_as_it_is(client: Asker) -> None:
    changes: Changes = (("retention.ms", SET, "5"),)
    twice = [ErrorCode.INVALID_REQUEST] * 2
    assert _altered(client, TOPIC, ("orders", changes), ("orders", ())) == twice
    assert _replaced(client, TOPIC, ("orders", {}), ("orders", {})) == twice
    assert _configs(client) == {"retention.ms": "1000"}


def test_settings_of_a_topic_are_replaced_as_a_whole(client: Asker) -> None:
    assert _replaced(client, TOPIC, ("orders", {"segment.ms": "9"})) == [0]
    assert _configs(client) == {"segment.ms": "9"}
    bads: list[dict[str, str | None]] = [{"retention.ms": "-2"}, {"no.such.setting": "1"}]
    for bad in bads:
        assert _replaced(client, TOPIC, ("orders", bad)) == [ErrorCode.INVALID_CONFIG]
    assert _replaced(client, TOPIC, ("orders", {"segment.ms": None})) == [ErrorCode.INVALID_REQUEST]
    assert _configs(client) == {"segment.ms": "9"}


def test_settings_of_one_broker_and_of_all_are_changed(client: Asker) -> None:
    assert _altered(client, BROKER, ("1", (("log.retention.ms", SET, "7"),))) == [0]
    assert _replaced(client, BROKER, ("", {"log.retention.ms": "8"})) == [0]
    configs = client.broker.image.broker_configs
    assert configs == {1: {"log.retention.ms": "7"}, None: {"log.retention.ms": "8"}}
    fixed: Changes = (("log.dirs", SET, "/elsewhere"),)
    assert _altered(client, BROKER, ("1", fixed)) == [ErrorCode.INVALID_REQUEST]
    assert _replaced(client, BROKER, ("1", {"log.dirs": "/e"})) == [ErrorCode.INVALID_REQUEST]


def test_a_group_has_its_own_settings_and_the_broker_s(client: Asker) -> None:
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    told = _describe(client, GROUP, "readers", include_synonyms=True)["configs"]
    assert set(told) == {session, interval}
    assert (told[session]["value"], told[session]["config_source"]) == ("45000", 5)
    assert _altered(client, GROUP, ("readers", ((session, SET, "50000"),))) == [0]
    told = _describe(client, GROUP, "readers", include_synonyms=True)["configs"]
    assert (told[session]["value"], told[session]["config_source"]) == ("50000", 8)
    assert [each["name"] for each in told[session]["synonyms"]] == [
        session,
        "group.consumer.session.timeout.ms",
    ]
    assert _describe(client, GROUP, "others")["configs"][session]["value"] == "45000"
    assert _replaced(client, GROUP, ("readers", {interval: "6000"})) == [0]
    assert client.broker.image.group_configs["readers"] == {interval: "6000"}
    assert _altered(client, GROUP, ("readers", ((interval, DELETE, None),))) == [0]
    assert not client.broker.image.group_configs["readers"]


@pytest.mark.parametrize(
    ("group", "name", "value", "code"),
    [
        ("g", "consumer.session.timeout.ms", "44999", ErrorCode.INVALID_CONFIG),
        ("g", "consumer.session.timeout.ms", "60001", ErrorCode.INVALID_CONFIG),
        ("g", "consumer.session.timeout.ms", "long", ErrorCode.INVALID_CONFIG),
        ("g", "consumer.heartbeat.interval.ms", "1", ErrorCode.INVALID_CONFIG),
        ("g", "retention.ms", "1", ErrorCode.INVALID_CONFIG),
        ("", "consumer.session.timeout.ms", "50000", ErrorCode.INVALID_REQUEST),
        ("g" * 256, "consumer.session.timeout.ms", "50000", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_group_s_setting_out_of_its_limits_is_rejected(
    client: Asker, group: str, name: str, value: str, code: ErrorCode
) -> None:
    assert _altered(client, GROUP, (group, ((name, SET, value),))) == [code]
    assert client.broker.image.group_configs == {}


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ([], [(TOPIC, "orders"), (BROKER, "1"), (GROUP, "readers")]),
        ([GROUP, TOPIC], [(TOPIC, "orders"), (GROUP, "readers")]),
        ([BROKER_LOGGER, CLIENT_METRICS], []),
    ],
)
def test_resources_with_settings_are_listed_by_type(
    client: Asker, asked: list[int], listed: list[tuple[int, str]]
) -> None:
    client.broker.image.group_configs["readers"] = {"consumer.session.timeout.ms": "50000"}
    reply = client.ask(LIST_CONFIG_RESOURCES, 1, {"resource_types": asked})
    assert reply["error_code"] == 0
    found = [(row["resource_type"], row["resource_name"]) for row in reply["config_resources"]]
    assert found == listed


def test_client_metrics_are_listed_in_the_old_way_and_unknown_kinds_are_rejected(
    client: Asker,
) -> None:
    old = client.ask(LIST_CONFIG_RESOURCES, 0, {})
    assert (old["error_code"], old["config_resources"]) == (0, [])
    unknown = client.ask(LIST_CONFIG_RESOURCES, 1, {"resource_types": [TOPIC, 3]})
    assert (unknown["error_code"], unknown["config_resources"]) == (
        ErrorCode.UNSUPPORTED_VERSION,
        [],
    )
