"""Groups of Apache Kafka's Java consumers, its tool for groups, and its reading of our records."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from bench import kafka
from headrace.client import Client, connect
from headrace.testing import RunningBroker
from tests.java.conftest import Run, run

SOURCE = Path(__file__).with_name("JavaGroups.java")
ASSIGNORS = ("Range", "RoundRobin", "Sticky", "CooperativeSticky")
SENTENCES = [
    *(f"members share by {name}" for name in ASSIGNORS),
    *re.findall(r'all\.put\("([^"]+)", this::', SOURCE.read_text()),
]
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
FORMATTERS = "org.apache.kafka.tools.consumer."


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    data_dir = tmp_path_factory.mktemp("java-groups") / "data"
    with RunningBroker.start(data_dir, settings=settings) as broker:
        yield broker.address


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
    """What became of each scenario: "PASS", or "FAIL" and why."""
    classes = tmp_path_factory.mktemp("classes")
    jars = kafka.class_path()
    subprocess.run(
        ["javac", "-proc:none", "-d", str(classes), "-cp", jars, str(SOURCE)], check=True
    )
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options.append(f"-Dlog4j2.configurationFile={kafka.CACHE / 'tools-log4j2.properties'}")
    done = subprocess.run(
        [kafka.java(), *options, "-cp", f"{classes}:{jars}", "JavaGroups", address],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    print(done.stderr)  # Shown by pytest with what failed.
    found = (line.split("\t", 2) for line in done.stdout.splitlines() if "\t" in line)
    return {sentence: " ".join([verdict, *why]) for verdict, sentence, *why in found}


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
    decoder = json.JSONDecoder()
    records = []
    at = 0
    while at < len(printed.rstrip()):
        record, at = decoder.raw_decode(printed, at)
        records.append(record)
    ours = [each for each in records if each["key"]["data"]["group"] == group]
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
