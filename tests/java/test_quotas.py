"""Kafka's kafka-configs and its Java clients with quotas."""

import re
import subprocess
from collections.abc import Iterator

import pytest

import headrace.client
from bench import kafka
from headrace.model.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    PRODUCER_RECORD_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from tests.interop.librdkafka import Librdkafka
from tests.java.conftest import TIMEOUT_S, Run, run

ENTITY_APP = ["--entity-type", "clients", "--entity-name", "app"]
ENTITY_DEFAULT_CLIENT = ["--entity-type", "clients", "--entity-default"]
ENTITIES: list[tuple[list[str], dict[str, str | None]]] = [
    (["--entity-type", "users", "--entity-name", "al ice"], {USER: "al ice"}),
    (["--entity-type", "users", "--entity-default"], {USER: None}),
    (ENTITY_APP, {CLIENT_ID: "app"}),
    (ENTITY_DEFAULT_CLIENT, {CLIENT_ID: None}),
    (
        ["--entity-type", "users", "--entity-name", "bob", *ENTITY_APP],
        {USER: "bob", CLIENT_ID: "app"},
    ),
    (
        ["--entity-type", "users", "--entity-default", *ENTITY_DEFAULT_CLIENT],
        {USER: None, CLIENT_ID: None},
    ),
]


@pytest.fixture
def client(bootstrap: str) -> Iterator[headrace.client.Client]:
    """Removes all quotas at the end."""
    with headrace.client.connect(bootstrap, client_id="admin") as admin:
        yield admin
        for each in admin.list_quotas():
            admin.alter_quotas(each.entity, dict.fromkeys(each.limits))


@pytest.mark.parametrize(("options", "entity"), ENTITIES)
def test_kafka_configs_sets_describes_and_deletes_quotas(
    tool: Run,
    client: headrace.client.Client,
    options: list[str],
    entity: dict[str, str | None],
) -> None:
    limits = {
        PRODUCER_BYTE_RATE: 1048576.0,
        CONSUMER_BYTE_RATE: 2097152.0,
        REQUEST_PERCENTAGE: 250.5,
        CONTROLLER_MUTATION_RATE: 100.0,
    }
    added = ",".join(f"{kind}={limit:g}" for kind, limit in limits.items())
    added = added.replace("1.04858e+06", "1048576").replace("2.09715e+06", "2097152")
    tool(kafka.CONFIG_COMMAND, *options, "--alter", "--add-config", added)
    (found,) = client.list_quotas()
    assert (found.entity, found.limits) == (entity, limits)
    described = tool(kafka.CONFIG_COMMAND, *options, "--describe")
    for kind, limit in limits.items():
        assert re.search(rf"{kind}={limit}\b", described)
    tool(kafka.CONFIG_COMMAND, *options, "--alter", "--delete-config", ",".join(limits))
    assert client.list_quotas() == []


def test_kafka_configs_sets_the_connection_rate_of_an_address(
    tool: Run, client: headrace.client.Client
) -> None:
    named = ("--entity-type", "ips", "--entity-name", "10.1.2.3")
    change = f"{CONNECTION_CREATION_RATE}=20"
    tool(kafka.CONFIG_COMMAND, *named, "--alter", "--add-config", change)
    (found,) = client.list_quotas()
    assert (found.entity, found.limits) == ({IP: "10.1.2.3"}, {CONNECTION_CREATION_RATE: 20.0})
    described = tool(kafka.CONFIG_COMMAND, "--entity-type", "ips", "--describe")
    assert f"{CONNECTION_CREATION_RATE}=20.0" in described


def test_kafka_configs_shows_limits_of_records_but_does_not_set_them(
    bootstrap: str, tool: Run, client: headrace.client.Client
) -> None:
    """Kafka's tool rejects unknown kinds before it sends a request; headrace quotas sets them."""
    client.alter_quotas({USER: "carol"}, {PRODUCER_RECORD_RATE: 50.0})
    named = ["--entity-type", "users", "--entity-name", "carol"]
    assert f"{PRODUCER_RECORD_RATE}=50.0" in tool(kafka.CONFIG_COMMAND, *named, "--describe")
    change = ["--alter", "--add-config", f"{PRODUCER_RECORD_RATE}=60"]
    command = ["--bootstrap-server", bootstrap, *named, *change]
    done = subprocess.run(
        kafka.tool_command(kafka.CONFIG_COMMAND, command),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert PRODUCER_RECORD_RATE in done.stdout + done.stderr
    (found,) = client.list_quotas()
    assert found.limits == {PRODUCER_RECORD_RATE: 50.0}


def test_throttled_java_producer_and_consumer_lose_nothing(
    bootstrap: str, tool: Run, client: headrace.client.Client, new_topic: str
) -> None:
    Librdkafka(bootstrap).create_topic(new_topic)
    client.alter_quotas(
        {CLIENT_ID: "java"}, {PRODUCER_BYTE_RATE: 300_000.0, CONSUMER_BYTE_RATE: 300_000.0}
    )
    server = ["--command-property", f"bootstrap.servers={bootstrap}", "client.id=java"]
    sending = ["--num-records", "1000", "--record-size", "1000", "--throughput", "-1"]
    arguments = ["--topic", new_topic, *sending, "--print-metrics", *server]
    told = run(kafka.tool_command(kafka.PRODUCER_PERFORMANCE, arguments))
    assert "1000 records sent" in told
    (throttled,) = re.findall(r"producer-metrics:produce-throttle-time-max.*?:\s*([0-9.]+)", told)
    assert float(throttled) > 0
    reading = ("--topic", new_topic, "--from-beginning", "--max-messages", "1000")
    found = tool(kafka.CONSOLE_CONSUMER, *reading, "--command-property", "client.id=java")
    assert len(found.splitlines()) == 1000
