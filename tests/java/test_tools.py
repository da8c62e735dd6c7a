"""Apache Kafka's own command-line tools against our broker, and its dump tool over our files."""

import re
import time
from pathlib import Path

from bench import kafka
from headrace.testing import RunningBroker
from tests.interop.client import BASE_MS, Record
from tests.interop.librdkafka import Librdkafka
from tests.java.conftest import Run, run


def test_kafka_topics_creates_describes_alters_and_deletes(tool: Run, new_topic: str) -> None:
    named = ("--topic", new_topic)
    tool(
        kafka.TOPIC_COMMAND, "--create", *named, "--partitions", "2", "--config", "segment.ms=60000"
    )
    described = tool(kafka.TOPIC_COMMAND, "--describe", *named)
    assert re.search(r"PartitionCount:\s*2\s+ReplicationFactor:\s*1", described)
    assert "segment.ms=60000" in described
    assert (
        len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 2
    )
    tool(kafka.TOPIC_COMMAND, "--alter", *named, "--partitions", "5")
    assert new_topic in tool(kafka.TOPIC_COMMAND, "--list").splitlines()
    assert "PartitionCount: 5" in tool(kafka.TOPIC_COMMAND, "--describe", *named)
    tool(kafka.TOPIC_COMMAND, "--delete", *named)
    deadline = time.monotonic() + 30
    while new_topic in tool(kafka.TOPIC_COMMAND, "--list").splitlines():
        assert time.monotonic() < deadline


def test_kafka_configs_describes_and_alters(tool: Run, bootstrap: str, new_topic: str) -> None:
    Librdkafka(bootstrap).create_topic(new_topic)
    named = ("--entity-type", "topics", "--entity-name", new_topic)
    change = "retention.ms=3600000,cleanup.policy=[compact,delete]"
    tool(kafka.CONFIG_COMMAND, *named, "--alter", "--add-config", change)
    described = tool(kafka.CONFIG_COMMAND, *named, "--describe")
    assert "retention.ms=3600000" in described
    assert "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=3600000" in described
    tool(kafka.CONFIG_COMMAND, *named, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in tool(kafka.CONFIG_COMMAND, *named, "--describe")
    everything = tool(kafka.CONFIG_COMMAND, *named, "--describe", "--all")
    assert "retention.ms=604800000" in everything


def test_kafka_configs_describes_a_broker(tool: Run, bootstrap: str) -> None:
    (node,) = Librdkafka(bootstrap).brokers()
    named = ("--entity-type", "brokers", "--entity-name", str(node))
    described = tool(kafka.CONFIG_COMMAND, *named, "--describe", "--all")
    assert f"node.id={node} " in described
    assert "log.segment.bytes=1073741824 " in described


def test_the_console_consumer_prints_what_the_console_producer_sent(
    tool: Run, bootstrap: str, new_topic: str
) -> None:
    Librdkafka(bootstrap).create_topic(new_topic, partitions=1)
    lines = [f"key{number}:Zeile {number}" for number in range(20)]
    reading = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    sending = ("--topic", new_topic, "--compression-codec", "snappy", *reading)
    tool(kafka.CONSOLE_PRODUCER, *sending, stdin="\n".join(lines) + "\n")
    where = ("--topic", new_topic, "--partition", "0", "--offset", "5", "--max-messages", "15")
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:")
    found = tool(kafka.CONSOLE_CONSUMER, *where, *shown)
    assert found.splitlines() == lines[5:]


def test_the_producer_performance_tool_runs_to_its_end(bootstrap: str, new_topic: str) -> None:
    Librdkafka(bootstrap).create_topic(new_topic)
    sending = ["--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
    server = ["--command-property", f"bootstrap.servers={bootstrap}"]
    told = run(
        kafka.tool_command(kafka.PRODUCER_PERFORMANCE, ["--topic", new_topic, *sending, *server])
    )
    assert "20000 records sent" in told
    assert Librdkafka(bootstrap).watermarks(new_topic) == (0, 20000)


def test_the_dump_tool_reads_our_segments_and_finds_our_indexes_sane(
    broker: RunningBroker,
) -> None:
    client = Librdkafka(broker.address)
    client.create_topic(
        "dumped", configs={"segment.bytes": "1048576", "index.interval.bytes": "8192"}
    )
    for start in range(0, 1000, 100):
        records = [
            Record(b"value %d" % number * 500, b"key", (("h", b"1"),), BASE_MS + number)
            for number in range(start, start + 100)
        ]
        client.produce("dumped", records, codec="lz4" if start % 200 else "none", idempotent=True)
    broker.stop()

    directory = broker.data_dir / "dumped-0"
    segments = sorted(directory.glob("*.log"))
    assert len(segments) > 1
    told = _dump(segments, "--print-data-log")
    assert len(re.findall(r"isvalid: true", told)) >= 10
    assert "isvalid: false" not in told
    assert re.findall(r"\| offset: (\d+) ", told) == [str(number) for number in range(1000)]
    assert "compresscodec: lz4" in told
    assert f"payload: {'value 999' * 500}" in told
    for kind in ("index", "timeindex"):
        files = sorted(directory.glob(f"*.{kind}"))
        assert len(files) == len(segments)
        told = _dump(files, "--verify-index-only")
        assert not re.search(r"mismatch|out of order|not found|Error", told, re.IGNORECASE)
    told = _dump(sorted(directory.glob("*.snapshot")))
    assert re.search(r"producerId: \d+ producerEpoch: 0 ", told)


def _dump(files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    return run(kafka.tool_command(kafka.DUMP_LOG_SEGMENTS, [*options, "--files", names]))
