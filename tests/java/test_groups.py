"""Groups of Apache Kafka's Java consumers, its tool for groups, and its reading of our records."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bench import kafka
from headrace.client import Client, connect
from headrace.testing import RunningBroker
from tests.java.conftest import Run, outcomes_of, run, sentences

ASSIGNORS = ("Range", "RoundRobin", "Sticky", "CooperativeSticky")
SENTENCES = [
    *(f"members share by {name}" for name in ASSIGNORS),
    *sentences("JavaGroups"),
]
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
FORMATTERS = "org.apache.kafka.tools.consumer."


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "200",
    }
    data_dir = tmp_path_factory.mktemp("java-groups") / "data"
    with RunningBroker.start(data_dir, settings=settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def address(broker: RunningBroker) -> str:
    return broker.address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with connect(address) as client:
        yield client


@pytest.fixture
def ask(address: str) -> Run:
    def asked(main_class: str, *arguments: str) -> str:
        return run(kafka.tool_command(main_class, ["--bootstrap-server", address, *arguments]))

    return asked


@pytest.fixture(scope="module")
def outcomes(address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return outcomes_of("JavaGroups", address, tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_java_consumers_find_that(sentence: str, outcomes: dict[str, str]) -> None:
    assert outcomes.get(sentence) == "PASS"


@pytest.fixture
def read_group(client: Client, ask: Run) -> tuple[str, str]:
    """A topic that a console consumer has read to its end, and the consumer's group."""
    topic, group = f"java-{uuid4().hex[:8]}", f"java-group-{uuid4().hex[:8]}"
    client.create_topic(topic, partitions=2)
    for number in range(10):
        client.produce(topic, f"v{number}", partition=number % 2)
    reading = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "10")
    assert len(ask(kafka.CONSOLE_CONSUMER, *reading).split()) == 10
    return topic, group


def test_the_tool_for_groups_lists_describes_resets_and_deletes(
    read_group: tuple[str, str], ask: Run
) -> None:
    topic, group = read_group
    named = ("--group", group)
    assert group in ask(GROUP_COMMAND, "--list").split()
    described = ask(GROUP_COMMAND, "--describe", *named)
    for partition in range(2):
        assert re.search(rf"{group} +{topic} +{partition} +5 +5 +0 +- +- +-", described)
    assert re.search(rf"{group} .* Empty +0", ask(GROUP_COMMAND, "--describe", *named, "--state"))
    ask(GROUP_COMMAND, *named, "--topic", topic, "--reset-offsets", "--shift-by", "-2", "--execute")
    described = ask(GROUP_COMMAND, "--describe", *named)
    assert len(re.findall(rf"{topic} +\d +3 +5 +2 ", described)) == 2
    forgotten = ask(GROUP_COMMAND, *named, "--topic", f"{topic}:0", "--delete-offsets")
    assert re.search(rf"{topic} +0 +Successful", forgotten)
    assert "successful" in ask(GROUP_COMMAND, *named, "--delete")
    assert group not in ask(GROUP_COMMAND, "--list").split()


def test_groups_tool_describes_a_running_group_of_the_consumer_protocol(
    client: Client, ask: Run, broker: RunningBroker
) -> None:
    topic, group = f"java-{uuid4().hex[:8]}", f"java-group-{uuid4().hex[:8]}"
    client.create_topic(topic, partitions=2)
    client.produce(topic, "v", partition=0)
    reading = ["--topic", topic, "--group", group, "--command-property", "group.protocol=consumer"]
    command = kafka.tool_command(
        kafka.CONSOLE_CONSUMER,
        ["--bootstrap-server", broker.address, "--from-beginning", *reading],
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"v\n"
            listed = ask(GROUP_COMMAND, "--list", "--type", "consumer", "--state", "stable")
            assert re.search(rf"{group} +consumer +stable", listed, re.IGNORECASE)
            assert group not in ask(GROUP_COMMAND, "--list", "--type", "classic")
            named = ("--describe", "--group", group)
            described = ask(GROUP_COMMAND, *named)
            assert re.search(rf"{group} +{topic} +0 +\S+ +1 .*/127.0.0.1", described)
            members = ask(GROUP_COMMAND, *named, "--members", "--verbose")
            assert re.search(rf"{group} .* 2 +1 +{topic}:0,1 +1 +{topic}:0,1", members)
            state = ask(GROUP_COMMAND, *named, "--state", "--verbose")
            assert re.search(rf"{group} .* uniform +Stable +1 +1 +1", state)
        finally:
            reader.terminate()
            reader.wait(30)
    values = dumped_values(broker.data_dir, group)
    assert set(values) == {3, 5, 6, 7, 8}
    by_type = {kind: found[0] for kind, found in values.items()}
    assert by_type[3]["epoch"] == by_type[6]["assignmentEpoch"] == 1
    assert by_type[5]["subscribedTopicNames"] == [topic]
    assert by_type[7]["topicPartitions"][0]["partitions"] == [0, 1]
    assert by_type[8]["assignedPartitions"][0]["partitions"] == [0, 1]


def dumped_values(data_dir: Path, group: str) -> dict[int, list[Any]]:
    """What Kafka's tool reads of a group's records, by the kind of their keys."""
    values: dict[int, list[Any]] = {}
    for segment in data_dir.glob("__consumer_offsets-*/*.log"):
        if segment.stat().st_size == 0:
            continue
        arguments = ["--files", str(segment), "--offsets-decoder"]
        for line in run(kafka.tool_command(kafka.DUMP_LOG_SEGMENTS, arguments)).splitlines():
            found = re.search(r" key: (\{.*\}) payload: (\{.*\})$", line)
            if found and json.loads(found[1])["data"].get("groupId") == group:
                kind = int(json.loads(found[1])["type"])
                values.setdefault(kind, []).append(json.loads(found[2])["data"])
    return values


def objects_in(printed: str) -> list[Any]:
    decoder = json.JSONDecoder()
    records, at = [], 0
    while at < len(printed.rstrip()):
        record, at = decoder.raw_decode(printed, at)
        records.append(record)
    return records


@pytest.mark.parametrize(
    ("formatter", "key_type"),
    [("OffsetsMessageFormatter", 1), ("GroupMetadataMessageFormatter", 2)],
)
def test_kafka_prints_our_records(
    read_group: tuple[str, str], ask: Run, formatter: str, key_type: int
) -> None:
    topic, group = read_group
    printed = ask(
        kafka.CONSOLE_CONSUMER,
        *("--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "5000"),
        *("--formatter", FORMATTERS + formatter),
    )
    ours = [each for each in objects_in(printed) if each["key"]["data"]["group"] == group]
    assert {each["key"]["type"] for each in ours} == {key_type}
    if key_type == 1:
        partitions = {
            (each["key"]["data"]["topic"], each["key"]["data"]["partition"]): each["value"]["data"]
            for each in ours
        }
        assert {place: data["offset"] for place, data in partitions.items()} == {
            (topic, 0): 5,
            (topic, 1): 5,
        }
    else:
        living, empty = ours[0]["value"]["data"], ours[-1]["value"]["data"]
        assert (living["protocolType"], living["protocol"]) == ("consumer", "range")
        assert living["members"][0]["clientHost"] == "/127.0.0.1"
        assert (empty["members"], empty["leader"]) == ([], None)
